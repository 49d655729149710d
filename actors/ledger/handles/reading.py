"""Reads entries of ledgers, and finds the last acknowledged entry of an open one.

exact      an entry is returned only if its checksum, bound to ledger and number, holds
any copy   an entry is read from any store that should have it; a store that fails, lacks it or has it damaged is passed over
complete   `last_entry` sees every entry that was acknowledged before the call: the metadata is read first, and every ack
           quorum of the last segment has a store that answers
decided    an entry that is not known to be acknowledged counts only if no store of the ensemble is fenced: of two recoveries, one
           may write an entry that the other one leaves out, because it was absent from stores which it had fenced
patient    a store that is silent for a moment is not waited for, unless the others cannot do without it; for a while it is asked last
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from typing import TypeVar

import msgspec

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUndecided, EndUnknown, EntryLost
from ebla.actors.ledger.handles import ends
from ebla.actors.ledger.handles.calls import Calls
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

Reply = TypeVar("Reply", bound=msgspec.Struct)

READ_ENTRIES_MAX = 500
SILENT_S = 0.3  # then others are asked, too: an answer of 1 MiB takes far less
SLOW_S = 30.0  # how long a store that failed is asked last
SECOND_S = 1.0  # a follower without news for so long waits at a second store, too: the first may be silent
# For the end of a ledger, until its stores have the same entries of a writer that goes on.
ASKS_MAX, AGAIN_S = 5, 0.05


class Reader:
    def __init__(
        self, world: CallerWorld, registry: Registry, stores: Stores, options: LedgerOptions
    ) -> None:
        self._world = world
        self._registry = registry
        self._stores = stores
        self._options = options
        self._slow: dict[str, float] = {}  # store -> when it failed last
        self._turn = 0

    # -- entries ---------------------------------------------------------------------------------------------

    async def read(
        self, found: Metadata, first: int, last: int, bytes_max: int | None = None
    ) -> list[m.Entry]:
        """The entries from `first` on, in order and without a gap: at least one, at most up to `last`.

        Raises EntryLost if every store that should have the first one answers and none has a sound copy, or if it was given up;
        Unavailable if some of them cannot be asked now.
        """
        return await self.read_some(found, range(first, last + 1), bytes_max)

    async def read_some(
        self, found: Metadata, entries: Sequence[int], bytes_max: int | None = None, lacks: str = ""
    ) -> list[m.Entry]:
        """The first of these entries, which ascend: at least one. `lacks`: a store without a sound copy of them. Raises as
        `read`."""
        wanted = entries[:READ_ENTRIES_MAX]
        first = wanted[0]
        self._turn += 1
        limit = bytes_max or self._options.call_bytes
        read: dict[int, m.Entry] = {}
        lacking: dict[str, set[int]] = {
            lacks: set(wanted)
        }  # store -> entries that it surely has no sound copy of
        failed: dict[str, EblaError] = {}
        calls: Calls[str, m.ReadReply] = Calls(self._world)
        while first not in read:
            asked = self._choose(found, wanted, lacking, (failed, calls))
            for store, those in asked.items():
                request = m.ReadRequest(store, found.ledger, found.token, tuple(those), limit)
                calls.start(store, self._call("read_entries", request, m.ReadReply))
            if not calls:
                raise self._unreadable(found, first, failed)
            for store, answer in await calls.answers(SILENT_S if asked else math.inf, asked):
                if isinstance(answer, EblaError):
                    failed[store] = answer
                    continue
                sound = [entry for entry in answer.entries if entry.sound(found.ledger)]
                read.update((entry.entry, entry) for entry in sound)
                bad = {entry.entry for entry in answer.entries} - {entry.entry for entry in sound}
                lacking.setdefault(store, set()).update(answer.absent, answer.damaged, bad)
            self._slow.update((store, self._world.now()) for store in asked if store in calls)
        return [read[entry] for entry in itertools.takewhile(read.__contains__, wanted)]

    def _choose(
        self,
        found: Metadata,
        wanted: Sequence[int],
        lacking: Mapping[str, set[int]],
        others: Sequence[Container[str]],
    ) -> dict[str, list[int]]:
        """For each entry one store that may have it and is in none of `others`, as long as the entries before have one. The stores take
        turns, so that all of them share the work."""
        asked: dict[str, list[int]] = {}
        for entry in wanted:
            stores = [
                store
                for store in meta.stores_of(found, entry)
                if entry not in lacking.get(store, ()) and not any(store in each for each in others)
            ]
            if not stores:
                break
            first = self._turn % len(stores)
            asked.setdefault(min(stores[first:] + stores[:first], key=self._slowness), []).append(entry)
        return asked

    def _slowness(self, store: str) -> float:
        """When it failed last; 0: not for a while."""
        failed_at = self._slow.get(store, 0.0)
        return failed_at if self._world.now() - failed_at < SLOW_S else 0.0

    async def _call(
        self,
        method: str,
        request: m.ReadRequest | m.CheckRequest | m.TailRequest,
        reply: type[Reply],
        poll_s: float = 0.0,
    ) -> Reply:
        try:
            limit_s = poll_s + self._options.timeout_s
            return await self._stores.call(request.store, method, request, reply, limit_s)
        except EblaError:
            self._slow[request.store] = self._world.now()
            raise

    async def first_sound(self, found: Metadata, entries: Sequence[int]) -> int | None:
        """The first of these entries, in this order, of which a store has a sound copy: many are asked for at a time. None if all are
        lost for good. Raises Unavailable if that is not known of one before."""
        for at in range(0, len(entries), READ_ENTRIES_MAX):
            some = entries[at : at + READ_ENTRIES_MAX]
            sound, failed = await self._look(found, sorted(some))
            for entry in some:
                if entry in sound:
                    return entry
                error = self._unreadable(found, entry, failed)
                if not isinstance(error, EntryLost):
                    raise error
        return None

    async def _look(self, found: Metadata, entries: Sequence[int]) -> tuple[set[int], dict[str, EblaError]]:
        """Those of the entries, ascending, of which a store has a sound copy; and the stores that do not answer."""
        sound: set[int] = set()
        failed: dict[str, EblaError] = {}
        wanted: dict[str, list[int]] = {}
        for entry in entries:
            for store in meta.stores_of(found, entry):
                wanted.setdefault(store, []).append(entry)

        async def ask(store: str, left: list[int]) -> None:
            try:
                while left:
                    request = m.CheckRequest(store, found.ledger, found.token, tuple(left))
                    answer = await self._call("check_entries", request, m.CheckReply)
                    sound.update(set(left[: answer.checked]).difference(answer.absent, answer.damaged))
                    left = left[answer.checked :]
            except EblaError as error:
                failed[store] = error

        await asyncio.gather(*(ask(store, those) for store, those in wanted.items()))
        return sound, failed

    def _unreadable(self, found: Metadata, entry: int, failed: Mapping[str, EblaError]) -> EblaError:
        stores = meta.stores_of(found, entry)
        unknown = [store for store in stores if store in failed]
        if unknown and not meta.is_given_up(found, entry):
            reasons = "; ".join(f"{store}: {failed[store]}" for store in unknown)
            return Unavailable(
                f"entry {entry} of ledger {found.ledger} cannot be read now: {len(unknown)} of its {len(stores)} stores do not "
                f"answer ({reasons})"
            )
        return EntryLost(
            f"no store has a sound copy of entry {entry} of ledger {found.ledger}; `ebla ledger check {found.ledger}` shows what "
            "its stores have",
            ledger=found.ledger,
            entry=entry,
        )

    # -- the end of a ledger ---------------------------------------------------------------------------------

    async def last_entry(self, found: Metadata, after: int = meta.NONE) -> int:
        """The last acknowledged entry; of an open ledger at least every one that was acknowledged before `found` was read.

        `after`: an entry that is known to be acknowledged. Raises EndUnknown if too few stores answer, EndUndecided.
        """
        if found.closed:
            return found.last
        newest = found.segments[-1]
        lac = max(after, newest.first - 1)
        while True:
            ending = await self._ending(found, lac)
            if not ending.enough:
                missing = len(newest.stores) - len(ending.tails)
                raise EndUnknown(
                    f"the end of ledger {found.ledger} is not known now: {missing} of its {len(newest.stores)} stores do not "
                    "answer; bring them back, or, if they are lost for good, `ebla nodes forget HOST --accept-loss`",
                    ledger=found.ledger,
                    confirmed=ending.known,
                )
            if ends.undecided(ending.known, ending.end, ending.tails):
                raise EndUndecided(
                    f"the end of ledger {found.ledger} is not decided: a client recovers it; wait, or recover it, too",
                    ledger=found.ledger,
                    confirmed=ending.known,
                )
            if ending.end == lac or not any(tail.full for tail in ending.tails.values()):
                return ending.end
            lac = ending.end

    async def _ending(self, found: Metadata, after: int) -> ends.Ending:
        """Ask the stores of the last segment, until what they have answered is enough. Those that failed lately are asked if the others
        are not enough. What one store has of a writer that goes on, the others may not have yet: then they are asked again."""
        stores = found.segments[-1].stores
        ending, calls = ends.Ending(found, after), Calls[int, m.Tail](self._world)
        for attempt in range(ASKS_MAX):
            asked = [at for at, store in enumerate(stores) if attempt or not self._slowness(store)]
            asked = [at for at in asked if at not in calls]
            for at in asked:
                calls.start(at, self._tail(found, stores[at], after))
            await self._learn(ending, calls, asked, SILENT_S)
            if ending.enough and ends.undecided(ending.known, ending.end, ending.tails):
                # Another store may know that more is acknowledged. All of that can be read, whatever is decided.
                await self._learn(ending, calls, asked, SILENT_S, enough=False)
            if ending.enough:
                return ending
            if attempt and not ending.covered:
                break
            await self._world.clock.sleep(AGAIN_S)
        await self._learn(ending, calls, range(len(stores)), math.inf)
        return ending

    async def _learn(
        self,
        ending: ends.Ending,
        calls: Calls[int, m.Tail],
        asked: Sequence[int],
        limit_s: float,
        *,
        enough: bool = True,
    ) -> None:
        """Take answers until they are `enough`, all of `asked` have answered, or the limit has passed."""
        until = self._world.now() + limit_s
        while any(at in calls for at in asked) and self._world.now() < until:
            if enough and ending.enough:
                return
            for at, answer in await calls.answers(until - self._world.now()):
                if isinstance(answer, m.Tail):
                    ending.learn(at, answer)

    async def _tail(self, found: Metadata, store: str, after: int, poll_s: float = 0.0) -> m.Tail:
        request = m.TailRequest(store, found.ledger, found.token, after, poll_ms=int(poll_s * 1000))
        return await self._call("read_tail", request, m.Tail, poll_s)

    async def next_lac(self, found: Metadata, store: str, after: int, poll_s: float) -> tuple[str, int]:
        """Wait at this store, or at another one, for an acknowledged entry after this one. Returns the store that has answered; its
        answer may be old. Raises the error of one of them if all fail."""
        stores = list(found.segments[-1].stores)
        self._world.random.shuffle(stores)
        stores.sort(key=lambda each: (each != store, self._slowness(each)))
        calls: Calls[str, m.Tail] = Calls(self._world)
        while True:
            if stores and len(calls) < 2:
                each = stores.pop(0)
                calls.start(each, self._tail(found, each, after, poll_s))
            alone = stores and len(calls) < 2
            for each, answer in await calls.answers(SECOND_S if alone else math.inf):
                if isinstance(answer, m.Tail):
                    return each, answer.lac
                error = answer
            if not (stores or calls):
                raise error
