"""Counts of a set: what they prove, and what they cannot be."""

from __future__ import annotations

from tests.chaos.checkers.histories import Script
from tests.chaos.checkers.test_sets import added, right, wrong


def test_a_count_beyond_what_adds_and_removes_allow_is_found() -> None:
    def counted(answer: int) -> Script:
        h = added(1, 2, 3)
        h.begin(0, "add", 4)
        h.info(0)
        h.begin(1, "remove", 1)
        h.info(1)
        h.did(2, "count", answer=answer)
        return h

    for answer in (2, 3, 4):
        right(counted(answer))
    assert "there were 2 to 4 elements" in wrong(counted(5))
    wrong(counted(1))


def test_a_count_is_of_one_moment() -> None:
    def counted_while_one_went_and_one_came(answer: int) -> Script:
        h = added(1)
        h.begin(1, "count")
        h.did(0, "remove", 1, answer=True)
        h.did(0, "add", 2, answer=True)
        h.ok(1, answer)
        return h

    right(counted_while_one_went_and_one_came(0))
    right(counted_while_one_went_and_one_came(1))
    wrong(counted_while_one_went_and_one_came(2))


def test_a_count_that_goes_back_without_a_remove_is_found() -> None:
    def counted_twice(removed: bool) -> Script:
        h = added(1)
        h.begin(0, "add", 2)
        h.begin(3, "add", 3)
        h.did(1, "count", answer=2)
        if removed:
            h.begin(2, "remove", 1)
        h.did(1, "count", answer=1)
        return h

    assert "is impossible after count -> 2" in wrong(counted_twice(removed=False))
    right(counted_twice(removed=True))


def test_a_count_that_needs_an_unknown_add_proves_it() -> None:
    def read_after_counting(answer: int, held: list[int], adds: int = 1) -> Script:
        h = added(1)
        for number in range(adds):
            h.begin(number, "add", 2 + number)
            h.info(number)
        h.did(5, "count", answer=answer)
        h.did(6, "read-set", answer=held)
        return h

    assert "count -> 2" in wrong(read_after_counting(2, [1]))
    assert "was there before, and whose removal had not begun" in wrong(read_after_counting(2, [1]))
    right(read_after_counting(2, [1, 2]))
    right(read_after_counting(1, [1]))
    right(read_after_counting(2, [1, 2], adds=2))
    right(read_after_counting(2, [1, 3], adds=2))


def test_a_count_that_leaves_no_room_for_what_was_there_proves_that_it_is_gone() -> None:
    def read_after_counting(answer: int, held: list[int]) -> Script:
        h = added(1, 2)
        h.begin(0, "remove", 1)
        h.info(0)
        h.did(5, "count", answer=answer)
        h.did(6, "read-set", answer=held)
        return h

    assert "which count -> 1 by process 5 (events 6 and 7) proves was gone before" in wrong(
        read_after_counting(1, [1, 2])
    )
    right(read_after_counting(1, [2]))
    right(read_after_counting(2, [1, 2]))


def test_a_count_that_brings_back_what_was_removed_is_found() -> None:
    def counted_twice(removes: int, later: int) -> Script:
        h = added(1, 2, 3)
        for number in range(removes):
            h.begin(number, "remove", 1 + number)
            h.info(number)
        h.did(5, "count", answer=2)
        h.did(6, "count", answer=later)
        return h

    wrong(counted_twice(1, 3))
    assert "removed elements are back" in wrong(counted_twice(2, 3)), "nobody knows which of them is gone"
    right(counted_twice(2, 2))
    right(counted_twice(2, 1))
