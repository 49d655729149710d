"""Reads entries of ledgers, and finds the last acknowledged entry of an open one.

exact      an entry is returned only if its checksum, bound to ledger and number, holds
any copy   an entry is read from any store that should have it; a store that fails, lacks it or has it damaged is passed over
complete   `last_entry` sees every entry that was acknowledged before the call: the metadata is read first, and every ack
           quorum of the last segment has a store that answers
decided    an entry that is not known to be acknowledged counts only if no store of the ensemble is fenced: of two recoveries, one
           may write an entry that the other one leaves out, because it was absent from stores which it had fenced
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUndecided, EntryLost
from ebla.actors.ledger.handles import ends
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

READ_ENTRIES_MAX = 500


class Reader:
    def __init__(
        self, world: CallerWorld, registry: Registry, stores: Stores, options: LedgerOptions
    ) -> None:
        self._world = world
        self._registry = registry
        self._stores = stores
        self._options = options
        self._slow: dict[str, float] = {}  # store -> when it failed last

    # -- entries ---------------------------------------------------------------------------------------------

    async def read(
        self, found: Metadata, first: int, last: int, bytes_max: int | None = None
    ) -> list[m.Entry]:
        """The entries from `first` on, in order and without a gap: at least one, at most up to `last`.

        Raises EntryLost if every store that should have the first one answers and none has a sound copy; Unavailable if some of
        them cannot be asked now.
        """
        return await self.read_some(found, range(first, last + 1), bytes_max)

    async def read_some(
        self, found: Metadata, entries: Sequence[int], bytes_max: int | None = None, lacks: str = ""
    ) -> list[m.Entry]:
        """The first of these entries, which ascend: at least one. `lacks`: a store without a sound copy of them. Raises as
        `read`."""
        wanted = entries[:READ_ENTRIES_MAX]
        first = wanted[0]
        limit = bytes_max or self._options.call_bytes
        read: dict[int, m.Entry] = {}
        lacking: dict[str, set[int]] = {
            lacks: set(wanted)
        }  # store -> entries that it surely has no sound copy of
        failed: dict[str, EblaError] = {}
        while first not in read:
            asked = self._choose(found, wanted, lacking, failed)
            if not asked:
                raise self._unreadable(found, first, failed)
            calls = [self._ask(found, store, those, limit) for store, those in asked.items()]
            for store, answer in zip(asked, await asyncio.gather(*calls), strict=True):
                if isinstance(answer, EblaError):
                    failed[store] = answer
                    self._slow[store] = self._world.now()
                    continue
                sound = [entry for entry in answer.entries if entry.sound(found.ledger)]
                read.update((entry.entry, entry) for entry in sound)
                bad = {entry.entry for entry in answer.entries} - {entry.entry for entry in sound}
                lacking.setdefault(store, set()).update(answer.absent, answer.damaged, bad)
        return [read[entry] for entry in itertools.takewhile(read.__contains__, wanted)]

    def _choose(
        self,
        found: Metadata,
        wanted: Sequence[int],
        lacking: Mapping[str, set[int]],
        failed: Mapping[str, EblaError],
    ) -> dict[str, list[int]]:
        """For each entry one store that may have it, as long as the entries before have one."""
        asked: dict[str, list[int]] = {}
        for entry in wanted:
            stores = [
                store
                for store in meta.stores_of(found, entry)
                if store not in failed and entry not in lacking.get(store, ())
            ]
            if not stores:
                break
            asked.setdefault(min(stores, key=lambda store: self._slow.get(store, 0.0)), []).append(entry)
        return asked

    async def _ask(
        self, found: Metadata, store: str, entries: Sequence[int], bytes_max: int
    ) -> m.ReadReply | EblaError:
        request = m.ReadRequest(store, found.ledger, found.token, tuple(entries), bytes_max)
        try:
            return await self._stores.call(
                store, "read_entries", request, m.ReadReply, self._options.timeout_s
            )
        except EblaError as error:
            return error

    def _unreadable(self, found: Metadata, entry: int, failed: Mapping[str, EblaError]) -> EblaError:
        stores = meta.stores_of(found, entry)
        unknown = [store for store in stores if store in failed]
        if unknown:
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

        `after`: an entry that is known to be acknowledged. Raises Unavailable if too few stores answer, EndUndecided.
        """
        if found.closed:
            return found.last
        newest = found.segments[-1]
        lac = max(after, newest.first - 1)
        while True:
            tails = await self._tails(found, newest.stores, lac)
            known = max([lac, *(tail.lac for tail in tails.values())])
            end, certain = ends.durable(found, known, tails)
            if not certain:
                missing = len(newest.stores) - len(tails)
                raise Unavailable(
                    f"the end of ledger {found.ledger} is not known now: {missing} of its {len(newest.stores)} stores do not answer"
                )
            if ends.undecided(known, end, tails):
                raise EndUndecided(
                    f"the end of ledger {found.ledger} is not decided: a client recovers it; wait, or recover it, too",
                    ledger=found.ledger,
                )
            if end == lac or not any(len(tail.held) == m.HELD_MAX for tail in tails.values()):
                return end
            lac = end

    async def _tails(self, found: Metadata, stores: Sequence[str], after: int) -> dict[int, m.Tail]:
        async def ask(store: str) -> m.Tail | EblaError:
            request = m.TailRequest(store, found.ledger, found.token, after)
            try:
                return await self._stores.call(store, "read_tail", request, m.Tail, self._options.timeout_s)
            except EblaError as error:
                return error

        answers = await asyncio.gather(*map(ask, stores))
        return {at: tail for at, tail in enumerate(answers) if not isinstance(tail, EblaError)}

    async def next_lac(self, found: Metadata, store: str, after: int, poll_s: float) -> int:
        """Wait at one store for an acknowledged entry after this one; its answer may be old."""
        request = m.TailRequest(store, found.ledger, found.token, after, poll_ms=int(poll_s * 1000))
        tail = await self._stores.call(store, "read_tail", request, m.Tail, poll_s + self._options.timeout_s)
        return tail.lac
