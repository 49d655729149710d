"""Registers of a table with forced configurations: an unsafe change loses only the writes that it may lose.

    read        -> the value, or None if the key is absent
    write v     sets v, present or not; each v is written once

A tablet has sides, one per forced configuration, by mark: side 0 is the tablet as it was created. Each side begins with the log
of its survivor. The side before continues until its servers learn that they were given up. Therefore

    every side is linearizable by itself: the writes in its log, in their order there, and the reads that it answered
    every write that a side acknowledged is in its log
    a write that an earlier side acknowledged is on this side exactly if the survivor had it, at the same index

Without forced configurations this equals check_register. The simulation records the servers' answers
(simulation/observers/sides.py), so the side of each answer is known. An answer that no server gave is a violation, and so is one
of a newer side than any whose log was seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ebla.chaos.checkers.register import check_key
from ebla.chaos.checkers.verdict import (
    Recorded,
    Verdict,
    broken,
    by_key,
    described,
    nothing,
    operations_of,
    together,
)
from ebla.chaos.history import Operation

READ, WRITE = "read", "write"
NAMES = (READ, WRITE)


@dataclass(frozen=True)
class Side:
    """The log of one side: the index of each value, and whether the log is complete. The last entries of a replaced side may be
    missing."""

    indexes: Mapping[Hashable, int]
    complete: bool = True


@dataclass(frozen=True)
class Seen:
    """`sides`: of each tablet, by mark. `tablets`: by key. `written`: by value, (mark, index) of each acknowledgement. `read`: by
    key and value, (time_us, mark) of each such answer."""

    sides: Mapping[str, Mapping[int, Side]] = field(default_factory=dict)
    tablets: Mapping[Hashable, str] = field(default_factory=dict)
    written: Mapping[Hashable, Sequence[tuple[int, int]]] = field(default_factory=dict)
    read: Mapping[tuple[Hashable, Hashable], Sequence[tuple[int, int]]] = field(default_factory=dict)


def check_sides(recorded: Recorded, seen: Seen) -> Verdict:
    keyed = by_key(each for each in operations_of(recorded, NAMES) if not each.failed)
    verdicts = [verdict for key, operations in keyed.items() for verdict in _check_key(key, operations, seen)]
    judged = [each for each in verdicts if each.judged]
    return together(judged, "keys") if judged else nothing("no register was used")


def _check_key(key: Hashable, operations: list[Operation], seen: Seen) -> list[Verdict]:
    unserved = [each for each in operations if each.known and not _marks(each, seen)]
    if unserved:
        problem = f"key {key!r}: {described(unserved[0])} was answered, but no server gave this answer"
        return [broken(problem, unserved[:1], len(operations))]
    sides = seen.sides.get(seen.tablets.get(key, ""), {})
    newest = max(sides, default=-1)
    unseen = [each for each in operations if each.known and min(_marks(each, seen)) > newest]
    if unseen:
        side = f"side {min(_marks(unseen[0], seen))}, of which no log is seen"
        return [
            broken(f"key {key!r}: {described(unseen[0])} was answered on {side}", unseen[:1], len(operations))
        ]
    return [_check_side(key, mark, sides, operations, seen) for mark in sorted(sides)]


def _marks(operation: Operation, seen: Seen) -> list[int]:
    """The sides that gave the answer of a known operation; for a read there may be several."""
    if operation.name == WRITE:
        return [mark for mark, _ in seen.written.get(operation.argument, ())]
    assert operation.end is not None
    first, last = operation.invoke.time_us, operation.end.time_us
    answers = seen.read.get((operation.key, operation.answer), ())
    return [mark for at_us, mark in answers if first <= at_us <= last]


def _check_side(
    key: Hashable, mark: int, sides: Mapping[int, Side], operations: list[Operation], seen: Seen
) -> Verdict:
    side = sides[mark]
    here: list[Operation] = []
    order: dict[int, int | None] = {}
    for each in operations:
        marks = _marks(each, seen) if each.known else []
        if each.name == READ:
            if marks and set(marks) == {mark}:
                here.append(each)
            continue
        index = side.indexes.get(each.argument)
        if index is None and mark in marks and mark < max(sides):
            index = dict(seen.written[each.argument])[mark]  # the end of that side's log was not seen
        elif index is None and mark in marks and side.complete:
            problem = (
                f"key {key!r}: {described(each)} was acknowledged on side {mark}, whose log does not have it"
            )
            return broken(problem, [each], len(operations))
        if index is None and (side.complete or each.known):
            continue  # it never reached this side, or was lost with another side
        if index is not None:
            order[each.began] = index
        same = any(sides[of].indexes.get(each.argument) == index for of in marks if of <= mark)
        here.append(each if same else replace(each, end=None))
    verdict = check_key(here, order)
    return replace(verdict, problem=f"side {mark}: {verdict.problem}") if verdict.problem else verdict
