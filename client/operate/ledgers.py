"""Ledgers as an operator sees them: all of them, and whether every store has the entries that it should have.

A check reads every copy of every entry, and changes nothing: no ledger is fenced or recovered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ebla.actors.errors import NotFound
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.metadata import Fragment, Metadata
from ebla.health.survey import gathered
from ebla.log.reading import Ledgers
from ebla.storage.errors import EblaError

TOGETHER = 64  # ledgers that are read at the same time
ASKED_MAX = 500  # entries of one request
AGAIN_S = 2.0  # the newest entries of an open ledger may be under way to a slow store
ROUNDS_MAX = 3


class Held(msgspec.Struct, frozen=True):
    """What one store has of one fragment: `entries` that it should have, those that are missing, and those whose checksum fails.
    `error`: why it gave no answer."""

    first: int
    last: int
    store: str
    address: str | None
    entries: int
    missing: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    error: str | None = None

    @property
    def sound(self) -> bool:
        return not self.missing and not self.damaged and self.error is None


class Checked(msgspec.Struct, frozen=True):
    """`last`: of an open ledger the last acknowledged entry. `lost`: entries of which no asked store has a sound copy; they are
    lost unless a store without an answer has one. `given_up`: entries that an operator has given up, as ranges."""

    ledger: int
    state: str
    last: int
    stores: tuple[Held, ...]
    lost: tuple[int, ...]
    given_up: tuple[tuple[int, int], ...] = ()

    @property
    def sound(self) -> bool:
        return all(held.sound for held in self.stores)


async def every(ledgers: Ledgers) -> list[Metadata]:
    """All ledgers, ascending."""

    async def one(ledger: int) -> Metadata | None:
        try:
            return await ledgers.registry.read(ledger)
        except NotFound:  # deleted meanwhile
            return None

    found = await gathered([one(each) for each in await ledgers.registry.list()], TOGETHER)
    return [each for each in found if each is not None]


async def addresses(ledgers: Ledgers) -> dict[str, str]:
    """The last known address of every store, by uuid."""
    return {store.uuid: store.address for store in await ledgers.registry.known()}


async def check(
    ledgers: Ledgers, ledger: int, progress: Callable[[str], None] = lambda text: None
) -> Checked:
    """Ask every store of every fragment. Raises NotFound; Unavailable if the end of an open ledger is not known."""
    found = await ledgers.registry.read(ledger)
    checked = await _check(ledgers, found, progress)
    for _ in range(ROUNDS_MAX - 1):
        if checked.sound or found.closed:
            break
        await ledgers.world.clock.sleep(AGAIN_S)
        newer = await ledgers.registry.read(ledger)
        again = await _check(ledgers, newer, progress, None if newer.closed else checked.last)
        found, checked = newer, again
    return checked


async def _check(
    ledgers: Ledgers, found: Metadata, progress: Callable[[str], None], upto: int | None = None
) -> Checked:
    last = await ledgers.reader.last_entry(found) if upto is None else upto
    where = await addresses(ledgers)
    held: list[Held] = []
    for fragment in meta.fragments(found, last):
        progress(f"entries {fragment.first:,} to {fragment.last:,} of {last + 1:,}")
        held += await asyncio.gather(
            *(_held(ledgers, found, fragment, at, where) for at in range(found.ensemble))
        )
    return Checked(
        found.ledger, found.state, last, tuple(held), tuple(_lost(found, last, held)), found.given_up
    )


async def _held(
    ledgers: Ledgers, found: Metadata, fragment: Fragment, position: int, where: dict[str, str]
) -> Held:
    store = fragment.stores[position]
    entries = list(meta.owed(found, position, fragment.first, fragment.last))
    bad: dict[int, bool] = {}  # entry -> whether it is damaged, not missing
    at, error = 0, None
    while at < len(entries):
        asked = tuple(entries[at : at + ASKED_MAX])
        request = m.ReadRequest(store, found.ledger, found.token, asked, ledgers.options.call_bytes)
        try:
            reply = await ledgers.stores.call(
                store, "read_entries", request, m.ReadReply, ledgers.options.timeout_s
            )
        except EblaError as refused:
            error = refused.message
            break
        bad |= dict.fromkeys(reply.absent, False) | dict.fromkeys(reply.damaged, True)
        bad |= {entry.entry: True for entry in reply.entries if not entry.sound(found.ledger)}
        answered = len(reply.absent) + len(reply.damaged) + len(reply.entries)
        if not answered:
            error = "its answer has none of the entries"
            break
        at += answered
    return Held(
        fragment.first,
        fragment.last,
        store,
        where.get(store),
        len(entries),
        tuple(sorted(entry for entry, damaged in bad.items() if not damaged)),
        tuple(sorted(entry for entry, damaged in bad.items() if damaged)),
        error,
    )


def _lost(found: Metadata, last: int, stores: Sequence[Held]) -> Iterator[int]:
    by_segment = {(held.first, held.store): held for held in stores}
    for fragment in meta.fragments(found, last):
        bad = [by_segment[fragment.first, store] for store in fragment.stores]
        suspects = sorted({entry for held in bad for entry in (*held.missing, *held.damaged)})
        silent = {held.store for held in bad if held.error is not None}
        if len(silent) >= found.write_quorum:
            suspects = list(range(fragment.first, fragment.last + 1))
        unsound = {held.store: {*held.missing, *held.damaged} for held in bad}
        for entry in suspects:
            if meta.is_given_up(found, entry):
                continue
            stores_of = meta.stores_of(found, entry)
            if all(store in silent or entry in unsound[store] for store in stores_of):
                yield entry


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, (first, last)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
