"""Sweeps over faults without a tabled outcome: every failure, pair of nodes, order of answers, writers and recoveries.

Each run ends with a clean writer and the verdict of `Stage.judge`: acknowledged edits exist, byte for byte, and final
copies are equal. The number of a run gives its faults.
"""

from __future__ import annotations

import random
from itertools import combinations, permutations, product

import pytest

from ebla.actors.fault_points import JOURNAL_POINTS
from tests.journal.line import DROP, LOST, MODES, Line
from tests.journal.stage import Stage, play
from tests.journal.workload import REQUESTS, SECOND_REQUESTS, outcome, write_two_segments
from tests.staged import staged
from tests.sweeps import FACTOR, seeds

THREE = ("journal/a", "journal/b", "journal/c")
FIVE = tuple(f"journal/{name}" for name in "abcde")
PAIRS = list(combinations(THREE, 2))
NUMBERS = range(1, len(REQUESTS) + 1)
SINGLY = (1, 1, 1)

# States that a first writer may leave: no segment or one on a single node, uneven copies, a segment that is final on
# one node only.
LEFT = [(3, 4), (4, 4), (4, 5), (5, 5), (7, 7), (8, 8)]


@pytest.mark.parametrize("mode", MODES)
def test_two_failures_of_one_kind_lose_nothing(mode: str):
    """In `make test` a third of the pairs of requests for each pair of nodes, another one for each kind of failure."""
    for run, (nodes, a, b) in enumerate(product(PAIRS, NUMBERS, NUMBERS)):
        if FACTOR == 1 and (a + b + MODES.index(mode)) % 3:
            continue
        line = Line({(nodes[0], a): mode, (nodes[1], b): mode})
        play(lambda stage, line=line: outcome(stage, line), run)


def test_two_failures_of_different_kinds_lose_nothing():
    chance = random.Random(1)
    for run in seeds(50):
        first, second = chance.choice(PAIRS)
        mode, other = chance.sample(MODES, 2)
        line = Line({(first, chance.choice(NUMBERS)): mode, (second, chance.choice(NUMBERS)): other})
        play(lambda stage, line=line: outcome(stage, line), run)


def test_failures_lose_nothing_when_every_edit_is_its_own_flush():
    numbers = range(1, 2 + 2 * (len(SINGLY) + 2) + 1)
    for run, (a, b) in enumerate(product(numbers, numbers)):
        first, second = PAIRS[run % 3]
        mode = (DROP, LOST)[run % 2]
        line = Line({(first, a): mode, (second, b): mode})
        play(lambda stage, line=line: outcome(stage, line, flushes=SINGLY), run)


@pytest.mark.parametrize("victims", [2, 3])
def test_failures_lose_nothing_on_five_nodes(victims: int):
    chance = random.Random(victims)
    whole, runs = 0, seeds(20)
    for run in runs:
        faults = {
            (node, chance.choice(NUMBERS)): chance.choice(MODES) for node in chance.sample(FIVE, victims)
        }
        was = play(lambda stage, faults=faults: outcome(stage, Line(faults)), run, count=5)
        whole += was.counted == 6
    assert whole == len(runs) if victims == 2 else 0 < whole < len(runs)


def test_no_order_of_answers_to_a_recovery_loses_anything():
    for run, ((a, b), order) in enumerate(product(LEFT, permutations(THREE))):
        writer = Line({(order[0], a): DROP, (order[1], b): DROP})
        delays_s = {node: 0.1 * rank for rank, node in enumerate(sorted(THREE, key=order.index))}
        recoverer = Line(delays_s=delays_s)
        play(lambda stage, lines=(writer, recoverer): outcome(stage, *lines), run)


@staged(play)
async def test_the_sweeps_cover_every_request_of_a_second_writer(stage: Stage) -> None:
    await write_two_segments(stage, Line({("journal/a", 4): DROP, ("journal/b", 5): DROP}))
    line = Line()
    await write_two_segments(stage, line)
    assert line.trace["journal/c"] == SECOND_REQUESTS


SECOND = range(1, len(SECOND_REQUESTS) + 1)


DECIDING = SECOND[1:5]  # request of an epoch, of the state, choice, and finalize
DRAWN = 75


def test_a_failing_recovery_loses_nothing():
    """Every pair of deciding requests of the second writer, in every pair of failures. The nodes, and the state that the first
    writer left, are drawn."""
    chance = random.Random(3)
    for run, (a, b, mode, other) in enumerate(product(DECIDING, DECIDING, MODES, MODES)):
        if FACTOR == 1 and run % 2:
            continue
        lines = two_writers(chance, a, b, mode, other)
        play(lambda stage, lines=lines: outcome(stage, *lines), run)


def test_a_recovery_that_fails_in_two_places_loses_nothing():
    chance = random.Random(4)
    cases = list(product(SECOND, SECOND, MODES, MODES))
    for run, (a, b, mode, other) in enumerate(chance.sample(cases, min(len(cases), len(seeds(DRAWN))))):
        lines = two_writers(chance, a, b, mode, other)
        play(lambda stage, lines=lines: outcome(stage, *lines), run)


def two_writers(chance: random.Random, a: int, b: int, mode: str, other: str) -> tuple[Line, Line]:
    left, (first, second) = chance.choice(LEFT), chance.choice(PAIRS)
    one, two = chance.choice(PAIRS)
    writer = Line({(first, left[0]): DROP, (second, left[1]): DROP})
    return writer, Line({(one, a): mode, (two, b): other})


def test_failures_of_writer_and_recoveries_lose_nothing():
    chance = random.Random(2)
    for run in seeds(40):
        lines = []
        for numbers in (NUMBERS, SECOND, SECOND):
            first, second = chance.choice(PAIRS)
            lines.append(
                Line(
                    {
                        (first, chance.choice(numbers)): chance.choice(MODES),
                        (second, chance.choice(numbers)): chance.choice(MODES),
                    }
                )
            )
        play(lambda stage, lines=lines: outcome(stage, *lines), run)


ELSEWHERE = ("format", "rejoin", "whole", "heartbeat", "purge", "learn", "lease")
IN_A_RECOVERY = [point for point in JOURNAL_POINTS if point.split(".")[1] not in ELSEWHERE]


def test_a_crash_of_a_node_around_any_commit_loses_nothing():
    """While a second writer recovers the state of the first, and another of its requests is dropped elsewhere."""
    passed: dict[str, int] = {}
    cases = product(IN_A_RECOVERY, THREE, [(4, 4), (8, 8), (4, 5)])
    for run, (point, node, left) in enumerate(cases):

        async def scenario(
            stage: Stage, run: int = run, left: tuple[int, int] = left, point: str = point, node: str = node
        ) -> None:
            writer = Line({(THREE[run % 2], left[0]): DROP, (THREE[2], left[1]): DROP})
            await write_two_segments(stage, writer)
            stage.crash_at(node, point)
            others = [other for other in THREE if other != node]
            await write_two_segments(stage, Line({(others[run % 2], 1 + run % 11): DROP}))
            if not stage.cluster.alive(node):
                passed[point] = passed.get(point, 0) + 1
                await stage.cluster.restart(node)
            stage.points.disarm(node, point)
            await stage.finish()

        play(scenario, run)
    assert list(passed) == IN_A_RECOVERY
