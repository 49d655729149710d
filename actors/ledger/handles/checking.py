"""Which fragments of a ledger are damaged: which of their stores lack entries that they should have.

    missing   the store does not run; it is not asked
    leaving   the store's host is being decommissioned; it is not asked
    lacking   the store runs, and lacks an entry or has it damaged; or another store answers at its address
    unknown   the store runs, and does not answer now: nothing is known, so nothing is damaged

Of each store of each fragment the first and the last entry is looked at, and a percentage of the others: one by chance in each
part of equal size. An open ledger is checked up to its last acknowledged entry. Its last fragment is listed if it is empty, too:
the writer will need its stores.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Sequence

import msgspec

from ebla.actors.errors import WrongServer
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import WrongToken
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Fragment, Metadata
from ebla.actors.world import CallerWorld, Random
from ebla.storage.errors import EblaError

MISSING, LACKING, LEAVING = "missing", "lacking", "leaving"
ENTRIES_MAX = 500  # of one question
YIELD_ENTRIES = 5_000  # are compared before other tasks get their turn


class Damage(msgspec.Struct, frozen=True):
    """`why`: missing, lacking or leaving. `another`: the store is lost, for another one answers at its address."""

    fragment: Fragment
    position: int
    store: str
    why: str
    another: bool = False


class Findings(msgspec.Struct, frozen=True):
    """`unknown`: stores that did not answer, with their reasons. `looked`: how many entries were looked at."""

    damaged: tuple[Damage, ...]
    unknown: tuple[tuple[str, str], ...]
    looked: int = 0

    @property
    def whole(self) -> bool:
        """Whether every store answered, and nothing is damaged."""
        return not self.damaged and not self.unknown


class Unreadable(msgspec.Struct, frozen=True):
    """`entries` of a fragment have no readable copy, as ranges (first, last): their stores that run lack them, and `missing` are those
    that do not run. `silent`: stores that run and did not answer, which may have more."""

    entries: tuple[tuple[int, int], ...]
    missing: tuple[str, ...]
    silent: tuple[str, ...]


def all_fragments(found: Metadata, lac: int) -> list[Fragment]:
    """The fragments, with an empty last one: its stores are named, too."""
    made = meta.fragments(found, lac)
    newest = found.segments[-1]
    if not made or made[-1].first < newest.first:
        made.append(Fragment(newest.first, newest.first - 1, newest.stores, found.closed))
    return made


async def _leaves(fragment: Fragment, position: int) -> Damage:
    return Damage(fragment, position, fragment.stores[position], LEAVING)


def sample(stripe: Sequence[int], percentage: float, random: Random) -> Sequence[int]:
    """The entries to look at, ascending."""
    count = len(stripe)
    if percentage >= 100 or count <= 2:
        return stripe
    parts = math.ceil(count * percentage / 100)
    chosen = [0, count - 1]
    for part in range(parts):
        low, high = count * part // parts, count * (part + 1) // parts
        chosen.append(min(high - 1, low + int(random.random() * (high - low))))
    return [stripe[at] for at in sorted(dict.fromkeys(chosen))]


class Checker:
    def __init__(
        self, world: CallerWorld, registry: Registry, stores: Stores, options: LedgerOptions
    ) -> None:
        self._world = world
        self._stores = stores
        self._options = options
        self._reader = Reader(world, registry, stores, options)

    async def check(
        self,
        found: Metadata,
        running: Container[str],
        percentage: float = 0.0,
        thoroughly: Container[str] = (),
        leaving: Container[str] = (),
    ) -> Findings:
        """`running`: the stores that run; read them after the metadata. `thoroughly`: stores of which all entries are looked at.
        `leaving`: stores that are to be replaced in any case."""
        lac = await self._end(found)
        asked = [
            (fragment, position)
            for fragment in all_fragments(found, lac)
            for position in range(found.ensemble)
        ]
        damaged: list[Damage] = []
        unknown: dict[str, str] = {}
        looked = 0
        for at in range(0, len(asked), found.ensemble):  # a fragment at a time
            part = asked[at : at + found.ensemble]
            answers = await asyncio.gather(
                *(
                    self._look(found, f, p, running, 100.0 if f.stores[p] in thoroughly else percentage)
                    if f.stores[p] not in leaving
                    else _leaves(f, p)
                    for f, p in part
                )
            )
            for (fragment, position), answer in zip(part, answers, strict=True):
                store = fragment.stores[position]
                if isinstance(answer, int):
                    looked += answer
                elif isinstance(answer, Damage):
                    damaged.append(answer)
                else:
                    unknown[store] = str(answer)
        return Findings(tuple(damaged), tuple(unknown.items()), looked)

    async def _end(self, found: Metadata) -> int:
        """The last acknowledged entry. Without enough answers: the last one that the metadata tells."""
        try:
            return await self._reader.last_entry(found)
        except EblaError:
            return found.segments[-1].first - 1

    async def _look(
        self, found: Metadata, fragment: Fragment, position: int, running: Container[str], percentage: float
    ) -> Damage | EblaError | int:
        """The damage, the reason why nothing is known, or how many entries are sound."""
        store = fragment.stores[position]
        if store not in running:
            return Damage(fragment, position, store, MISSING)
        stripe = meta.owed(found, position, fragment.first, fragment.last)
        entries = sample(stripe, percentage, self._world.random)
        at, again = 0, False
        while at < len(entries):
            wanted = tuple(entries[at : at + ENTRIES_MAX])
            request = m.CheckRequest(store, found.ledger, found.token, wanted)
            try:
                answer = await self._stores.call(
                    store, "check_entries", request, m.CheckReply, self._options.timeout_s
                )
            except (WrongServer, WrongToken):
                if again:  # the address that was known first may have been old
                    return Damage(fragment, position, store, LACKING, another=True)
                again = True
                continue
            except EblaError as error:
                return error
            if answer.absent or answer.damaged:
                return Damage(fragment, position, store, LACKING)
            at += answer.checked
        return len(entries)

    # -- entries without a copy

    async def unreadable(self, found: Metadata, fragment: Fragment, running: Container[str]) -> Unreadable:
        """Ask every store of the fragment that runs for every entry."""
        positions = range(found.ensemble)
        there = [position for position in positions if fragment.stores[position] in running]
        answers = dict(
            zip(there, await asyncio.gather(*(self._bad(found, fragment, p) for p in there)), strict=True)
        )
        silent = [position for position in there if isinstance(answers[position], EblaError)]
        entries: list[tuple[int, int]] = []
        missing: set[int] = set()
        for number in range(fragment.first, fragment.last + 1):
            if number % YIELD_ENTRIES == 0:
                await self._world.clock.sleep(0)
            if meta.is_given_up(found, number):
                continue
            having = meta.positions(found, number)
            if any(_may_have(answers.get(position), number) for position in having):
                continue
            missing.update(position for position in having if position not in answers)
            if entries and entries[-1][1] + 1 == number:
                entries[-1] = entries[-1][0], number
            else:
                entries.append((number, number))
        return Unreadable(
            tuple(entries),
            tuple(fragment.stores[position] for position in sorted(missing)),
            tuple(fragment.stores[position] for position in silent),
        )

    async def _bad(self, found: Metadata, fragment: Fragment, position: int) -> set[int] | EblaError:
        """The entries that the store lacks, or has damaged."""
        store = fragment.stores[position]
        stripe = meta.owed(found, position, fragment.first, fragment.last)
        bad: set[int] = set()
        at = 0
        while at < len(stripe):
            wanted = tuple(stripe[at : at + ENTRIES_MAX])
            request = m.CheckRequest(store, found.ledger, found.token, wanted)
            try:
                answer = await self._stores.call(
                    store, "check_entries", request, m.CheckReply, self._options.timeout_s
                )
            except (WrongServer, WrongToken):
                return set(stripe)  # the store is lost
            except EblaError as error:
                return error
            bad.update(answer.absent, answer.damaged)
            at += answer.checked
        return bad


def _may_have(answer: set[int] | EblaError | None, entry: int) -> bool:
    """Whether a store may have a sound copy. None: it does not run."""
    if answer is None:
        return False
    return isinstance(answer, EblaError) or entry not in answer
