"""Ledgers: entries out of turn or missing, two ends, entries behind an end, and answers after a deletion are found."""

from __future__ import annotations

import pytest

from ebla.chaos.checkers.ledgers import check_ledgers
from tests.chaos.checkers.histories import RIGHT, Case, Script, check_cases

THREE = "; ".join(f"0 add {record} [7,{record}] -> {record}" for record in range(3)) + "; "
LATE = "1 add 3 [7,3] ...; "

CASES: dict[str, list[Case]] = {
    "entries out of turn, and of other ledgers, are found": [
        (THREE + "1 read-ledger 7 0 -> [[0, 1, 2], None]", RIGHT),
        (THREE + "1 read-ledger 7 1 -> [[1, 2], None]", RIGHT),
        (THREE + "1 read-ledger 7 0 -> [[1, 0, 2], None]", "add 1 [7, 1] -> 1 by process 0"),
        (THREE + "0 add 3 [7,3] -> 4", "is entry 4"),
        (
            THREE + "1 read-ledger 7 0 -> [[0, 1, 2, 9], None]",
            "shows record 9, which its writer was not given",
        ),
        (THREE + "0 add 5 [8,0] -> 0; 1 read-ledger 7 0 -> [[0, 1, 2, 5], None]", "was not given"),
        (THREE + "1 add 3 [7,3] !; 1 read-ledger 7 0 -> [[0, 1, 2, 3], None]", "surely was not added"),
        (THREE + "1 add 3 [7,3] ?; 2 read-ledger 7 0 -> [[0, 1, 2, 3], None]", RIGHT),
    ],
    "an acknowledged entry that is missing is found": [
        (THREE + "1 read-ledger 7 0 -> [[0, 1], None]", "reaches to 1, and entry 2 had been shown"),
        (THREE + "1 read-ledger 7 5 -> [[], None]", RIGHT),
        (THREE + "1 look 7 -> 1", "reaches to 1"),
        (THREE + "1 end 7 -> 1", "it ends at 1, and add 2 [7, 2]"),
        (THREE + LATE + "2 look 7 -> 3; 3 read-ledger 7 0 -> [[0, 1, 2], None]", "reaches to 2, and entry 3"),
        ("3 look 7 ...; " + THREE + "3 ok -1; 0 end 7 -> 2", RIGHT),
    ],
    "a second end, and entries behind the end, are found": [
        (THREE + "1 end 7 -> 2; 2 end 7 -> 2; 0 close 7 -> 2", RIGHT),
        (THREE + LATE + "1 ok 3; 2 end 7 -> 3; 3 end 7 -> 4", "it ends at 3, and at 4"),
        (THREE + LATE + "2 end 7 -> 2; 3 read-ledger 7 0 -> [[0, 1, 2], 3]", "it ends at 2, and at 3"),
        (THREE + LATE + "2 look 7 -> 3; 3 end 7 -> 2", "it ends at 2, and look 7 -> 3"),
        (THREE + "1 end 7 -> None", "left it open"),
        (THREE + LATE + "2 end 7 ...; 1 ok 3; 2 ok 3", RIGHT),
        (THREE + "2 end 7 -> 3; 1 add 3 [7,3] -> 3", "after end 7 -> 3 by process 2"),
    ],
    "answers about a deleted ledger are found": [
        (THREE + "1 delete 7; 0 add 3 [7,3] -> 3", RIGHT),
        (
            THREE + "1 delete 7; 2 look 7 -> 2",
            "look 7 -> 2 by process 2 (events 8 and 9) was answered, after",
        ),
        (THREE + "1 delete 7 ?; 2 look 7 -> 2", RIGHT),
        (THREE + "2 look 7 ...; 1 delete 7; 2 ok 2", RIGHT),
    ],
}


@pytest.mark.parametrize("claim", CASES)
def test_wrong_histories_are_found_and_correct_ones_accepted(claim: str) -> None:
    check_cases(check_ledgers, CASES[claim])


@pytest.mark.parametrize(("before", "valid"), [("", False), ("1 delete 7 ?", True), ("1 delete 7 !", False)])
def test_a_ledger_that_is_not_found_was_deleted(before: str, valid: bool) -> None:
    script = Script.of(f"{THREE}{before}".rstrip("; "))
    script.begin(2, "look", 7)
    script.fail(2, "NotFound: there is no ledger 7")
    verdict = check_ledgers(script.history)
    assert verdict.valid is valid
    assert valid or "did not find it" in verdict.problem
