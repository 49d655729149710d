"""Refused: a request that a tablet has refused for certain is never applied, also when a copy of it arrives much later.

Every client has a table of its own, which it drops and recalls while it writes by several calls at once. It also grows a row
until an update of the row exceeds the limit, and then makes the row small again. Judged are two promises:

    a value whose write failed for certain (`possibly_applied` is false) is never in a row
    a row whose write was acknowledged is there
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ebla import aio
from ebla.chaos.checkers.verdict import Verdict, passed
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, make_own_table, persist, until_stopped
from ebla.storage.errors import EblaError
from ebla.storage.schema import ROW_BYTES_MAX

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("a", pa.string()), ("b", pa.string())])
LARGE = "x" * (ROW_BYTES_MAX * 6 // 10)  # one of them fits into a row, two do not
GROWING = 0  # the key of the row that grows
KEPT_S = 3600.0
CALLS = 3  # inserts at once, during a drop
EXPLAINED = {
    "insert": ("TableDropped",),
    "update": ("TableDropped", "InvalidArgument"),
    "set-aside": ("TableDropped",),
    "beside-create": ("AlreadyPresent",),
    "beside-scan": ("TableDropped",),
    "beside-update": ("TableDropped",),
}


@dataclass
class _Mine:
    """A client's table: the values that must be there, and those that must not."""

    table: aio.Table
    id: str
    sure: dict[int, int] = field(default_factory=dict)  # value by key
    refused: dict[int, str] = field(default_factory=dict)  # error by value


class Refused(Workload):
    name = "refused"
    explained = EXPLAINED

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.judged = 0
        self._tables: list[_Mine] = []
        self._value = 0

    async def run(self, client: Client) -> None:
        name = f"{self.name}-{client.random.getrandbits(48)}"
        table = await make_own_table(client, name, SCHEMA)
        if table is None:
            return
        mine = _Mine(table, table._routes.info.table)
        self._tables.append(mine)

        async def step() -> None:
            verbs = (self._drop_beside_inserts, self._grow, self._read)
            await client.random.choices(verbs, (4, 3, 2))[0](client, mine)

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        """Read all tables by a new client: those that made the tables may have ended."""
        for mine in self._tables:
            await persist(client, lambda mine=mine: self._read(client, mine))  # type: ignore[misc]

    def judge(self, history: History) -> Verdict:
        return passed(self.judged, "no table was read to its end")

    # -- verbs

    async def _drop_beside_inserts(self, client: Client, mine: _Mine) -> None:
        """Drop the table during inserts, and recall it, also if the outcome of the drop is unknown."""
        asked = [self._insert(client.another(), mine) for _ in range(CALLS)]
        name = mine.table.name
        gone = client.db.drop_table(name, reserve_s=KEPT_S, deadline_s=client.deadline_s())
        drop = client.another().ask("set-aside", name, None, gone)
        for result in await asyncio.gather(drop, *asked, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, NoAnswer):
                raise result
        await self._recall(client, mine)

    async def _insert(self, client: Client, mine: _Mine) -> None:
        await client.clock.sleep(client.random.uniform(0.0, 0.3))
        value = self._next()
        row = {"k": value, "v": value, "a": "", "b": ""}
        call = mine.table.insert(row, deadline_s=client.deadline_s())
        await self._write(client, mine, "insert", value, call)
        mine.sure[value] = value

    async def _grow(self, client: Client, mine: _Mine) -> None:
        """Make three updates, the second of which would make the row too large. A late copy of it would fit after the third. It has
        a write id of its own, so that no later request reveals its outcome to the tablet."""
        row = {"k": GROWING, "v": self._next(), "a": LARGE, "b": ""}
        await client.beside("update", GROWING, mine.table.upsert(row, deadline_s=client.deadline_s()))
        value = self._next()
        own = client.random.getrandbits(128).to_bytes(16, "big"), 1
        rows = [{"k": GROWING, "v": value, "b": LARGE}]
        over = mine.table.update(rows, deadline_s=client.deadline_s(), write_id=own)
        with suppress(NoAnswer):
            await self._write(client, mine, "update", value, over)
        value = self._next()
        small = mine.table.update(
            {"k": GROWING, "v": value, "a": "", "b": ""}, deadline_s=client.deadline_s()
        )
        await self._write(client, mine, "update", value, small)
        await client.clock.sleep(client.random.uniform(0.0, 1.0))
        await self._read(client, mine)

    async def _write(self, client: Client, mine: _Mine, verb: str, value: int, call: Awaitable[Any]) -> None:
        try:
            await client.ask(verb, None, value, call)
        except NoAnswer as ended:
            error = ended.__cause__
            assert isinstance(error, EblaError)
            if not error.possibly_applied:
                mine.refused[value] = type(error).__name__
            raise

    async def _recall(self, client: Client, mine: _Mine) -> None:
        call = client.db.recall_table(mine.id, deadline_s=client.deadline_s())
        with suppress(NoAnswer):  # it was not dropped
            await client.order("recall_table", mine.id, call)

    async def _read(self, client: Client, mine: _Mine) -> None:
        sure = dict(mine.sure)
        scan = mine.table.scan(["k", "v"], deadline_s=10.0 + client.deadline_s())
        try:
            found = await client.beside("scan", mine.table.name, scan.to_arrow())
        except NoAnswer:
            await self._recall(client, mine)
            raise
        seen = dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))
        self.judged += 1
        for key, value in seen.items():
            if value in mine.refused:
                self.problems.append(
                    f"{mine.table.name}: row {key} has the value {value}, whose write was refused: "
                    f"{mine.refused[value]}"
                )
        missing = [key for key, value in sure.items() if seen.get(key) != value]
        if missing:
            self.problems.append(f"{mine.table.name}: rows {missing[:5]} were acknowledged and are missing")

    def _next(self) -> int:
        self._value += 1
        return self._value
