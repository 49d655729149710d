"""Invocations and ends are paired, and events that `History` cannot have recorded are refused."""

from __future__ import annotations

import pytest

from ebla.chaos.history import FAIL, INFO, INVOKE, OK, Event, History, pair
from tests.chaos.checkers.histories import Script


def test_an_operation_has_an_invocation_and_an_end() -> None:
    script = Script.of("0 write k 1 ...; 1 read k ...; 1 ok 7; 0 ok")
    write, read = script.history.operations()
    assert (write.name, write.key, write.argument, write.answer) == ("write", "k", 1, None)
    assert (write.began, write.ended, write.known, write.failed) == (0, 3, True, False)
    assert (read.began, read.ended, read.answer) == (1, 2, 7)


def test_an_unknown_operation_has_an_end_but_may_take_effect_later() -> None:
    script = Script.of("0 write k 1 ?; 1 write k 2 ...")
    first, second = script.history.operations()
    assert first.end is not None and first.end.type == INFO
    assert second.end is None
    assert [(each.known, each.failed, each.ended, each.answer) for each in (first, second)] == [
        (False, False, None, 1),
        (False, False, None, None),
    ]


def test_a_failed_operation_has_ended_and_is_not_known() -> None:
    script = Script()
    script.begin(0, "write", "k", 1)
    script.fail(0)
    (operation,) = script.history.operations()
    assert operation.failed and not operation.known and operation.ended == 1


def test_operations_are_in_the_order_of_their_invocations() -> None:
    script = Script.of("0 write k 1 ...; 1 read k ...; 2 add 5 ...")
    for process in (2, 1, 0):
        script.ok(process)
    assert [each.name for each in script.history.operations()] == ["write", "read", "add"]
    assert [each.name for each in script.history.operations("read", "write")] == ["write", "read"]


def test_a_second_invocation_of_a_waiting_process_is_refused() -> None:
    events = [Event(0, 0, 3, INVOKE, "read"), Event(1, 0, 3, INVOKE, "read")]
    with pytest.raises(ValueError, match="event 1: process 3 begins an operation before its last one ended"):
        pair(events)


@pytest.mark.parametrize("type", [OK, FAIL, INFO])
def test_an_end_without_an_invocation_is_refused(type: str) -> None:
    with pytest.raises(ValueError, match=f"event 0: {type} read has no invocation"):
        pair([Event(0, 0, 0, type, "read")])
    with pytest.raises(ValueError, match="event 1: ok write has no invocation"):
        pair([Event(0, 0, 0, INVOKE, "read"), Event(1, 0, 0, OK, "write")])


def test_events_are_numbered_by_place_and_processes_from_zero() -> None:
    history = History()
    assert [history.new_process(), history.new_process()] == [0, 1]
    first = history.note(1.5, 0, INVOKE, "read", "k")
    second = history.note(2.0, 0, INFO, "read", "k", error="no answer")
    assert (first.index, second.index, len(history)) == (0, 1, 2)
    assert (first.time_us, second.error) == (1_500_000, "no answer")
