"""Registers: all clients read, write, insert, update and delete a few keys. Judged for linearizability per key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

import ebla
from ebla import aio
from ebla.chaos.checkers.register import check_register
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, Workload, at_once, by_key, make_table, persist, until_stopped

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OPERATIONS = 80


@dataclass(frozen=True)
class Applied:
    """The replicated log of a table: at which index of its tablet's log each value was first written, and whether the log is
    complete. Deletions have no value."""

    indexes: Mapping[Hashable, int] = field(default_factory=dict)
    complete: bool = False


NOTHING_KNOWN = Applied()


@dataclass(eq=False)
class Registers(Workload):
    """`keys` at a time; each is retired after OPERATIONS, so that judging stays cheap. `many`: the share of reads that get all
    keys in one call. `scanned`: the share of reads that scan the table, which freezes the memtable, so that later reads find a
    key in several layers. `calls`: as many of a client begin at one moment, so that their rows travel together."""

    keys: int = 5
    tablets: int = 2
    many: float = 0.0
    scanned: float = 0.0
    calls: int = 1
    name = "registers"

    def __post_init__(self) -> None:
        self._asked: dict[int, int] = {}
        self._live = list(range(self.keys))
        self._next_value = 0
        self.problems: list[str] = []

    async def prepare(self, client: Client) -> None:
        await make_table(client, self.name, SCHEMA, "k", tablets=self.tablets)

    async def run(self, client: Client) -> None:
        table = await client.db.table(self.name)

        async def one(client: Client) -> None:
            await self._step(client, table, self._key(client))

        async def step() -> None:
            if self.calls == 1:
                await one(client)
            else:
                await at_once(client, client.random.randint(1, self.calls), one)

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        table = await client.db.table(self.name)
        for key in self._live:
            await persist(client, partial(self._read, client, table, key))

    def judge(self, history: History, applied: Applied = NOTHING_KNOWN) -> Verdict:
        return check_register(history, _order(history, applied))

    def _key(self, client: Client) -> int:
        place = client.random.randrange(self.keys)
        key = self._live[place]
        asked = self._asked[key] = self._asked.get(key, 0) + 1
        if asked >= OPERATIONS:
            self._live[place] = max(self._live) + 1
        return key

    async def _step(self, client: Client, table: aio.Table, key: int) -> None:
        what = client.random.choices(("read", "write", "insert", "update", "delete"), (8, 5, 2, 2, 2))[0]
        if what == "read" and self.scanned and client.random.random() < self.scanned:
            await self._scan(client, table)
            return
        if what == "read" and self.many and client.random.random() < self.many:
            await self._read_all(client, table)
            return
        if what == "read":
            await self._read(client, table, key)
            return
        self._next_value += 1
        value = self._next_value
        row, limit_s = {"k": key, "v": value}, client.deadline_s()
        if what == "write":
            await client.ask(what, key, value, table.upsert(row, deadline_s=limit_s))
            return
        change: Callable[..., Awaitable[ebla.Written]] = {
            "insert": partial(table.insert, row, if_present="ignore"),
            "update": partial(table.update, row, if_absent="ignore"),
            "delete": partial(table.delete, {"k": key}, if_absent="ignore"),
        }[what]
        call, noted = change(deadline_s=limit_s), None if what == "delete" else value
        await client.ask(what, key, noted, call, lambda written: written.rows == 1)

    async def _read(self, client: Client, table: aio.Table, key: int) -> None:
        call = table.get({"k": key}, deadline_s=client.deadline_s())
        await client.ask("read", key, None, call, lambda row: row and row["v"], reads=True)

    def _all_keys(self) -> list[int]:
        for key in self._live:
            self._asked[key] = self._asked.get(key, 0) + 1
        return list(self._live)

    async def _scan(self, client: Client, table: aio.Table) -> None:
        keys = self._all_keys()

        def values(found: pa.Table) -> list[int | None]:
            rows = by_key(found["k"].to_pylist(), found["v"].to_pylist())
            used = range(max(self._live) + 1)
            if wrong := [key for key in rows if key not in used]:
                self.problems.append(f"a scan of {self.name} shows rows that cannot be there: {wrong}")
            return [rows.get(key) for key in keys]

        call = table.scan(deadline_s=client.deadline_s()).to_arrow()
        await client.ask_many("read", keys, call, values, reads=True)

    async def _read_all(self, client: Client, table: aio.Table) -> None:
        keys = self._all_keys()
        call = table.get_many([{"k": key} for key in keys], deadline_s=client.deadline_s())
        await client.ask_many("read", keys, call, lambda rows: [row and row["v"] for row in rows], reads=True)


def _order(history: History, applied: Applied) -> dict[int, int | None]:
    """The place in the log of each write, by its invocation's index; None if the log is known not to have it."""
    order: dict[int, int | None] = {}
    for operation in history.operations():
        if operation.name in ("write", "insert", "update"):
            index = applied.indexes.get(operation.argument)
            if index is not None or applied.complete:
                order[operation.began] = index
    return order
