"""Ledgers as an operator sees them: whether every store has the entries that it should have.

A check has every copy of every entry verified by its store, and changes nothing: no ledger is fenced or recovered. It says
whether the ledger is marked for repair, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.checking import Checker, Held, lost
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.shared.survey import MarkedLedger, marked
from ebla.log.reading import Ledgers

AGAIN_S = 2.0  # the newest entries of an open ledger may be under way to a slow store
ROUNDS_MAX = 3


class Checked(msgspec.Struct, frozen=True):
    """`last`: of an open ledger the last acknowledged entry. `lost`: entries of which no asked store has a sound copy; they are
    lost unless a store without an answer has one. `mark`: what is known of its repair; None: it has no mark. `given_up`: entries that
    an operator has given up, as ranges."""

    ledger: int
    state: str
    last: int
    stores: tuple[Held, ...]
    lost: tuple[int, ...]
    mark: MarkedLedger | None
    given_up: tuple[tuple[int, int], ...] = ()

    @property
    def sound(self) -> bool:
        return all(held.sound for held in self.stores)


async def addresses(ledgers: Ledgers) -> dict[str, str]:
    """The last known address of every store, by uuid."""
    return {store.uuid: store.address for store in await ledgers.registry.known()}


async def check(
    ledgers: Ledgers, ledger: int, progress: Callable[[str], None] = lambda text: None
) -> Checked:
    """Ask every store of every fragment. Raises NotFound; Unavailable if the end of an open ledger is not known."""
    checker = Checker(ledgers.world, ledgers.registry, ledgers.stores, ledgers.options)
    found = await ledgers.registry.read(ledger)
    last = await ledgers.reader.last_entry(found)
    checked = await _check(ledgers, checker, found, last, progress)
    for _ in range(ROUNDS_MAX - 1):
        if checked.sound or found.closed:
            break
        await ledgers.world.clock.sleep(AGAIN_S)
        found = await ledgers.registry.read(ledger)
        last = found.last if found.closed else last
        checked = await _check(ledgers, checker, found, last, progress)
    return checked


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


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, (first, last)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
