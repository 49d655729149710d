"""The metadata of a ledger, and how it changes. Pure functions; nothing here waits.

A ledger's entries are numbered from 0. Each is on `write_quorum` of the `ensemble` stores of its segment, and is acknowledged
when `ack_quorum` of them have synced it:

    ensemble 5, write_quorum 3: entry 0 is on positions 0 1 2, entry 1 on 1 2 3, entry 4 on 4 0 1

States (BookKeeper, seed 003):

    open         one writer adds entries
    in_recovery  a client that is not the writer finds the last entry; the writer is fenced
    closed       `last` and `length` are decided for ever

Every change of the stored metadata is a compare-and-set of a function's result here: read, is it still needed, transform, set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import overload

import msgspec

from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.storage.errors import InvalidArgument

OPEN, IN_RECOVERY, CLOSED = "open", "in_recovery", "closed"
NONE = -1  # the last entry of an empty ledger
ENSEMBLE_MAX = 16

replace = msgspec.structs.replace


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Entries from `first` on are on these stores, named by uuid."""

    first: int
    stores: tuple[str, ...]


class Metadata(msgspec.Struct, frozen=True, array_like=True):
    """`token`: drawn by the creator; stores refuse requests for another ledger of the same id. `length`: bytes of all entries.
    `log`: the log that the ledger is a part of. `given_up`: entries without a copy, as ranges (first, last), that an operator has given
    up; no store owes them. `repaired`: a repair ends the ledger, and no client that takes the writer's place: the writer may go on in
    another ledger."""

    ledger: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    token: str
    segments: tuple[Segment, ...]
    created_us: int
    state: str = OPEN
    last: int = NONE
    length: int = 0
    log: str = ""
    given_up: tuple[tuple[int, int], ...] = ()
    repaired: bool = False

    @property
    def closed(self) -> bool:
        return self.state == CLOSED

    @property
    def needed(self) -> int:
        """How many stores of a write quorum must answer, so that no acknowledged entry can be on the others alone."""
        return self.write_quorum - self.ack_quorum + 1


class Fragment(msgspec.Struct, frozen=True):
    """The entries `first` to `last` of one segment. `closed`: no entry is added to it any more."""

    first: int
    last: int
    stores: tuple[str, ...]
    closed: bool


def check_quorums(ensemble: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise InvalidArgument unless ensemble >= write_quorum >= ack_quorum >= 1."""
    if not ENSEMBLE_MAX >= ensemble >= write_quorum >= ack_quorum >= 1:
        raise InvalidArgument(
            f"a ledger needs {ENSEMBLE_MAX} >= ensemble >= write_quorum >= ack_quorum >= 1, not {ensemble}, {write_quorum} and "
            f"{ack_quorum}"
        )


def validate(found: Metadata) -> None:
    """Assert what holds of every stored version."""
    check_quorums(found.ensemble, found.write_quorum, found.ack_quorum)
    assert found.segments and found.segments[0].first == 0, found
    assert all(one.first < next_.first for one, next_ in pairwise(found.segments)), found
    for segment in found.segments:
        assert len(set(segment.stores)) == len(segment.stores) == found.ensemble, found
    assert found.closed or (found.last, found.length) == (NONE, 0), found


# -- where entries are ---------------------------------------------------------------------------------------


def positions(found: Metadata, entry: int) -> list[int]:
    """The positions of the ensemble that have the entry."""
    return [(entry + step) % found.ensemble for step in range(found.write_quorum)]


def segment_of(found: Metadata, entry: int) -> Segment:
    return next(segment for segment in reversed(found.segments) if segment.first <= max(entry, 0))


def stores_of(found: Metadata, entry: int) -> list[str]:
    """The stores that should have the entry."""
    segment = segment_of(found, entry)
    return [segment.stores[position] for position in positions(found, entry)]


def stores_in(found: Metadata) -> list[str]:
    """The stores that the segments name, each once."""
    return list(dict.fromkeys(store for segment in found.segments for store in segment.stores))


def entries_of(found: Metadata, position: int, first: int, last: int) -> Iterator[int]:
    """The entries from `first` to `last` that this position of the ensemble has."""
    for entry in range(first, last + 1):
        if (position - entry) % found.ensemble < found.write_quorum:
            yield entry


class Stripe(Sequence[int]):
    """The entries from `first` to `last` that a position of the ensemble has, ascending; the list is not made."""

    def __init__(self, found: Metadata, position: int, first: int, last: int) -> None:
        self._first = first
        self._ensemble = found.ensemble
        self._steps = [
            step
            for step in range(found.ensemble)
            if (position - first - step) % found.ensemble < found.write_quorum
        ]
        rounds, rest = divmod(max(0, last - first + 1), found.ensemble)
        self._count = rounds * found.write_quorum + sum(step < rest for step in self._steps)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self._entry(each) for each in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return self._entry(at % self._count)

    def _entry(self, at: int) -> int:
        rounds, step = divmod(at, len(self._steps))
        return self._first + rounds * self._ensemble + self._steps[step]


def owed(found: Metadata, position: int, first: int, last: int) -> Sequence[int]:
    """The entries from `first` to `last` that this position must have, ascending: all that it has, without those given up."""
    stripe = Stripe(found, position, first, last)
    if not found.given_up:
        return stripe
    return [entry for entry in stripe if not is_given_up(found, entry)]


def is_given_up(found: Metadata, entry: int) -> bool:
    return any(first <= entry <= last for first, last in found.given_up)


def fragments(found: Metadata, lac: int) -> list[Fragment]:
    """The fragments with entries; of an open ledger up to `lac`, the last entry that is known to be acknowledged."""
    end = found.last if found.closed else lac
    made = []
    for at, segment in enumerate(found.segments):
        newest = at == len(found.segments) - 1
        last = end if newest else found.segments[at + 1].first - 1
        if last >= segment.first:
            made.append(Fragment(segment.first, last, segment.stores, found.closed or not newest))
    return made


def covers(found: Metadata, answered: Iterable[int]) -> bool:
    """Whether these positions of an ensemble intersect every ack quorum of every entry: then no entry can be acknowledged by
    the others alone."""
    there = set(answered)
    windows = (positions(found, entry) for entry in range(found.ensemble))
    return all(sum(position in there for position in window) >= found.needed for window in windows)


# -- changes -------------------------------------------------------------------------------------------------


def with_replaced(found: Metadata, lac: int, replaced: Mapping[int, str]) -> Metadata:
    """The segments after the writer has replaced these positions: entries after `lac` are on the new stores."""
    newest = found.segments[-1]
    stores = tuple(replaced.get(position, store) for position, store in enumerate(newest.stores))
    if stores == newest.stores:
        return found  # this change has been made already
    made = Segment(lac + 1, stores)
    kept = found.segments[:-1] if newest.first == made.first else found.segments
    return replace(found, segments=(*kept, made))


def require_open(found: Metadata) -> None:
    """Raise LedgerFenced unless the writer may change the metadata."""
    if found.state != OPEN:
        word = "closed" if found.closed else "being recovered"
        raise LedgerFenced(
            f"ledger {found.ledger} is {word} by another client; write to a new ledger", ledger=found.ledger
        )


def recovering(found: Metadata, repair: bool = False) -> Metadata:
    """A second client that recovers continues with the first one's mark. While the end is not decided, one that is no repair takes
    the writer's place."""
    if found.closed:
        return found
    return replace(found, state=IN_RECOVERY, repaired=repair and (found.state == OPEN or found.repaired))


def closed(found: Metadata, last: int, length: int, newest: Sequence[Segment] | None = None) -> Metadata:
    """The decided end. `newest`: the segments that a recovery made of the last one, which it has not published before.

    Raises LedgerClosed if another client has decided another end.
    """
    if found.closed:
        if (found.last, found.length) != (last, length):
            raise LedgerClosed(
                f"ledger {found.ledger} was closed at entry {found.last} by another client",
                ledger=found.ledger,
            )
        return found
    segments = found.segments if newest is None else (*found.segments[:-1], *newest)
    kept = tuple(segment for segment in segments if segment.first <= max(last, 0))
    return replace(found, state=CLOSED, last=last, length=length, segments=kept)


def with_moved(found: Metadata, first: int, old: str, new: str) -> Metadata | None:
    """The metadata after a worker has copied the entries that `old` has of the segment at `first` to `new`. None if that is no
    longer needed, or if another worker has put `new` into the segment meanwhile."""
    made = []
    for segment in found.segments:
        if segment.first == first and old in segment.stores and new not in segment.stores:
            segment = replace(segment, stores=tuple(new if each == old else each for each in segment.stores))
        made.append(segment)
    changed = replace(found, segments=tuple(made))
    return None if changed == found else changed


def with_given_up(found: Metadata, entries: Sequence[tuple[int, int]]) -> Metadata:
    """The metadata after an operator has given up these entries too. A writer that would go on must not take them for acknowledged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*found.given_up, *entries)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return replace(found, given_up=tuple(merged), repaired=False)
