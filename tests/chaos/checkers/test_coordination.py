"""Coordination: two holders, repeated numbers and lost versions are found, and their correct twins are accepted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers.coordination import check_coordination
from tests.chaos.checkers.histories import RIGHT, Case, Script, check_cases

NODE = "0 create p -> 1;"
NODES = NODE + "0 create p -> 2;"
EPHEMERAL = "0 create p s -> 1;"
UNKNOWN_DELETE = NODE + "0 delete 1 ?; 1 list p -> [1]; 1 list p -> []"
UNKNOWN_CREATE = NODE + "2 create p ?; 1 list p -> [1,4]"
CONCURRENT_LIST = EPHEMERAL + "1 list p -> []; 2 list p ...; 1 list q -> []"
CONCURRENT_CREATE = "0 create p ...; 1 create q -> 2; 0 ok 1"
FIRST = "0 cas r [0,10] -> [True, 1];"
SECOND = FIRST + "1 cas r [1,20] -> [True, 5];"
LOST_ANSWER = FIRST + "7 cas r [1,20] ?; 8 get r -> [10, 1]"
VISIBLE = LOST_ANSWER + "; 8 get r -> [20, 4]"
FOLLOWED = VISIBLE + "; 8 cas r [4,30] -> [True, 6]"
TWO_LOST_ANSWERS = FIRST + "7 cas r [1,20] ?; 8 cas r [1,30] ?; 9 get r -> [20, 4]"

CASES: dict[str, list[Case]] = {
    "a step of a holder after its successor is found": [
        ("0 acquire l -> 3; 1 use l 3; 2 release l 3; 3 acquire l -> 7; 4 use l 7", RIGHT),
        ("0 acquire l -> 3; 1 acquire l -> 7; 2 use l 3", "was sure to hold the lock after"),
        ("0 acquire l -> 7; 1 acquire l -> 3", "was sure to hold the lock after"),
        ("0 acquire l -> 3; 1 acquire l -> 7; 2 use l 7; 3 release l 3", RIGHT),
    ],
    "a token given to two holders is found": [
        ("0 acquire l -> 3; 1 release l 3; 2 acquire l -> 3", "got the token of"),
    ],
    "each lock is judged alone": [("0 acquire l -> 7; 1 use l 7; 9 acquire other -> 3", RIGHT)],
    "a repeated or decreasing number is found": [
        (NODES + "0 create p -> 9", RIGHT),
        (NODE + "0 create p -> 1", "got the number of"),
        ("0 create p -> 2; 0 create p -> 1", "is less than"),
        (CONCURRENT_CREATE, RIGHT),
        (CONCURRENT_CREATE + "; 2 create p -> 1", "got the number of"),
    ],
    "a list without an existing node is found": [
        (NODES + "1 list p -> [1]", "lacks 2"),
        (NODES + "2 delete 2 ...; 1 list p -> [1]", RIGHT),
        (NODE + "1 list p ...; 0 create p -> 2; 1 ok [1]", RIGHT),
    ],
    "a list that holds a node twice is found": [
        (NODES + "1 list p -> [1, 2, 1]", "holds a node twice: 1, 2, 1")
    ],
    "a list with a deleted or never created node is found": [
        (NODES + "1 delete 1; 1 list p -> [1, 2]", "but delete 1"),
        (NODE + "9 delete 1 ?; 1 delete 1; 1 list p -> [1]", "but delete 1 -> None by process 1"),
        (NODE + "9 delete 1 ?; 1 list p -> []; 1 delete 1", RIGHT),
        (NODE + "9 delete 1 ?; 8 delete 1 ...; 1 list p -> [1]; 8 ok", RIGHT),
        (NODE + "1 list p -> [1, 4]", "of which 0 at most were requested"),
        (UNKNOWN_CREATE, RIGHT),
        (UNKNOWN_CREATE + "; 1 list p -> [1, 4, 5]", "holds 4, 5, of which 1 at most"),
        (NODE + "1 list p -> [1, 2]; 0 create p -> 2", "before create"),
    ],
    "a node that outlived its session is found": [
        (EPHEMERAL + "1 ended s; 1 list p -> []", RIGHT),
        (EPHEMERAL + "1 ended s; 1 list p -> []; 1 list p -> [1]", "ended 's'"),
        (EPHEMERAL + "1 list p ...; 0 ended s; 1 ok [1]", RIGHT),
    ],
    "a node deleted before the end of its session is found": [
        (EPHEMERAL + "1 list p -> []", RIGHT),
        (EPHEMERAL + "1 list p -> []; 1 sure s", "lacks 1"),
        (EPHEMERAL + "1 sure s; 1 list p -> []", RIGHT),
    ],
    "a list that goes back is found": [
        (UNKNOWN_DELETE, RIGHT),
        (
            UNKNOWN_DELETE + "; 1 list p -> [1]",
            "holds 1, which list 'p' by process 1 (events 6 and 7) shows was gone",
        ),
        (CONCURRENT_LIST, RIGHT),
        (CONCURRENT_LIST + "; 2 ok [1]", "shows was gone"),
        (EPHEMERAL + "2 list p ...; 1 list p -> []; 2 ok [1]", RIGHT),
    ],
    "a listed node stays even if its create was not answered": [
        (
            "0 create p ...; 1 list p -> [1]; 1 list p -> []; 0 info",
            "lacks 1, which list 'p' by process 1 (events 1 and 2) held",
        ),
        ("0 create p s ...; 1 list p -> [1]; 1 list p -> []; 0 info", RIGHT),
        ("0 create p ...; 1 list p -> [1]; 2 delete 1 ...; 1 list p -> []; 0 info", RIGHT),
    ],
    "versions without a possible order are found": [
        (SECOND + "2 get r -> [20, 5]; 3 cas r [1,30] -> [False, 5]", RIGHT),
        (SECOND + "2 get r -> [10, 1]", "is behind"),
        (SECOND + "2 cas r [1,30] -> [True, 7]", "followed version 1 as"),
        (FIRST + "1 cas r [0,20] -> [True, 1]", "made version 1 as"),
        (SECOND + "2 cas r [9,30] -> [False, 1]", "is behind"),
        (FIRST + "1 get r -> [99, 1]", "does not show the value that"),
        (FIRST + "1 get r -> [99, 3]", "shows a value that was never written"),
        (FIRST + "1 cas r [1,20] -> [False, 3]; 2 get r -> [20, 3]", "which was refused"),
        (FIRST + "1 get r -> [10, 1]; 2 get r -> [10, 3]", "show one change as two"),
        (FIRST + "1 cas r [1,20] -> [True, 1]", "made version 1 as"),
        (FIRST + "1 cas r [3,20] -> [True, 2]", "went back"),
        ("0 get r -> [10, 1]; 1 cas r [0,10] -> [True, 1]", "wrote later"),
        (SECOND + "2 cas r [3,30] -> [True, 7]", "came between"),
        (
            SECOND + "2 cas r [5,30] -> [False, 5]",
            "was refused although it found the version that it named",
        ),
    ],
    "a version that no change made is found": [
        (FIRST + "1 cas r [5,20] -> [False, 7]", "found version 7, which no change made"),
        (FIRST + "7 cas r [1,20] ?; 1 cas r [5,30] -> [False, 7]; 2 cas r [5,40] -> [False, 7]", RIGHT),
        (FIRST + "7 cas r [1,20] ?; 1 cas r [5,30] -> [False, 7]; 2 cas r [5,40] -> [False, 8]", "version 8"),
        (FIRST + "7 cas r [7,20] ?; 1 cas r [5,30] -> [False, 7]", "found version 7"),
        (FIRST + "1 cas r [5,30] -> [False, 7]; 7 cas r [1,20] ?", "found version 7"),
        (VISIBLE + "; 1 cas r [1,30] -> [False, 4]", RIGHT),
        (VISIBLE + "; 1 cas r [1,30] -> [False, 5]", "found version 5"),
        ("0 cas r [5,10] -> [False, 0]", RIGHT),
    ],
    "a change with a lost answer may be visible or not": [
        (LOST_ANSWER, RIGHT),
        (VISIBLE, RIGHT),
        (FOLLOWED, RIGHT),
        (FOLLOWED + "; 8 get r -> [20, 4]", "is behind"),
    ],
    "an unanswered change follows its expected version or none": [
        (SECOND + "7 cas r [1,30] ?", RIGHT),
        (
            SECOND + "7 cas r [1,30] ?; 8 get r -> [30, 6]",
            "was carried out although cas 'r' [1, 20] -> [True, 5]",
        ),
        (TWO_LOST_ANSWERS, RIGHT),
        (TWO_LOST_ANSWERS + "; 9 get r -> [30, 6]", "came between"),
    ],
    "a change over a visible unanswered change is found": [
        (
            FIRST + "7 cas r [1,20] ?; 8 get r -> [20, 4]; 9 cas r [1,30] -> [True, 6]",
            "was carried out although cas 'r' [1, 20] by process 7",
        ),
    ],
}


@pytest.mark.parametrize("claim", CASES)
def test_wrong_histories_are_found_and_correct_ones_accepted(claim: str) -> None:
    check_cases(check_coordination, CASES[claim])


# -- random histories of a correct object, and the same with one changed answer


def played(chance: random.Random, steps: int) -> tuple[Script, list[int]]:
    """A history of overlapping operations, and the indexes of answers that are certainly wrong when changed."""
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
def test_histories_of_a_correct_node_are_accepted_and_changed_answers_found(seed: int) -> None:
    chance = random.Random(seed)
    h, answered = played(chance, 60)
    if not any(each.known for each in h.history.operations()):
        return
    assert check_coordination(h.history).valid is True
    if answered:
        place = chance.choice(answered)
        event = h.history.events[place]
        event.value[0] += 1000
        assert check_coordination(h.history).valid is False


def listed(chance: random.Random, steps: int) -> tuple[Script, list[int]]:
    """A history of nodes that are created, some by sessions, deleted, lost with their sessions, and listed; answers may
    be lost. And the indexes of the lists' answers."""
    h, there, made, number = Script(), dict[int, str | None](), dict[int, str | None](), 0
    under_way: dict[int, list[Any]] = {}
    answered, processes = [], 3
    for _ in range(steps):
        if there and chance.random() < 0.1:  # a session ends without an answer
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
def test_lists_of_a_correct_namespace_are_accepted(seed: int) -> None:
    h, answered = listed(random.Random(seed), 60)
    if answered:
        assert check_coordination(h.history).valid is True


def test_most_lists_with_a_deleted_node_are_found() -> None:
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
