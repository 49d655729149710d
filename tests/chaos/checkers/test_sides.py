"""Registers of a table whose configurations were forced: what may be lost is accepted, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ebla.chaos.checkers.sides import Seen, Side, check_sides
from ebla.chaos.checkers.verdict import Verdict
from tests.chaos.checkers.histories import Script

Acknowledged = Mapping[int, Sequence[tuple[int, int]]]


def judged(
    script: Script, sides: Mapping[int, Mapping[int, int]], written: Acknowledged, reads: Mapping[int, int]
) -> Verdict:
    """`sides`: the logs, by mark: index by value. `reads`: the mark of who answered, by the event of the answer."""
    read: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
    for event, mark in reads.items():
        told = script.history.events[event]
        read.setdefault((told.key, told.value), []).append((told.time_us, mark))
    logs = {mark: Side(log) for mark, log in sides.items()}
    return check_sides(script.history, Seen({"t": logs}, {"k": "t"}, written, read))


def two_writes() -> Script:
    script = Script()
    script.did(0, "write", "k", 1)
    script.did(0, "write", "k", 2)
    return script


def test_what_only_the_lost_had_acknowledged_may_be_gone() -> None:
    script = two_writes()
    read = script.did(1, "read", "k", answer=1)
    verdict = judged(script, {0: {1: 3, 2: 4}, 1: {1: 3}}, {1: [(0, 3)], 2: [(0, 4)]}, {read + 1: 1})
    assert verdict.valid is True and verdict.judged > 0


def test_what_the_survivor_acknowledged_may_not() -> None:
    script = two_writes()
    script.did(1, "read", "k", answer=1)
    verdict = judged(script, {0: {1: 3}, 1: {1: 3}}, {1: [(0, 3)], 2: [(1, 6)]}, {5: 1})
    assert verdict.valid is False and "write 'k' 2 by process 0" in verdict.problem
    assert "was acknowledged on side 1, whose log does not have it" in verdict.problem


def test_what_the_survivor_has_is_read_again() -> None:
    script = two_writes()
    read = script.did(1, "read", "k", answer=1)
    written = {1: [(0, 3)], 2: [(0, 4)]}
    verdict = judged(script, {0: {1: 3, 2: 4}, 1: {1: 3, 2: 4}}, written, {read + 1: 1})
    assert verdict.valid is False and verdict.problem.startswith("side 1: key 'k'")


def test_those_that_were_given_up_may_go_on_until_they_are_told_and_are_judged_by_themselves() -> None:
    script = two_writes()
    script.did(1, "write", "k", 3)  # by those who were given up
    old = script.did(2, "read", "k", answer=3)
    new = script.did(3, "read", "k", answer=2)
    sides = {0: {1: 3, 2: 4, 3: 5}, 1: {1: 3, 2: 4}}
    written = {1: [(0, 3)], 2: [(0, 4)], 3: [(0, 5)]}
    assert judged(script, sides, written, {old + 1: 0, new + 1: 1}).valid is True
    stale = script.did(2, "read", "k", answer=1)
    verdict = judged(script, sides, written, {old + 1: 0, new + 1: 1, stale + 1: 0})
    assert verdict.valid is False and verdict.problem.startswith("side 0: key 'k'")


def test_an_answer_of_the_side_in_force_is_not_excused_by_the_other() -> None:
    script = two_writes()
    read = script.did(1, "read", "k", answer=2)
    sides, written = {0: {1: 3, 2: 4}, 1: {1: 3}}, {1: [(0, 3)], 2: [(0, 4)]}
    assert judged(script, sides, written, {read + 1: 0}).valid is True
    assert judged(script, sides, written, {read + 1: 1}).valid is False


def test_a_write_whose_outcome_nobody_knows_may_come_with_either_side() -> None:
    script = Script()
    script.did(0, "write", "k", 1)
    script.begin(0, "write", "k", 2)
    script.info(0)
    read = script.did(1, "read", "k", answer=2)
    assert judged(script, {0: {1: 3}, 1: {1: 3, 2: 4}}, {1: [(0, 3)]}, {read + 1: 1}).valid is True


def test_an_acknowledgement_whose_side_ended_before_anybody_saw_its_log_is_believed() -> None:
    script = two_writes()
    verdict = judged(script, {0: {1: 3}, 1: {1: 3}, 2: {1: 3, 2: 5}}, {1: [(0, 3)], 2: [(1, 5)]}, {})
    assert verdict.valid is True


def test_an_answer_that_no_server_gave_is_a_violation() -> None:
    script = two_writes()
    script.did(1, "read", "k", answer=2)
    verdict = judged(script, {0: {1: 3, 2: 4}}, {1: [(0, 3)], 2: [(0, 4)]}, {})
    assert verdict.valid is False and "but no server gave this answer" in verdict.problem


def test_an_answer_of_a_newer_side_than_any_that_is_seen_is_a_violation() -> None:
    script = two_writes()
    script.did(1, "read", "k", answer=1)  # what was acknowledged last is lost, and its log with it
    verdict = judged(script, {0: {1: 3}}, {1: [(0, 3)], 2: [(2, 6)]}, {5: 0})
    assert verdict.valid is False and "answered on side 2, of which no log is seen" in verdict.problem
    verdict = judged(script, {}, {1: [(0, 3)], 2: [(0, 4)]}, {5: 0})
    assert verdict.valid is False and "answered on side 0, of which no log is seen" in verdict.problem


def test_nothing_is_judged_where_nothing_was_answered() -> None:
    assert judged(Script(), {}, {}, {}).valid is None
