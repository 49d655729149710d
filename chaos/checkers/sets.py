"""A set of elements, each added at most once and removed at most once: none is lost, doubled, resurrected or imagined.

    add       key = the element   -> True; False ("already there") is an add that was applied twice
    remove    key = the element   -> True: was there; False: was not
    read-set                      -> the elements, as one snapshot
    count                         -> their number, as one snapshot

An element is surely there after its add was acknowledged, or after the end of a read that shows it, whichever is first. It is
surely gone after its remove was acknowledged, or after the end of a read that lacks it although it was surely there before. An
element of an unknown add may or may not be there, but once seen it stays; likewise for an unknown remove. A snapshot is of one
moment of its read: at that moment every element that it holds can have been there, and no element that it lacks had to be there.
Two snapshots never disagree on which of them is earlier. `count` is the exactly-once counter: at some moment of it the number
lies between the least and the most that adds and removes allow. A count that equals the most proves that all these elements are
there; one that equals the least proves that all others are gone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from operator import sub

from ebla.chaos.checkers.verdict import (
    Problem,
    Recorded,
    Verdict,
    brief,
    broken,
    canonical,
    described,
    listed,
    nothing,
    operations_of,
)
from ebla.chaos.history import Operation
from ebla.storage.errors import InvalidArgument

ADD, REMOVE, READ, COUNT = "add", "remove", "read-set", "count"
NAMES = (ADD, REMOVE, READ, COUNT)

_Bounds = tuple[float, Operation, float, Operation]  # a floor and its proof, a ceiling and its proof
_Span = tuple[float, float, int, Hashable]  # there by, gone from, number, canonical element


def check_set(recorded: Recorded) -> Verdict:
    operations = operations_of(recorded, NAMES)
    judged = sum(each.known for each in operations)
    problem = next(_Set(operations).problems(), None)
    if problem:
        return broken(*problem, judged)
    if not any(each.known and each.name in (READ, COUNT) for each in operations):
        return nothing("no read of the set was answered")
    return Verdict(True, judged=judged)


@dataclass
class _Element:
    """Knowledge about one element. The places are of events; the operations after them are their proofs."""

    value: object
    add: Operation | None = None
    remove: Operation | None = None  # a remove that succeeded, or may have
    refused: Operation | None = None  # a remove that did not find the element
    failed: list[Operation] = field(default_factory=list)  # adds that surely did not take place
    there_from: float = inf  # before it, the element cannot have been there
    there_by: float = inf
    seen: Operation | None = None
    gone_from: float = inf  # before it, the element cannot have been removed
    gone_by: float = inf
    missed: Operation | None = None

    def conclude(self) -> None:
        """Derive the earliest arrival and departure; every operation on the element is known by now."""
        began = self.add.began if self.add else inf
        self.there_from = max(began, self.refused.began) if self.refused else began
        self.gone_from = self.remove.began if self.remove else inf

    def is_there(self, place: float, proof: Operation) -> None:
        if place < self.there_by:
            self.there_by, self.seen = place, proof

    def may_be_there(self, place: float) -> bool:
        return self.add is not None and self.there_from <= place < self.gone_by

    def must_be_there(self, place: float) -> bool:
        return self.there_by <= place < self.gone_from

    def is_gone(self, place: float, proof: Operation) -> None:
        if place < self.gone_by:
            self.gone_by, self.missed = place, proof


@dataclass(frozen=True)
class _Snapshot:
    operation: Operation
    held: dict[Hashable, None]
    began: int
    ended: int


@dataclass(frozen=True)
class _Stages:
    """The elements that were to come, there, and gone when a snapshot was taken. Undecided ones are in none of these."""

    read: _Snapshot
    to_come: frozenset[Hashable]
    held: frozenset[Hashable]
    gone: frozenset[Hashable]

    def precedes(self, later: _Stages) -> bool:
        """Whether some element is in a later stage in `later`."""
        return not (
            self.to_come.isdisjoint(later.held)
            and self.to_come.isdisjoint(later.gone)
            and self.held.isdisjoint(later.gone)
        )

    def changed_until(self, later: _Stages) -> list[Hashable]:
        changed = (self.to_come & (later.held | later.gone)) | (self.held & later.gone)
        return sorted(changed, key=repr)


def _snapshot(operation: Operation) -> _Snapshot:
    if not isinstance(operation.answer, list | tuple):
        raise InvalidArgument(f"{described(operation)}: the answer must be the list of the elements")
    assert operation.ended is not None, "only answered reads are judged"
    held = dict.fromkeys(map(canonical, operation.answer))
    return _Snapshot(operation, held, operation.began, operation.ended)


class _Set:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self.elements: dict[Hashable, _Element] = {}
        for operation in operations:
            if operation.name in (ADD, REMOVE):
                self._note(operation)
        for element in self.elements.values():
            element.conclude()
        answered = [each for each in operations if each.known]
        self.counts = [each for each in answered if each.name == COUNT]
        reads = sorted((each for each in answered if each.name == READ), key=lambda each: each.ended or 0)
        self.reads = [_snapshot(each) for each in reads]
        self._known_bounds: dict[int, _Bounds] = {}  # by the place of the read
        self.last_place = max((each.ended or each.began for each in operations), default=0)

    def _note(self, operation: Operation) -> None:
        element = self.elements.setdefault(canonical(operation.key), _Element(operation.key))
        if operation.failed:
            if operation.name == ADD:
                element.failed.append(operation)
            return
        earlier = element.add if operation.name == ADD else element.remove or element.refused
        if earlier is not None:
            raise InvalidArgument(
                f"{described(operation)} follows {described(earlier)}: each element is added once and removed once; "
                "take fresh elements"
            )
        if operation.name == ADD:
            element.add = operation
            if operation.known:
                element.is_there(operation.ended or 0, operation)
        elif operation.known and operation.answer is False:
            element.refused = operation
        else:
            element.remove = operation
            if operation.known:
                element.is_there(operation.ended or 0, operation)
                element.is_gone(operation.ended or 0, operation)

    def problems(self) -> Iterator[Problem]:
        """Problems by rule, the simplest first. Each rule relies on those before it."""
        yield from self.imagined()
        yield from self.wrong_answers()
        yield from self.lost()
        while self.learned_from_counts():
            yield from self.wrong_answers()
            yield from self.lost()
        yield from self.resurrected()
        yield from self.impossible_moments()
        yield from self.opposite_orders()
        yield from self.wrong_counts()
        yield from self.shrinking_counts()
        yield from self.returning_counts()

    # -- the rules

    def imagined(self) -> Iterator[Problem]:
        """A read shows only elements that were attempted before it ended, each once."""
        for read in self.reads:
            if len(read.held) != len(read.operation.answer):
                times = Counter(map(canonical, read.operation.answer))
                twice = listed(value for value, count in times.items() if count > 1)
                yield f"{_brief(read.operation)} lists {twice} more than once", [read.operation]
            ended = read.ended
            for value in read.held:
                element = self.elements.get(value)
                if element is None or (element.add is None and not element.failed):
                    yield f"{_brief(read.operation)} holds {value!r}, which was never added", [read.operation]
                elif element.add is None:
                    yield (
                        f"{_brief(read.operation)} holds {value!r}, but {described(element.failed[0])} surely did not "
                        "take place",
                        [element.failed[0], read.operation],
                    )
                elif element.there_by <= ended:
                    continue  # proved before
                elif element.add.began > ended:
                    yield (
                        f"{_brief(read.operation)} holds {value!r} before {described(element.add)} began",
                        [element.add, read.operation],
                    )
                else:
                    element.is_there(ended, read.operation)

    def wrong_answers(self) -> Iterator[Problem]:
        """Adds find the element absent; removes find it exactly if it is there."""
        for element in self.elements.values():
            add, removed, refused = element.add, element.remove, element.refused
            if add and add.known and add.answer is False:
                yield f"{described(add)} found the element already there: it was applied twice", [add]
            if removed and removed.known and (add is None or add.began > (removed.ended or 0)):
                yield f"{described(removed)} removed an element that had not been added", [removed]
            if refused and element.there_by < refused.began:
                assert element.seen is not None
                yield (
                    f"{described(refused)} did not find the element, which {_brief(element.seen)} proves was there: "
                    "it was lost, or the remove was applied twice",
                    [element.seen, refused],
                )

    def lost(self) -> Iterator[Problem]:
        """An element that was surely there is in every later read, until it may have been removed."""
        for read in self.reads:
            began, held = read.began, read.held
            for value, element in self.elements.items():
                if element.there_by < began and value not in held:
                    assert element.seen is not None
                    if element.gone_from > read.ended:
                        yield (
                            f"{_brief(read.operation)} lacks {element.value!r}, which {_brief(element.seen)} "
                            "proves was there before, and whose removal had not begun",
                            [element.seen, read.operation],
                        )
                    element.is_gone(read.ended, read.operation)

    def resurrected(self) -> Iterator[Problem]:
        """An element that was surely gone is in no later read."""
        for read in self.reads:
            for value in read.held:
                element = self.elements[value]
                if element.gone_by < read.began:
                    assert element.missed is not None
                    yield (
                        f"{_brief(read.operation)} holds {value!r}, which {_brief(element.missed)} proves was "
                        "gone before",
                        [element.missed, read.operation],
                    )

    def impossible_moments(self) -> Iterator[Problem]:
        """Each read has a moment that fits all elements that it holds and all that it lacks."""
        spans = [
            (each.there_by, each.gone_from, number, value)
            for number, (value, each) in enumerate(self.elements.items())
            if each.there_by < each.gone_from
        ]
        spans.sort()  # by the first two: `number` is unique
        for read in self.reads:
            yield from self._moment(read, spans)

    def _moment(self, read: _Snapshot, spans: list[_Span]) -> Iterator[Problem]:
        """Find a place in the history where `read` fits: after `floor`, before `ceiling`, outside the spans in which an element
        that it lacks was surely there."""
        floor, after, ceiling, until = self._bounds(read)
        if floor > ceiling:
            yield (
                f"{_brief(read.operation)} holds elements that were never there together: it was taken after "
                f"{described(after)} began, and by then {_brief(until)} proves that an element which it holds was gone",
                [until, after, read.operation],
            )
        for there_by, gone_from, _, value in spans:
            if there_by > floor:
                break
            element = self.elements[value]
            if gone_from <= floor or value in read.held or element.seen is None:
                continue
            if gone_from > ceiling:
                yield (
                    f"{_brief(read.operation)} lacks {element.value!r}, but it shows the set after {_brief(after)} "
                    f"began, when {_brief(element.seen)} had ended and proves that the element was there",
                    [element.seen, after, read.operation],
                )
                break
            floor, after = gone_from, element.remove or after

    def _bounds(self, read: _Snapshot) -> _Bounds:
        """Bounds of the read; final after `lost` has found the elements that are surely gone."""
        if read.began not in self._known_bounds:
            self._known_bounds[read.began] = self._find_bounds(read)
        return self._known_bounds[read.began]

    def _find_bounds(self, read: _Snapshot) -> _Bounds:
        """The places between which the read was taken, by the elements that it holds, each with its proof."""
        floor, after = float(read.began), read.operation
        ceiling, until = float(read.ended), read.operation
        for value in read.held:
            element = self.elements[value]
            if element.there_from > floor:
                floor, after = element.there_from, element.refused or element.add or after
            if element.gone_by < ceiling:
                ceiling, until = element.gone_by, element.missed or until
        return floor, after, ceiling, until

    def opposite_orders(self) -> Iterator[Problem]:
        """Of two snapshots one is the earlier. Only overlapping reads are compared: the rules above have judged the others."""
        under_way: list[_Stages] = []
        for read in sorted(self.reads, key=lambda read: read.began):
            one = self._stages(read)
            under_way = [other for other in under_way if other.read.ended > read.began]
            for other in under_way:
                if one.precedes(other) and other.precedes(one):
                    yield (
                        f"{_brief(one.read.operation)} and {_brief(other.read.operation)} disagree on which came "
                        f"first: the former if one asks {listed(one.changed_until(other))}, the latter if one asks "
                        f"{listed(other.changed_until(one))}",
                        [one.read.operation, other.read.operation],
                    )
            under_way.append(one)

    def _stages(self, read: _Snapshot) -> _Stages:
        """Split the elements that the read lacks: surely still to come, and surely gone."""
        floor, _, ceiling, _ = self._bounds(read)
        lacked = [(value, each) for value, each in self.elements.items() if value not in read.held]
        to_come = frozenset(value for value, each in lacked if each.gone_from > ceiling)
        gone = frozenset(value for value, each in lacked if each.there_by < floor)
        return _Stages(read, to_come, frozenset(read.held), gone)

    def learned_from_counts(self) -> bool:
        """A count that equals the most that can be there proves all these elements; one that equals the least that must be there
        proves that all others are gone. Returns whether anything new was learned."""
        least, most = self._sizes()
        learned = False
        for count in self.counts:
            moments, ended = range(count.began, count.ended or 0), count.ended or 0
            full = count.answer == max(most[at] for at in moments)
            bare = count.answer == min(least[at] for at in moments)
            fullest = [at for at in moments if full and most[at] == count.answer]
            barest = [at for at in moments if bare and least[at] == count.answer]
            for element in self.elements.values() if full or bare else ():
                if full and element.there_by > ended and all(map(element.may_be_there, fullest)):
                    element.is_there(ended, count)
                    learned = True
                surely_before = element.there_by < count.began and element.gone_by > ended
                if bare and surely_before and not any(map(element.must_be_there, barest)):
                    element.is_gone(ended, count)
                    learned = True
        return learned

    def _sizes(self) -> tuple[list[int], list[int]]:
        """The least and the most elements that can be there, by place."""
        sure = [each for each in self.elements.values() if each.there_by < each.gone_from]
        added = [each for each in self.elements.values() if each.add is not None]
        least = self._until(each.there_by for each in sure), self._until(each.gone_from for each in sure)
        most = self._until(each.there_from for each in added), self._until(each.gone_by for each in added)
        return list(map(sub, *least)), list(map(sub, *most))

    def _until(self, places: Iterable[float]) -> list[int]:
        """How many of these places are reached, by place of the history."""
        reached = [0] * (self.last_place + 1)
        for place in places:
            if place <= self.last_place:
                reached[int(place)] += 1
        return list(accumulate(reached))

    def wrong_counts(self) -> Iterator[Problem]:
        """A count is possible at some moment between its beginning and its end."""
        least, most = self._sizes()
        for count in self.counts:
            moments = range(count.began, count.ended or 0)
            if not any(least[at] <= count.answer <= most[at] for at in moments):
                low, high = min(least[at] for at in moments), max(most[at] for at in moments)
                yield f"{described(count)} is impossible: there were {low} to {high} elements", [count]

    def shrinking_counts(self) -> Iterator[Problem]:
        """The number of elements ever added, including those removed since, never shrinks between counts."""
        most_gone = self._until(each.gone_from for each in self.elements.values())
        least_gone = self._until(each.gone_by for each in self.elements.values())
        return self._shrinking(
            lambda count: count.answer + least_gone[count.began],
            lambda count: count.answer + most_gone[count.ended or 0],
            "too few were removed",
        )

    def returning_counts(self) -> Iterator[Problem]:
        """The number of removed elements (added, but not there) never shrinks between counts."""
        least_added = self._until(each.there_by for each in self.elements.values())
        most_added = self._until(each.there_from for each in self.elements.values() if each.add is not None)
        return self._shrinking(
            lambda count: least_added[count.began] - count.answer,
            lambda count: most_added[count.ended or 0] - count.answer,
            "removed elements are back",
        )

    def _shrinking(
        self, least: Callable[[Operation], int], most: Callable[[Operation], int], what: str
    ) -> Iterator[Problem]:
        """Compare counts: each gives a `least` and a `most` value of a number that never shrinks."""
        earlier = deque(sorted(self.counts, key=lambda count: count.ended or 0))
        seen, proof = 0, None
        for later in self.counts:
            while earlier and (earlier[0].ended or 0) < later.began:
                count = earlier.popleft()
                if least(count) > seen:
                    seen, proof = least(count), count
            if proof and most(later) < seen:
                yield f"{described(later)} is impossible after {described(proof)}: {what}", [proof, later]


def _brief(operation: Operation) -> str:
    return brief(operation) if operation.name == READ else described(operation)
