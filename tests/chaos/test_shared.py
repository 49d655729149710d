"""Registers and the log that processes share on Ray: their histories are merged and judged as one."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

import ebla
from ebla.chaos.checkers.logs import APPEND, READ
from ebla.chaos.history import INVOKE, OK, History
from ebla.chaos.ray import shared
from ebla.chaos.ray.logs import SharedLog
from ebla.chaos.ray.shared import SharedRegisters, judge, merged


def history(*operations: tuple[float, float, str, Any, Any]) -> History:
    """Operations (begin, end, name, argument, answer) on key 1, each by a process of its own."""
    found = History()
    events: list[tuple[float, int, str, str, Any]] = []
    for begins, ends, name, argument, answer in operations:
        process = found.new_process()
        events += [(begins, process, INVOKE, name, argument), (ends, process, OK, name, answer)]
    for at, process, kind, name, value in sorted(events, key=lambda event: event[0]):
        found.note(at, process, kind, name, 1, value)
    return found


def test_a_stale_read_is_found_in_the_merged_history_only() -> None:
    writer = history((0.0, 0.1, "write", 7, None), (1.0, 1.1, "write", 8, None))
    reader = history((0.5, 0.6, "read", None, 7), (2.0, 2.1, "read", None, 7))
    alone = History(), writer
    assert judge(merged(alone)).valid is True
    verdict = judge(merged([writer, reader]))
    assert verdict.valid is False and "7" in verdict.problem
    assert judge(merged([writer, history((2.0, 2.1, "read", None, 8))])).valid is True


def test_merged_histories_are_in_order_of_time_and_of_each_process() -> None:
    first = history((0.0, 0.0, "write", 1, None), (0.0, 0.0, "read", None, 1))
    second = history((0.0, 0.2, "write", 2, None))
    both = merged([first, second])
    assert [event.index for event in both.events] == list(range(6))
    assert [event.time_us for event in both.events] == sorted(event.time_us for event in both.events)
    assert both.processes == 3
    assert len(list(both.operations())) == 3
    kinds = [(event.type, event.operation) for event in both.events if event.process < 2]
    assert kinds == [(event.type, event.operation) for event in first.events]


class Rows:
    """A correct table with the methods of the synchronous client."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.gate = threading.Lock()

    def table(self, name: str) -> Rows:
        assert name == shared.NAME
        return self

    def get(self, key: dict[str, int], **_: Any) -> dict[str, int] | None:
        return self.get_many([key])[0]

    def get_many(self, keys: list[dict[str, int]], **_: Any) -> list[dict[str, int] | None]:
        with self.gate:
            return [{"v": self.rows[key["k"]]} if key["k"] in self.rows else None for key in keys]

    def _put(self, row: dict[str, int], wanted: bool | None) -> ebla.Written:
        with self.gate:
            if wanted is not None and (row["k"] in self.rows) != wanted:
                return ebla.Written(0)
            self.rows[row["k"]] = row["v"]
            return ebla.Written(1)

    def upsert(self, row: dict[str, int], **_: Any) -> ebla.Written:
        return self._put(row, None)

    def insert(self, row: dict[str, int], **_: Any) -> ebla.Written:
        return self._put(row, False)

    def update(self, row: dict[str, int], **_: Any) -> ebla.Written:
        return self._put(row, True)

    def delete(self, key: dict[str, int], **_: Any) -> ebla.Written:
        with self.gate:
            return ebla.Written(int(self.rows.pop(key["k"], None) is not None))


class Forgetful(Rows):
    """Loses one write of five."""

    def _put(self, row: dict[str, int], wanted: bool | None) -> ebla.Written:
        return ebla.Written(1) if row["v"] % 5 == 0 else super()._put(row, wanted)


@pytest.mark.parametrize(("rows", "valid"), [(Rows(), True), (Forgetful(), False)])
def test_threads_of_several_processes_are_judged_as_one(
    rows: Rows, valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock counts its readings, so the speed of threads does not matter; they stop at a fixed count."""
    monkeypatch.setattr(shared, "PAUSE_S", 0.0)
    ticks = 0
    gate = threading.Lock()

    def now_s() -> float:
        nonlocal ticks
        with gate:
            ticks += 1
            if ticks > 4000:
                for group in groups:
                    group.stopping.set()
            return ticks / 100

    groups = [SharedRegisters(group, History(), now_s) for group in (1, 2)]
    callers = [
        threading.Thread(target=group.run, args=(rows, Random(number)))
        for number, group in enumerate((*groups, *groups))
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    groups[0].conclude(rows)  # type: ignore[arg-type]
    verdict = judge(merged([group.history for group in groups]))
    assert verdict.valid is valid, verdict.problem
    assert verdict.judged > 100


def test_a_record_that_another_process_does_not_read_is_found_in_the_merged_history_only() -> None:
    writer, reader, late = History(), History(), History()
    for history, at, operation, key, value, answer in (
        (writer, 0.0, APPEND, 7, [7, 7, 0], 0),
        (reader, 1.0, READ, 0, None, [0, [7]]),
        (late, 2.0, READ, 0, None, [0, []]),
    ):
        process = history.new_process()
        history.note(at, process, INVOKE, operation, key, value)
        history.note(at + 0.5, process, OK, operation, key, answer)
    log = SharedLog()
    assert log.judge(late).valid is True and log.judge(merged([writer, reader])).valid is True
    verdict = log.judge(merged([writer, reader, late]))
    assert verdict.valid is False and "ends at position -1" in verdict.problem


def test_no_two_processes_append_the_same_record_also_when_one_concludes_for_another() -> None:
    first, second = SharedLog(), SharedLog()
    first.name, second.name = "log-1", "log-2"
    history = History()
    taken = [second.take() for _ in range(3)]
    for record in taken:
        history.note(0.0, history.new_process(), INVOKE, APPEND, record)
    successor = SharedLog()
    successor.name = second.name
    successor.follow(history)
    assert len({*taken, successor.take(), first.take()}) == 5
