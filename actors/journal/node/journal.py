"""One journal on one node: makes the decisions of rules.py durable, one after the other.

A request is decided, made durable in one commit and answered before the next one is read. Reads see the
committed state and never wait. Two requests wait for a peer's download: the acceptance of a recovery, and
a catch-up. They download beside the existing copy without holding up other requests, and are decided again
when the download is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from msgspec.structs import replace

from ebla.actors.figures import Latencies
from ebla.actors.journal import messages as m
from ebla.actors.journal import records
from ebla.actors.journal.errors import OutOfSync
from ebla.actors.journal.node import growth, rules
from ebla.actors.journal.node.lease import Lease
from ebla.actors.journal.node.rejoin import old_copy, require_whole
from ebla.actors.journal.node.rules import Change, View
from ebla.actors.journal.records import EDITS, SEGMENTS, STATE, Format, Segment
from ebla.actors.world import World
from ebla.storage import environment as storage
from ebla.storage.environment import Delete, DeleteRange, Environment, Put
from ebla.storage.errors import Corruption, DiskFailed, OldCopy

Pages = Callable[[m.SegmentState], AsyncIterator[tuple[bytes, ...]]]  # a segment's edits, from peers

VERIFIED_BYTES = 1 << 20  # before other tasks get a turn


class Journal:
    """One journal; call `load` first. A damaged edit fails its segment, a damaged header the journal."""

    def __init__(self, world: World, environment: Environment, form: Format, *, locked: bool = False) -> None:
        """`locked`: only this process can have held a lease that this node granted alone."""
        self.world = world
        self.form = form
        self._locked = locked
        self._environment = environment
        self._lock = asyncio.Lock()
        self._accepting: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # by epoch
        self.view = View(form.journal, records.State(), world.address)
        self.lease = Lease(form.journal.name, world.clock, 0)
        self.damaged: dict[int, str] = {}
        self.batches = self.batches_lagging = self.edits = self.bytes = 0
        self.served_edits = self.synced_segments = 0
        self.sync_s = Latencies()

    async def load(self) -> None:
        """Load the state from disk; no segment is open. Raises Corruption."""
        path = self._environment.path
        self.view.state = records.load_state(self._environment, path)
        for segment in records.load_segments(self._environment, path):
            self.view.segments[segment.start] = segment
        sure = self._locked and self.form.nodes == (self.world.address,)
        self.lease = self._new_lease(0 if sure else self.view.state.held_ms)
        await self._remove_orphans()

    def _new_lease(self, held_ms: int) -> Lease:
        return Lease(self.form.journal.name, self.world.clock, held_ms)

    async def _remove_orphans(self) -> None:
        """Remove copies that were incomplete when the node ended."""
        kept = {(segment.start, segment.copy): None for segment in self.view.all()}
        orphans = [copy for copy in records.load_copies(self._environment) if copy not in kept]
        if orphans:
            ranges = [DeleteRange(EDITS, *records.copy_range(*copy)) for copy in orphans]
            await self._commit(ranges)

    # -- the writer's requests -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The turn of a request with a stamp. If that shows that the directory is an older copy, this is durable before the refusal:
        the next writer does not know it."""
        async with self._lock:
            try:
                yield
            except OldCopy:
                if not self.view.state.old:
                    await self._make("promise", Change(replace(self.view.state, old=True)))
                raise

    async def new_epoch(self, request: m.NewEpochRequest) -> m.NewEpochReply:
        claim = request.claim
        async with self._lock:
            self.require_whole()
            if not request.after:  # a writer that moves on takes no other's lease: see writer/writer.py
                self.lease.require_free(claim)
            held_ms = 0 if claim is None else claim.held_ms
            change = rules.new_epoch(self.view, request.epoch, held_ms, request.after)
            with self.lease.promising(request.epoch):
                await self._make("promise", change)
            if claim is not None:
                self.lease.grant(request.epoch, claim, self.view.state.promised)
            newest = self.view.newest()
            return m.NewEpochReply(newest.state if newest else None)

    async def renew(self, request: m.RenewRequest) -> m.Done:
        """Renew the lease. Waits for the disk only if this lease is longer than any before. An older copy may have forgotten a
        promise."""
        if self.view.state.old:
            raise old_copy(self.form.journal.name, self.world.address)
        held_ms = request.claim.held_ms
        if held_ms > self.view.state.held_ms:
            async with self._lock:
                await self._make(
                    "lease", rules.longer_lease(self.view, max(held_ms, self.view.state.held_ms))
                )
        self.lease.grant(request.epoch, request.claim, self.view.state.promised)
        return m.Done()

    async def start_segment(self, request: m.StartSegment) -> m.Done:
        async with self._turn():
            done = await self._make("start", rules.start(self.view, request))
            await self._catch_up()
            return done

    async def journal(self, request: m.JournalRequest) -> m.Done:
        async with self._turn():
            change = rules.journal(self.view, request)
            await self._make("edits", change)
            last = request.first + len(request.edits) - 1
            self.batches += 1
            self.batches_lagging += last <= request.stamp.committed
            self.edits += len(request.edits)
            self.bytes += sum(map(len, request.edits))
            return m.Done()

    async def finalize(self, request: m.FinalizeRequest) -> m.Done:
        async with self._turn():
            return await self._make("finalize", rules.finalize(self.view, request))

    async def heartbeat(self, request: m.Heartbeat) -> m.HeartbeatAnswer:
        async with self._turn():
            await self._make("heartbeat", rules.heartbeat(self.view, request))
            return m.HeartbeatAnswer(self.view.state.token, self.view.open)

    async def purge(self, request: m.PurgeRequest) -> m.Done:
        async with self._turn():
            return await self._make("purge", rules.purge(self.view, request))

    async def prepare(self, request: m.PrepareRequest) -> m.Prepared:
        """Close the segment for a recovery.

        Raises Corruption if the copy here is damaged: a damaged copy proves neither that an edit existed
        nor that it did not.
        """
        async with self._turn():
            self.require_whole()
            change = rules.prepare(self.view, request)
            await self._verify(request.start)
            await self._make("prepare", change)
            return rules.prepared(self.view, request.start)

    async def accept(self, request: m.AcceptRequest, pages: Pages) -> m.Done:
        """Accept the chosen content in one commit; from then on every later recovery learns the choice.

        A repeated request waits for the download of the first.
        """
        async with self._accepting.setdefault(request.stamp.epoch, asyncio.Lock()):
            return await self._accept(request, pages)

    async def _accept(self, request: m.AcceptRequest, pages: Pages) -> m.Done:
        async with self._turn():
            self.require_whole()
            change = rules.accept(self.view, request)
            if change is not None and await self._is_sound(request.segment.start):
                return await self._make("accept", change)
        async with self._staged(request.segment, pages) as (copy, size), self._lock:
            sound = request.segment.start not in self.damaged
            change = rules.replace_copy(self.view, request, copy, size, sound)
            return await self._make("accept", change)

    async def learn(self, offered: m.SegmentState, peer: m.Manifest, pages: Pages) -> bool:
        """Take a segment that a peer has finalized. False if this node does not need it."""
        async with self._lock:
            if not self._wants(offered, peer):
                return False
            local = self.view.segment(offered.start)
            if local is not None and local.state.same_edits(offered) and await self._is_sound(offered.start):
                await self._make("learn", rules.learn(self.view, offered, None, 0))
                return True
        async with self._staged(offered, pages) as (copy, size), self._lock:
            if not self._wants(offered, peer):
                return False
            await self._make("learn", rules.learn(self.view, offered, copy, size))
            self.synced_segments += 1
            return True

    async def peer_has(self, manifest: m.Manifest) -> None:
        """Complete the rejoining if possible, after all wanted segments of a peer's manifest were learned."""
        async with self._lock:
            state = self.view.state
            if state.token and manifest.purged > state.purged:  # those edits are gone from every node
                await self._make("learn", Change(replace(state, purged=manifest.purged), open=self.view.open))
            await self._catch_up(manifest.purged)

    async def _catch_up(self, purged: int = 0) -> None:
        change = rules.caught_up(self.view, purged)
        if change is not None:
            await self._make("whole", change)

    # -- from one node to several ----------------------------------------------------------------------------

    async def grow(self, request: m.GrowRequest) -> m.Done:
        """Change the set of nodes; afterwards requests of the old set are refused."""
        async with self._lock:
            self.require_whole()
            await self._make("grow", growth.grow(self.view, request))
            self.lease.help(self.world.address)
            return m.Done()

    async def asks(self, node: str, joining: m.Joining) -> None:
        """Make durable that this node asks another one to count: from now on that node may count."""
        async with self._lock:
            await self._make("asks", growth.asking(self.view, node, joining))

    async def admitted(self, node: str) -> None:
        async with self._lock:
            await self._make("admitted", growth.admitted(self.view, node))

    async def rejoin(self, learned: records.State) -> None:
        """Rejoin instead of joining. The segments that were fetched are decided, and stay.

        A node that was admitted meanwhile counts, and has promises to keep: it does not rejoin.
        """
        async with self._lock:
            state = self.view.state
            if not state.joining:
                return
            purged = max(learned.purged, state.purged)
            await self._make("rejoin", Change(replace(learned, purged=purged, copies=state.copies)))
            self.lease = self._new_lease(learned.held_ms)

    async def admit(self, request: m.AdmitRequest) -> m.Done:
        """Let this node count from now on.

        While an older lease may last, this node promises an epoch only to `helps`, and to no master if this
        node has granted a lease: then a writer of the new set has begun since the request, which is late.
        """
        async with self._lock:
            late = self.view.state.held_ms > 0  # durable with the first grant
            change = growth.admit_joining(self.view, request)
            if change is not None:
                await self._make("admit", change)
                self.lease = self._new_lease(self.view.state.held_ms)
                if request.helps and not late:
                    self.lease.help(request.helps)
            return m.Done()

    def require_whole(self) -> None:
        require_whole(self.form.journal.name, self.world.address, self.view.state)

    def _wants(self, offered: m.SegmentState, peer: m.Manifest) -> bool:
        return rules.wanted(self.view, offered, peer, damaged=offered.start in self.damaged)

    # -- a copy from a peer ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _staged(self, wanted: m.SegmentState, pages: Pages) -> AsyncIterator[tuple[int, int]]:
        """Write the content beside the existing copy, as a copy with a new number; yield number and size.

        Afterwards the new copy is deleted if no header points at it. Raises Corruption if the peers sent
        other content than was wanted.
        """
        async with self._lock:
            copy = self.view.state.copies + 1
            state = replace(self.view.state, copies=copy)
            await self._make("copy", Change(state, open=self.view.open))
        try:
            yield copy, await self._download(wanted, copy, pages)
        finally:
            segment = self.view.segment(wanted.start)
            if segment is None or segment.copy != copy:
                await self._commit([DeleteRange(EDITS, *records.copy_range(wanted.start, copy))])

    async def _download(self, wanted: m.SegmentState, copy: int, pages: Pages) -> int:
        """Write the content of a segment, one commit per page; return its size."""
        txid, digest, size = wanted.start, wanted.before, 0
        async for page in pages(wanted):
            items = records.edit_items(wanted.start, copy, txid, digest, page)
            digest = records.last_digest(items)
            txid, size = txid + len(page), size + sum(map(len, page))
            await self._commit([Put(EDITS, items, sorted_keys=True)])
        if (txid - 1, digest) != (wanted.end, wanted.digest):
            name = self.view.journal.name
            raise Corruption(
                f"what a peer sent of segment {wanted.start} of journal {name} is not what was decided",
                path=self._environment.path,
            )
        return size

    # -- reads -----------------------------------------------------------------------------------------------

    def read(self, request: m.ReadRequest, bytes_max: int) -> m.Edits:
        found = rules.readable(self.view, request.after, request.in_progress)
        if found is None:
            return m.Edits(request.after + 1, 0, ())
        edits = self._edits(found[0], request.after + 1, found[1], min(bytes_max, request.bytes_max))
        self.served_edits += len(edits.edits)
        return edits

    def fetch(self, request: m.FetchRequest, bytes_max: int) -> m.Edits:
        segment = self.view.segment(request.segment.start)
        if segment is None or not segment.state.same_edits(request.segment):
            name = self.view.journal.name
            raise OutOfSync(
                f"segment {request.segment.start} of journal {name} is another one here by now", journal=name
            )
        return self._edits(segment, request.first, segment.end, min(bytes_max, request.bytes_max))

    def _edits(self, segment: Segment, first: int, last: int, bytes_max: int) -> m.Edits:
        path = self._environment.path
        try:
            before, edits = records.load_edits(self._environment, segment, first, last, bytes_max, path)
        except Corruption as error:
            self.damaged[segment.start] = error.message
            raise
        return m.Edits(first, before, edits)

    def manifest(self) -> m.Manifest:
        """List the segments without those known to be damaged.

        Readers ask a majority for this list, so a node that rejoins refuses.
        """
        self.require_whole()
        whole = rules.manifest(self.view)
        if not self.damaged:
            return whole
        return replace(whole, segments=tuple(s for s in whole.segments if s.start not in self.damaged))

    async def _verify(self, start: int) -> None:
        """Check every edit of the segment against its digest, a page at a time.

        The cost is acceptable: recoveries are rare and segments are bounded.
        """
        segment = self.view.segment(start)
        first = start
        while segment is not None and first <= segment.end:
            first += len(self._edits(segment, first, segment.end, VERIFIED_BYTES).edits)
            await self.world.clock.sleep(0)

    async def _is_sound(self, start: int) -> bool:
        try:
            await self._verify(start)
        except Corruption:
            return False
        return True

    # -- durability ------------------------------------------------------------------------------------------

    async def _make(self, what: str, change: Change) -> m.Done:
        """Make a change durable in one commit, then in memory. `what` names the change in fault points.

        The edits of copies that no header points at any more are deleted last, when they have no readers; a
        crash in between leaves orphans.
        """
        records.validate(self.view.state, change.state)
        await self.world.faults.here(f"journal.{what}.before_commit")
        await self._commit(batch_of(change))
        await self.world.faults.here(f"journal.{what}.after_commit")
        view = self.view
        view.state, view.open = change.state, change.open
        if change.form is not None:
            self.form, view.journal = change.form, change.form.journal
        gone = (*change.dropped, *change.replaced)
        for segment in gone:
            view.segments.pop(segment.start)
            self.damaged.pop(segment.start, None)
        for segment in change.put:
            view.segments[segment.start] = segment
        if any(segment.count for segment in gone):
            await self._commit([DeleteRange(EDITS, *records.copy_range(s.start, s.copy)) for s in gone])
        return m.Done()

    async def _commit(self, batch: storage.Batch) -> None:
        began = self.world.now()
        try:
            await self._environment.commit(batch)
        except DiskFailed as error:
            self.world.fail(error)
            raise
        self.sync_s.add(self.world.now() - began)

    async def close(self) -> None:
        await self._environment.close()


def batch_of(change: Change) -> storage.Batch:
    batch: list[storage.Change] = []
    if change.dropped:
        batch.append(Delete(SEGMENTS, [records.u64(segment.start) for segment in change.dropped]))
    if change.edits:
        batch.append(Put(EDITS, change.edits, sorted_keys=True))
    if change.put:
        batch.append(Put(SEGMENTS, [records.seal(records.u64(s.start), s) for s in change.put]))
    if change.form is not None:
        batch.append(Put(STATE, [records.seal(records.FORMAT_KEY, change.form)]))
    batch.append(Put(STATE, [records.seal(records.STATE_KEY, change.state)]))
    return batch
