"""Verdicts are combined, and checkers of one history do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ebla.chaos.checkers.bank import check_bank
from ebla.chaos.checkers.chains import check_list
from ebla.chaos.checkers.coordination import check_coordination
from ebla.chaos.checkers.register import check_register
from ebla.chaos.checkers.sets import check_set
from ebla.chaos.checkers.stamps import check_stamp
from ebla.chaos.checkers.verdict import Verdict, canonical, listed, together
from ebla.chaos.history import History
from ebla.storage.errors import InvalidArgument
from tests.chaos.checkers.histories import Script


def test_the_worst_verdict_decides() -> None:
    good, unknown = Verdict(True, judged=2), Verdict(None, "undecided", judged=1)
    bad, worse = Verdict(False, "lost", (3, 4), 5), Verdict(False, "torn", (1,), 5)
    assert together([good, good]) == Verdict(True, judged=4)
    assert together([good, unknown]) == Verdict(None, "undecided", judged=3)
    assert together([good, unknown, bad]) == Verdict(False, "lost", (3, 4), 8)
    assert together([bad, worse], "keys") == Verdict(
        False, "lost; likewise 1 more of the keys", (1, 3, 4), 10
    )
    assert together([]).valid is None


def test_a_verdict_that_is_not_good_has_a_problem() -> None:
    for valid, problem in ((False, ""), (None, ""), (True, "but")):
        with pytest.raises(AssertionError):
            Verdict(valid, problem)


def mixed() -> Script:
    return Script.of(
        "0 write k 1; 0 add 1 -> True; 0 append 1; 0 stamp g 1;"
        " 0 transfer None {'from':'a','to':'b','amount':1}; 0 read k -> 1; 0 read-set -> [1];"
        " 0 count -> 1; 0 read-list -> {1: None}; 0 read-stamps g -> [1, 1];"
        " 0 read-bank -> {'a': 0, 'b': 2}"
    )


def judged(history: History) -> dict[str, Verdict]:
    return {
        "register": check_register(history),
        "set": check_set(history),
        "list": check_list(history),
        "stamp": check_stamp(history, rows=2),
        "bank": check_bank(history, {"a": 1, "b": 1}),
    }


def test_every_operation_of_a_mixed_history_is_judged_by_one_checker() -> None:
    verdicts = judged(mixed().history)
    assert all(verdict.valid for verdict in verdicts.values()), verdicts
    assert together(list(verdicts.values())).judged == len(list(mixed().history.operations())) == 11


def test_each_checker_finds_its_own_problem_in_a_mixed_history() -> None:
    troubles = {
        "register": ("read", "k", 2),
        "set": ("read-set", None, []),
        "list": ("read-list", None, {}),
        "stamp": ("read-stamps", "g", [1, 0]),
        "bank": ("read-bank", None, {"a": 1, "b": 1}),
    }
    for workload, (operation, key, answer) in troubles.items():
        h = mixed()
        h.did(1, operation, key, answer=answer)
        verdicts = judged(h.history)
        assert [name for name, verdict in verdicts.items() if verdict.valid is False] == [workload]


MOVE = "0 transfer None {'from':'a','to':'b','amount':1} ...; 1 transfer None {'from':'b','to':'c','amount':1} ...;"
BANK = partial(check_bank, balances={"a": 10, "b": 10, "c": 10})


@pytest.mark.parametrize(
    ("check", "history", "problem"),
    [
        (check_register, "0 write k None", "never holds None"),
        (check_register, "0 insert k 1", "the answer must be True or False"),
        (check_set, "0 add 1 -> True; 1 add 1 -> False", "take fresh elements"),
        (check_set, "0 read-set -> 3", "must be the list of the elements"),
        (check_list, "0 append 1; 0 append 1", "take a fresh node"),
        (check_list, "0 read-list -> [1]", "must map nodes"),
        (check_stamp, "0 stamp g 2; 0 stamp g 1", "the stamps of a group must grow"),
        (check_stamp, "0 read-stamps g -> 1", "must be the list of the rows' values"),
        (BANK, "0 transfer None {'from':'a','to':'b'}", "the value must be"),
        (BANK, "0 transfer None {'from':'a','to':'z','amount':1}", "to is none of the accounts"),
        (BANK, MOVE + "2 read-bank -> {'a':10,'b':10,'c':10}", "one owner"),
    ],
)
def test_an_invalid_history_is_refused(check: Callable[..., Verdict], history: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        check(Script.of(history).history)


@pytest.mark.parametrize(
    ("check", "history", "problem"),
    [
        (check_set, "0 add 1 -> True; 0 read-set ?", "no read of the set was answered"),
        (check_list, "0 append 1", "no read of the list was answered"),
        (check_stamp, "0 stamp g 1", "no read of group 'g' was answered"),
        (BANK, "0 transfer None {'from':'a','to':'b','amount':1}", "no read of the bank was answered"),
        (check_coordination, "0 acquire l ?", "no lock was used"),
    ],
)
def test_without_an_answer_the_history_is_not_judged(
    check: Callable[..., Verdict], history: str, problem: str
) -> None:
    verdict = check(Script.of(history).history)
    assert verdict.valid is None and problem in verdict.problem


def test_canonical_values_are_equal_if_the_values_are_equal() -> None:
    plain = [
        None,
        0,
        1,
        True,
        False,
        "1",
        1.5,
        [],
        [1],
        [True],
        {},
        {"a": 1},
        {"a": [1]},
        {1: 1},
        [[1], {"b": None}],
    ]
    assert len({canonical(value) for value in plain}) == len(plain)
    assert canonical({"a": 1, "b": [2]}) == canonical({"b": [2], "a": 1})
    assert canonical((1, 2)) == canonical([1, 2])


def test_long_lists_are_shortened_and_counted() -> None:
    assert listed([1, "two"]) == "1, 'two'"
    assert listed(range(9)) == "0, 1, 2, 3, 4 and 4 more"
