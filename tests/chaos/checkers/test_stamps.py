"""Stamps: torn batches and groups that go back are found, and their correct twins are accepted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers.stamps import check_stamp
from ebla.chaos.history import OK, pair
from tests.chaos.checkers.histories import (
    RIGHT,
    ROWS,
    Case,
    Play,
    changed,
    check_cases,
    explainable,
    stamps,
)

ONE = "0 stamp g 1;"
TWO = ONE + "0 stamp g 2;"
UNKNOWN = ONE + "0 stamp g 2 ?;"
LONG_READ = ONE + "1 read-stamps g ...; 0 stamp g 2; 1 ok [1,1]; 2 read-stamps g -> "
GROUPS = "0 stamp g 5; 0 stamp other 1; 1 read-stamps other -> [1]; 1 read-stamps g -> [5,5]"

# Steps of a history, its problem, and the rows of a batch.
CASES: dict[str, list[Case]] = {
    "a torn batch is found": [
        (
            ONE + "0 stamp g 2 ...; 1 read-stamps g -> [2,1,2]",
            "group 'g' is torn: read-stamps by process 1 (events 3 and 4) shows 2, 1 in one snapshot",
        ),
        (ONE + "0 stamp g 2 ...; 1 read-stamps g -> [1,1,1]", RIGHT),
        (ONE + "0 stamp g 2 ...; 1 read-stamps g -> [2,2,2]", RIGHT),
    ],
    "a first batch with missing rows is found": [
        (ONE + "1 read-stamps g -> [1,1]", RIGHT),
        (ONE + "1 read-stamps g -> [1,1]", "shows 2 of 3 rows", 3),
        (ONE + "1 read-stamps g -> [1,1]; 1 read-stamps g -> [1,1,1]", "shows 2 of 3 rows"),
    ],
    "a stale snapshot is found": [
        (
            TWO + "1 read-stamps g -> [1,1]",
            "shows 1 in group 'g', but stamp 'g' 2 by process 0 (events 2 and 3) ended before",
        ),
        (ONE + "1 read-stamps g -> []", "shows None"),
        (ONE + "0 stamp g 2 ...; 1 read-stamps g -> [1,1]; 0 ok; 1 read-stamps g -> [2,2]", RIGHT),
    ],
    "a group that goes back between reads is found": [
        (UNKNOWN + "1 read-stamps g -> [2,2]; 1 read-stamps g -> [1,1]", "showed 2"),
        (UNKNOWN + "1 read-stamps g -> [1,1]; 1 read-stamps g -> [2,2]", RIGHT),
        (UNKNOWN + "1 read-stamps g -> [1,1]; 1 read-stamps g -> [1,1]", RIGHT),
    ],
    "a long read that ends late excuses no other read": [
        (LONG_READ + "[2,2]", RIGHT),
        (LONG_READ + "[1,1]", "but stamp 'g' 2"),
    ],
    "an unknown stamp never follows the next acknowledged one": [
        ("0 stamp g 1 ?; 2 stamp g 2; 1 read-stamps g -> [1,1]", "ended before that began"),
    ],
    "a read up to a value shows no older rows, and nothing only while the value is greater": [
        (TWO + "1 read-stamps g 1 -> []", RIGHT),
        (TWO + "1 read-stamps g 2 -> [2,2]", RIGHT),
        (TWO + "1 read-stamps g 1 -> [1,1]", "shows 1 in group 'g', but stamp 'g' 2"),
        (TWO + "1 read-stamps g 2 -> []", "shows None in group 'g', but stamp 'g' 2"),
        (TWO + "1 read-stamps g 1 -> [2,2]", "shows 2 in group 'g', and asked for values up to 1"),
        (UNKNOWN + "1 read-stamps g 1 -> []; 1 read-stamps g -> [1,1]", "showed 2 or more"),
        (UNKNOWN + "1 read-stamps g 1 -> [1,1]; 1 read-stamps g 1 -> []", RIGHT),
    ],
    "a stamp that no client wrote is found": [
        (ONE + "1 read-stamps g -> [5,5]", "shows 5 in group 'g', which was never written"),
        ("1 read-stamps g -> [1,1]; 0 stamp g 1", "shows 1 before stamp 'g' 1"),
        ("0 stamp g 1 !; 1 read-stamps g -> [1,1]", "surely did not take place"),
    ],
    "groups are judged separately": [
        (GROUPS, RIGHT),
        (GROUPS + "; 1 read-stamps g -> []", "group 'g'"),
    ],
}


@pytest.mark.parametrize("claim", CASES)
def test_wrong_histories_are_found_and_correct_ones_accepted(claim: str) -> None:
    check_cases(check_stamp, CASES[claim])


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 7))
def test_the_verdict_agrees_with_brute_force(seed: int, count: int) -> None:
    def draw_stamps(play: Play, slot: int) -> tuple[str, str, int | None]:
        bound = draw.choice([None, draw.randrange(count)])
        return ("read-stamps", "g", bound) if slot else ("stamp", "g", play.count)

    draw = random.Random(seed)
    history = Play(seed, stamps, {}, draw_stamps, draw.choice([0.0, 0.2, 0.4])).run(3, count)
    reads = [event for event in history.events if event.type == OK and event.operation == "read-stamps"]
    if reads and draw.random() < 0.6:
        value = draw.randrange(count)
        history = changed(history, draw.choice(reads).index, [value] * ROWS if value else [])
    verdict = check_stamp(history, ROWS)
    if verdict.valid is None:
        assert not reads
    else:
        assert verdict.valid == explainable(pair(history.events), stamps, {})
