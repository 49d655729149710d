"""Registers of a table with forced configurations: only permitted losses are accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ebla.chaos.checkers.sides import Seen, Side, check_sides
from ebla.chaos.checkers.verdict import Verdict
from tests.chaos.checkers.histories import Script

Acknowledged = Mapping[int, Sequence[tuple[int, int]]]


def judged(
    script: Script, sides: Mapping[int, Mapping[int, int]], written: Acknowledged, reads: Mapping[int, int]
) -> Verdict:
    """`sides`: the log of each forced epoch, index by value. `reads`: forced epoch of the server that gave an answer."""
    read: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
    for event, mark in reads.items():
        answer = script.history.events[event]
        read.setdefault((answer.key, answer.value), []).append((answer.time_us, mark))
    logs = {mark: Side(log) for mark, log in sides.items()}
    return check_sides(script.history, Seen({"t": logs}, {"k": "t"}, written, read))


def two_writes() -> Script:
    return Script.of("0 write k 1; 0 write k 2")


def test_a_write_that_only_lost_replicas_acknowledged_may_be_lost() -> None:
    script = two_writes()
    read = script.did(1, "read", "k", answer=1)
    verdict = judged(script, {0: {1: 3, 2: 4}, 1: {1: 3}}, {1: [(0, 3)], 2: [(0, 4)]}, {read + 1: 1})
    assert verdict.valid is True and verdict.judged > 0


def test_a_write_that_the_survivor_acknowledged_may_not_be_lost() -> None:
    script = two_writes()
    script.did(1, "read", "k", answer=1)
    verdict = judged(script, {0: {1: 3}, 1: {1: 3}}, {1: [(0, 3)], 2: [(1, 6)]}, {5: 1})
    assert verdict.valid is False and "write 'k' 2 by process 0" in verdict.problem
    assert "was acknowledged on side 1, whose log does not have it" in verdict.problem


def test_entries_of_the_survivor_are_read_again() -> None:
    script = two_writes()
    read = script.did(1, "read", "k", answer=1)
    written = {1: [(0, 3)], 2: [(0, 4)]}
    verdict = judged(script, {0: {1: 3, 2: 4}, 1: {1: 3, 2: 4}}, written, {read + 1: 1})
    assert verdict.valid is False and verdict.problem.startswith("side 1: key 'k'")


def test_replicas_that_were_given_up_may_continue_and_are_judged_alone() -> None:
    script = two_writes()
    script.did(1, "write", "k", 3)  # by replicas that were given up
    old = script.did(2, "read", "k", answer=3)
    new = script.did(3, "read", "k", answer=2)
    sides = {0: {1: 3, 2: 4, 3: 5}, 1: {1: 3, 2: 4}}
    written = {1: [(0, 3)], 2: [(0, 4)], 3: [(0, 5)]}
    assert judged(script, sides, written, {old + 1: 0, new + 1: 1}).valid is True
    stale = script.did(2, "read", "k", answer=1)
    verdict = judged(script, sides, written, {old + 1: 0, new + 1: 1, stale + 1: 0})
    assert verdict.valid is False and verdict.problem.startswith("side 0: key 'k'")


def test_a_wrong_answer_of_one_side_is_not_excused_by_the_other() -> None:
    script = two_writes()
    read = script.did(1, "read", "k", answer=2)
    sides, written = {0: {1: 3, 2: 4}, 1: {1: 3}}, {1: [(0, 3)], 2: [(0, 4)]}
    assert judged(script, sides, written, {read + 1: 0}).valid is True
    assert judged(script, sides, written, {read + 1: 1}).valid is False


def test_an_unknown_write_may_take_effect_on_either_side() -> None:
    script = Script.of("0 write k 1; 0 write k 2 ?")
    read = script.did(1, "read", "k", answer=2)
    assert judged(script, {0: {1: 3}, 1: {1: 3, 2: 4}}, {1: [(0, 3)]}, {read + 1: 1}).valid is True


def test_an_acknowledgement_of_a_side_without_a_known_log_is_believed() -> None:
    script = two_writes()
    verdict = judged(script, {0: {1: 3}, 1: {1: 3}, 2: {1: 3, 2: 5}}, {1: [(0, 3)], 2: [(1, 5)]}, {})
    assert verdict.valid is True


def test_an_answer_that_no_server_sent_is_a_violation() -> None:
    script = two_writes()
    script.did(1, "read", "k", answer=2)
    verdict = judged(script, {0: {1: 3, 2: 4}}, {1: [(0, 3)], 2: [(0, 4)]}, {})
    assert verdict.valid is False and "but no server gave this answer" in verdict.problem


def test_an_answer_of_a_side_that_no_log_shows_is_a_violation() -> None:
    script = two_writes()
    script.did(1, "read", "k", answer=1)  # the last acknowledged write is lost with its log
    verdict = judged(script, {0: {1: 3}}, {1: [(0, 3)], 2: [(2, 6)]}, {5: 0})
    assert verdict.valid is False and "answered on side 2, of which no log is seen" in verdict.problem
    verdict = judged(script, {}, {1: [(0, 3)], 2: [(0, 4)]}, {5: 0})
    assert verdict.valid is False and "answered on side 0, of which no log is seen" in verdict.problem


def test_without_an_answer_no_side_is_judged() -> None:
    assert judged(Script(), {}, {}, {}).valid is None
