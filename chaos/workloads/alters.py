"""Alters: columns are added, dropped and renamed, tables are dropped and recalled, during inserts. PacificA tables also get another
`min_members`.

Every client has a table of its own. The values that it writes into a column contain the column's number; there are few names, so
that they are used repeatedly. The expected content of a row follows from that alone, also if the answer to an alteration was lost:

    a row whose insert was acknowledged is there
    a column shows the value that the row got for it, or its default if the row got none
    so no value shows under a name if it was meant for another column of that name

During an alteration the client also reads the table, through a handle that learns of alterations only when it is refused.

Other tables are created and dropped, and not recalled in time; in the end none of them is kept.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import ebla
from ebla import aio
from ebla.actors.replication.configuration import PACIFICA
from ebla.chaos.checkers.verdict import Verdict, passed
from ebla.chaos.history import History
from ebla.chaos.workloads.base import (
    Client,
    NoAnswer,
    Workload,
    create,
    make_own_table,
    persist,
    until_stopped,
)
from ebla.storage.rows.convert import defaults
from ebla.storage.schema import Column, TableSchema
from ebla.transport.routes import TableRoutes
from ebla.write.alter import Alteration

NAMES = ("a", "b", "c", "d", "e")
ROWS_MAX = 12  # of one insert
MINIMA = 0.3  # of the alterations of a PacificA table
READS, READ_S = 8, 1.0  # reads during an alteration, and how long each may take
KEPT_S = 600.0  # far more than a run takes, and less than wall clocks jump
SHORT_S = 0.3
ENDED_S = 10  # seconds in which such a table must be gone after all faults
# An alteration with a short wait may time out before every tablet has it. Clients that begin at once take the same name for their
# tables. A drop whose answer was lost may take place during a later operation. After an alteration whose answer was lost, a client
# adds columns that exist already, or drops columns that are gone.
EXPLAINED = {
    "insert": ("TableDropped",),
    "set-aside": ("TableDropped",),
    "alter": ("TableDropped", "InvalidArgument", "TimedOut"),
    "beside-create": ("AlreadyPresent",),
    "beside-scan": ("TableDropped",),
    "beside-get": ("TableDropped",),
    "beside-info": ("TableDropped",),
}


@dataclass
class _Mine:
    """A client's table, and the values that it wrote: by key, by the column's number."""

    table: aio.Table
    id: str
    given: dict[int, dict[int, int]] = field(default_factory=dict)
    sure: dict[int, None] = field(default_factory=dict)
    keys: int = 0


class Alters(Workload):
    name = "alters"
    explained = EXPLAINED

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.judged = 0
        self._tables: list[_Mine] = []
        self._short = 0
        self._kept: list[str] = []

    async def run(self, client: Client) -> None:
        name = f"{self.name}-{len(self._tables)}"
        schema = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
        table = await make_own_table(client, name, schema, partition_by=ebla.hash("k", buckets=2))
        if table is None:
            return
        mine = _Mine(table, table._routes.info.table)
        self._tables.append(mine)

        async def step() -> None:
            verbs = (self._insert, self._alter, self._read, self._drop, self._drop_for_good)
            await client.random.choices(verbs, (8, 4, 4, 1, 1))[0](client, mine)

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        """Read all tables by a new client: those that made the tables may have ended."""
        for mine in self._tables:
            await persist(client, lambda mine=mine: self._read_whole(client, mine))  # type: ignore[misc]
        await persist(client, lambda: self._find_kept(client))
        for _ in range(ENDED_S):
            if not self._kept:
                return
            await client.clock.sleep(1.0)
            await persist(client, lambda: self._find_kept(client))
        self.problems.append(f"{self._kept[:5]} can still be recalled, and were kept for {SHORT_S} s")

    def judge(self, history: History) -> Verdict:
        return passed(self.judged, "no table was read to its end")

    # -- verbs

    async def _insert(self, client: Client, mine: _Mine) -> None:
        """Insert rows in the handle's schema, which may be an older one."""
        columns = _columns(mine.table)
        keys = range(mine.keys, mine.keys + client.random.randint(1, ROWS_MAX))
        mine.keys = keys.stop
        rows = []
        for key in keys:
            some = [column for column in columns if client.random.random() < 0.7]
            mine.given[key] = {
                _number(column, columns): _value(key, _number(column, columns)) for column in some
            }
            rows.append({"k": key, **{c.name: _value(key, _number(c, columns)) for c in some}})
        if client.random.random() < 0.3:
            client.random.shuffle(rows)
        call = mine.table.insert(rows, deadline_s=client.deadline_s())
        try:
            await client.ask("insert", None, len(rows), call)
        except NoAnswer:
            await self._recalled(client, mine)
            raise
        mine.sure.update(dict.fromkeys(keys))

    async def _alter(self, client: Client, mine: _Mine) -> None:
        change = mine.table.alter()
        held = [column.name for column in _columns(mine.table)]
        free = [name for name in NAMES if name not in held]
        if held and client.random.random() < 0.4:
            change.drop_column(held.pop(client.random.randrange(len(held))))
        if held and free and client.random.random() < 0.4:
            new = free.pop(client.random.randrange(len(free)))
            change.rename_column(held[client.random.randrange(len(held))], new)
        if free and (not change.changes or client.random.random() < 0.5):
            default = client.random.choice([None, -client.random.randint(1, 1_000_000)])
            change.add_column(client.random.choice(free), pa.int64(), default=default)
        if client.stage.replication == PACIFICA and client.random.random() < MINIMA:
            change.min_members(client.random.randint(1, client.stage.replicas))
        if not change.changes and change.least is None:
            return
        await asyncio.gather(self._apply(client, mine, change), self._read_meanwhile(client, mine))

    async def _apply(self, client: Client, mine: _Mine, change: Alteration) -> None:
        call = change.apply(wait_s=client.random.choice([0.0, 0.5, 5.0]))
        with suppress(NoAnswer):
            await client.ask("alter", mine.table.name, len(change.changes), call)
            return
        await self._recalled(client, mine)

    async def _read_meanwhile(self, client: Client, mine: _Mine) -> None:
        """Read through a handle with the schema before the alteration."""
        unaware = aio.Table(client.db._client, TableRoutes(mine.table._routes.info))
        for _ in range(READS):
            read = client.random.choice((self._get_some, self._read_all))
            with suppress(NoAnswer):
                await read(client, mine, unaware, READ_S)

    async def _read_whole(self, client: Client, mine: _Mine) -> None:
        call = client.db.tables(self.name, deadline_s=client.deadline_s())
        listed = await client.beside("tables", None, call)
        name = next((each.name for each in listed if each.table == mine.id), None)
        if name is None:
            await self._recalled(client, mine)
            raise NoAnswer
        table = await client.beside("table", name, client.db.table(name, deadline_s=client.deadline_s()))
        await self._read_all(client, mine, table)

    async def _find_kept(self, client: Client) -> None:
        prefix = f"{self.name}-short-"
        call = client.db.tables(prefix, deleted=True, deadline_s=client.deadline_s())
        kept = await client.beside("tables", prefix, call)
        self._kept = [table.name for table in kept]

    async def _read(self, client: Client, mine: _Mine) -> None:
        await self._read_all(client, mine, mine.table)

    async def _read_all(
        self, client: Client, mine: _Mine, table: aio.Table, deadline_s: float | None = None
    ) -> None:
        sure = list(mine.sure)
        scan = table.scan(deadline_s=deadline_s or 10.0 + client.deadline_s())
        try:
            found = (await client.beside("scan", table.name, scan.to_arrow())).to_pylist()
        except NoAnswer:
            await self._recalled(client, mine)
            raise
        seen = {row["k"]: row for row in found}
        self.judged += 1
        missing = [key for key in sure if key not in seen]
        if missing or len(seen) != len(found):
            self.problems.append(
                f"{table.name}: rows {missing[:5]} are missing, {len(found) - len(seen)} doubled"
            )
        self._compare(mine, table, scan._plan.schema, seen)

    async def _get_some(self, client: Client, mine: _Mine, table: aio.Table, deadline_s: float) -> None:
        sure = client.random.sample(list(mine.sure), min(len(mine.sure), 4))
        keys = [{"k": key} for key in sure]
        call = table.get_many(keys, deadline_s=deadline_s)
        found = await client.beside("get", table.name, call)
        seen = {key: row for key, row in zip(sure, found, strict=True) if row is not None}
        if len(seen) < len(sure):
            self.problems.append(f"{table.name}: of the rows {sure} only {list(seen)} are there")
        self._compare(mine, table, table._routes.schema, seen)

    def _compare(
        self, mine: _Mine, table: aio.Table, schema: TableSchema, seen: dict[int, dict[str, Any]]
    ) -> None:
        columns = [column for column in schema.columns if column.name != "k"]
        known = [
            (column.name, _number(column, columns), defaults(column, 1)[0].as_py()) for column in columns
        ]
        for key, row in seen.items():
            given = mine.given.get(key)
            for name, number, default in known:
                expected = default if given is None else given.get(number, default)
                if given is None or row[name] != expected:
                    found = f"{row[name]} of row {key} in column {name!r}, number {number}"
                    self.problems.append(f"{table.name}: {found}; it should be {expected}")

    async def _drop(self, client: Client, mine: _Mine) -> None:
        try:  # it may have another name by now
            info = mine.table.info(deadline_s=client.deadline_s())
            await client.beside("info", mine.table.name, info)
        except NoAnswer:
            await self._recalled(client, mine)
            raise
        call = client.db.drop_table(mine.table.name, reserve_s=KEPT_S, deadline_s=client.deadline_s())
        try:
            await client.ask("set-aside", mine.table.name, None, call)
        finally:
            await self._recalled(client, mine)

    async def _recalled(self, client: Client, mine: _Mine) -> None:
        """Recall the table if it is dropped, also by a drop whose answer was lost."""
        name = f"{self.name}-{client.random.randrange(10**9)}"
        new_name = client.random.choice([None, name])
        call = client.db.recall_table(mine.id, new_name, deadline_s=client.deadline_s())
        with suppress(NoAnswer):  # it was not dropped; or the next step recalls it
            await client.order("recall_table", mine.id, call)

    async def _drop_for_good(self, client: Client, mine: _Mine) -> None:
        """Create and drop a table that is never recalled."""
        self._short += 1
        name = f"{self.name}-short-{self._short}"
        made = create(client, name, pa.schema([("k", pa.int64())]), wait_s=0)
        await client.beside("create", name, made)
        gone = client.db.drop_table(name, reserve_s=SHORT_S, deadline_s=client.deadline_s())
        await client.beside("drop", name, gone)


def _columns(table: aio.Table) -> list[Column]:
    return [column for column in table._routes.schema.columns if column.name != "k"]


def _number(column: Column, columns: list[Column]) -> int:
    """The column's id; in a table that was never altered, its place, which becomes its id. The key is the first column."""
    return column.id or columns.index(column) + 2


def _value(key: int, number: int) -> int:
    return key * 1000 + number
