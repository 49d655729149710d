"""Registers: each kind of wrong history is found, and its correct twin is accepted."""

from __future__ import annotations

import pytest

from ebla.chaos.checkers.register import check_register
from tests.chaos.checkers.histories import RIGHT, WRONG, Case, Script, check_cases

UNKNOWN_READ = "0 write k 1 ?; 1 read k -> 1"
OVERLAPPING = "0 write k 1 ...; 1 write k 2 ...; 0 ok; 1 ok; 0 read k -> "
IN_SEQUENCE = "0 write k 1; 0 write other 5; 0 write k 2"
UNKNOWN_INSERT = "0 insert k 1 ?; 1 insert k 2 -> True"
ACKNOWLEDGED = "0 write k 1; 0 insert k 2 -> False"
OPPOSITE = "0 write k 1 ...; 1 write k 2 ...; 2 read k ...; 3 read k ...; 2 ok 1; 3 ok 2; 2 read k ...; 3 read k ...;"

# Steps of a history, its problem, and places of the writes in the log, by event.
CASES: dict[str, list[Case]] = {
    "a stale read is found": [
        ("0 write k 1; 0 write k 2; 1 read k -> 1", "read 'k' -> 1 by process 1 (events 4 and 5)"),
        ("0 write k 1; 0 write k 2 ...; 1 read k -> 1; 0 ok; 1 read k -> 2", RIGHT),
    ],
    "a lost update is found": [
        ("0 write k 1; 1 update k 2 -> True; 0 read k -> 1", WRONG),
        ("0 write k 1; 0 write k 1 ...; 1 update k 2 -> True; 0 ok; 0 read k -> 1", RIGHT),
    ],
    "an insert applied twice is found": [
        ("0 insert k 1 -> True; 1 delete k -> True; 1 read k -> 1", WRONG),
        ("0 insert k 1 ?; 1 delete k -> False; 1 read k -> 1", RIGHT),
    ],
    "a retried insert refused because of itself is found": [
        ("0 insert k 1 -> False; 0 read k -> 1", WRONG),
        ("1 insert k 1 ?; 0 insert k 1 -> False; 0 read k -> 1", RIGHT),
    ],
    "a write that was read and is missing later is found": [
        ("0 write k 1; 0 write k 2 ?; 1 read k -> 2; 1 read k -> 1", WRONG),
        ("0 write k 1; 0 write k 2 ?; 1 read k -> 1; 1 read k -> 2", RIGHT),
    ],
    "a value that no client wrote is found": [
        (
            "0 write k 1; 0 write other 2; 1 read k -> 2",
            "key 'k': read 'k' -> 2 by process 1 (events 4 and 5) reads a value that was never written",
        ),
        ("1 read k -> 2; 0 write k 2", "before write 'k' 2 by process 0 (events 2 and 3) began"),
        ("0 write k 2 !; 1 read k -> 2", "was never written"),
        ("0 write k 2 ...; 1 read k -> 2; 0 ok", RIGHT),
    ],
    "a lost acknowledged write is found": [
        ("0 insert k 1 -> True; 1 read k", WRONG),
        ("0 insert k 1 -> True; 2 delete k ...; 1 read k; 1 read k", RIGHT),
    ],
    "two reads with opposite orders of writes are found": [
        (OPPOSITE + "2 ok 2; 3 ok 1; 0 ok; 1 ok", WRONG),
        (OPPOSITE + "2 ok 2; 3 ok 2; 0 ok; 1 ok", RIGHT),
    ],
    "a second delete that finds the key is found": [
        ("0 insert k 1 -> True; 0 delete k ...; 1 delete k ...; 0 ok True; 1 ok True", WRONG),
        ("0 insert k 1 -> True; 0 delete k ...; 1 delete k ...; 0 ok True; 1 ok False", RIGHT),
    ],
    "updates and refused inserts show whether the key exists": [
        ("0 update k 1 -> True", WRONG),
        ("0 write k 1; 0 update k 2 -> False", WRONG),
        (
            "0 update k 1 -> False; 0 write k 1; 0 insert k 3 -> False; 0 update k 2 -> True;"
            "0 delete k -> True; 0 delete k -> False",
            RIGHT,
        ),
    ],
    "values may be lists and maps, and True differs from 1": [
        ("0 write ['a',1] {'x':[1,{'y':None}]}; 0 read ['a',1] -> {'x':[1,{'y':None}]}", RIGHT),
        ("0 write k 1; 0 read k -> True", WRONG),
    ],
    "the log gives the order of overlapping writes": [
        (OVERLAPPING + "2", RIGHT),
        (OVERLAPPING + "2", RIGHT, {0: 10, 1: 20}),
        (OVERLAPPING + "2", WRONG, {0: 20, 1: 10}),
    ],
    "writes of one log entry may have either order": [(OVERLAPPING + "1", RIGHT, {0: 3, 1: 3})],
    "positions against the order of acknowledgements are found": [
        (IN_SEQUENCE, RIGHT, {0: 1, 4: 2}),
        (IN_SEQUENCE, WRONG, {0: 2, 4: 1}),
    ],
    "an unknown write that is not in the log explains nothing": [
        (UNKNOWN_READ, RIGHT),
        (UNKNOWN_READ, RIGHT, {0: 7}),
        (UNKNOWN_READ, "was never written", {0: None}),
    ],
    "an unknown write in the log takes effect before later ones": [
        (UNKNOWN_INSERT, RIGHT),
        (UNKNOWN_INSERT, RIGHT, {0: 5, 2: 4}),
        (UNKNOWN_INSERT, WRONG, {0: 4, 2: 5}),
    ],
    "an acknowledged write that is not in the log is found": [
        (ACKNOWLEDGED, RIGHT, {0: 1, 2: None}),
        (ACKNOWLEDGED, "the log shows that it was never applied", {0: None, 2: 1}),
    ],
}


@pytest.mark.parametrize("claim", CASES)
def test_wrong_histories_are_found_and_correct_ones_accepted(claim: str) -> None:
    check_cases(check_register, CASES[claim])


def test_a_problem_names_key_operations_values_and_events() -> None:
    script = Script.of("0 write k 1; 0 write k 2; 1 read k -> 2; 1 read k -> 1")
    verdict = check_register(script.history)
    assert verdict.problem == (
        "key 'k': no order explains the answers; the longest attempt explains 1 of 4 and leaves the key 1, after "
        "write 'k' 1 by process 0 (events 0 and 1); then write 'k' 2 by process 0 (events 2 and 3) cannot follow: "
        "read 'k' -> 1 by process 1 (events 6 and 7) still has to see the value, which is never written again"
    )
    assert verdict.events == (0, 1, 2, 3, 6, 7)
    assert verdict.judged == 4


def test_one_bad_key_is_named_and_others_are_counted() -> None:
    script = Script()
    for key in range(3):
        script.did(0, "write", key, 1)
        script.did(0, "read", key, answer=1 if key == 0 else None)
    verdict = check_register(script.history)
    assert verdict.valid is False and verdict.judged == 6
    assert verdict.problem.startswith("key 1: ") and verdict.problem.endswith("; likewise 1 more of the keys")


def test_without_an_answer_the_history_is_not_judged() -> None:
    script = Script()
    assert check_register(script.history).valid is None
    script.begin(0, "write", "k", 1)
    script.info(0)
    verdict = check_register(script.history)
    assert verdict.valid is None and verdict.judged == 0 and "nothing was judged" in verdict.problem
    script.did(1, "write", "other", 1)
    assert check_register(script.history).valid is True


def test_a_search_that_takes_too_long_is_given_up() -> None:
    writes = [f"{process} write k {process} ..." for process in range(12)]
    ends = [f"{process} ok" for process in range(12)]
    reads = [f"0 read k -> {value}" for value in range(12)]
    history = Script.of(";".join((*writes, *ends, *reads))).history
    assert check_register(history).valid is False
    verdict = check_register(history, steps_max=10)
    assert verdict.valid is None and "undecided after" in verdict.problem and verdict.judged == 24
