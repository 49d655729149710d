"""One replica of one tablet: its core, the log, the rows, and the waiting clients.

The replica turns events into changes of its own memory and into work for the server's round (rounds.py):
hard state to persist, entries to write, messages to send. It never waits. Each answer depends on durable
state:

    a vote, or an acknowledgement in a new term    the hard state
    an acknowledgement of entries                  the entries, in the shared log
    a client's answer                              the entry on a majority, and applied here
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from ebla.actors import errors
from ebla.actors.messages import ReplicaReport, RowBatch, RunsReport
from ebla.actors.messages.protocols import Answer, HardState, Request
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.apply import Rows
from ebla.actors.tablet.engine.batches import decode_batch
from ebla.actors.tablet.engine.core import LEADER, NEVER, Effects, GroupCore, Offer, Pending, Send
from ebla.actors.tablet.engine.log import Slot, TabletLog
from ebla.actors.tablet.engine.log_time import LogTime
from ebla.actors.tablet.engine.quiescence import AWAKE
from ebla.actors.tablet.engine.records import ConsensusState, Superblock
from ebla.actors.tablet.engine.tally import Tally
from ebla.actors.tablet.engine.waits import Waiter, Waits, release
from ebla.actors.world import settle
from ebla.storage.errors import Corruption, Damaged, EblaError, InvalidArgument, add_note
from ebla.storage.logs.entries import (
    ALTER,
    CHECKPOINT,
    CONFIG,
    EXPIRE,
    NO_OP,
    WRITE,
    Entry,
    Position,
    make_entry,
)
from ebla.storage.rows import alteration
from ebla.storage.tablets.results import Answer as Stored
from ebla.storage.tablets.tablet_store import TabletSnapshot

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

RUNNING, FAILED, DELETED = "running", "failed", "deleted"
SENDS_MAX = 8  # rounds of messages that one event may lead to
APPLY_ENTRIES_MAX = 256  # per turn, so that one tablet's replay does not delay the others

_decode_configuration = msgspec.msgpack.Decoder(Configuration).decode
_decode_time = msgspec.msgpack.Decoder(int).decode


class Unwritten(msgspec.Struct):
    """An entry that the log writer has not taken yet."""

    replica: Replica
    entry: Entry
    previous: Position
    slot: Slot
    epoch: int


class LogWriter(Protocol):
    """Takes a replica's new entries to the shared log: see rounds.py."""

    tally: Tally

    def write(self, unwritten: Unwritten) -> None: ...

    def ended(self, replica: Replica) -> None:
        """Note that the replica has failed, or is deleted."""


@dataclass
class Work:
    """A replica's work for the next round."""

    hard_state: HardState | None = None
    configuration: Configuration | None = None

    @property
    def is_some(self) -> bool:
        return self.hard_state is not None or self.configuration is not None


class Replica:
    def __init__(
        self,
        superblock: Superblock,
        core: GroupCore,
        configuration_saved: int,
        log: TabletLog,
        rows: Rows,
        writer: LogWriter,
        monotonic: Callable[[], float],
    ) -> None:
        """`configuration_saved`: the index of the committed configuration that is on disk."""
        self.superblock = superblock
        self.tablet = superblock.tablet
        self.core = core
        self.log = log
        self.rows, self.store = rows, rows.store
        self._writer = writer
        self._time = LogTime(monotonic)
        self.state = RUNNING
        self.stance = AWAKE  # as the server last noted it: see Rounds.step
        self.due, self.scrub_at = NEVER, NEVER  # see Rounds.tick, upkeep/scrubber.py
        self.awaits_turn = self.tries_again = False  # see Rounds.tick, Elections
        self.error: str | None = None
        self.work = Work()
        self.waiters: dict[int, Waiter] = {}
        self.unapplied_bytes = 0
        self.full = False  # entries wait for a flush
        self.checkpoints: list[TabletSnapshot] = []  # of checkpoint entries that were applied just now
        self.alteration_asked = (0, 0, 0)  # term, version, index of the last one proposed here
        self.expiry_asked = (0, 0)  # term, index of the last one proposed here
        self.health: dict[str, str] = {}  # of the other members, while this one leads: see copy/recovery.py
        # One flush and one move of log entries at a time; a deletion waits for both. They have a
        # lock each, because the log may be on another disk than the rows.
        self.upkeep = asyncio.Lock()
        self.moving = asyncio.Lock()
        self._offer: Offer | None = None  # the entries of the request under way
        self.hard_in_flight = False  # the round is persisting a hard state of ours
        self.configuration_saved = configuration_saved
        self._batches: dict[int, RowBatch] = {}  # decoded at admission, needed again at apply
        self._durable_waiters = Waits()
        self._hard_waiters: list[asyncio.Future[None]] = []
        self._applied_waiters = Waits()
        self.readers = Waits()  # until an index is applied, or another replica is to lead

    # -- events

    def propose(self, now: float, kind: int, payload: bytes) -> Entry:
        """Append an entry to the log. Raises NotLeader."""
        index, term = self.core.propose(now, kind, len(payload))
        return self._append_own(index, term, kind, payload)

    def propose_write(self, now: float, payload: bytes, batch: RowBatch) -> asyncio.Future[Stored]:
        """Append a write. The future gets the answer when the entry is committed and applied."""
        entry = self.propose(now, WRITE, payload)
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        assert entry.index not in self.waiters, ("each entry has one client", self.tablet, entry.index)
        self.waiters[entry.index] = Waiter(entry.term, len(payload), future, batch)
        self.unapplied_bytes += len(payload)
        self._batches[entry.index] = batch
        return future

    def receive(self, now: float, sender: str, request: Request, knows_us: bool) -> Pending | Answer:
        """Take a peer's request. `answer` answers a Pending once it is durable. `knows_us`: see GroupCore."""
        self._offer = self.core.offered(request)
        if self._offer is not None:
            self.log.check_chain(*self._offer)
        return self.core.receive(now, sender, request, knows_us=knows_us)

    def absorb(self) -> None:
        """Apply the core's decisions to the log and the clients; leave the rest to the round."""
        offer, self._offer = self._offer, None
        if not self.core.quiet:
            self._realise(self.core.take(sends=False), offer)

    def take_sends(self) -> list[Send]:
        """The messages to send now; none while a hard state that they may depend on is not durable."""
        found: list[Send] = []
        for _ in range(SENDS_MAX):
            if self.work.hard_state is not None or (self.core.mute and self.core.quiet):
                break
            effects = self.core.take()
            self._realise(effects, None)
            found.extend(effects.sends)
            if not effects.sends:
                break
        return found

    def _realise(self, effects: Effects, offer: Offer | None) -> None:
        if effects.truncate_from is not None:
            self._truncate(effects.truncate_from)
        if effects.appended is not None:
            assert offer is not None, ("entries are appended from a request", self.tablet)
            first, last = effects.appended
            assert first == self.log.last_index + 1, ("entries follow the last one", self.tablet, first)
            for entry in offer.entries:
                if first <= entry.index <= last:
                    self._append(entry)
        if effects.noop is not None:
            index, term = effects.noop
            self._append_own(index, term, NO_OP, b"")
        if effects.configured is not None:
            index, term, payload = effects.configured
            self._append_own(index, term, CONFIG, payload)
        if effects.became is not None:
            self._writer.tally.became(effects.became)
            if effects.became != LEADER:
                self._abandon_clients()
        if effects.hard_state is not None:
            self.work.hard_state = effects.hard_state
        if effects.configuration is not None:
            self.work.configuration = effects.configuration

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken. Called between events."""
        if self.state != RUNNING:
            return
        core, log, store = self.core, self.log, self.store
        core.validate()
        last, flushed, applied = log.last.index, store.flushed.index, store.applied.index
        seen = (self.tablet, last, flushed, applied, core.commit_index, core.durable_index)
        assert last == core.last_index, ("log and core have the same entries", seen)
        assert log.last.term == core.log.last_term, ("log and core have the same last term", seen)
        assert flushed <= applied <= core.commit_index, (
            "only committed entries are applied and flushed",
            seen,
        )
        assert flushed <= core.durable_index, ("only durable entries are flushed", seen)
        assert core.role == LEADER or not self.waiters, ("only a leader has waiting clients", seen)
        assert all(applied < index <= last for index in self.waiters), ("clients wait for entries", seen)
        waiting = sum(each.bytes for each in self.waiters.values())
        assert self.unapplied_bytes == waiting, ("each waiting write is counted once", seen, waiting)

    def explain(self, error: Exception) -> None:
        """Add the last events to an internal error (a broken invariant, a bug, damage), once, and not to a refusal."""
        if isinstance(error, EblaError) and not isinstance(error, Corruption | Damaged):
            return
        note = f"last events of tablet {self.tablet} here:\n"
        if not any(each.startswith(note) for each in getattr(error, "__notes__", ())):
            add_note(error, note + self.core.story())

    def explained(self, act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Carry out an act. An internal error of it carries the last events."""
        try:
            return act(*arguments, **named)
        except Exception as error:
            self.explain(error)
            raise

    # -- waiting for durability

    def hard_state_durable(self) -> asyncio.Future[None] | None:
        """A future to wait for before an answer, if the hard state is not on disk yet."""
        if self.work.hard_state is None and not self.hard_in_flight:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hard_waiters = [*(each for each in self._hard_waiters if not each.done()), future]
        return future

    def entries_durable(self, index: int) -> asyncio.Future[None] | None:
        return None if index <= self.core.durable_index else self._durable_waiters.until(index)

    def applied(self, index: int) -> asyncio.Future[None] | None:
        return None if index <= self.store.applied.index else self._applied_waiters.until(index)

    def take_hard_waiters(self) -> list[asyncio.Future[None]]:
        waiters, self._hard_waiters = self._hard_waiters, []
        return waiters

    def on_durable(self, written: Unwritten) -> None:
        """Note that this entry, and all before it, are synced."""
        self.core.durable(written.entry.index, written.entry.term, written.epoch)
        self._durable_waiters.come_to(self.core.durable_index)

    # -- applying

    def apply(self, unflushed_bytes_max: int) -> bool:
        """Apply entries that are committed and durable here; True if more are left for another turn. When memtables are full, the
        rest waits for a flush: an update makes far more bytes of rows than it has itself."""
        first = self.store.applied.index + 1
        target = min(self.core.commit_index, self.core.durable_index)
        if target < first or self.full:
            return False
        assert self.state == RUNNING, ("only a running replica applies", self.tablet, self.state)
        last = min(target, first + APPLY_ENTRIES_MAX - 1)
        for entry in self.log.cached(first, last) or self.log.load(first, last):
            self.full = self.rows.full(unflushed_bytes_max, alters=entry.kind == ALTER)
            if self.full:
                break
            self._apply(entry)
        last = self.store.applied.index
        self._applied_waiters.come_to(last)
        self.readers.come_to(last)
        self.log.uncache(self.core.all_replicated_index, last)
        return last < target and not self.full

    def _apply(self, entry: Entry) -> None:
        applied = self.store.applied.index
        assert entry.index == applied + 1, ("entries are applied once, in order", entry.index, applied)
        outcome: Stored | EblaError | None = None
        if entry.kind == WRITE:
            batch = self._batches.pop(entry.index, None) or self._decoded(entry, decode_batch)
            outcome = self.rows.apply(entry, batch)
            self._writer.tally.rows_applied += batch.rows
        elif entry.kind == CONFIG:
            self.work.configuration = self._decoded(entry, _decode_configuration)
        elif entry.kind == ALTER:
            self._alter(entry)
        elif entry.kind == EXPIRE:
            self.store.results.expire(self._decoded(entry, _decode_time))
        self.store.applied = entry.position
        if entry.kind == CHECKPOINT:
            self.checkpoints.append(self.store.snapshot())
        waiter = self.waiters.pop(entry.index, None)
        if waiter is not None:
            self._answer(waiter, entry.term, outcome)

    def _alter(self, entry: Entry) -> None:
        try:
            self.rows.alter(self._decoded(entry, alteration.decode), entry.payload)
        except InvalidArgument as error:
            raise Corruption(f"tablet {self.tablet} cannot be altered here: {error}") from error

    def _decoded(self, entry: Entry, decode: Callable[[bytes], T]) -> T:
        """Decode an entry's payload, or stop the replica: the meaning of a malformed entry cannot be
        guessed, and no leader proposes one."""
        try:
            return decode(entry.payload)
        except msgspec.MsgspecError as error:
            raise Corruption(
                f"entry {entry.index} of tablet {self.tablet} cannot be read: {error}"
            ) from error

    def _answer(self, waiter: Waiter, term: int, outcome: Stored | EblaError | None) -> None:
        self.unapplied_bytes -= waiter.bytes
        assert self.unapplied_bytes >= 0, ("each waiting write is counted once", self.tablet)
        settle(waiter.future, self._unknown() if waiter.term != term or outcome is None else outcome)

    # -- ends

    def fail(self, error: EblaError) -> None:
        """Stop serving: the data is damaged. The server and its other replicas continue."""
        if self.state == RUNNING:
            self.state, self.error = FAILED, str(error)
            self.explain(error)
            log.error("the replica of tablet %s failed", self.tablet, exc_info=error)
            self._writer.ended(self)
        self._release_all()
        assert not self.waiters, ("no client waits for a failed replica", self.tablet)

    def close(self) -> None:
        self.state = DELETED
        self._writer.ended(self)
        self._release_all()

    def _release_all(self) -> None:
        self.work = Work()
        self._abandon_clients()
        self._durable_waiters.end()
        self._applied_waiters.end()
        release(self.take_hard_waiters())

    # -- views

    def require_running(self) -> None:
        if self.state == FAILED:
            raise errors.ReplicaFailed.of(self.tablet, self.error)
        if self.state != RUNNING:
            raise errors.TabletNotFound(f"tablet {self.tablet} is not on this server", tablet=self.tablet)

    @property
    def leads(self) -> bool:
        return self.state == RUNNING and self.core.role == LEADER

    def consensus(self) -> ConsensusState:
        return ConsensusState(self.core.hard_state, self.core.committed_configuration)

    @property
    def size_bytes(self) -> int:
        return self.store.size_bytes

    def facts(self) -> tuple[object, ...]:
        """The facts whose changes are reported to the master at once."""
        core = self.core
        begun = core.configuration.primary is not None and core.commit_index > 0
        known = core.committed_configuration.order, core.configuration.order, self.rows.schema.version
        health: tuple[object, ...] = tuple(self.health.items()) if self.leads else (core.verified,)
        return (self.state, core.term, core.role, core.leader, begun, known, health, core.apart)

    def leader_address(self) -> str | None:
        leader = self.core.leader and self.core.configuration.peer(self.core.leader)
        return leader.address if leader else None

    def not_leader(self) -> errors.NotLeader:
        leader = self.leader_address()
        message = f"this replica of tablet {self.tablet} does not lead; " + (
            f"{leader} does" if leader else "no leader is known, try again"
        )
        return errors.NotLeader(message, tablet=self.tablet, leader=leader, term=self.core.term)

    def report(self) -> ReplicaReport:
        core = self.core
        return ReplicaReport(
            tablet=self.tablet,
            state=self.state,
            view=core.view(),
            configuration=core.committed_configuration,
            schema_version=self.rows.schema.version,
            applied_index=self.store.applied.index,
            flushed_index=self.store.flushed.index,
            rows_bytes=self.size_bytes,
            error=self.error or core.apart,
            health=dict(self.health) if self.leads else {},
            pending=None if core.configuration == core.committed_configuration else core.configuration,
            runs=None if (runs := self.store.runs) is None else RunsReport(*runs.counts()),
        )

    # -- helpers

    def _append_own(self, index: int, term: int, kind: int, payload: bytes) -> Entry:
        previous = self.log.last
        assert index == previous.index + 1, ("own entries follow the last one", self.tablet, index, previous)
        entry = make_entry(self.tablet, previous, term, kind, self._time.next_us(term, previous), payload)
        self._append(entry)
        return entry

    def _append(self, entry: Entry) -> None:
        previous = self.log.last
        self._writer.write(Unwritten(self, entry, previous, self.log.append(entry), self.core.log.epoch))

    def _truncate(self, from_index: int) -> None:
        applied = self.store.applied.index
        assert from_index > applied, ("applied entries never change", self.tablet, from_index, applied)
        self.log.truncate(from_index)
        for index in [i for i in self.waiters if i >= from_index]:
            self._answer(self.waiters.pop(index), -1, None)
        for index in [i for i in self._batches if i >= from_index]:
            del self._batches[index]

    def _abandon_clients(self) -> None:
        """Answer the waiting clients that the outcome is unknown: this replica does not lead any
        more, and the next leader may still commit their writes."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters.values():
            self._answer(waiter, -1, None)
        self._batches.clear()
        self.readers.end()

    def _unknown(self) -> errors.OutcomeUnknown:
        return errors.OutcomeUnknown(
            f"leadership of tablet {self.tablet} changed while the write was under way; "
            "send it again with the same request id"
        )
