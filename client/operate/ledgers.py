"""Ledgers as an operator sees them: whether every store has the entries that it should have, and which are given up.

A check has every copy of every entry verified by its store, and changes nothing: no ledger is fenced or recovered. It says
whether the ledger is marked for repair, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUnknown, EntryLost
from ebla.actors.ledger.handles.checking import Checker, Held, lost
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.shared.survey import MarkedLedger, marked
from ebla.log.reading import Ledgers

AGAIN_S = 2.0  # the newest entries of an open ledger may be under way to a slow store
ROUNDS_MAX = 3


class Checked(msgspec.Struct, frozen=True):
    """`last`: of an open ledger the last acknowledged entry, as far as it is known; `unknown`: why more is not known. `lost`: entries of which no asked store has a sound copy; they are
    lost unless a store without an answer has one. `mark`: what is known of its repair; None: it has no mark. `given_up`: entries that
    an operator has given up, as ranges."""

    ledger: int
    state: str
    last: int
    stores: tuple[Held, ...]
    lost: tuple[int, ...]
    mark: MarkedLedger | None
    given_up: tuple[tuple[int, int], ...] = ()
    unknown: str | None = None

    @property
    def sound(self) -> bool:
        return self.unknown is None and all(held.sound for held in self.stores)


async def addresses(ledgers: Ledgers) -> dict[str, str]:
    """The last known address of every store, by uuid."""
    return {store.uuid: store.address for store in await ledgers.registry.known()}


async def check(
    ledgers: Ledgers, ledger: int, progress: Callable[[str], None] = lambda text: None
) -> Checked:
    """Ask every store of every fragment. Raises NotFound."""
    checker = Checker(ledgers.world, ledgers.registry, ledgers.stores, ledgers.options)
    found = await ledgers.registry.read(ledger)
    unknown: str | None = None
    try:
        last = await ledgers.reader.last_entry(found)
    except EndUnknown as error:
        if error.confirmed is None:
            raise
        last, unknown = error.confirmed, error.message
    checked = await _check(ledgers, checker, found, last, progress)
    for _ in range(ROUNDS_MAX - 1):
        if checked.sound or found.closed or unknown:
            break
        await ledgers.world.clock.sleep(AGAIN_S)
        found = await ledgers.registry.read(ledger)
        last = found.last if found.closed else last
        checked = await _check(ledgers, checker, found, last, progress)
    return checked if found.closed else msgspec.structs.replace(checked, unknown=unknown)


async def _check(
    ledgers: Ledgers, checker: Checker, found: Metadata, last: int, progress: Callable[[str], None]
) -> Checked:
    running = await ledgers.registry.running()
    held: list[Held] = []
    for fragment in meta.fragments(found, last):
        progress(f"entries {fragment.first:,} to {fragment.last:,} of {last + 1:,}")
        held += await checker.copies(found, fragment, running)
    marks = await marked(ledgers.world, ledgers.registry, Repairs(ledgers.session), [found.ledger])
    mark = next(iter(marks), None)
    return Checked(
        found.ledger, found.state, last, tuple(held), tuple(lost(found, held)), mark, found.given_up
    )


# -- entries without a sound copy ----------------------------------------------------------------------------


async def without_copies(ledgers: Ledgers, ledger: int) -> list[tuple[int, int]]:
    """The entries, as ranges, of which all stores answer and none has a sound copy. A ledger whose recovery has begun is recovered: of
    it, one of the last entries may be found in each call. Raises NotFound; Unavailable if a store does not answer that may have some."""
    found = await ledgers.registry.read(ledger)
    entries: list[tuple[int, int]] = []
    try:
        if found.state == meta.IN_RECOVERY:
            found = await _recovered(ledgers, ledger)
    except EntryLost as lost:
        if lost.entry is None:
            raise
        entries.append((lost.entry, lost.entry))
    checker = Checker(ledgers.world, ledgers.registry, ledgers.stores, ledgers.options)
    running = await ledgers.registry.running()
    for fragment in meta.fragments(found, found.segments[-1].first - 1):
        lost_here = await checker.unreadable(found, fragment, running)
        if lost_here.silent or (lost_here.entries and lost_here.missing):
            raise Unavailable(
                f"store {', '.join(lost_here.silent or lost_here.missing)} does not answer, and may have entries of ledger {ledger}: "
                "bring it back; if it will never return, `ebla nodes forget HOST --accept-loss`"
            )
        entries += lost_here.entries
    return sorted(entries)


async def give_up(ledgers: Ledgers, ledger: int, entries: Sequence[tuple[int, int]]) -> Metadata:
    """Note in the ledger, durably, that these entries are lost. Then the recovery goes on behind them. Raises EntryLost if another one is
    lost there."""
    found = await ledgers.registry.change(ledger, lambda now: meta.with_given_up(now, entries))
    if found.state == meta.IN_RECOVERY:
        found = await _recovered(ledgers, ledger)
    for store in meta.stores_in(found)[:1]:  # a worker tries it again at once
        await ledgers.registry.mark(ledger, store)
    return found


async def _recovered(ledgers: Ledgers, ledger: int) -> Metadata:
    return await recover(ledgers.world, ledgers.registry, ledgers.stores, ledger, ledgers.options)


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, (first, last)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
