"""Registers: each kind of wrong history is found, and its twin that is right is accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebla.chaos.checkers import Verdict, check_register
from ebla.storage.errors import InvalidArgument
from tests.chaos.checkers.histories import Script

Told = Callable[[Script], None]


def judged(tell: Told, order: dict[int, int | None] | None = None) -> Verdict:
    script = Script()
    tell(script)
    return check_register(script.history, order or {})


def wrong(tell: Told, order: dict[int, int | None] | None = None) -> str:
    verdict = judged(tell, order)
    assert verdict.valid is False, verdict
    assert verdict.events, "a broken promise is shown in the history"
    return verdict.problem


def right(tell: Told, order: dict[int, int | None] | None = None) -> None:
    verdict = judged(tell, order)
    assert verdict.valid is True, verdict.problem


def test_a_stale_read_is_found() -> None:
    def stale(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "write", "k", 2)
        h.did(1, "read", "k", answer=1)

    def overlapping(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.begin(0, "write", "k", 2)
        h.did(1, "read", "k", answer=1)
        h.ok(0)
        h.did(1, "read", "k", answer=2)

    assert "read 'k' -> 1 by process 1 (events 4 and 5)" in wrong(stale)
    right(overlapping)


def test_a_lost_update_is_found() -> None:
    def lost(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(1, "update", "k", 2, answer=True)
        h.did(0, "read", "k", answer=1)

    def overwritten(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.begin(0, "write", "k", 1)
        h.did(1, "update", "k", 2, answer=True)
        h.ok(0)
        h.did(0, "read", "k", answer=1)

    wrong(lost)
    right(overwritten)


def test_an_insert_that_a_retry_applied_again_is_found() -> None:
    def resurrected(h: Script) -> None:
        h.did(0, "insert", "k", 1, answer=True)
        h.did(1, "delete", "k", answer=True)
        h.did(1, "read", "k", answer=1)

    def unknown(h: Script) -> None:
        h.begin(0, "insert", "k", 1)
        h.info(0)
        h.did(1, "delete", "k", answer=False)
        h.did(1, "read", "k", answer=1)

    wrong(resurrected)
    right(unknown)


def test_a_retried_insert_that_was_told_of_itself_is_found() -> None:
    def told_of_itself(h: Script) -> None:
        h.did(0, "insert", "k", 1, answer=False)
        h.did(0, "read", "k", answer=1)

    def told_of_another(h: Script) -> None:
        h.begin(1, "insert", "k", 1)
        h.info(1)
        h.did(0, "insert", "k", 1, answer=False)
        h.did(0, "read", "k", answer=1)

    wrong(told_of_itself)
    right(told_of_another)


def test_a_write_that_was_visible_and_is_gone_is_found() -> None:
    def gone(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.begin(0, "write", "k", 2)
        h.info(0)
        h.did(1, "read", "k", answer=2)
        h.did(1, "read", "k", answer=1)

    def stays(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.begin(0, "write", "k", 2)
        h.info(0)
        h.did(1, "read", "k", answer=1)
        h.did(1, "read", "k", answer=2)

    wrong(gone)
    right(stays)


def test_a_value_that_nobody_wrote_is_found() -> None:
    def from_nowhere(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "write", "other", 2)
        h.did(1, "read", "k", answer=2)

    def from_the_future(h: Script) -> None:
        h.did(1, "read", "k", answer=2)
        h.did(0, "write", "k", 2)

    def from_a_failure(h: Script) -> None:
        h.begin(0, "write", "k", 2)
        h.fail(0)
        h.did(1, "read", "k", answer=2)

    def written(h: Script) -> None:
        h.begin(0, "write", "k", 2)
        h.did(1, "read", "k", answer=2)
        h.ok(0)

    assert (
        wrong(from_nowhere)
        == "key 'k': read 'k' -> 2 by process 1 (events 4 and 5) reads a value that was never written"
    )
    assert "before write 'k' 2 by process 0 (events 2 and 3) began" in wrong(from_the_future)
    assert "was never written" in wrong(from_a_failure)
    right(written)


def test_a_lost_acknowledged_write_is_found() -> None:
    def lost(h: Script) -> None:
        h.did(0, "insert", "k", 1, answer=True)
        h.did(1, "read", "k", answer=None)

    def deleted(h: Script) -> None:
        h.did(0, "insert", "k", 1, answer=True)
        h.begin(2, "delete", "k")
        h.did(1, "read", "k", answer=None)
        h.did(1, "read", "k", answer=None)

    wrong(lost)
    right(deleted)


def test_two_reads_that_saw_two_writes_in_opposite_orders_are_found() -> None:
    def opposite(h: Script) -> None:
        h.begin(0, "write", "k", 1)
        h.begin(1, "write", "k", 2)
        h.begin(2, "read", "k")
        h.begin(3, "read", "k")
        h.ok(2, 1)
        h.ok(3, 2)
        h.begin(2, "read", "k")
        h.begin(3, "read", "k")
        h.ok(2, 2)
        h.ok(3, 1)
        h.ok(0)
        h.ok(1)

    def the_same(h: Script) -> None:
        h.begin(0, "write", "k", 1)
        h.begin(1, "write", "k", 2)
        for first, second in ((1, 2), (2, 2)):
            h.begin(2, "read", "k")
            h.begin(3, "read", "k")
            h.ok(2, first)
            h.ok(3, second)
        h.ok(0)
        h.ok(1)

    wrong(opposite)
    right(the_same)


def test_a_second_delete_that_found_the_key_again_is_found() -> None:
    def twice(h: Script) -> None:
        h.did(0, "insert", "k", 1, answer=True)
        h.begin(0, "delete", "k")
        h.begin(1, "delete", "k")
        h.ok(0, True)
        h.ok(1, True)

    def once(h: Script) -> None:
        h.did(0, "insert", "k", 1, answer=True)
        h.begin(0, "delete", "k")
        h.begin(1, "delete", "k")
        h.ok(0, True)
        h.ok(1, False)

    wrong(twice)
    right(once)


def test_updates_and_refused_inserts_say_whether_the_key_is_there() -> None:
    def update_of_nothing(h: Script) -> None:
        h.did(0, "update", "k", 1, answer=True)

    def no_update_of_something(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "update", "k", 2, answer=False)

    def true_to_the_word(h: Script) -> None:
        h.did(0, "update", "k", 1, answer=False)
        h.did(0, "write", "k", 1)
        h.did(0, "insert", "k", 3, answer=False)
        h.did(0, "update", "k", 2, answer=True)
        h.did(0, "delete", "k", answer=True)
        h.did(0, "delete", "k", answer=False)

    wrong(update_of_nothing)
    wrong(no_update_of_something)
    right(true_to_the_word)


# -- what the log knows


def test_the_log_says_in_which_order_overlapping_writes_took_place() -> None:
    def overlapping(h: Script) -> None:
        h.begin(0, "write", "k", 1)
        h.begin(1, "write", "k", 2)
        h.ok(0)
        h.ok(1)
        h.did(0, "read", "k", answer=2)

    right(overlapping)
    right(overlapping, {0: 10, 1: 20})
    wrong(overlapping, {0: 20, 1: 10})


def test_positions_against_the_order_of_acknowledgements_are_found() -> None:
    def one_after_the_other(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "write", "other", 5)
        h.did(0, "write", "k", 2)

    right(one_after_the_other, {0: 1, 4: 2})
    wrong(one_after_the_other, {0: 2, 4: 1})


def test_an_unknown_write_that_never_reached_the_log_explains_nothing() -> None:
    def unknown(h: Script) -> None:
        h.begin(0, "write", "k", 1)
        h.info(0)
        h.did(1, "read", "k", answer=1)

    right(unknown)
    right(unknown, {0: 7})
    assert "was never written" in wrong(unknown, {0: None})


def test_an_unknown_write_that_the_log_holds_must_take_place_before_later_ones() -> None:
    def unknown(h: Script) -> None:
        h.begin(0, "insert", "k", 1)
        h.info(0)
        h.did(1, "insert", "k", 2, answer=True)

    right(unknown)
    right(unknown, {0: 5, 2: 4})
    wrong(unknown, {0: 4, 2: 5})


def test_an_acknowledged_write_without_a_place_in_the_log_is_found() -> None:
    def acknowledged(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "insert", "k", 2, answer=False)

    right(acknowledged, {0: 1, 2: None})
    assert "the log shows that it was never applied" in wrong(acknowledged, {0: None, 2: 1})


def test_writes_of_one_log_entry_may_take_either_order() -> None:
    def overlapping(h: Script) -> None:
        h.begin(0, "write", "k", 1)
        h.begin(1, "write", "k", 2)
        h.ok(0)
        h.ok(1)
        h.did(0, "read", "k", answer=1)

    right(overlapping, {0: 3, 1: 3})


# -- verdicts


def test_a_problem_names_the_key_the_operations_the_values_and_the_events() -> None:
    def stale(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "write", "k", 2)
        h.did(1, "read", "k", answer=2)
        h.did(1, "read", "k", answer=1)

    verdict = judged(stale)
    assert verdict.problem == (
        "key 'k': no order explains the answers; the longest attempt explains 1 of 4 and leaves the key 1, after "
        "write 'k' 1 by process 0 (events 0 and 1); then write 'k' 2 by process 0 (events 2 and 3) cannot follow: "
        "read 'k' -> 1 by process 1 (events 6 and 7) still has to see the value, which is never written again"
    )
    assert verdict.events == (0, 1, 2, 3, 6, 7)
    assert verdict.judged == 4


def test_one_bad_key_among_good_ones_is_told_and_others_are_counted() -> None:
    script = Script()
    for key in range(3):
        script.did(0, "write", key, 1)
        script.did(0, "read", key, answer=1 if key == 0 else None)
    verdict = check_register(script.history)
    assert verdict.valid is False and verdict.judged == 6
    assert verdict.problem.startswith("key 1: ") and verdict.problem.endswith("; likewise 1 more of the keys")


def test_nothing_answered_is_nothing_judged() -> None:
    script = Script()
    assert check_register(script.history).valid is None
    script.begin(0, "write", "k", 1)
    script.info(0)
    verdict = check_register(script.history)
    assert verdict.valid is None and verdict.judged == 0 and "nothing was judged" in verdict.problem
    script.did(1, "write", "other", 1)
    assert check_register(script.history).valid is True


def test_a_search_that_takes_too_long_is_given_up() -> None:
    def undecided(h: Script) -> None:
        for process in range(12):
            h.begin(process, "write", "k", process)
        for process in range(12):
            h.ok(process)
        for value in range(12):
            h.did(0, "read", "k", answer=value)

    script = Script()
    undecided(script)
    assert check_register(script.history).valid is False
    verdict = check_register(script.history, steps_max=10)
    assert verdict.valid is None and "undecided after" in verdict.problem and verdict.judged == 24


def test_values_may_be_lists_and_maps_and_true_is_not_one() -> None:
    def plain(h: Script) -> None:
        h.did(0, "write", ["a", 1], {"x": [1, {"y": None}]})
        h.did(0, "read", ["a", 1], answer={"x": [1, {"y": None}]})

    def confused(h: Script) -> None:
        h.did(0, "write", "k", 1)
        h.did(0, "read", "k", answer=True)

    right(plain)
    wrong(confused)


def test_what_the_format_does_not_allow_is_refused() -> None:
    def writes_none(h: Script) -> None:
        h.did(0, "write", "k", None)

    def answers_nothing(h: Script) -> None:
        h.did(0, "insert", "k", 1)

    with pytest.raises(InvalidArgument, match="never holds None"):
        judged(writes_none)
    with pytest.raises(InvalidArgument, match="the answer must be True or False"):
        judged(answers_nothing)
