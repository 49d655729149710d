"""Stamps: all rows of a group get one number in one atomic batch, and a scan must never find two numbers.

Groups are rows of one tablet. Each has one writer with growing numbers. It repeats a stamp with an unknown outcome under the same
write id until the outcome is known. Rows are flushed in between. Some scans ask for numbers up to a bound, which older rows on disk
meet and the newest ones may not.
"""

from __future__ import annotations

from collections.abc import Awaitable

import pyarrow as pa

import ebla
from ebla import aio
from ebla.chaos.checkers.stamps import check_stamp
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import (
    Client,
    Workload,
    make_table,
    persist,
    side_by_side,
    until_known,
    until_stopped,
)

SCHEMA = pa.schema([("place", pa.int64()), ("stamp", pa.int64()), ("group", pa.int32())])


class Stamps(Workload):
    """`calls` of each client are under way at once; each group still has one writer. In blocks of four rows, one has rows of two groups."""

    name = "stamps"

    def __init__(self, groups: int = 2, rows: int = 10, calls: int = 1) -> None:
        self.groups = groups
        self.rows = rows
        self.calls = calls
        self._writers = 0
        self._newest: dict[int, int] = {}  # attempted number of each group

    async def prepare(self, client: Client) -> None:
        table = await make_table(client, self.name, SCHEMA, "place")
        for group in range(self.groups):
            await client.ask("stamp", group, 0, table.upsert(self._rows(group, 0)))

    async def run(self, client: Client) -> None:
        await side_by_side(client, self.calls, self._ask)

    async def _ask(self, client: Client) -> None:
        table = await client.db.table(self.name)
        number, self._writers = self._writers, self._writers + 1
        write_client = client.random.getrandbits(128).to_bytes(16, "big")
        stamp = 0

        async def step() -> None:
            nonlocal stamp
            chosen = client.random.random()
            if number < self.groups and chosen < 0.5:
                stamp += 1
                await self._stamp(client, table, number, stamp, write_client)
            elif chosen < 0.6:
                await self._flush(client, table)
            else:
                group = client.random.randrange(self.groups)
                await self._read(client, table, group, self._bound(client, group))

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        table = await client.db.table(self.name)
        for group in range(self.groups):
            await persist(client, lambda group=group: self._read(client, table, group))  # type: ignore[misc]

    def judge(self, history: History) -> Verdict:
        return check_stamp(history, self.rows)

    def _rows(self, group: int, stamp: int) -> list[dict[str, int]]:
        first = group * self.rows
        return [{"place": place, "stamp": stamp, "group": group} for place in range(first, first + self.rows)]

    async def _stamp(
        self, client: Client, table: aio.Table, group: int, stamp: int, write_client: bytes
    ) -> None:
        self._newest[group] = stamp

        def attempt() -> Awaitable[object]:
            write_id = (write_client, 1 + stamp * self.rows)
            return table.upsert(self._rows(group, stamp), deadline_s=client.deadline_s(), write_id=write_id)

        await client.ask("stamp", group, stamp, until_known(client, attempt, "a stamp"))

    async def _flush(self, client: Client, table: aio.Table) -> None:
        await client.order("flush", self.name, table.flush(deadline_s=client.deadline_s()))

    async def _read(self, client: Client, table: aio.Table, group: int, bound: int | None = None) -> None:
        in_group = ebla.col("group") == group
        wanted = in_group if bound is None else in_group & (ebla.col("stamp") <= bound)
        scan = table.scan(["stamp"], where=wanted, deadline_s=client.deadline_s()).to_arrow()
        await client.ask(
            "read-stamps", group, bound, scan, lambda found: found["stamp"].to_pylist(), reads=True
        )

    def _bound(self, client: Client, group: int) -> int | None:
        """None, or one of the last numbers."""
        newest = self._newest.get(group, 0)
        return None if client.random.random() < 0.6 else max(0, newest - client.random.randrange(3))
