"""Invocations and ends find each other, and what was never recorded by `History` is refused."""

from __future__ import annotations

import pytest

from ebla.chaos.history import FAIL, INFO, INVOKE, OK, Event, History, pair
from tests.chaos.checkers.histories import Script


def test_an_operation_is_its_invocation_and_its_end() -> None:
    script = Script()
    script.begin(0, "write", "k", 1)
    script.begin(1, "read", "k")
    script.ok(1, 7)
    script.ok(0)
    write, read = script.history.operations()
    assert (write.name, write.key, write.argument, write.answer) == ("write", "k", 1, None)
    assert (write.began, write.ended, write.known, write.failed) == (0, 3, True, False)
    assert (read.began, read.ended, read.answer) == (1, 2, 7)


def test_an_unknown_operation_has_an_end_but_no_place_after_which_it_is_over() -> None:
    script = Script()
    script.begin(0, "write", "k", 1)
    script.info(0)
    script.begin(1, "write", "k", 2)
    first, second = script.history.operations()
    assert first.end is not None and first.end.type == INFO
    assert second.end is None
    assert [(each.known, each.failed, each.ended, each.answer) for each in (first, second)] == [
        (False, False, None, 1),
        (False, False, None, None),
    ]


def test_a_failed_operation_is_over_and_not_known() -> None:
    script = Script()
    script.begin(0, "write", "k", 1)
    script.fail(0)
    (operation,) = script.history.operations()
    assert operation.failed and not operation.known and operation.ended == 1


def test_operations_come_by_name_in_the_order_of_their_invocations() -> None:
    script = Script()
    script.begin(0, "write", "k", 1)
    script.begin(1, "read", "k")
    script.begin(2, "add", 5)
    for process in (2, 1, 0):
        script.ok(process)
    assert [each.name for each in script.history.operations()] == ["write", "read", "add"]
    assert [each.name for each in script.history.operations("read", "write")] == ["write", "read"]


def test_a_process_that_asks_again_before_it_is_answered_is_refused() -> None:
    events = [Event(0, 0, 3, INVOKE, "read"), Event(1, 0, 3, INVOKE, "read")]
    with pytest.raises(ValueError, match="event 1: process 3 begins an operation before its last one ended"):
        pair(events)


@pytest.mark.parametrize("type", [OK, FAIL, INFO])
def test_an_end_that_nobody_asked_for_is_refused(type: str) -> None:
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
