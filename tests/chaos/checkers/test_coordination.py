"""Coordination: two holders, repeated numbers, forgotten versions are found, and the twins that are right are accepted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers import check_coordination
from tests.chaos.checkers.histories import Script


def wrong(script: Script) -> str:
    verdict = check_coordination(script.history)
    assert verdict.valid is False, verdict
    assert verdict.events
    return verdict.problem


def right(script: Script) -> None:
    verdict = check_coordination(script.history)
    assert verdict.valid is True, verdict.problem


def test_a_history_without_anything_to_judge_is_no_pass() -> None:
    assert check_coordination(Script().history).valid is None
    h = Script()
    h.begin(0, "acquire", "l")
    h.info(0)
    assert check_coordination(h.history).valid is None


# -- locks


def locked(*steps: tuple[str, int]) -> Script:
    h = Script()
    for process, (what, token) in enumerate(steps):
        if what == "acquire":
            h.did(process, "acquire", "l", answer=token)
        else:
            h.did(process, what, "l", token)
    return h


def test_a_step_of_somebody_whose_successor_was_there_is_found() -> None:
    right(locked(("acquire", 3), ("use", 3), ("release", 3), ("acquire", 7), ("use", 7)))
    assert "was sure to hold the lock after" in wrong(locked(("acquire", 3), ("acquire", 7), ("use", 3)))
    assert "was sure to hold the lock after" in wrong(locked(("acquire", 7), ("acquire", 3)))
    right(locked(("acquire", 3), ("acquire", 7), ("use", 7), ("release", 3)))


def test_a_token_that_two_got_is_found() -> None:
    assert "got the token of" in wrong(locked(("acquire", 3), ("release", 3), ("acquire", 3)))


def test_each_lock_is_judged_alone() -> None:
    h = locked(("acquire", 7), ("use", 7))
    h.did(9, "acquire", "other", answer=3)
    right(h)


# -- numbers


def made(*numbers: int, session: str | None = None) -> Script:
    h = Script()
    for number in numbers:
        h.did(0, "create", "p", session, answer=number)
    return h


def test_a_number_that_came_twice_or_went_back_is_found() -> None:
    right(made(1, 2, 9))
    assert "got the number of" in wrong(made(1, 1))
    assert "is less than" in wrong(made(2, 1))
    h = Script()
    h.begin(0, "create", "p")
    h.did(1, "create", "q", answer=2)
    h.ok(0, 1)
    right(h)
    h.did(2, "create", "p", answer=1)
    assert "got the number of" in wrong(h)


def test_a_list_that_lacks_what_is_there_is_found() -> None:
    h = made(1, 2)
    h.did(1, "list", "p", answer=[1])
    assert "lacks 2" in wrong(h)
    h = made(1, 2)
    h.begin(2, "delete", 2)
    h.did(1, "list", "p", answer=[1])
    right(h)
    h = made(1)
    h.begin(1, "list", "p")
    h.did(0, "create", "p", answer=2)
    h.ok(1, [1])
    right(h)


def test_a_list_that_holds_what_was_deleted_or_nobody_made_is_found() -> None:
    h = made(1, 2)
    h.did(1, "delete", 1)
    h.did(1, "list", "p", answer=[1, 2])
    assert "but delete 1" in wrong(h)
    h = made(1)
    h.did(1, "list", "p", answer=[1, 4])
    assert "of which 0 at most were requested" in wrong(h)
    h = made(1)
    h.begin(2, "create", "p")
    h.info(2)
    h.did(1, "list", "p", answer=[1, 4])
    right(h)
    h.did(1, "list", "p", answer=[1, 4, 5])
    assert "holds 4, 5, of which 1 at most" in wrong(h)
    h = made(1)
    h.did(1, "list", "p", answer=[1, 2])
    h.did(0, "create", "p", answer=2)
    assert "before create" in wrong(h)


def test_a_node_that_outlived_its_session_is_found() -> None:
    h = made(1, session="s")
    h.did(1, "ended", "s")
    h.did(1, "list", "p", answer=[])
    right(h)
    h.did(1, "list", "p", answer=[1])
    assert "ended 's'" in wrong(h)
    h = made(1, session="s")
    h.begin(1, "list", "p")
    h.did(0, "ended", "s")
    h.ok(1, [1])
    right(h)


def test_a_node_that_went_before_its_session_is_found() -> None:
    h = made(1, session="s")
    h.did(1, "list", "p", answer=[])
    right(h)
    h.did(1, "sure", "s")
    assert "lacks 1" in wrong(h)
    h = made(1, session="s")
    h.did(1, "sure", "s")
    h.did(1, "list", "p", answer=[])
    right(h)


def test_a_list_that_goes_back_is_found() -> None:
    h = made(1)
    h.begin(0, "delete", 1)
    h.info(0)
    h.did(1, "list", "p", answer=[1])
    h.did(1, "list", "p", answer=[])
    right(h)
    h.did(1, "list", "p", answer=[1])
    assert "holds 1, which list 'p' by process 1 (events 6 and 7) shows was gone" in wrong(h)
    h = made(1, session="s")
    h.did(1, "list", "p", answer=[])
    h.begin(2, "list", "p")
    h.did(1, "list", "q", answer=[])
    right(h)
    h.ok(2, [1])
    assert "shows was gone" in wrong(h)
    h = made(1, session="s")
    h.begin(2, "list", "p")
    h.did(1, "list", "p", answer=[])
    h.ok(2, [1])
    right(h)


def test_what_a_list_showed_stays_whether_or_not_its_create_was_answered() -> None:
    def shown_once(session: str | None, delete: bool = False) -> Script:
        h = Script()
        h.begin(0, "create", "p", session)
        h.did(1, "list", "p", answer=[1])
        if delete:
            h.begin(2, "delete", 1)
        h.did(1, "list", "p", answer=[])
        h.info(0)
        return h

    assert "lacks 1, which list 'p' by process 1 (events 1 and 2) held" in wrong(shown_once(None))
    right(shown_once("s"))
    right(shown_once(None, delete=True))


# -- versions


def swaps(*steps: tuple[Any, ...]) -> Script:
    h = Script()
    for process, (name, argument, answer) in enumerate(steps):
        h.did(process, name, "r", argument, answer)
    return h


FIRST = ("cas", [0, 10], [True, 1])
SECOND = ("cas", [1, 20], [True, 5])


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([FIRST, SECOND, ("get", None, [20, 5]), ("cas", [1, 30], [False, 5])], ""),
        ([FIRST, SECOND, ("get", None, [10, 1])], "is behind"),
        ([FIRST, SECOND, ("cas", [1, 30], [True, 7])], "followed version 1 as"),
        ([FIRST, ("cas", [0, 20], [True, 1])], "made version 1 as"),
        ([FIRST, SECOND, ("cas", [9, 30], [False, 1])], "is behind"),
        ([FIRST, ("get", None, [99, 1])], "does not show the value that"),
        ([FIRST, ("get", None, [99, 3])], "shows a value that was never written"),
        ([FIRST, ("cas", [1, 20], [False, 3]), ("get", None, [20, 3])], "which was refused"),
        ([FIRST, ("get", None, [10, 3])], "show one change as two"),
        ([FIRST, ("cas", [1, 20], [True, 1])], "made version 1 as"),
        ([FIRST, ("cas", [3, 20], [True, 2])], "went back"),
        ([("get", None, [10, 1]), FIRST], "wrote later"),
        ([FIRST, SECOND, ("cas", [3, 30], [True, 7])], "came between"),
        (
            [FIRST, SECOND, ("cas", [5, 30], [False, 5])],
            "was refused although it found the version that it named",
        ),
    ],
)
def test_versions_that_no_order_explains_are_found(steps: list[tuple[Any, ...]], problem: str) -> None:
    if not problem:
        right(swaps(*steps))
    elif problem == "show one change as two":
        assert problem in wrong(swaps(FIRST, ("get", None, [10, 1]), ("get", None, [10, 3])))
    else:
        assert problem in wrong(swaps(*steps))


def test_a_change_whose_answer_was_lost_may_be_read_or_never_be_seen() -> None:
    h = swaps(FIRST)
    h.begin(7, "cas", "r", [1, 20])
    h.info(7)
    h.did(8, "get", "r", answer=[10, 1])
    right(h)
    h.did(8, "get", "r", answer=[20, 4])
    right(h)
    h.did(8, "cas", "r", [4, 30], [True, 6])
    right(h)
    h.did(8, "get", "r", answer=[20, 4])
    assert "is behind" in wrong(h)


def unanswered(h: Script, process: int, before: int, value: int) -> None:
    h.begin(process, "cas", "r", [before, value])
    h.info(process)


def test_a_change_that_was_never_answered_follows_the_version_that_it_names_or_none() -> None:
    h = swaps(FIRST, SECOND)
    unanswered(h, 7, 1, 30)
    right(h)
    h.did(8, "get", "r", answer=[30, 6])
    assert "was carried out although cas 'r' [1, 20] -> [True, 5]" in wrong(h)

    h = swaps(FIRST)
    unanswered(h, 7, 1, 20)
    unanswered(h, 8, 1, 30)
    h.did(9, "get", "r", answer=[20, 4])
    right(h)
    h.did(9, "get", "r", answer=[30, 6])
    assert "came between" in wrong(h)


def test_a_change_over_one_that_was_never_answered_and_that_a_read_shows_is_found() -> None:
    h = swaps(FIRST)
    unanswered(h, 7, 1, 20)
    h.did(8, "get", "r", answer=[20, 4])
    h.did(9, "cas", "r", [1, 30], [True, 6])
    assert "was carried out although cas 'r' [1, 20] by process 7" in wrong(h)


# -- random histories of an object that is right, and the same with one answer changed


def played(chance: random.Random, steps: int) -> tuple[Script, list[int]]:
    """Operations that overlap; each takes place at some moment between its beginning and its end. And the places of answers
    that, changed, are wrong whatever the rest was."""
    h, state, revision = Script(), (0, 0), 0
    under_way: dict[int, list[Any]] = {}
    answered = []
    for number in range(steps):
        process = chance.randrange(3)
        if process not in under_way:
            name = chance.choice(("get", "cas"))
            wanted = state[1] if chance.random() < 0.7 else max(0, state[1] - 1)
            argument = [wanted, number + 1] if name == "cas" else None
            h.begin(process, name, "r", argument)
            under_way[process] = [name, argument, None]
        elif under_way[process][2] is None:
            name, argument, _ = under_way[process]
            revision += chance.randint(1, 3)
            if name == "get":
                answer: Any = list(state) if state[1] else None
            elif argument[0] == state[1]:
                state = (argument[1], revision)
                answer = [True, revision]
            else:
                answer = [False, state[1]]
            under_way[process][2] = answer or "absent"
        else:
            name, _, answer = under_way.pop(process)
            place = h.ok(process, None if answer == "absent" else answer)
            if name == "get" and answer != "absent":
                answered.append(place)
    return h, answered


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_what_a_correct_node_answered_is_accepted_and_a_changed_answer_is_not(seed: int) -> None:
    chance = random.Random(seed)
    h, answered = played(chance, 60)
    if not any(each.known for each in h.history.operations()):
        return
    right(h)
    if answered:
        place = chance.choice(answered)
        event = h.history.events[place]
        event.value[0] += 1000
        wrong(h)


def listed(chance: random.Random, steps: int) -> tuple[Script, list[int]]:
    """Nodes are made, some of them for sessions, deleted, lost with their sessions, and listed. Answers may be lost. And the
    places of the lists' answers."""
    h, there, made, number = Script(), dict[int, str | None](), dict[int, str | None](), 0
    under_way: dict[int, list[Any]] = {}
    answered, processes = [], 3
    for _ in range(steps):
        if there and chance.random() < 0.1:  # a session ends, and nobody is told
            gone = chance.choice(list(there.values()))
            there = {each: session for each, session in there.items() if session is None or session != gone}
        slot = chance.randrange(3)
        if slot not in under_way:
            name = chance.choice(("create", "create", "delete", "list", "list", "list"))
            if name == "delete" and not made:
                continue
            key: Any = chance.choice(list(made)) if name == "delete" else "p"
            if name == "delete":
                del made[key]
            session = f"s{number}" if name == "create" and chance.random() < 0.5 else None
            processes += 1
            h.begin(processes, name, key, session)
            under_way[slot] = [processes, name, key, session, None]
        elif under_way[slot][4] is None:
            _, name, key, session, _ = under_way[slot]
            if name == "create":
                number += 1
                there[number] = session
            elif name == "delete":
                there.pop(key, None)
            under_way[slot][4] = sorted(there) if name == "list" else [number]
        else:
            process, name, key, session, answer = under_way.pop(slot)
            if name != "list" and chance.random() < 0.3:
                h.info(process)
            elif name == "list":
                answered.append(h.ok(process, answer))
            else:
                h.ok(process, answer[0] if name == "create" else None)
                made.update({answer[0]: session} if name == "create" else {})
    return h, answered


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_what_a_correct_namespace_listed_is_accepted(seed: int) -> None:
    h, answered = listed(random.Random(seed), 60)
    if answered:
        right(h)


def test_most_lists_that_hold_what_was_gone_before_are_found() -> None:
    found = missed = 0
    for seed in range(300):
        h, answered = listed(random.Random(seed), 60)
        seen = {place: set(h.history.events[place].value) for place in answered}
        ever = set[int]().union(*seen.values())
        places = [place for place in answered if place > 20 and ever - seen[place]]
        if not places:
            continue
        lacked = [
            each for each in sorted(ever - seen[places[-1]]) if any(each in seen[p] for p in answered[:2])
        ]
        if lacked:
            h.history.events[places[-1]].value.append(lacked[0])
            verdict = check_coordination(h.history)
            found, missed = found + (verdict.valid is False), missed + (verdict.valid is True)
    assert found > 20 and missed * 5 < found, (found, missed)
