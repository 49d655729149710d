"""The rounds of a tablet server: one loop that drives every replica.

A round takes the replicas with new events, persists their hard states in one commit, posts their
messages (one envelope per peer server), and applies committed entries. In parallel the log writer
syncs the new entries of all tablets, one shared-log commit at a time; the next batch gathers
meanwhile. Messages with entries leave in parallel with the leader's own sync; a follower's
acknowledgement waits for its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import ParamSpec, TypeVar

from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine.core import CANDIDATE, NEVER, UNREACHABLE
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.links import Link
from ebla.actors.tablet.engine.liveness import Liveness
from ebla.actors.tablet.engine.records import ConsensusState
from ebla.actors.tablet.engine.replica import DELETED, RUNNING, Replica, Unwritten, Work
from ebla.actors.tablet.engine.tally import CONSENSUS, SHARED_LOG, Tally
from ebla.actors.tablet.engine.waits import Bell, Signal, release
from ebla.actors.world import World
from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import Change
from ebla.storage.errors import Corruption, DiskFull, TooManyFiles
from ebla.storage.logs.shared_log import SharedLog
from ebla.storage.tablets.tablet_store import TabletSnapshot

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DISK_FULL_PAUSE_S = 0.5
CROWDED_PAUSE_S = 1.0  # until files can perhaps be opened again
CAMPAIGNS_MAX = 64  # elections that begin here at the same time; the others wait for their turn
ROUND_MAX = 256  # replicas in a round; messages of other servers, and clients, wait for its end


class Elections:
    """The elections that replicas of this server hold: CAMPAIGNS_MAX at a time, each of which keeps its place for `lasts_s` at most.
    Replicas whose last election no majority answered share half of the places: tablets that have lost their majority, of which
    there may be thousands, must not delay those that can elect."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._begun: dict[Replica, float] = {}
        self._again = 0  # how many of them follow an election that no majority answered

    def __len__(self) -> int:
        return len(self._begun)

    def pass_time(self, now: float) -> None:
        for replica, at in list(self._begun.items()):
            lacking = replica.core.lacking
            # A first one makes room at once. Repeated ones keep their places, or their number in a second had no bound.
            hopeless = lacking == UNREACHABLE and not replica.tries_again
            if hopeless or at <= now - self._lasts_s or replica.core.shown_role != CANDIDATE:
                del self._begun[replica]
                replica.tries_again = lacking is not None
        self._again = sum(replica.tries_again for replica in self._begun)

    def is_full(self, replica: Replica) -> bool:
        """Whether the replica must wait for its turn."""
        if len(self._begun) >= CAMPAIGNS_MAX:
            return True
        if replica.core.shown_role != CANDIDATE:
            replica.tries_again = False  # it has had a leader since
        return replica.tries_again and self._again >= CAMPAIGNS_MAX // 2

    def begin(self, replica: Replica, now: float) -> None:
        self._again += replica.tries_again and replica not in self._begun
        self._begun[replica] = now


@dataclass(eq=False)
class Rounds:
    world: World
    identity: Identity
    shared: SharedLog
    consensus: RecordStore[ConsensusState]
    on_checkpoint: Callable[[Replica, TabletSnapshot], None]
    liveness: Liveness
    unflushed_bytes_max: int

    def __post_init__(self) -> None:
        self.tally = Tally()
        self.disk_full = False
        self.unwritten_bytes = 0
        self.synced_seq = self.shared.next_seq  # everything below is on disk
        self._links: dict[tuple[str, str], Link] = {}
        self.touched: dict[str, Replica] = {}  # since maintenance last took them
        self.stirred: dict[str, Replica] = {}  # since the server last looked for changes to report
        self.unchecked: dict[str, Replica] = {}  # since recovery last checked the health of their peers
        self.unmeasured: dict[str, Replica] = {}  # since the figures were last read
        self.ticking: dict[str, Replica] = {}  # those for which time passes
        self.changed = Signal()  # sent when one of these five gets a replica
        self._elections = Elections(self.liveness.silent_s)
        self._postponed: dict[Replica, None] = {}  # those whose files cannot be opened now
        self.asking: dict[str, tuple[Replica, Configuration]] = {}  # of the master: see pacifica/orders.py
        self.asked = Bell()  # rung for each new one
        self._dirty: dict[str, Replica] = {}
        self._wake = Bell()
        self._unwritten: list[Unwritten] = []
        self._write_wake = Bell()
        self._unwritten_since = self._syncing_since = self._saving_since = NEVER

    def start(self) -> None:
        self.world.spawn(self._run(), "rounds")
        self.world.spawn(self._write_log(), "log writer")
        self.liveness.start(self.step, self._is_stuck, self._elections.__len__)

    def step(self, replica: Replica, event: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Feed one event to a replica, update its log and clients, and let it take part in the next
        round.

        Every event of a core is fed by this method, so that none of these steps is forgotten. An
        event that raises changes nothing. An internal error carries the replica's last events.
        """
        try:
            outcome = event(*arguments, **named)
            replica.absorb()
            if self.world.validates:
                replica.validate()
        except Exception as error:
            replica.explain(error)
            raise
        self._note_asked(replica)
        self._note_stance(replica)
        self.touch(replica)
        return outcome

    def tick(self, now: float) -> None:
        """Let time pass for the replicas that have something due. The others are not asked before their next event or that time:
        while thousands are awake, asking each at every tick would take the time that they need. Elections begin in waves, repeated
        ones as well: thousands at once last longer than their time, and are all repeated."""
        self._elections.pass_time(now)
        for tablet, replica in list(self.ticking.items()):
            if replica.due > now or (replica.awaits_turn and self._elections.is_full(replica)):
                continue
            core, elects = replica.core, replica.core.may_elect(now)
            replica.due = core.next_wake(now) if replica.state == RUNNING else math.inf
            replica.awaits_turn = elects and replica.due <= now and self._elections.is_full(replica)
            if replica.due == math.inf:
                del self.ticking[tablet]
            elif replica.due <= now and not replica.awaits_turn:
                self.step(replica, core.tick, now)
                if elects and core.shown_role == CANDIDATE:
                    self._elections.begin(replica, now)
                    self.ticking[tablet] = self.ticking.pop(tablet)  # the next turn is another's

    def ended(self, replica: Replica) -> None:
        """Note that the replica has failed, or is deleted."""
        self.liveness.note(replica)
        self.stir(replica)

    def stir(self, replica: Replica) -> None:
        """Note a change that is no event of the core, for maintenance, reports and figures."""
        tablet = replica.tablet
        self.touched[tablet] = self.stirred[tablet] = self.unmeasured[tablet] = replica
        self.changed.send()

    def _note_stance(self, replica: Replica) -> None:
        if replica.core.stance is not replica.stance:
            replica.stance = replica.core.stance
            self.liveness.note(replica)

    def _note_asked(self, replica: Replica) -> None:
        asked, known = replica.core.asked, self.asking.get(replica.tablet)
        if asked is not None and (known is None or known != (replica, asked)):
            self.asking[replica.tablet] = replica, asked
            self.asked.ring()

    def touch(self, replica: Replica) -> None:
        """Let the replica take part in the next round."""
        tablet = replica.tablet
        replica.due, replica.awaits_turn = NEVER, False
        self._dirty[tablet] = self.unchecked[tablet] = self.ticking[tablet] = replica
        self.stir(replica)
        self._wake.ring()

    def write(self, unwritten: Unwritten) -> None:
        """Queue the entry for the log writer: a follower's at once, a leader's after the round has
        sent it, because the followers need more time for it."""
        assert unwritten.slot.seq == 0, (
            "an entry is written once",
            unwritten.replica.tablet,
            unwritten.slot.seq,
        )
        if not self._unwritten:
            self._unwritten_since = self.world.now()
        self._unwritten.append(unwritten)
        self.unwritten_bytes += len(unwritten.entry.payload)
        if unwritten.replica.leads:
            self.touch(unwritten.replica)
        else:
            self._write_wake.ring()

    def stalled_s(self, now: float) -> float:
        """How long the oldest entry, or hard state, has been waiting for its sync; 0 if none waits."""
        since = [self._syncing_since, self._saving_since]
        if self._unwritten:
            since.append(self._unwritten_since)
        return max((now - at for at in since if at > NEVER), default=0.0)

    def _is_stuck(self, now: float) -> bool:
        """Whether hard states have been waiting for their sync for an election timeout, and all messages with them."""
        return self._saving_since > NEVER and now - self._saving_since > self.liveness.silent_s

    # -- the round

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            taken = self._take_dirty()
            replicas = [replica for replica in taken if replica.state == RUNNING]
            unsaved = [replica for replica in replicas if replica.work.is_some]
            if unsaved:
                await self._persist(unsaved)
            self._send(replicas)
            if self._unwritten:
                self._write_wake.ring()
                await self.world.clock.sleep(0)  # the disk is at work while entries are applied
            for replica in replicas:
                self._apply(replica)
            if len(taken) == ROUND_MAX:
                await self.world.clock.sleep(0)  # others have their turn between the parts

    def _take_dirty(self) -> list[Replica]:
        """Take the replicas of this round, those that wait longest; the next round begins at once if there are more."""
        taken = list(islice(self._dirty.values(), ROUND_MAX))
        for replica in taken:
            del self._dirty[replica.tablet]
        if self._dirty:
            self._wake.ring()
        return taken

    async def _persist(self, replicas: list[Replica]) -> None:
        """Make hard states, and committed configurations, durable before anything that follows from them."""
        waiting = [(replica, replica.explained(_begin_saving, replica)) for replica in replicas]
        self._saving_since = self.world.now()
        await self.world.faults.here("tablet.hard_state.before_commit")
        await self._commit(replicas)
        await self.world.faults.here("tablet.hard_state.after_commit")
        self._saving_since = NEVER
        for replica, waiters in waiting:
            replica.hard_in_flight = False
            if replica.work.hard_state is None:
                waiters.extend(replica.take_hard_waiters())
            release(waiters)

    async def _commit(self, replicas: list[Replica]) -> None:
        """A full disk delays votes and terms until there is space: nothing may leave without them.
        A deleted replica must not overwrite its tombstone's vote."""
        while True:
            states = [(each, each.consensus()) for each in replicas if each.state != DELETED]
            batch: list[Change] = [self.consensus.put(each.tablet, state) for each, state in states]
            if not batch:
                return
            began = self.world.now()
            try:
                await self.consensus.environment.commit(batch)
            except DiskFull:
                self.world.faults.reached("tablet.hard_state.disk_full")
                await self.world.clock.sleep(DISK_FULL_PAUSE_S)
                continue
            self.tally.syncs[CONSENSUS].add(self.world.now() - began)
            for replica, state in states:
                replica.configuration_saved = state.configuration.index
            return

    def _send(self, replicas: list[Replica]) -> None:
        links: dict[tuple[str, str], Link] = {}
        for replica in replicas:
            if replica.state != RUNNING:
                continue
            for send in replica.explained(replica.take_sends):
                peer = replica.core.configuration.peer(send.peer)
                if peer is not None:
                    link = self._link(peer)
                    link.post(replica, send)
                    links[peer.address, peer.uuid] = link
            self._note_stance(replica)
            if replica.work.hard_state is not None:
                self.touch(replica)
        for link in links.values():
            link.pump()

    def _link(self, peer: Peer) -> Link:
        key = (peer.address, peer.uuid)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(self.world, self.identity, peer, self.step)
        return link

    def _apply(self, replica: Replica) -> None:
        if replica.state != RUNNING:
            return
        try:
            more = replica.explained(replica.apply, self.unflushed_bytes_max)
        except TooManyFiles as error:
            if replica not in self._postponed:
                self._postponed[replica] = None
                log.warning("entries of tablet %s are applied later: %s", replica.tablet, error)
                self.world.spawn(self._apply_later(replica), f"apply {replica.tablet} later")
            return
        except Corruption as error:
            replica.fail(error)
            for snapshot in replica.checkpoints:
                snapshot.close()
            replica.checkpoints.clear()
            return
        self.stir(replica)  # they may have been looked at since the event
        for snapshot in replica.checkpoints:
            self.on_checkpoint(replica, snapshot)
        replica.checkpoints.clear()
        if more:
            self.touch(replica)

    async def _apply_later(self, replica: Replica) -> None:
        await self.world.clock.sleep(CROWDED_PAUSE_S)
        del self._postponed[replica]
        self.touch(replica)

    # -- the log writer

    async def _write_log(self) -> None:
        while True:
            await self._write_wake.wait()
            self._syncing_since = self._unwritten_since
            batch = self._take_unwritten()
            first_seq = self.shared.reserve(len(batch))
            for seq, unwritten in enumerate(batch, first_seq):
                unwritten.slot.seq = seq
            await self._sync(first_seq, batch)
            self._syncing_since = NEVER
            assert first_seq >= self.synced_seq, ("the log is synced in order", first_seq, self.synced_seq)
            self.synced_seq = first_seq + len(batch)
            last: dict[str, Unwritten] = {}
            for unwritten in batch:
                self.unwritten_bytes -= len(unwritten.entry.payload)
                last[unwritten.replica.tablet] = unwritten
            assert self.unwritten_bytes >= 0, ("each entry is counted once", self.unwritten_bytes)
            for unwritten in last.values():
                if unwritten.replica.state == RUNNING:
                    self.step(unwritten.replica, unwritten.replica.on_durable, unwritten)

    def _take_unwritten(self) -> list[Unwritten]:
        """Skip entries of deleted replicas: after the place where a copy begins they would be taken
        for the copy's."""
        taken, self._unwritten = self._unwritten, []
        wanted = [unwritten for unwritten in taken if unwritten.replica.state != DELETED]
        if len(wanted) < len(taken):
            self.unwritten_bytes -= sum(len(u.entry.payload) for u in taken if u.replica.state == DELETED)
        return wanted

    async def _sync(self, first_seq: int, batch: list[Unwritten]) -> None:
        entries = [(u.replica.tablet, u.entry, u.previous) for u in batch]
        while True:
            await self.world.faults.here("tablet.log.before_commit")
            began = self.world.now()
            try:
                await self.shared.append(first_seq, entries)
            except DiskFull:
                # Nothing was written. The entries stay unacknowledged here; admission refuses new
                # ones meanwhile.
                self.disk_full = True
                self.world.faults.reached("tablet.log.disk_full")
                await self.world.clock.sleep(DISK_FULL_PAUSE_S)
                continue
            self.disk_full = False
            self.tally.syncs[SHARED_LOG].add(self.world.now() - began)
            await self.world.faults.here("tablet.log.after_commit")
            return


def _begin_saving(replica: Replica) -> list[asyncio.Future[None]]:
    """Take over the replica's work; return the futures of the clients that wait for it."""
    assert not replica.hard_in_flight, ("one hard state is on its way to the disk", replica.tablet)
    replica.work = Work()
    replica.hard_in_flight = True
    return replica.take_hard_waiters()
