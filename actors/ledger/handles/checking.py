"""Finds the entries of a ledger that its stores have, and the fragments that are damaged.

    missing   the store does not run; it is not asked
    leaving   the store's host is being decommissioned; it is not asked
    lacking   the store runs, and lacks an entry or has it damaged; or another store answers at its address
    unknown   the store runs, and does not answer now: nothing is known, so nothing is damaged

Of each store of each fragment the first and the last entry is verified, and a percentage of the others: one by chance in each
part of equal size. `counted` looks for all of them, without reading them. An open ledger is checked up to its last acknowledged entry. Its last fragment is listed if it is empty, too:
the writer will need its stores. Nothing here fences or recovers a ledger.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Iterator, Sequence

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
ENTRIES_MAX, KEYS_MAX = 500, 5_000  # of one question
YIELD_ENTRIES = 5_000  # are compared before other tasks get their turn


class Held(msgspec.Struct, frozen=True):
    """The entries of one fragment on one store. `wanted`: how many were to be looked at; `absent` and `damaged`: those of
    them that it lacks, and those whose checksum fails. `error`: why the others are not known. `runs`: whether it was asked.
    `another`: the store is lost, for another one answers at its address."""

    fragment: Fragment
    position: int
    store: str
    wanted: int
    absent: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    error: str | None = None
    runs: bool = True
    another: bool = False

    @property
    def sound(self) -> bool:
        return not self.absent and not self.damaged and self.error is None


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


class Copies(msgspec.Struct, frozen=True):
    """`fewest`: how many copies the entry has that has the fewest. `lacking`: the stores that lack an entry. `unknown`: some stores did
    not answer, and count as if they had theirs."""

    fewest: int
    lacking: tuple[str, ...]
    unknown: bool


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


def findings(held: Sequence[Held], leaving: Container[str] = ()) -> Findings:
    """The damage, and the stores that do not answer, for a repair."""
    damaged: list[Damage] = []
    unknown: dict[str, str] = {}
    looked = 0
    for each in held:
        if each.store in leaving:
            damaged.append(Damage(each.fragment, each.position, each.store, LEAVING))
        elif each.absent or each.damaged or each.another or not each.runs:
            why = LACKING if each.runs else MISSING
            damaged.append(Damage(each.fragment, each.position, each.store, why, each.another))
        elif each.error is not None:
            unknown[each.store] = each.error
        else:
            looked += each.wanted
    return Findings(tuple(damaged), tuple(unknown.items()), looked)


def copies_of(found: Metadata, held: Sequence[Held]) -> Copies:
    """The copies on the stores of a ledger, as `counted` finds them."""
    absent: dict[int, int] = {}
    for each in held:
        for entry in each.absent:
            absent[entry] = absent.get(entry, 0) + 1
    lacking = dict.fromkeys(each.store for each in held if each.absent)
    fewest = found.write_quorum - max(absent.values(), default=0)
    return Copies(fewest, tuple(lacking), any(each.error is not None for each in held))


def lost(found: Metadata, held: Sequence[Held]) -> Iterator[int]:
    """The entries of which no store that was asked for all of them has a sound copy."""
    by_fragment: dict[Fragment, list[Held]] = {}
    for each in held:
        by_fragment.setdefault(each.fragment, []).append(each)
    for fragment, copies in by_fragment.items():
        bad = {each.position: {*each.absent, *each.damaged} for each in copies}
        silent = {each.position for each in copies if each.error is not None}
        suspects: Sequence[int] = sorted(set().union(*bad.values()))
        if len(silent) >= found.write_quorum:
            suspects = range(fragment.first, fragment.last + 1)
        for entry in suspects:
            if not meta.is_given_up(found, entry) and all(
                at in silent or entry in bad[at] for at in meta.positions(found, entry)
            ):
                yield entry


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
        held: list[Held] = []
        for fragment in all_fragments(found, lac):
            held += await self._look(found, fragment, running, percentage, thoroughly, leaving)
        return findings(held, leaving)

    async def copies(self, found: Metadata, fragment: Fragment, running: Container[str]) -> list[Held]:
        """Every copy of every entry of the fragment."""
        return await self._look(found, fragment, running, 100.0, to_the_end=True)

    async def counted(self, found: Metadata, running: Container[str]) -> Copies:
        """How many copies the entries of a closed ledger have."""
        held: list[Held] = []
        for fragment in meta.fragments(found, found.last):
            held += await self._look(found, fragment, running, 100.0, to_the_end=True, keys_only=True)
        return copies_of(found, held)

    async def unreadable(self, found: Metadata, fragment: Fragment, running: Container[str]) -> Unreadable:
        """Ask every store of the fragment that runs for every entry."""
        held = {each.position: each for each in await self.copies(found, fragment, running)}
        bad = {position: {*each.absent, *each.damaged} for position, each in held.items()}
        lacks_all = {position for position, each in held.items() if each.another or not each.runs}
        silent = {p for p, each in held.items() if each.error is not None and p not in lacks_all}
        entries: list[tuple[int, int]] = []
        missing: set[int] = set()
        for number in range(fragment.first, fragment.last + 1):
            if number % YIELD_ENTRIES == 0:
                await self._world.clock.sleep(0)
            having = meta.positions(found, number)
            if meta.is_given_up(found, number) or any(
                at in silent or not (at in lacks_all or number in bad[at]) for at in having
            ):
                continue
            missing.update(position for position in having if not held[position].runs)
            if entries and entries[-1][1] + 1 == number:
                entries[-1] = entries[-1][0], number
            else:
                entries.append((number, number))
        return Unreadable(
            tuple(entries),
            tuple(fragment.stores[position] for position in sorted(missing)),
            tuple(fragment.stores[position] for position in sorted(silent)),
        )

    async def _end(self, found: Metadata) -> int:
        """The last acknowledged entry. Without enough answers: the last one that the metadata tells."""
        try:
            return await self._reader.last_entry(found)
        except EblaError:
            return found.segments[-1].first - 1

    async def _look(
        self,
        found: Metadata,
        fragment: Fragment,
        running: Container[str],
        percentage: float,
        thoroughly: Container[str] = (),
        leaving: Container[str] = (),
        to_the_end: bool = False,
        keys_only: bool = False,
    ) -> list[Held]:
        """`to_the_end`: also after the first entry that is absent or damaged. `keys_only`: nothing is verified."""

        async def one(position: int) -> Held:
            store = fragment.stores[position]
            stripe = meta.owed(found, position, fragment.first, fragment.last)
            entries = sample(stripe, 100.0 if store in thoroughly else percentage, self._world.random)
            held = Held(fragment, position, store, len(entries))
            if store not in running:
                return msgspec.structs.replace(held, runs=False, error="the store does not run")
            if store in leaving:
                return held
            return await self._ask(found, held, entries, to_the_end, keys_only)

        return list(await asyncio.gather(*map(one, range(found.ensemble))))

    async def _ask(
        self, found: Metadata, held: Held, entries: Sequence[int], to_the_end: bool, keys_only: bool
    ) -> Held:
        absent: list[int] = []
        damaged: list[int] = []
        at, again, asked, error, another = 0, False, False, None, False
        # A store that owes nothing is asked, too: another one may have its address while its session has not expired.
        while not asked or (at < len(entries) and (to_the_end or not (absent or damaged))):
            wanted = tuple(entries[at : at + (KEYS_MAX if keys_only else ENTRIES_MAX)])
            request = m.CheckRequest(held.store, found.ledger, found.token, wanted, keys_only)
            try:
                answer = await self._stores.call(
                    held.store, "check_entries", request, m.CheckReply, self._options.timeout_s
                )
            except (WrongServer, WrongToken) as wrong:
                if again:  # the address that was known first may have been old
                    error, another = wrong.message, True
                    break
                again = True
                continue
            except EblaError as refused:
                error = refused.message
                break
            asked = True
            absent += answer.absent
            damaged += answer.damaged
            at += answer.checked
        return msgspec.structs.replace(
            held, absent=tuple(absent), damaged=tuple(damaged), error=error, another=another
        )
