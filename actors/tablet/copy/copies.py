"""Copies of tablets to this server. A tablet's leader requests them, and they run in the background.

    answered first   the request is refused, or the replica is durably "copying", before anything is copied;
                     until the end it votes with the state that it had before
    never older      the source leads in a term that is not below the term of the last entry here, the copy
                     ends at or after that entry, and the source knows of every forced configuration that is
                     known here (raft/forced.py)
    all or nothing   rows, answers, position and log are synced before the superblock says ready; after a
                     crash, a cancellation or an error before that, the tombstone remains as it was
    alone            a copy writes only the rows and the log of its own tablet, which are created for it
    votes            a replica whose record of votes is damaged is copied only while it is no voter, from a
                     leader that holds its lease; see below
    bounded          `copies_max` at a time, without a queue: further requests are Throttled, and their
                     leaders ask again. If all copies have stalled because their disk hangs, further requests
                     are Unavailable, so the leader copies elsewhere
    cancelled        by operators; a new copy of the tablet is Throttled for CANCELLED_S

Steps: superblock copying; consensus record merged (the higher term; our vote, unless the source's
term is higher; the source's committed configuration); answer; rows, answers, position, log;
superblock ready; the replica starts.

A removed voter R may return although it has forgotten its votes, for this reason. Its source, the
leader of term t, holds its lease. So no leader of a later term was elected that could have made R a
voter again or counted its acknowledgements, and the log of the source has every committed entry,
the configuration without R included. A candidate that holds that configuration does not ask R for a
vote. A candidate that lacks it cannot win a later term with a forgotten vote of R: it needs all but
one of a majority from the others, too many of them hold the configuration, and a voter that had
voted for the candidate would not have accepted that entry. In term t itself, the vote of R is
recorded as given to the leader, so it cannot help a second one.

Source: seed 000 (StartTabletCopy, follower tablet copy, merging); Kudu's tablet copy client (kudu.md A4, A6).
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy.job import COMMITTING, READY, STALLED_AFTER, CopyDamaged, CopyEnded, Job
from ebla.actors.tablet.engine.records import ConsensusState, Superblock
from ebla.actors.tablet.engine.waits import within
from ebla.actors.tablet.lifecycle.deletion import Deletion
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.tombstones import ENDED, MARKED, SET_ASIDE, UNDOING, Tombstone
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import World
from ebla.storage.errors import DiskFailed, DiskFull, EblaError, StorageError
from ebla.storage.logs.entries import START, Position

log = logging.getLogger(__name__)

BEGIN_TIMEOUT_S = 10.0
RETRY_S = 0.5
ENDED_TOLD = 32
CANCELLED_S = 10.0  # the operator's time to act before a new copy begins
CANCEL_S = 15.0  # includes the removal of the copied data


@dataclass(eq=False)
class Copies:
    world: World
    options: TabletServerOptions
    lifecycle: Lifecycle
    deletion: Deletion
    jobs: dict[str, Job]
    on_changed: Callable[[str], None]

    def __post_init__(self) -> None:
        self.copied_bytes = 0
        self.done = 0
        self.failed = 0
        self.ended: collections.deque[m.CopyJob] = collections.deque(maxlen=ENDED_TOLD)
        self._starting: dict[str, float] = {}  # by tablet: the time of the start
        self._closed = False
        self._attempts: dict[str, int] = {}  # of copies that have not succeeded yet
        self._cancelled: dict[str, float] = {}  # by tablet: the time until which a copy is refused

    # -- start

    async def start(self, request: m.StartCopyRequest) -> None:
        """Start a copy. Durable when it returns: the replica is copying, term and vote are merged.
        Idempotent: a repeated request gets AlreadyInProgress while the copy runs, and names a
        former state afterwards."""
        tablet, lifecycle = request.tablet, self.lifecycle
        if lifecycle.was_removed(tablet):
            raise errors.TabletRemoved(
                f"tablet {tablet} was deleted for good on {self.world.address}", tablet=tablet
            )
        if tablet in self.jobs or tablet in self._starting or lifecycle.in_transition(tablet):
            raise errors.AlreadyInProgress(
                f"tablet {tablet} is being copied, made or deleted on {self.world.address}", tablet=tablet
            )
        self._require_not_cancelled(tablet)
        if len(self.jobs) + len(self._starting) >= self.options.copies_max:
            raise self._full()
        self._starting[tablet] = self.world.now()
        try:
            async with lifecycle.transition(tablet):
                await self._start(request)
        finally:
            del self._starting[tablet]

    def _full(self) -> EblaError:
        """The refusal at the limit: Throttled, so that the leader asks again; Unavailable if all
        copies have stalled."""
        slots = len(self.jobs) + len(self._starting)
        assert slots >= self.options.copies_max, ("copies are refused when all slots are taken", slots)
        now, stalled_s = self.world.now(), STALLED_AFTER * self.options.copy_idle_s
        stalled = [now > job.tombstone.stalls_at for job in self.jobs.values()]
        stalled += [now - began > stalled_s for began in self._starting.values()]
        if all(stalled):
            return errors.Unavailable(
                f"{len(stalled)} copies to {self.world.address} have made no progress for long, and no other can begin: check its disk"
            )
        return errors.Throttled(
            f"{self.options.copies_max} tablets are being copied to {self.world.address}",
            limit="copies_max",
            retry_after_s=RETRY_S,
        )

    def _require_not_cancelled(self, tablet: str) -> None:
        now = self.world.now()
        self._cancelled = {each: until for each, until in self._cancelled.items() if until > now}
        if tablet in self._cancelled:
            wait_s = self._cancelled[tablet] - now
            raise errors.Throttled(
                f"the copy of tablet {tablet} to {self.world.address} was cancelled; it may begin again in {wait_s:.0f} s",
                limit="cancel_copy",
                retry_after_s=wait_s,
            )

    async def _start(self, request: m.StartCopyRequest) -> None:
        self._check(request)
        begun = await self._begin(request)
        try:
            self._check(request)
            tombstone = await self._reserve(request, begun)
            if self._closed:
                raise errors.NotRunning(f"{self.world.address} is stopping", tablet=request.tablet)
        except BaseException:
            self.world.spawn(
                self._end_session(request, begun.session, CopyEnded("it has not begun")),
                "end of a copy session",
            )
            raise
        assert request.tablet not in self.jobs, ("a tablet is copied once at a time", request.tablet)
        attempt = self._attempts[request.tablet] = self._attempts.get(request.tablet, 0) + 1
        job = Job(self.world, self.options, self.lifecycle, tombstone, request, begun, attempt)
        self.jobs[request.tablet] = job
        self.on_changed(request.tablet)
        self.world.spawn(self._run(job), f"copy of {request.tablet} from {request.source.address}")

    def _check(self, request: m.StartCopyRequest) -> None:
        """Refuse the request unless the replica is in the named state, and its leader is not behind it."""
        tablet, lifecycle = request.tablet, self.lifecycle
        state = lifecycle.state_of(tablet)
        if state != request.state:
            raise self._illegal(tablet, state, f"is {state}, not {request.state}")
        replica, tombstone = lifecycle.replicas.get(tablet), lifecycle.tombstones.get(tablet)
        last = replica.log.last if replica else tombstone.superblock.last if tombstone else None
        if replica is not None and replica.leads:
            raise self._illegal(tablet, state, "leads")
        known = replica.core.forced_epoch if replica else tombstone.voter.forced_epoch if tombstone else 0
        if request.unsafe < known:
            raise self._illegal(tablet, state, "knows of a forced configuration that its leader does not")
        self._require_last(request, last, state)
        if last is not None:
            self._require_term(request, last.term)
        elif state != m.DOES_NOT_EXIST:
            # The end of the tombstone's log is unknown, but no entry was of a later term.
            consensus = lifecycle.consensus_of(tablet)
            self._require_term(request, consensus.hard_state.term if consensus else 0)

    def _require_last(self, request: m.StartCopyRequest, last: Position | None, state: str) -> None:
        if request.last is None or (last is not None and request.last == (last.index, last.term)):
            return
        here = f"entry {last.index} of term {last.term}" if last else "none that is known"
        index, term = request.last
        raise self._illegal(request.tablet, state, f"ends at {here}, not at {index} of term {term}")

    def _require_term(self, request: m.StartCopyRequest, term: int) -> None:
        if request.term < term:
            raise errors.OldTerm(
                f"tablet {request.tablet} has an entry of term {term} here; the leader of term {request.term} may lack it",
                tablet=request.tablet,
                term=term,
            )

    def _is_forgetful(self, request: m.StartCopyRequest) -> bool:
        """Whether the replica has forgotten its votes: neither a running replica has, nor a
        tombstone that knows where its log ended."""
        lifecycle, tombstone = self.lifecycle, self.lifecycle.tombstones.get(request.tablet)
        if request.state == m.DOES_NOT_EXIST or request.tablet in lifecycle.replicas:
            return False
        if tombstone is not None and tombstone.superblock.last is not None:
            return False
        return lifecycle.consensus_of(request.tablet) is None

    async def _begin(self, request: m.StartCopyRequest) -> m.CopyBegun:
        message = m.BeginCopyRequest(
            request.source.uuid,
            request.tablet,
            self.lifecycle.me,
            request.term,
            forgetful=self._is_forgetful(request),
        )
        return await self.world.network.call(
            request.source.address, "begin_copy_session", message, m.CopyBegun, BEGIN_TIMEOUT_S
        )

    async def _reserve(self, request: m.StartCopyRequest, begun: m.CopyBegun) -> Tombstone:
        """Set the former replica aside; then make the superblock say copying, and merge term and vote."""
        tablet, lifecycle = request.tablet, self.lifecycle
        last: Position | None = START  # a server that never held the tablet has acknowledged no entry
        unsafe = 0
        if request.state != m.DOES_NOT_EXIST:
            old = await self.deletion.entomb(tablet, f"a copy from {request.source.address} takes its place")
            last, unsafe = old.superblock.last, old.voter.forced_epoch
        assert lifecycle.in_transition(tablet), ("a copy begins in a transition", tablet)
        assert tablet not in lifecycle.replicas, ("a copy replaces no running replica", tablet)
        superblock = Superblock(
            tablet,
            begun.table,
            begun.table_name,
            begun.schema,
            begun.bucket,
            m.COPYING,
            last=last,
            unsafe=unsafe,
            private_log=True,
        )
        known = lifecycle.consensus_of(tablet)
        before = msgspec.structs.replace(superblock, state=m.DELETED)
        tombstone = lifecycle.tombstones.get(tablet) or lifecycle.tombstone(before, known, known)
        async with tombstone.turn:
            await self.world.faults.here("tablet.copy.before_mark")
            await lifecycle.superblocks.save(tablet, superblock)
            await self.world.faults.here("tablet.copy.after_mark")
            lifecycle.tombstones[tablet] = tombstone
            if not tombstone.durable:
                tombstone.move(SET_ASIDE)  # there was no replica
            hard_state = lifecycle.protocols.copied(
                tombstone.hard_state,
                request.source.uuid,
                begun.term,
                begun.configuration,
                knows_end=last is not None,
            )
            merged = ConsensusState(hard_state, begun.configuration)
            try:
                await lifecycle.consensus.save(tablet, merged)
            except DiskFull:
                tombstone.error = "there was no space for a copy"  # the next start undoes the superblock
                raise
            await self.world.faults.here("tablet.copy.after_consensus")
            lifecycle.receive(tombstone, superblock, merged)
        return tombstone

    # -- end

    async def _run(self, job: Job) -> None:
        tablet = job.tablet
        error: EblaError | None = None
        try:
            await job.copy()
            await self._ready(job)
            self.done += 1
            self._attempts.pop(tablet, None)
        except EblaError as caught:
            error = caught
            self.failed += 1
            log.warning("the copy of tablet %s from %s ended: %s", tablet, job.source, error)
            await self._undo(job, error)
        assert self.jobs[tablet] is job, ("a tablet is copied once at a time", tablet)
        self.copied_bytes += job.copied
        self.ended.append(job.status(self.world.address))
        del self.jobs[tablet]
        job.done.set()
        self.on_changed(tablet)
        await self._end_session(job.request, job.begun.session, error)

    async def _ready(self, job: Job) -> None:
        """Commit the copy, and start the replica. No vote is given meanwhile: it would use the old memory."""
        lifecycle, tombstone, tablet = self.lifecycle, job.tombstone, job.tablet
        async with tombstone.turn:
            await tombstone.save(lifecycle.consensus)  # a vote that a full disk has delayed
            job.require_wanted()
            job.move(COMMITTING)
            assert job.parts is not None, ("a copy is complete before it counts", tablet)
            assert lifecycle.tombstones[tablet] is tombstone, (
                "a copy replaces the tombstone that votes",
                tablet,
            )
            assert tombstone.voter.unsaved is None, (
                "votes are durable before the replica takes over",
                tablet,
            )
            ready = msgspec.structs.replace(
                tombstone.superblock, state="ready", last=None, since_seq=lifecycle.shared.next_seq
            )
            await self.world.faults.here("tablet.copy.before_ready")
            await lifecycle.superblocks.save(tablet, ready)
            await self.world.faults.here("tablet.copy.after_ready")
            tombstone.move(ENDED)
            del lifecycle.tombstones[tablet]
            consensus = ConsensusState(tombstone.hard_state, tombstone.configuration)
            lifecycle.add(lifecycle.replica(ready, consensus, job.parts))
            job.move(READY)

    async def _undo(self, job: Job, error: EblaError) -> None:
        """Return to the tombstone. If a full disk prevents the change of the superblock, the next
        start makes it."""
        tombstone = job.tombstone
        assert self.lifecycle.tombstones[job.tablet] is tombstone, (
            "a failed copy leaves its tombstone",
            job.tablet,
        )
        await job.close()
        tombstone.move(UNDOING)
        tombstone.superblock = msgspec.structs.replace(tombstone.superblock, state=m.DELETED)
        tombstone.error = str(error)
        await self.world.faults.here("tablet.copy.before_undo")
        with contextlib.suppress(DiskFull):
            await self.lifecycle.superblocks.save(job.tablet, tombstone.superblock)
        try:
            await self.lifecycle.finish(tombstone)
        except DiskFailed:
            raise
        except StorageError as failure:
            tombstone.move(MARKED)  # lifecycle/deletion.py tries again
            log.warning("the data of a failed copy of tablet %s is not removed yet: %s", job.tablet, failure)

    async def cancel_for_a_while(self, tablet: str) -> None:
        """Cancel the copy, and refuse another for CANCELLED_S. Raises NotFound if there is no copy,
        or it was too late to end it; OutcomeUnknown if its disk prevents its end."""
        job = self.jobs.get(tablet)
        if job is None:
            raise errors.NotFound(
                f"no copy of tablet {tablet} is under way here; `ebla tablet copies` lists them", what=tablet
            )
        self._cancelled[tablet] = self.world.now() + CANCELLED_S
        late = errors.OutcomeUnknown(
            f"the copy of tablet {tablet} to {self.world.address} is to end, and has waited for its disk for {CANCEL_S:g} s; "
            "check that disk, or take the replica away with `ebla tablet remove-replica`"
        )
        await within(self.world.clock, self.deletion.cancel_copy(tablet), CANCEL_S, late)
        if self.lifecycle.state_of(tablet) == m.RUNNING:
            self._cancelled.pop(tablet, None)
            raise errors.NotFound(
                f"the copy of tablet {tablet} was complete before it could be cancelled; `ebla tablet remove-replica` "
                "takes the replica away again",
                what=tablet,
            )

    async def close(self) -> None:
        """End every copy as if cancelled, before the disk is closed."""
        self._closed = True
        for tablet in list(self.jobs):
            await self.deletion.cancel_copy(tablet)

    async def _end_session(self, request: m.StartCopyRequest, session: str, error: EblaError | None) -> None:
        """End the session at the source, at best effort: an idle session ends by itself."""
        with contextlib.suppress(EblaError):
            await self.world.network.call(
                request.source.address,
                "end_copy_session",
                m.EndCopyRequest(session, str(error) if error else None, isinstance(error, CopyDamaged)),
                m.Empty,
                BEGIN_TIMEOUT_S,
            )

    # -- views

    def statuses(self) -> tuple[m.CopyJob, ...]:
        return tuple(job.status(self.world.address) for job in self.jobs.values())

    def _illegal(self, tablet: str, state: str, what: str) -> errors.IllegalState:
        return errors.IllegalState(
            f"the replica of tablet {tablet} on {self.world.address} {what}", tablet=tablet, state=state
        )
