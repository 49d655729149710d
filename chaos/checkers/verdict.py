"""A checker's verdict on a history, and its wording.

A verdict is one of three: the history keeps the promise, it breaks it, or the checker cannot decide. For a broken promise
`problem` is one sentence that names keys, operations, values and events, and `events` lists the places in the history for a
story. A history in which nothing was judged is of the third kind: it must never pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ebla.chaos.history import FAIL, History, Operation

Recorded = History | Iterable[Operation]
Problem = tuple[str, list[Operation]]  # a sentence, and the operations that show it
LISTED_MAX = 5  # things of one kind that a sentence names


@dataclass(frozen=True)
class Verdict:
    """`valid` is None if the checker cannot decide; `judged` counts the operations that the verdict rests on."""

    valid: bool | None
    problem: str = ""
    events: tuple[int, ...] = ()
    judged: int = 0

    def __post_init__(self) -> None:
        assert bool(self.problem) == (self.valid is not True), "a verdict that is not valid has a reason"


def broken(problem: str, operations: Iterable[Operation], judged: int) -> Verdict:
    """The history breaks its promise, as these operations show."""
    return Verdict(False, problem, places(operations), judged)


def nothing(reason: str) -> Verdict:
    return Verdict(None, f"nothing was judged: {reason}")


def passed(judged: int, otherwise: str) -> Verdict:
    """The history keeps its promise, or nothing was judged because of `otherwise`."""
    return Verdict(True, judged=judged) if judged else nothing(otherwise)


def together(parts: Sequence[Verdict], what: str = "parts") -> Verdict:
    """One verdict over parts that are judged separately (keys, groups, workloads): as bad as the worst of them.

    The problem is the first one; others are counted, under the name `what`, and their events are kept.
    """
    judged = sum(part.judged for part in parts)
    for valid in (False, None):
        worst = [part for part in parts if part.valid is valid]
        if worst:
            more = f"; likewise {len(worst) - 1} more of the {what}" if len(worst) > 1 else ""
            events = dict.fromkeys(event for part in worst for event in part.events)
            return Verdict(valid, worst[0].problem + more, tuple(sorted(events)), judged)
    return Verdict(True, judged=judged) if parts else nothing("there are no parts")


def operations_of(recorded: Recorded, names: Iterable[str]) -> list[Operation]:
    """The operations with these names, in the order of their invocations, including failed ones."""
    wanted = frozenset(names)
    found = recorded.operations() if isinstance(recorded, History) else recorded
    return sorted((each for each in found if each.name in wanted), key=lambda each: each.began)


def by_key(operations: Iterable[Operation]) -> dict[Hashable, list[Operation]]:
    found: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        found.setdefault(canonical(operation.key), []).append(operation)
    return found


def canonical(value: Any) -> Hashable:
    """A hashable form of a plain value: equal exactly where the values are, with True distinct from 1."""
    kind = type(value)
    if kind is int or kind is str or value is None:
        return value  # type: ignore[no-any-return]
    if isinstance(value, list | tuple):
        return "list", tuple(canonical(each) for each in value)
    if isinstance(value, dict):
        pairs = [(canonical(key), canonical(each)) for key, each in value.items()]
        return "dict", tuple(sorted(pairs, key=repr))
    return kind.__name__, value


# -- words


def described(operation: Operation) -> str:
    """`write 'k' 4 by process 2 (events 40 and 43)`"""
    words = [operation.name]
    if operation.key is not None:
        words.append(repr(operation.key))
    if operation.argument is not None:
        words.append(repr(operation.argument))
    if operation.known and (operation.answer is not None or operation.argument is None):
        words.append(f"-> {operation.answer!r}")
    return f"{' '.join(words)} by process {operation.invoke.process} ({_when(operation)})"


def _when(operation: Operation) -> str:
    if operation.end is None:
        return f"event {operation.began}, never answered"
    outcome = "" if operation.known else ", failed" if operation.end.type == FAIL else ", unknown"
    return f"events {operation.began} and {operation.end.index}{outcome}"


def brief(read: Operation) -> str:
    """A read without its answer, which may be long: `read-set by process 2 (events 40 and 43)`."""
    key = f" {read.key!r}" if read.name == "list" else ""
    end = read.end.index if read.end else "none"
    return f"{read.name}{key} by process {read.invoke.process} (events {read.began} and {end})"


def listed(values: Iterable[object]) -> str:
    """`1, 'two', 3 and 7 more`"""
    return joined([repr(value) for value in values])


def joined(words: Sequence[str]) -> str:
    if len(words) <= LISTED_MAX:
        return ", ".join(words)
    return f"{', '.join(words[:LISTED_MAX])} and {len(words) - LISTED_MAX} more"


def places(operations: Iterable[Operation]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for operation in operations:
        found[operation.began] = None
        if operation.end is not None:
            found[operation.end.index] = None
    return tuple(sorted(found))
