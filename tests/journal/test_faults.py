"""Two requests of a writer fail, at every pair of places: the outcome is the one computed on paper."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.journal.line import DROP, LOST, Line
from tests.journal.stage import Stage, play
from tests.journal.workload import REQUESTS, Outcome, outcome, write_two_segments
from tests.staged import staged

INDEXES = range(1, 10)  # 1: no fault; the others are REQUESTS
A, B = "journal/a", "journal/b"

Table = Callable[[tuple[int, int]], tuple[int, int, Collection[int]]]


@staged(play)
async def test_the_tables_cover_every_request_of_the_workload(stage: Stage) -> None:
    line = Line()
    assert await write_two_segments(stage, line) == 6
    assert line.trace == dict.fromkeys(stage.nodes, REQUESTS)


def dropped(pair: tuple[int, int]) -> tuple[int, int, Collection[int]]:
    """Counted, acknowledged and recoverable edits, in any order of the recovery's answers."""
    if pair in {(2, 2), (3, 3), (4, 4)}:
        return 0, 0, {0}
    if pair in {(4, 5), (5, 4), (5, 5)}:
        return 0, 0, {0, 3}
    if pair in {(4, 6), (5, 6), (6, 4), (6, 5), (6, 6)}:
        return 0, 3, {3}
    if pair in {(7, 7)}:
        return 3, 3, {3}
    if pair in {(7, 8), (8, 7), (8, 8)}:
        return 3, 3, {3, 6}
    if pair in {(7, 9), (8, 9), (9, 7), (9, 8), (9, 9)}:
        return 3, 6, {6}
    return 6, 6, {6}


def answers_lost(pair: tuple[int, int]) -> tuple[int, int, Collection[int]]:
    if pair in {(2, 2), (3, 3), (4, 4)}:
        return 0, 0, {0}
    if pair in {(5, 5)}:
        return 0, 0, {3}
    if pair in {(5, 6), (6, 5), (6, 6)}:
        return 0, 3, {3}
    if pair in {(7, 7)}:
        return 3, 3, {3}
    if pair in {(8, 8)}:
        return 3, 3, {6}
    if pair in {(8, 9), (9, 8), (9, 9)}:
        return 3, 6, {6}
    return 6, 6, {6}


def sweep(mode_a: str, mode_b: str) -> dict[tuple[int, int], Outcome]:
    found = {}
    for a in INDEXES:
        for b in INDEXES:
            line = Line({(A, a - 1): mode_a, (B, b - 1): mode_b})
            found[a, b] = play(lambda stage, line=line: outcome(stage, line))
    return found


def check(found: dict[tuple[int, int], Outcome], table: Table) -> None:
    for pair, was in found.items():
        counted, acked, may_be = table(pair)
        assert (was.counted, was.acked) == (counted, acked), (pair, was)
        assert was.recovered in may_be, (pair, was)


def test_dropping_requests_at_two_nodes_has_the_tabled_outcome():
    check(sweep(DROP, DROP), dropped)


def test_losing_answers_of_two_nodes_has_the_tabled_outcome():
    check(sweep(LOST, LOST), answers_lost)


def test_a_dropped_request_and_a_lost_answer_have_the_computed_outcome():
    found = sweep(DROP, LOST)
    assert sum(was == Outcome(6, 6, 6) for was in found.values()) == 65
