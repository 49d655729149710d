"""A state of a small ledger: what its stores have, what its clients know, and what the catalog says. All of it is plain values.

Sets of entries are numbers, whose bit n stands for entry n. Stores are numbers, too: places in `State.stores`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

NOTHING = -2  # no answer yet
IDLE, FENCING, READING, ENDING, DONE = range(5)  # of a recovery


class Link(NamedTuple):
    """Between a client and a store. `sent`: entries whose requests may arrive from now on, at any time. `ok`: of the writer's, those that
    the store has taken. `told`: the acknowledged entry in the answer to a fence. `read`: the entries in the answer to a read."""

    sent: int = 0
    ok: int = 0
    told: int = NOTHING
    read: int = NOTHING


class Store(NamedTuple):
    """`held` and `fenced`: durable. `arrived`: what a sync will make durable; client, entry for an add, and client, NOTHING for a fence.
    `lac`: the acknowledged entry that it tells. `promised`: a fence was answered. `links`: to the writer, to each recovery, to the worker."""

    held: int
    fenced: bool
    lac: int
    lost: bool
    promised: bool
    arrived: tuple[tuple[int, int], ...]
    links: tuple[Link, ...]


class Join(NamedTuple):
    """A store that shall take a position, once it has the entries `wanted`; those after `lac`, which is acknowledged."""

    position: int
    store: int
    wanted: int
    lac: int


class Adder(NamedTuple):
    """A writer or the writing part of a recovery. `view`: the store of each position. `lac`: the last acknowledged entry as of the earliest answers; the
    client may have used an earlier one. `next`: the number of its next entry. `published`:
    the metadata name the next stores."""

    view: tuple[int, ...]
    lac: int
    next: int
    joins: tuple[Join, ...] = ()
    published: bool = False
    replaced: int = 0
    ended: bool = False


class Recovery(NamedTuple):
    """`found`: the metadata from which it began. `made`: what becomes of the last segment; numbers of values, see Values. `start`: the last
    entry that it found to be acknowledged."""

    phase: int = IDLE
    found: int = 0
    made: int = 0
    adder: Adder | None = None
    start: int = -1


class Worker(NamedTuple):
    """It copies `wanted` to the store `new`, for the segment at `first`, in place of the store `old` (or `new` itself: to fill it)."""

    first: int
    old: int
    new: int
    wanted: int


class State(NamedTuple):
    """`catalog`: the ledger's metadata, the number of a value. `versions`: every last segment that there ever was. `stamps`: of each entry, the
    entry that was acknowledged when it was made. `acknowledged`: to the user. `shown`: the last entry that a reader may have returned."""

    stores: tuple[Store, ...]
    writer: Adder
    recoveries: tuple[Recovery, ...]
    worker: Worker | None
    catalog: int
    versions: tuple[tuple[int, tuple[int, ...]], ...]
    stamps: tuple[int, ...]
    acknowledged: int
    shown: int
    crashes: int
    losses: int


def renamed_adder(adder: Adder, name: list[int]) -> Adder:
    """The same with other numbers of stores, and positions in their order: for ledgers whose entries are on every store."""
    view = sorted(name[store] for store in adder.view)
    joins = tuple(
        Join(view.index(name[adder.view[join.position]]), name[join.store], join.wanted, join.lac)
        for join in adder.joins
    )
    return adder._replace(view=tuple(view), joins=joins)


def canonical(state: State, renamed_value: Callable[[int, tuple[int, ...]], int]) -> State:
    """One state for all those that differ in the names of stores only."""
    stores = state.stores
    adders = [state.writer, *(each.adder for each in state.recoveries if each.adder is not None)]

    def key(at: int) -> tuple[object, ...]:
        member = [at in each.view for each in adders]
        joins = [at == join.store for each in adders for join in each.joins]
        return stores[at], member, joins, [at in segment for _, segment in state.versions]

    order = sorted(range(len(stores)), key=key)
    if order == list(range(len(stores))):
        return state
    name = [order.index(at) for at in range(len(stores))]
    names = tuple(name)
    recoveries = tuple(
        each
        if each.adder is None
        else Recovery(
            each.phase,
            renamed_value(each.found, names),
            renamed_value(each.made, names),
            renamed_adder(each.adder, name),
            each.start,
        )
        for each in state.recoveries
    )
    worker = state.worker
    if worker is not None:
        worker = worker._replace(old=name[worker.old], new=name[worker.new])
    return state._replace(
        stores=tuple(stores[at] for at in order),
        writer=renamed_adder(state.writer, name),
        recoveries=recoveries,
        worker=worker,
        catalog=renamed_value(state.catalog, names),
        versions=tuple(
            (first, tuple(sorted(name[at] for at in segment))) for first, segment in state.versions
        ),
    )
