"""Logs: records out of turn, torn calls, and reads that begin elsewhere or are refused for nothing are found."""

from __future__ import annotations

import pytest

from ebla.chaos.checkers.logs import check_log
from tests.chaos.checkers.histories import RIGHT, Case, Script, check_cases

ALL = "9 read-log -> "
TWO_CALLS = "0 append 1 [1,1,0] ...; 1 append 2 [1,2,0] ...; "
ONE_CALL = "0 append 1 [1,1,0] ...; 1 append 2 [1,1,1] ...; "
ANOTHER = "2 append 3 [3,3,0] ...; "
SIX = "; ".join(f"0 append {record} [0,{record},0] -> {record}" for record in range(6))
TRIM = SIX + "; 1 trim 4; "

CASES: dict[str, list[Case]] = {
    "records of one writer out of turn are found": [
        (TWO_CALLS + "0 ok 0; 1 ok 1;" + ALL + "[0, [1, 2]]", RIGHT),
        (TWO_CALLS + "1 ok 0; 0 ok 1;" + ALL + "[0, [2, 1]]", "by the same writer, but is at position 0"),
        (TWO_CALLS + "1 info; 0 info;" + ALL + "[0, [2, 1]]", "by the same writer, but is at position 0"),
        (TWO_CALLS + "1 info; 0 info;" + ALL + "[0, [2]]", RIGHT),
        (TWO_CALLS + ANOTHER + "2 ok 0; 0 ok 1; 1 ok 2;" + ALL + "[0, [3, 1, 2]]", RIGHT),
    ],
    "records of one call that are not next to each other are found": [
        (ONE_CALL + "0 ok 0; 1 ok 1;" + ALL + "[0, [1, 2]]", RIGHT),
        (ONE_CALL + "0 ok 1; 1 ok 0;" + ALL + "[0, [2, 1]]", "by the same writer, but is at position 0"),
        (ONE_CALL + ANOTHER + "0 ok 0; 2 ok 1; 1 ok 2;" + ALL + "[0, [1, 3, 2]]", "not next to"),
        (ONE_CALL + "0 info; 1 info;" + ALL + "[0, [1]]", RIGHT),
        (ONE_CALL + "0 info; 1 info;" + ALL + "[0, [2]]", "not next to"),
        (ONE_CALL + ANOTHER + "0 info; 1 info; 2 ok 0;" + ALL + "[0, [3, 2]]", "not next to"),
        (ONE_CALL + "0 info; 1 ok 8; 9 read-log 8 -> [8, [2]]", RIGHT),
    ],
    "a read that begins elsewhere is found": [
        (SIX + "; 1 read-log 2 -> [2, [2, 3, 4, 5]]", RIGHT),
        (SIX + "; 1 read-log 2 -> [4, [4, 5]]", "begins at position 4, not where it was asked to"),
        (TRIM + "1 read-log 2 -> [4, [4, 5]]", "begins at position 4, not where it was asked to"),
        (TRIM + "1 read-log -> [4, [4, 5]]", RIGHT),
        (TRIM + "1 read-log -> [5, [5]]", "no trim asked for more than 4"),
        (SIX + "; 1 trim 4 !; 1 read-log -> [4, [4, 5]]", "no trim asked for more than 0"),
    ],
}


@pytest.mark.parametrize("claim", CASES)
def test_wrong_histories_are_found_and_correct_ones_accepted(claim: str) -> None:
    check_cases(check_log, CASES[claim])


@pytest.mark.parametrize(("trims", "start", "valid"), [(SIX, 2, False), (TRIM, 4, False), (TRIM, 3, True)])
def test_a_read_is_refused_because_of_a_trim_behind_its_start_only(
    trims: str, start: int, valid: bool
) -> None:
    script = Script.of(trims.rstrip("; ") + "; 1 read-log -> [4, [4, 5]]" * (trims is TRIM))
    script.did(2, "read-log", 5, answer=[5, [5]])
    script.begin(3, "read-log", start)
    script.fail(3, "RecordsTrimmed: the records have been deleted")
    verdict = check_log(script.history)
    assert verdict.valid is valid
    assert valid or "was refused: RecordsTrimmed" in verdict.problem
