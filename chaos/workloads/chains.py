"""Chains: each client inserts nodes that point to its last acknowledged one, so a lost write breaks a chain."""

from __future__ import annotations

import pyarrow as pa

from ebla import aio
from ebla.chaos.checkers.chains import check_list
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, Workload, by_key, make_table, persist, until_stopped

READS = 0.1  # of the steps
SCHEMA = pa.schema([("node", pa.int64()), ("previous", pa.int64()), ("load", pa.binary())])


class Chains(Workload):
    name = "chains"

    def __init__(self, tablets: int = 3, reads: float = READS) -> None:
        self.tablets = tablets
        self.reads = reads

    async def prepare(self, client: Client) -> None:
        await make_table(client, self.name, SCHEMA, "node", tablets=self.tablets)

    async def run(self, client: Client) -> None:
        table = await client.db.table(self.name)
        last: list[int | None] = [None]

        async def step() -> None:
            if self.reads and client.random.random() < self.reads:
                await self._read(client, table)
                return
            node = client.random.getrandbits(48)
            row = {"node": node, "previous": last[0], "load": b"x" * client.random.randrange(300)}
            call = table.upsert(row, deadline_s=client.deadline_s())
            await client.ask("append", node, last[0], call)
            last[0] = node

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        table = await client.db.table(self.name)
        await persist(client, lambda: self._read(client, table))

    def judge(self, history: History) -> Verdict:
        return check_list(history)

    async def _read(self, client: Client, table: aio.Table) -> None:
        scan = table.scan(["node", "previous"], deadline_s=client.deadline_s()).to_arrow()
        await client.ask("read-list", None, None, scan, _nodes, reads=True)


def _nodes(found: pa.Table) -> dict[int, int | None]:
    return by_key(found["node"].to_pylist(), found["previous"].to_pylist())
