"""Registers that all processes of clients share, used through the synchronous client: by threads, one connection each.

A single process cannot notice that another process reads old values. So every process notes its operations by the clock that all
processes of a machine share, and the run merges the histories (`merged`) and judges them as one.

A thread's single gets and upserts use the fast path (client/transport/fast_path.py), which no other workload does; `get_many` is a
read of each of its keys. New keys are used every LOT_S, so that judging stays cheap, and all keys are read in the end.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

import ebla
from ebla.chaos.checkers.refusals import EXPLAINED, check_refusals
from ebla.chaos.checkers.register import check_register
from ebla.chaos.checkers.verdict import Verdict, together
from ebla.chaos.history import FAIL, INFO, INVOKE, OK, History
from ebla.chaos.workloads.base import DEADLINES_S, PAUSE_S, PREPARE_S
from ebla.chaos.workloads.registers import SCHEMA
from ebla.storage.errors import EblaError

NAME = "shared"
KEYS = 4  # at a time
TABLETS = 4
LOT_S = 4.0
VALUES = 1 << 40  # the size of each process's own range of values
END_S = 60.0
TRIES_MAX = 20


def prepare(db: ebla.Database, replication: str) -> None:
    """Create the table: called by the first process, before the others begin."""
    db.create_table(
        NAME,
        schema=SCHEMA,
        primary_key=["k"],
        partition_by=ebla.hash("k", buckets=TABLETS),
        replication=replication,
        wait_s=PREPARE_S,
    )


def merged(histories: Iterable[History]) -> History:
    """Merge the histories by time. The order of two events of the same microsecond does not matter: an operation takes place long
    after the note of its beginning."""
    parts, processes = [], 0
    for history in histories:
        first = processes
        parts.append(
            [msgspec.structs.replace(event, process=event.process + first) for event in history.events]
        )
        processes += history.processes
    ordered = heapq.merge(*parts, key=lambda event: event.time_us)
    events = [msgspec.structs.replace(event, index=index) for index, event in enumerate(ordered)]
    return History(events, processes)


def judge(history: History, excused: Collection[str] = EXPLAINED) -> Verdict:
    return together([check_register(history), check_refusals(history, excused=excused)])


@dataclass
class SharedRegisters:
    """The state that the threads of one process share. `now_s` is the run's clock, `pause_s` the longest pause between two
    operations of a thread."""

    group: int
    history: History
    now_s: Callable[[], float]
    pause_s: float = PAUSE_S
    stopping: threading.Event = field(default_factory=threading.Event)
    _gate: threading.Lock = field(default_factory=threading.Lock)
    _value: int = 0

    def run(self, db: ebla.Database, chance: Random) -> None:
        """One thread's loop, until `stopping`."""
        caller = _Caller(self, db.table(NAME), chance)
        while not self.stopping.wait(chance.uniform(0.0, self.pause_s)):
            caller.step()

    def conclude(self, db: ebla.Database) -> None:
        """Read every key that was ever used once more. Raises EblaError if that fails."""
        keys = list(range(self._lot() + KEYS))
        caller = _Caller(self, db.table(NAME), Random(0))
        for _ in range(TRIES_MAX):
            if caller.read(keys, END_S):
                return
        raise ebla.TimedOut(f"the last reads of table {NAME!r} were not answered")

    def key(self, chance: Random) -> int:
        return self._lot() + chance.randrange(KEYS)

    def live(self) -> list[int]:
        return list(range(self._lot(), self._lot() + KEYS))

    def _lot(self) -> int:
        """The first key of the present lot."""
        return int(self.now_s() / LOT_S) * KEYS

    def value(self) -> int:
        with self._gate:
            self._value += 1
            return self.group * VALUES + self._value

    def process(self) -> int:
        with self._gate:
            return self.history.new_process()

    def note(
        self, process: int, kind: str, name: str, key: int, value: Any = None, error: str | None = None
    ) -> None:
        """Take the time under the lock, so that a process's events are in the order of time."""
        with self._gate:
            self.history.note(self.now_s(), process, kind, name, key, value, error)


class _Caller:
    def __init__(self, shared: SharedRegisters, table: ebla.Table, chance: Random) -> None:
        self._shared = shared
        self._table = table
        self._chance = chance
        self._process = shared.process()

    def step(self) -> None:
        what = self._chance.choices(
            ("get", "get_many", "write", "insert", "update", "delete"), (6, 2, 5, 2, 2, 2)
        )[0]
        key, limit_s = self._shared.key(self._chance), self._chance.choice(DEADLINES_S)
        table = self._table
        if what == "get":
            self._read([(self._process, key)], lambda: [table.get({"k": key}, deadline_s=limit_s)])
        elif what == "get_many":
            self.read(self._shared.live(), limit_s)
        else:
            value = None if what == "delete" else self._shared.value()
            row = {"k": key, "v": value}
            calls: dict[str, Callable[..., ebla.Written]] = {
                "write": partial(table.upsert, row),
                "insert": partial(table.insert, row, if_present="ignore"),
                "update": partial(table.update, row, if_absent="ignore"),
                "delete": partial(table.delete, {"k": key}, if_absent="ignore"),
            }
            self._write(what, key, value, calls[what], limit_s)

    def _write(
        self, what: str, key: int, value: int | None, call: Callable[..., ebla.Written], limit_s: float
    ) -> None:
        shared, process = self._shared, self._process
        shared.note(process, INVOKE, what, key, value)
        try:
            written = call(deadline_s=limit_s)
        except EblaError as error:
            kind = INFO if error.possibly_applied else FAIL
            shared.note(process, kind, what, key, value, f"{type(error).__name__}: {error}")
            if kind == INFO:
                self._process = shared.process()
        else:
            shared.note(process, OK, what, key, None if what == "write" else written.rows == 1)

    def read(self, keys: Sequence[int], limit_s: float) -> bool:
        """Read all keys in one call; each is an operation of its own, by a process of its own."""
        marks = [(self._shared.process(), key) for key in keys]
        return self._read(
            marks, lambda: self._table.get_many([{"k": key} for key in keys], deadline_s=limit_s)
        )

    def _read(self, marks: Sequence[tuple[int, int]], call: Callable[[], Sequence[Any]]) -> bool:
        shared = self._shared
        for process, key in marks:
            shared.note(process, INVOKE, "read", key)
        try:
            rows = call()
        except EblaError as error:
            for process, key in marks:
                shared.note(process, FAIL, "read", key, None, f"{type(error).__name__}: {error}")
            return False
        for (process, key), row in zip(marks, rows, strict=True):
            shared.note(process, OK, "read", key, row and row["v"])
        return True
