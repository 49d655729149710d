"""Bank: accounts in one tablet. Each client moves money between two accounts of its own in one atomic batch. Every read of all
accounts in one snapshot, with a changing filter and limit, finds all the money.

A client repeats a transfer under the same write id until it knows the outcome: otherwise the transfer might still take place
between later ones. A client that never learns the outcome only reads from then on.
"""

from __future__ import annotations

from collections.abc import Awaitable

import pyarrow as pa

import ebla
from ebla import aio
from ebla.chaos.checkers.bank import check_bank
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import (
    Client,
    NoAnswer,
    Workload,
    by_key,
    make_table,
    persist,
    until_known,
    until_stopped,
)

SCHEMA = pa.schema([("account", pa.int64()), ("balance", pa.int64())])
START = 100


class Bank(Workload):
    """Two accounts per client. `slow`: the share of reads that pause between blocks."""

    name = "bank"

    def __init__(self, clients: int = 2, slow: float = 0.0) -> None:
        self.slow = slow
        self.balances = dict.fromkeys(range(2 * clients), START)
        self._owners = 0

    async def prepare(self, client: Client) -> None:
        table = await make_table(client, self.name, SCHEMA, "account")
        opened = table.upsert([{"account": a, "balance": b} for a, b in self.balances.items()])
        await client.ask("open", None, dict(self.balances), opened)

    async def run(self, client: Client) -> None:
        table = await client.db.table(self.name)
        number, self._owners = self._owners, self._owners + 1
        mine = {account: START for account in (2 * number, 2 * number + 1) if account in self.balances}
        write_client = client.random.getrandbits(128).to_bytes(16, "big")
        sequence = 1

        async def step() -> None:
            nonlocal sequence
            if not mine or client.random.random() < 0.4:
                await self._read(client, table)
                return
            sequence += 2
            try:
                await self._transfer(client, table, mine, (write_client, sequence))
            except NoAnswer:
                mine.clear()  # the balances are unknown now
                raise

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        table = await client.db.table(self.name)
        await persist(client, lambda: self._read(client, table))

    def judge(self, history: History) -> Verdict:
        return check_bank(history, self.balances)

    async def _transfer(
        self, client: Client, table: aio.Table, mine: dict[int, int], write_id: tuple[bytes, int]
    ) -> None:
        source, target = client.random.sample(sorted(mine), 2)
        amount = client.random.randint(0, mine[source])
        rows = [
            {"account": source, "balance": mine[source] - amount},
            {"account": target, "balance": mine[target] + amount},
        ]

        def attempt() -> Awaitable[object]:
            return table.upsert(rows, deadline_s=client.deadline_s(), write_id=write_id)

        value = {"from": source, "to": target, "amount": amount}
        await client.ask("transfer", source, value, until_known(client, attempt, "a transfer"))
        mine[source] -= amount
        mine[target] += amount

    async def _read(self, client: Client, table: aio.Table) -> None:
        where = ebla.col("account") >= 0 if client.random.random() < 0.5 else None
        limit = 10_000 if client.random.random() < 0.5 else None
        scan = table.scan(where=where, limit=limit, deadline_s=client.deadline_s())
        slowly = self.slow and client.random.random() < self.slow
        call = _streamed(client, scan) if slowly else scan.to_arrow()
        await client.ask("read-bank", None, None, call, _balances, reads=True)


async def _streamed(client: Client, scan: aio.Scan) -> pa.Table:
    batches = []
    async for batch in scan.batches():
        batches.append(batch)
        await client.pause()
    return pa.Table.from_batches(batches, scan.schema)


def _balances(found: pa.Table) -> dict[int, int]:
    return by_key(found["account"].to_pylist(), found["balance"].to_pylist())
