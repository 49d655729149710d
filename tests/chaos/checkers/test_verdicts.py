"""Verdicts: what makes one of many, what replicas must agree on, and that nothing goes unjudged."""

from __future__ import annotations

import pytest

from ebla.chaos.checkers import OPERATIONS, Verdict, check_all, check_convergence, together
from ebla.chaos.checkers.verdict import canonical, listed
from ebla.storage.errors import InvalidArgument
from tests.chaos.checkers.histories import Script


def test_replicas_with_one_digest_have_converged() -> None:
    assert check_convergence({"a": "x", "b": "x", "c": "x"}) == Verdict(True, judged=3)


def test_replicas_that_differ_are_named_by_what_they_hold() -> None:
    verdict = check_convergence({"a": "x", "b": "y", "c": "x"})
    assert verdict.valid is False
    assert verdict.problem == "the replicas differ: a, c hold x; b hold y"


@pytest.mark.parametrize("digests", [{}, {"a": "x"}])
def test_fewer_than_two_replicas_cannot_be_compared(digests: dict[str, str]) -> None:
    assert check_convergence(digests).valid is None


def test_a_whole_is_as_bad_as_its_worst_part() -> None:
    good, unknown = Verdict(True, judged=2), Verdict(None, "undecided", judged=1)
    bad, worse = Verdict(False, "lost", (3, 4), 5), Verdict(False, "torn", (1,), 5)
    assert together([good, good]) == Verdict(True, judged=4)
    assert together([good, unknown]) == Verdict(None, "undecided", judged=3)
    assert together([good, unknown, bad]) == Verdict(False, "lost", (3, 4), 8)
    assert together([bad, worse], "keys") == Verdict(
        False, "lost; likewise 1 more of the keys", (1, 3, 4), 10
    )
    assert together([]).valid is None


def test_a_verdict_that_is_not_good_says_why() -> None:
    for valid, problem in ((False, ""), (None, ""), (True, "but")):
        with pytest.raises(AssertionError):
            Verdict(valid, problem)


def mixed() -> Script:
    h = Script()
    h.did(0, "write", "k", 1)
    h.did(0, "add", 1, answer=True)
    h.did(0, "append", 1)
    h.did(0, "stamp", "g", 1)
    h.did(0, "transfer", value={"from": "a", "to": "b", "amount": 1})
    h.did(0, "read", "k", answer=1)
    h.did(0, "read-set", answer=[1])
    h.did(0, "count", answer=1)
    h.did(0, "read-list", answer={1: None})
    h.did(0, "read-stamps", "g", answer=[1, 1])
    h.did(0, "read-bank", answer={"a": 0, "b": 2})
    return h


def test_a_mixed_history_is_judged_by_every_checker_that_it_concerns() -> None:
    verdicts = check_all(mixed().history, balances={"a": 1, "b": 1}, rows=2)
    assert list(verdicts) == list(OPERATIONS)
    assert all(verdict.valid for verdict in verdicts.values()), verdicts
    assert together(list(verdicts.values())).judged == 11


def test_each_checker_finds_its_own_trouble_in_a_mixed_history() -> None:
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
        verdicts = check_all(h.history.operations(), balances={"a": 1, "b": 1})
        assert [name for name, verdict in verdicts.items() if verdict.valid is False] == [workload]


def test_only_workloads_that_were_used_are_judged() -> None:
    h = Script()
    h.did(0, "write", "k", 1)
    assert list(check_all(h.history)) == ["register"]


def test_the_log_and_the_bound_reach_the_registers() -> None:
    h = Script()
    h.begin(0, "write", "k", 1)
    h.begin(1, "write", "k", 2)
    h.ok(0)
    h.ok(1)
    h.did(0, "read", "k", answer=2)
    assert check_all(h.history)["register"].valid is True
    assert check_all(h.history, order={0: 2, 1: 1})["register"].valid is False
    assert check_all(h.history, steps_max=1)["register"].valid is None


def test_an_operation_that_nobody_judges_is_refused() -> None:
    h = Script()
    h.did(0, "increment", "k", 1)
    with pytest.raises(InvalidArgument, match="no checker judges the operation 'increment'"):
        check_all(h.history)


def test_a_bank_without_its_first_balances_is_refused() -> None:
    h = Script()
    h.did(0, "read-bank", answer={"a": 1})
    with pytest.raises(InvalidArgument, match="give them as `balances`"):
        check_all(h.history)


def test_plain_values_are_equal_as_canonical_ones_just_where_they_are_equal() -> None:
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


def test_long_lists_are_cut_and_counted() -> None:
    assert listed([1, "two"]) == "1, 'two'"
    assert listed(range(9)) == "0, 1, 2, 3, 4 and 4 more"
