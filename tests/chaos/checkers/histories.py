"""Histories for the tests: written out as scripts, played on a correct object, and judged by trying every order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ebla.chaos.history import FAIL, INFO, INVOKE, OK, History, Operation


class Script:
    """A history as the test tells it. `did` is an operation that nothing overlaps unless it was begun before."""

    def __init__(self) -> None:
        self.history = History()
        self._asked: dict[int, tuple[str, Any, Any]] = {}

    def begin(self, process: int, operation: str, key: Any = None, value: Any = None) -> int:
        self._asked[process] = operation, key, value
        return self._note(process, INVOKE, value)

    def ok(self, process: int, answer: Any = None) -> int:
        return self._note(process, OK, answer)

    def info(self, process: int) -> int:
        return self._note(process, INFO, self._asked[process][2], "no answer")

    def fail(self, process: int) -> int:
        return self._note(process, FAIL, self._asked[process][2], "refused")

    def did(
        self, process: int, operation: str, key: Any = None, value: Any = None, answer: Any = None
    ) -> int:
        """Returns the index of its invocation; the answer is the event after it."""
        began = self.begin(process, operation, key, value)
        self.ok(process, answer)
        return began

    def _note(self, process: int, type: str, value: Any, error: str | None = None) -> int:
        operation, key, _ = self._asked[process]
        self.history.processes = max(self.history.processes, process + 1)
        return self.history.note(len(self.history) / 1000, process, type, operation, key, value, error).index


# -- objects: (state, operation, key, value) -> the answer, and the state after it

Apply = Callable[[Any, str, Any, Any], tuple[Any, Any]]


def register(state: Mapping[Any, Any], operation: str, key: Any, value: Any) -> tuple[Any, Any]:
    there = key in state
    without = {each: state[each] for each in state if each != key}
    if operation == "read":
        return state.get(key), state
    if operation == "write":
        return None, {**state, key: value}
    if operation == "insert":
        return not there, state if there else {**state, key: value}
    if operation == "update":
        return there, {**state, key: value} if there else state
    assert operation == "delete"
    return there, without


def a_set(state: frozenset[Any], operation: str, key: Any, value: Any) -> tuple[Any, Any]:
    if operation == "add":
        return key not in state, state | {key}
    if operation == "remove":
        return key in state, state - {key}
    return sorted(state) if operation == "read-set" else len(state), state


def bank(state: Mapping[Any, int], operation: str, key: Any, value: Any) -> tuple[Any, Any]:
    """A transfer has a `number`; one that comes after a higher one on its accounts comes too late and does nothing."""
    if operation == "read-bank":
        return {account: balance for account, balance in state.items() if account[0] != "#"}, state
    after, passed = dict(state), "#" + "".join(sorted((value["from"], value["to"])))
    if value["number"] > state.get(passed, -1):
        after[passed] = value["number"]
        after[value["from"]] -= value["amount"]
        after[value["to"]] += value["amount"]
    return None, after


def chains(state: Mapping[Any, Any], operation: str, key: Any, value: Any) -> tuple[Any, Any]:
    return (dict(state), state) if operation == "read-list" else (None, {**state, key: value})


ROWS = 3


def stamps(state: Mapping[Any, Any], operation: str, key: Any, value: Any) -> tuple[Any, Any]:
    """A stamp that is older than what is there comes too late and does nothing."""
    if operation == "read-stamps":
        return state.get(key, []), state
    late = key in state and state[key][0] > value
    return None, state if late else {**state, key: [value] * ROWS}


# -- playing on an object


@dataclass
class Request:
    operation: str
    key: Any
    value: Any
    began: int
    done: bool = False
    answer: Any = None


@dataclass
class Play:
    """Processes that use a correct object: every operation takes effect at one moment after it began.

    `next` draws an operation (name, key, value) for a slot, or None. With `unknown` probability an operation ends in
    info, before or after its effect; one that had none yet may have it any time later, or never.
    """

    seed: int
    apply: Apply
    state: Any
    next: Callable[[Play, int], tuple[str, Any, Any] | None]
    unknown: float = 0.0
    history: History = field(default_factory=History)
    order: dict[int, int | None] = field(
        default_factory=dict
    )  # what the object's log would say of the writes
    count: int = 0

    def run(self, slots: int, count: int) -> History:
        self.random = random.Random(self.seed)
        processes = [self.history.new_process() for _ in range(slots)]
        asked: dict[int, Request] = {}
        late: list[Request] = []
        while self.count < count or asked:
            slot = self.random.randrange(slots)
            if slot not in asked:
                drawn = self.next(self, slot) if self.count < count else None
                if drawn:
                    asked[slot] = self._ask(processes[slot], *drawn)
            elif not asked[slot].done and self.random.random() < 0.5:
                self._take_effect(asked[slot])
            elif asked[slot].done or self.random.random() < self.unknown:
                request = asked.pop(slot)
                if self.random.random() < self.unknown or not request.done:
                    self._note(processes[slot], INFO, request, request.value)
                    processes[slot] = self.history.new_process()
                    late += [] if request.done else [request]
                else:
                    self._note(processes[slot], OK, request, request.answer)
            if late and self.random.random() < 0.1:
                self._take_effect(late.pop(self.random.randrange(len(late))))
        for request in late:
            self.order[request.began] = None
        return self.history

    def _ask(self, process: int, operation: str, key: Any, value: Any) -> Request:
        self.count += 1
        request = Request(operation, key, value, len(self.history))
        self._note(process, INVOKE, request, value)
        return request

    def _note(self, process: int, type: str, request: Request, value: Any) -> None:
        self.history.note(len(self.history) / 1000, process, type, request.operation, request.key, value)

    def _take_effect(self, request: Request) -> None:
        before = self.state
        request.answer, self.state = self.apply(before, request.operation, request.key, request.value)
        request.done = True
        if self.state is not before or not request.operation.startswith(("read", "count")):
            self.order[request.began] = len(self.order)


def draw_register(
    keys: int = 1, values: int | None = None, operations: Sequence[str] = ()
) -> Callable[[Play, int], tuple[str, Any, Any]]:
    """Operations on registers; each value is written once, unless there are only so many `values`."""
    names = operations or ("read", "read", "write", "insert", "update", "delete")

    def draw(play: Play, slot: int) -> tuple[str, Any, Any]:
        name = play.random.choice(names)
        fresh = play.count if values is None else play.random.randrange(values)
        return name, play.random.randrange(keys), fresh if name in ("write", "insert", "update") else None

    return draw


def changed(history: History, index: int, value: Any) -> History:
    """The same history, with another answer at one event."""
    events = list(history.events)
    events[index] = msgspec.structs.replace(events[index], value=value)
    return History(events, history.processes)


# -- judging by trying every order


def explainable(
    operations: Sequence[Operation],
    apply: Apply,
    initial: Any,
    positions: Mapping[int, int | None] | None = None,
) -> bool:
    """Whether some order of the known operations and some of the unknown ones explains every answer."""
    positions = positions or {}
    asked = [each for each in operations if not each.failed]
    never = [each for each in asked if positions.get(each.began, 0) is None]
    if any(each.known and apply_changed(each) for each in never):
        return False
    return _explain(initial, [each for each in asked if each.known or each not in never], apply, positions)


def apply_changed(operation: Operation) -> bool:
    """Whether a known operation surely changed something."""
    return operation.name == "write" or (operation.name != "read" and operation.answer is True)


def _explain(
    state: Any, left: Sequence[Operation], apply: Apply, positions: Mapping[int, int | None]
) -> bool:
    if not any(each.known for each in left):
        return True
    for chosen in left:
        place = positions.get(chosen.began)
        others = [each for each in left if each is not chosen]
        if any(each.ended is not None and each.ended < chosen.began for each in others):
            continue
        if place is not None and any(_comes_before(positions.get(each.began), place) for each in others):
            continue
        answer, after = apply(state, chosen.name, chosen.key, chosen.argument)
        if (not chosen.known or answer == chosen.answer) and _explain(after, others, apply, positions):
            return True
    return False


def _comes_before(position: int | None, place: int) -> bool:
    return position is not None and position < place
