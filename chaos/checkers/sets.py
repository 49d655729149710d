"""A set of elements, each added at most once and removed at most once: lost, duplicated, resurrected, imagined.

    add       key = the element   -> True; False ("it is there already") is an add that was applied twice
    remove    key = the element   -> True: was there; False: was not
    read-set                      -> the elements, as one snapshot
    count                         -> how many there are, as one snapshot

An element is surely there after its add was acknowledged, or after a read that shows it ended, whichever is first;
surely gone after its remove was acknowledged, or after a read ended that lacks it though it was surely there before.
So an unknown add may show or not, but once it was seen it stays, and an unknown remove likewise. A snapshot is of one
moment between the beginning and the end of its read: there must be a moment at which everything that it holds can
have been there, and nothing that it lacks had to be. Two snapshots never disagree on which of them is the earlier: one does not
lack what is still to come, or hold what is gone in the other, of some element and the other way round of another.
`count` is the exactly-once counter: between the least and the most that adds and removes allow at some moment of it. One that
is the most proves all that it needs, one that is the least proves that the rest is gone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from ebla.chaos.checkers.verdict import (
    Recorded,
    Verdict,
    broken,
    canonical,
    listed,
    nothing,
    operations_of,
    told,
)
from ebla.chaos.history import Operation
from ebla.storage.errors import InvalidArgument

ADD, REMOVE, READ, COUNT = "add", "remove", "read-set", "count"
NAMES = (ADD, REMOVE, READ, COUNT)

Problem = tuple[str, list[Operation]]
_Bounds = tuple[float, Operation, float, Operation]  # after, by whom; before, by whom
_Span = tuple[float, float, int, Hashable]  # there by, gone from, number, canonical element


def check_set(recorded: Recorded) -> Verdict:
    """Judge all operations on the one set of the history."""
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
    """What is known of one element. The places are of events; the operations next to them are their proofs."""

    value: object
    add: Operation | None = None
    remove: Operation | None = None  # one that took it away, or may have
    refused: Operation | None = None  # a remove that did not find it
    failed: list[Operation] = field(default_factory=list)  # adds that surely did not take place
    there_from: float = inf  # before it, the element cannot have been there
    there_by: float = inf
    seen: Operation | None = None
    gone_from: float = inf  # before it, nobody can have removed the element
    gone_by: float = inf
    missed: Operation | None = None

    def all_is_noted(self) -> None:
        """Every operation on the element is known: when it can have come and gone at the earliest follows."""
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
    """How far the elements were on their way when a snapshot was taken. What may be to come or gone is in neither."""

    read: _Snapshot
    to_come: frozenset[Hashable]
    held: frozenset[Hashable]
    gone: frozenset[Hashable]

    def precedes(self, later: _Stages) -> bool:
        """Whether some element is further on its way in `later`."""
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
        raise InvalidArgument(f"{told(operation)}: the answer must be the list of the elements")
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
            element.all_is_noted()
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
                f"{told(operation)} follows {told(earlier)}: each element is added once and removed once; "
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
        """The simplest to tell come first; each rule leans on what those before it established."""
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
        """A read shows only what was attempted before it ended, once."""
        for read in self.reads:
            if len(read.held) != len(read.operation.answer):
                times = Counter(map(canonical, read.operation.answer))
                twice = listed(value for value, count in times.items() if count > 1)
                yield f"{_brief(read.operation)} lists {twice} more than once", [read.operation]
            ended = read.ended
            for value in read.held:
                element = self.elements.get(value)
                if element is None or (element.add is None and not element.failed):
                    yield f"{_brief(read.operation)} holds {value!r}, which nobody added", [read.operation]
                elif element.add is None:
                    yield (
                        f"{_brief(read.operation)} holds {value!r}, but {told(element.failed[0])} surely did not "
                        "take place",
                        [element.failed[0], read.operation],
                    )
                elif element.there_by <= ended:
                    continue  # somebody proved it before
                elif element.add.began > ended:
                    yield (
                        f"{_brief(read.operation)} holds {value!r} before {told(element.add)} began",
                        [element.add, read.operation],
                    )
                else:
                    element.is_there(ended, read.operation)

    def wrong_answers(self) -> Iterator[Problem]:
        """Adds find nothing there; removes find what is there, and nothing else."""
        for element in self.elements.values():
            add, removed, refused = element.add, element.remove, element.refused
            if add and add.known and add.answer is False:
                yield f"{told(add)} was told that the element was there already: it was applied twice", [add]
            if removed and removed.known and (add is None or add.began > (removed.ended or 0)):
                yield f"{told(removed)} removed an element that nobody had added", [removed]
            if refused and element.there_by < refused.began:
                assert element.seen is not None
                yield (
                    f"{told(refused)} did not find the element, which {_brief(element.seen)} proves was there: "
                    "it was lost, or the remove was applied twice",
                    [element.seen, refused],
                )

    def lost(self) -> Iterator[Problem]:
        """What was surely there is in every read that began later, until somebody may have removed it."""
        for read in self.reads:
            began, held = read.began, read.held
            for value, element in self.elements.items():
                if element.there_by < began and value not in held:
                    assert element.seen is not None
                    if element.gone_from > read.ended:
                        yield (
                            f"{_brief(read.operation)} lacks {element.value!r}, which {_brief(element.seen)} "
                            "proves was there before, and which nobody had begun to remove",
                            [element.seen, read.operation],
                        )
                    element.is_gone(read.ended, read.operation)

    def resurrected(self) -> Iterator[Problem]:
        """What was surely gone is in no read that began later."""
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
        """Some moment within a read fits everything that it holds and everything that it lacks."""
        spans = [
            (each.there_by, each.gone_from, number, value)
            for number, (value, each) in enumerate(self.elements.items())
            if each.there_by < each.gone_from
        ]
        spans.sort()  # by the first two: `number` is unique
        for read in self.reads:
            yield from self._moment(read, spans)

    def _moment(self, read: _Snapshot, spans: list[_Span]) -> Iterator[Problem]:
        """Find a place in the history where `read` fits: after `floor`, before `ceiling`, outside the spans in
        which what it lacks was surely there."""
        floor, after, ceiling, until = self._bounds(read)
        if floor > ceiling:
            yield (
                f"{_brief(read.operation)} holds what was never there together: it was taken after {told(after)} "
                f"began, and by then {_brief(until)} proves that an element which it holds was gone",
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
        """Known once `lost` has told what is surely gone."""
        if read.began not in self._known_bounds:
            self._known_bounds[read.began] = self._find_bounds(read)
        return self._known_bounds[read.began]

    def _find_bounds(self, read: _Snapshot) -> _Bounds:
        """The places between which it was taken, by what it holds, each with its proof."""
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
        """Of two snapshots one is the earlier. Reads that do not overlap are in the order of their events, and the
        rules above have compared them with it."""
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
        """Of what the read lacks, what was surely still to come, and what was surely gone."""
        floor, _, ceiling, _ = self._bounds(read)
        lacked = [(value, each) for value, each in self.elements.items() if value not in read.held]
        to_come = frozenset(value for value, each in lacked if each.gone_from > ceiling)
        gone = frozenset(value for value, each in lacked if each.there_by < floor)
        return _Stages(read, to_come, frozenset(read.held), gone)

    def learned_from_counts(self) -> bool:
        """A count that needs all that can be there proves each of it, and one that leaves no room for more than what must be
        there proves that the rest is gone. Whether anything was learned."""
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
        least, most = [0] * (self.last_place + 1), [0] * (self.last_place + 1)
        for element in self.elements.values():
            if element.there_by < element.gone_from:
                _step(least, element.there_by, 1)
                _step(least, element.gone_from, -1)
            if element.add is not None:
                _step(most, element.there_from, 1)
                _step(most, element.gone_by, -1)
        return list(accumulate(least)), list(accumulate(most))

    def wrong_counts(self) -> Iterator[Problem]:
        """A count is possible at some moment between its beginning and its end."""
        least, most = self._sizes()
        for count in self.counts:
            moments = range(count.began, count.ended or 0)
            if not any(least[at] <= count.answer <= most[at] for at in moments):
                low, high = min(least[at] for at in moments), max(most[at] for at in moments)
                yield f"{told(count)} is impossible: there were {low} to {high} elements", [count]

    def shrinking_counts(self) -> Iterator[Problem]:
        """How many were ever added, those removed since included, never shrinks from one count to a later one."""
        most_gone, least_gone = [0] * (self.last_place + 1), [0] * (self.last_place + 1)
        for element in self.elements.values():
            _step(most_gone, element.gone_from, 1)
            _step(least_gone, element.gone_by, 1)
        most_gone, least_gone = list(accumulate(most_gone)), list(accumulate(least_gone))
        return self._shrinking(
            lambda count: count.answer + least_gone[count.began],
            lambda count: count.answer + most_gone[count.ended or 0],
            "too few were removed",
        )

    def returning_counts(self) -> Iterator[Problem]:
        """How many were removed never shrinks from one count to a later one: what was added, less what is there."""
        least_added, most_added = [0] * (self.last_place + 1), [0] * (self.last_place + 1)
        for element in self.elements.values():
            _step(least_added, element.there_by, 1)
            if element.add is not None:
                _step(most_added, element.there_from, 1)
        least_added, most_added = list(accumulate(least_added)), list(accumulate(most_added))
        return self._shrinking(
            lambda count: least_added[count.began] - count.answer,
            lambda count: most_added[count.ended or 0] - count.answer,
            "what was removed is back",
        )

    def _shrinking(
        self, least: Callable[[Operation], int], most: Callable[[Operation], int], what: str
    ) -> Iterator[Problem]:
        """What each count says that there were at least and at most of something that only grows."""
        earlier = deque(sorted(self.counts, key=lambda count: count.ended or 0))
        seen, proof = 0, None
        for later in self.counts:
            while earlier and (earlier[0].ended or 0) < later.began:
                count = earlier.popleft()
                if least(count) > seen:
                    seen, proof = least(count), count
            if proof and most(later) < seen:
                yield f"{told(later)} is impossible after {told(proof)}: {what}", [proof, later]


def _step(changes: list[int], place: float, by: int) -> None:
    if place < len(changes):
        changes[int(place)] += by


def _brief(operation: Operation) -> str:
    """A read without its answer, which may be long."""
    if operation.name != READ:
        return told(operation)
    return f"read-set by process {operation.invoke.process} (events {operation.began} and {operation.ended})"
