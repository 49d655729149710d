"""Chains: lost nodes and broken chains are found, and their correct twins are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers.chains import check_list
from tests.chaos.checkers.histories import RIGHT, Case, Play, chains, check_cases

ONE = "0 append 1;"
TWO = ONE + "0 append 2 1;"
AFTER_AN_UNKNOWN_ONE = (
    "0 append 1 ?; 2 append 2 1; 2 append 3 2; 1 read-list -> {2: 1, 3: 2}; 1 read-list -> "
)

CASES: dict[str, list[Case]] = {
    "a lost acknowledged node is found": [
        (
            TWO + "1 read-list -> {1: None}",
            "lacks node 2, which append 2 1 by process 0 (events 2 and 3) proves was there",
        ),
        (ONE + "0 append 2 1 ?; 1 read-list -> {1: None}", RIGHT),
    ],
    "a node that was read and is missing later is found": [
        (
            "0 append 1 ?; 1 read-list -> {1: None}; 1 read-list -> {}",
            "read-list by process 1 (events 2 and 3) proves was there",
        ),
    ],
    "a node that no client appended is found": [
        (ONE + "1 read-list -> {1: None, 7: 1}", "holds node 7, but no process appended it"),
        ("0 append 1 !; 1 read-list -> {1: None}", "surely did not take place"),
        ("1 read-list -> {1: None}; 0 append 1", "holds node 1 before"),
    ],
    "a node with another value is found": [
        (TWO + "1 read-list -> {1: None, 2: None}", "has node 2 follow None, but append 2 1"),
    ],
    "a broken chain is found at the last read": [
        (AFTER_AN_UNKNOWN_ONE + "{2: 1, 3: 2}", "the chain of node 2 breaks at node 2, which follows node 1"),
        (AFTER_AN_UNKNOWN_ONE + "{1: None, 2: 1, 3: 2}", RIGHT),
    ],
    "a read need not be one snapshot of all chains": [("1 read-list ...;" + TWO + "1 ok {2:1}", RIGHT)],
    "a cyclic chain is found": [
        (
            "0 append 1 2; 0 append 2 1; 1 read-list -> {1: 2, 2: 1}",
            "the chain of node 1 comes back to node 1",
        ),
    ],
}


@pytest.mark.parametrize("claim", CASES)
def test_wrong_histories_are_found_and_correct_ones_accepted(claim: str) -> None:
    check_cases(check_list, CASES[claim])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 200))
def test_histories_of_correct_chains_are_accepted(seed: int, count: int) -> None:
    def draw(play: Play, slot: int) -> tuple[str, int | None, int | None]:
        if slot > 2:
            return "read-list", None, None
        own = [
            e.key
            for e in play.history.events
            if e.operation == "append" and e.type == "ok" and e.key % 3 == slot
        ]
        return "append", play.count * 3 + slot, own[-1] if own else None

    history = Play(seed, chains, {}, draw, 0.1).run(slots=5, count=count)
    assert check_list(history).valid is not False
