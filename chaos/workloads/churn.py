"""Churn: tables are created and dropped, leaders hand over, memtables are flushed, replicas are compared, and roles are
inspected, while the other workloads run.

The names of tables are judged as a set: creations add to it, drops remove from it, and `tables()` reads it. Every new table gets
rows, which must all be found. A refused flush or hand-over is no error; a replica with another digest is.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pyarrow as pa

import ebla
from ebla.actors import messages as m
from ebla.actors.figures import Figures, FiguresRequest
from ebla.actors.master.messages import HandOverReply, HandOverRequest
from ebla.chaos.checkers.sets import check_set
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, Workload, create, persist, until_stopped
from ebla.chaos.workloads.operators import Operators, known_digests
from ebla.health.digests import digests

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ROWS = 25
TABLES_MAX = 4  # of one client, at a time
DIGEST_S = 5.0
# Relative frequencies of: create, drop, list, hand over, flush, compare, inspect, change the master.
WEIGHTS = (4, 3, 2, 4, 2, 2, 1, 0)
HAND_OVERS = (1, 1, 1, 30, 0, 0, 0, 0)
TABLES = (10, 8, 12, 0, 0, 0, 2, 1)


class Churn(Operators, Workload):
    name = "churn"

    def __init__(self, weights: tuple[int, ...] = WEIGHTS) -> None:
        self.weights = weights
        self._next = 0
        self.problems: list[str] = []

    async def run(self, client: Client) -> None:
        mine: list[str] = []

        async def step() -> None:
            verb = client.random.choices(
                (
                    partial(self._create, client, mine),
                    partial(self._drop, client, mine),
                    partial(self._list, client),
                    partial(self._hand_over, client),
                    partial(self._flush, client),
                    partial(self._compare, client),
                    partial(self._inspect, client, mine),
                    partial(self._change_master, client),
                ),
                self.weights,
            )[0]
            await verb()

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        await persist(client, lambda: self._list(client))

    def judge(self, history: History) -> Verdict:
        return check_set(history)

    # -- tables

    async def _create(self, client: Client, mine: list[str]) -> None:
        if len(mine) >= TABLES_MAX:
            return
        self._next += 1
        name = f"{self.name}-{self._next}"
        parts = client.random.choice([None, ebla.hash("k", buckets=2), ebla.hash("k", buckets=3)])
        made = create(client, name, SCHEMA, partition_by=parts, wait_s=0.0)
        table = await client.ask("add", name, None, made, lambda table: True)
        mine.append(name)
        rows = [{"k": k, "v": name} for k in range(ROWS)]
        await client.beside("upsert", name, table.upsert(rows, deadline_s=10.0 + client.deadline_s()))
        found = await client.beside("scan", name, table.scan(deadline_s=10.0 + client.deadline_s()).count())
        if found != ROWS:
            self.problems.append(f"{name} got {ROWS} rows and has {found}")

    async def _drop(self, client: Client, mine: list[str]) -> None:
        if not mine:
            return
        name = mine.pop(client.random.randrange(len(mine)))
        call = client.db.drop_table(name, deadline_s=client.deadline_s())
        asked = [client.ask("remove", name, None, call, lambda _: True)]
        if client.random.random() < 0.5:
            asked.append(self._flush_everything(client))
        results = await asyncio.gather(*asked, return_exceptions=True)
        for failed in (each for each in results if isinstance(each, BaseException)):
            raise failed

    async def _list(self, client: Client) -> None:
        call = client.db.tables(f"{self.name}-", deadline_s=client.deadline_s())
        await client.ask(
            "read-set", None, None, call, lambda found: sorted(table.name for table in found), reads=True
        )

    # -- operators

    async def _change_master(self, client: Client) -> None:
        """Let another one of several masters become the active one."""
        await self._ask_master(client, "hand_over", HandOverRequest(), HandOverReply)

    async def _flush_everything(self, client: Client) -> None:
        """Flush a server that loses a replica meanwhile."""
        tablet = await self._some_tablet(client)
        if tablet is not None:
            address = client.random.choice(tablet.replicas).address
            await self._ask_role(client, address, "flush", m.FlushRequest(), m.FlushReply)

    async def _compare(self, client: Client) -> None:
        """Compare digests, as `ebla check --checksum` does. A replica may have no digest now, but no other one."""
        info = await self._some_table(client)
        if info is None:
            return
        call = digests(client.network, [info], timeout_s=DIGEST_S)
        found = await client.beside("digests", info.name, call)
        for tablet, result in found.items():
            known = known_digests(result)
            if len(set(known.values())) > 1:
                self.problems.append(f"replicas of {tablet} differ at index {result.index}: {known}")

    async def _inspect(self, client: Client, mine: list[str]) -> None:
        """Make all requests of inspecting operators, of node-local readers, and of readers that stop early."""
        await client.beside("servers", None, client.db.servers(deadline_s=client.deadline_s()))
        await client.beside("status", None, client.db.status(deadline_s=client.deadline_s()))
        if mine:
            name = client.random.choice(mine)
            await client.beside("scan", name, self._read_a_little(client, name))
        tablet = await self._some_tablet(client)
        if tablet is None or tablet.leader is None:
            return
        here, server = m.TabletRequest(tablet.tablet), client.random.choice(tablet.replicas).address
        await self._ask_master(client, "get_tablet", here, m.TabletLocation)
        await self._ask_role(client, server, "status", m.Empty(), m.ServerState)
        either = client.random.choice([server, client.db._client.master.address])
        await self._ask_role(client, either, "figures", FiguresRequest(), Figures)
        found = await self._ask_role(client, tablet.leader, "read_index", here, m.ReadIndexReply)
        request = m.LocalSnapshotRequest(tablet.tablet, found.index, 2.0)
        snapshot = await self._ask_role(client, server, "local_snapshot", request, m.LocalSnapshot)
        if snapshot.index < found.index:
            self.problems.append(f"{server} flushed {tablet.tablet} to {snapshot.index}, not {found.index}")

    async def _read_a_little(self, client: Client, name: str) -> None:
        table = await client.db.table(name, deadline_s=client.deadline_s())
        scan = table.scan(deadline_s=client.deadline_s()).batches()
        async for _ in scan:
            break
        await scan.aclose()
