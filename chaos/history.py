"""Histories: the requests of clients and their answers, in one format for simulation, Ray and every checker.

An operation is two events: an `invoke`, and one of

    ok      it took place, and this is the answer
    fail    it surely did not take place, and never will
    info    unknown: it may take place at any later moment, or never

A `process` has one operation under way at a time. After `info` its operation may still be under way, so its client
continues under a new process number: Jepsen's convention, which Knossos, Elle and Porcupine expect. `time_us` is from the
stage's clock and only orders events of one history.

The modules of chaos/workloads/ define operations and their values. `order-...` is an operator's request to a role, such as
`order-move_replica`: it may be refused. `beside-...` is an auxiliary request: only its errors are judged. No checker of data
reads either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
ENDS = (OK, FAIL, INFO)
ORDER, BESIDE = "order-", "beside-"


class Event(msgspec.Struct, frozen=True):
    """One line of a history. `index` is its place; `error` says why an operation failed or is unknown."""

    index: int
    time_us: int
    process: int
    type: str
    operation: str
    key: Any = None
    value: Any = None
    error: str | None = None


def is_order(operation: str) -> bool:
    return operation.startswith(ORDER)


def is_data(operation: str) -> bool:
    """Whether checkers of data read it."""
    return not operation.startswith((ORDER, BESIDE))


@dataclass(frozen=True)
class Operation:
    """An invocation and its end; `end` is None while the outcome is unknown, or forever."""

    invoke: Event
    end: Event | None

    @property
    def known(self) -> bool:
        return self.end is not None and self.end.type == OK

    @property
    def failed(self) -> bool:
        return self.end is not None and self.end.type == FAIL

    @property
    def began(self) -> int:
        """The place of its invocation in the history: before it the operation cannot have taken place."""
        return self.invoke.index

    @property
    def ended(self) -> int | None:
        """The place of its answer: after it the operation cannot take place any more. None: no such place."""
        return self.end.index if self.end is not None and self.end.type != INFO else None

    @property
    def name(self) -> str:
        return self.invoke.operation

    @property
    def key(self) -> Any:
        return self.invoke.key

    @property
    def argument(self) -> Any:
        return self.invoke.value

    @property
    def answer(self) -> Any:
        return self.end.value if self.end is not None else None


@dataclass
class History:
    """Events in the order in which they were noted; only grows."""

    events: list[Event] = field(default_factory=list)
    processes: int = 0

    def __len__(self) -> int:
        return len(self.events)

    def new_process(self) -> int:
        self.processes += 1
        return self.processes - 1

    def note(
        self,
        time_s: float,
        process: int,
        type: str,
        operation: str,
        key: Any = None,
        value: Any = None,
        error: str | None = None,
    ) -> Event:
        event = Event(len(self.events), int(time_s * 1e6), process, type, operation, key, value, error)
        self.events.append(event)
        return event

    def operations(self, *names: str) -> Iterator[Operation]:
        """The operations with these names (all, without names), in the order of their invocations."""
        return (each for each in pair(self.events) if not names or each.name in names)


def pair(events: Iterable[Event]) -> list[Operation]:
    """Match invocations with ends. Raises ValueError if an end has no invocation, or a process has two operations under way:
    `History` records no such history."""
    under_way: dict[int, int] = {}
    found: list[Operation] = []
    for event in events:
        place = under_way.pop(event.process, None)
        if event.type == INVOKE:
            if place is not None:
                raise ValueError(
                    f"event {event.index}: process {event.process} begins an operation before its last one ended"
                )
            under_way[event.process] = len(found)
            found.append(Operation(event, None))
        elif event.type in ENDS and place is not None and found[place].name == event.operation:
            found[place] = Operation(found[place].invoke, event)
        else:
            raise ValueError(f"event {event.index}: {event.type} {event.operation} has no invocation")
    return found
