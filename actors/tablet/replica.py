"""One replica of one tablet: the Raft core, the log, the rows, and the clients that wait.

The replica turns events into changes of its own memory and into work for the server's round (rounds.py): hard state
to persist, entries to write, messages to send. It never waits. What must be durable before an answer leaves:

    a vote, or an acknowledgement in a new term    the hard state
    an acknowledgement of entries                  the entries, in the shared log
    a client's answer                              the entry on a majority, and applied here
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ebla.actors import errors
from ebla.actors.messages import CreateTabletRequest, ReplicaReport, RowBatch
from ebla.actors.tablet.apply import Rows
from ebla.actors.tablet.batches import decode_batch
from ebla.actors.tablet.log import Slot, TabletLog
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import Effects, Pending, Send
from ebla.actors.tablet.raft.messages import (
    ALTER,
    CHECKPOINT,
    CONFIG,
    NO_OP,
    WRITE,
    Answer,
    AppendRequest,
    Configuration,
    HardState,
    Request,
)
from ebla.actors.tablet.tally import Tally
from ebla.actors.tablet.waits import Waits, release
from ebla.storage import alteration
from ebla.storage.entries import Entry, Position, make_entry
from ebla.storage.errors import Corruption, EblaError, InvalidArgument
from ebla.storage.results import Answer as Stored
from ebla.storage.schema import TableSchema
from ebla.storage.tablet_store import TabletSnapshot

T = TypeVar("T")

RUNNING, FAILED, DELETED = "running", "failed", "deleted"
SENDS_MAX = 8  # rounds of messages that one event may lead to
APPLY_ENTRIES_MAX = 256  # per turn, so that one tablet's replay does not hold up the others

_decode_configuration = msgspec.msgpack.Decoder(Configuration).decode


class Superblock(msgspec.Struct, frozen=True):
    """What a replica is, and whether it is all there. `schema`: as its table was created; what became of it since is kept
    with the rows.

    `state`: ready; copying (deleted at start) or deleted, which vote as if their log ended at `last`, if that is known;
    deleting, for good (finished at start); failed: parts of its log are let go, for the `reason`, and it must not come back
    as one that never had them. `since_seq`: what the shared log holds of the tablet below it is of a replica that was here
    before. `quarantine`: where a deleted one's data is, or is being moved to. `unsafe`: how often a configuration was forced,
    as far as a deleted one was told (raft/marks.py).
    """

    tablet: str
    table: str
    table_name: str
    schema: TableSchema
    bucket: int
    state: str = "ready"
    reason: str = ""
    last: Position | None = None
    since_seq: int = 0
    quarantine: str = ""
    unsafe: int = 0

    @staticmethod
    def of(request: CreateTabletRequest, since_seq: int) -> Superblock:
        return Superblock(
            request.tablet,
            request.table,
            request.table_name,
            request.schema,
            request.bucket,
            since_seq=since_seq,
        )


class ConsensusState(msgspec.Struct, frozen=True):
    """Term, vote and committed configuration: never forgotten while the replica, or its tombstone, exists."""

    hard_state: HardState
    configuration: Configuration


@dataclass(eq=False)
class Waiter:
    """A client's write on its way through the log."""

    term: int
    bytes: int
    future: asyncio.Future[Stored]
    batch: RowBatch


class Unwritten(msgspec.Struct):
    """An entry that the log writer has not taken yet."""

    replica: Replica
    entry: Entry
    previous: Position
    slot: Slot
    epoch: int


@dataclass
class Work:
    """What a replica wants of the next round."""

    hard_state: HardState | None = None
    configuration: Configuration | None = None

    @property
    def is_some(self) -> bool:
        return self.hard_state is not None or self.configuration is not None


class Replica:
    def __init__(
        self,
        superblock: Superblock,
        core: RaftCore,
        log: TabletLog,
        rows: Rows,
        write: Callable[[Unwritten], None],
        wall_us: Callable[[], int],
        tally: Tally,
        time_us: int = 0,
    ) -> None:
        self.superblock = superblock
        self.tablet = superblock.tablet
        self.core = core
        self.log = log
        self.rows = rows
        self.store = rows.store
        self._write = write
        self._wall_us = wall_us
        self._tally = tally
        self._time_us = time_us  # of the log's last entry
        self.state = RUNNING
        self.error: str | None = None
        self.work = Work()
        self.waiters: dict[int, Waiter] = {}
        self.unapplied_bytes = 0
        self.checkpoints: list[TabletSnapshot] = []  # as of checkpoint entries that were applied just now
        self.alteration_asked = (0, 0, 0)  # term, version, index of the last that was put into the log here
        self.health: dict[str, str] = {}  # of the other members, while this one leads: see recovery.py
        self.upkeep = asyncio.Lock()  # one flush or move at a time, and a deletion waits for it
        self.hard_in_flight = False  # the round is persisting a hard state of ours
        self.configuration_saved = -1  # index of the committed one that is on disk
        self._batches: dict[int, RowBatch] = {}  # decoded at admission, wanted again at apply
        self._durable_waiters = Waits()
        self._hard_waiters: list[asyncio.Future[None]] = []
        self._applied_waiters = Waits()

    # -- events

    def tick(self, now: float) -> bool:
        """Whether anything came of it."""
        if self.state != RUNNING or now < self.core.next_wake(now):
            return False
        self.core.tick(now)
        self.absorb()
        return True

    def propose(self, now: float, kind: int, payload: bytes) -> Entry:
        """A new entry at the end of the log. Raises NotLeader."""
        index, term = self.core.propose(now, kind, len(payload))
        return self._append_own(index, term, kind, payload)

    def propose_configuration(self, now: float, wanted: Configuration) -> Entry:
        """An entry that changes the members. Raises what the core raises."""
        index, term = self.core.propose_configuration(now, wanted)
        return self._append_own(index, term, CONFIG, msgspec.msgpack.encode(wanted))

    def propose_write(self, now: float, payload: bytes, batch: RowBatch) -> asyncio.Future[Stored]:
        """The answer comes when the entry is committed and applied."""
        entry = self.propose(now, WRITE, payload)
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self.waiters[entry.index] = Waiter(entry.term, len(payload), future, batch)
        self.unapplied_bytes += len(payload)
        self._batches[entry.index] = batch
        self.absorb()
        return future

    def receive(self, now: float, sender: str, request: Request) -> Pending | Answer:
        """A peer's request. A Pending is answered by `answer` once durable."""
        if isinstance(request, AppendRequest) and request.unsafe >= self.core.mark:
            self.log.check_chain(request.previous_index, request.previous_term, request.entries)
        outcome = self.core.receive(now, sender, request)
        self.absorb(request if isinstance(request, AppendRequest) else None)
        return outcome

    def absorb(self, request: AppendRequest | None = None) -> None:
        """Bring log and clients in line with what the core has just decided; keep the rest for the round."""
        if not self.core.quiet:
            self._realise(self.core.take(sends=False), request)

    def take_sends(self) -> list[Send]:
        """What the core wants sent now; nothing while a hard state that it may rest on is not yet durable."""
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

    def _realise(self, effects: Effects, request: AppendRequest | None) -> None:
        if effects.truncate_from is not None:
            self._truncate(effects.truncate_from)
        if effects.appended is not None:
            assert request is not None
            first, last = effects.appended
            for entry in request.entries:
                if first <= entry.index <= last:
                    self._append(entry)
        if effects.noop is not None:
            index, term = effects.noop
            self._append_own(index, term, NO_OP, b"")
        if effects.configured is not None:
            index, term, payload = effects.configured
            self._append_own(index, term, CONFIG, payload)
        if effects.became is not None:
            self._tally.became(effects.became)
            if effects.became != "leader":
                self._abandon_clients()
        if effects.hard_state is not None:
            self.work.hard_state = effects.hard_state
        if effects.configuration is not None:
            self.work.configuration = effects.configuration

    # -- waiting for durability

    def hard_state_durable(self) -> asyncio.Future[None] | None:
        """What an answer must wait for, if the hard state that it rests on is not yet on disk."""
        if self.work.hard_state is None and not self.hard_in_flight:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hard_waiters.append(future)
        return future

    def entries_durable(self, index: int) -> asyncio.Future[None] | None:
        return None if index <= self.core.durable_index else self._durable_waiters.until(index)

    def applied(self, index: int) -> asyncio.Future[None] | None:
        return None if index <= self.store.applied.index else self._applied_waiters.until(index)

    def take_hard_waiters(self) -> list[asyncio.Future[None]]:
        waiters, self._hard_waiters = self._hard_waiters, []
        return waiters

    def on_durable(self, written: Unwritten) -> None:
        """The log writer has synced this entry, and all before it."""
        if self.state != RUNNING:
            return
        self.core.durable(written.entry.index, written.entry.term, written.epoch)
        self.absorb()
        self._durable_waiters.come_to(self.core.durable_index)

    # -- applying

    def apply(self) -> bool:
        """Apply what is committed and durable here; True if more is left for another turn."""
        first = self.store.applied.index + 1
        target = min(self.core.commit_index, self.core.durable_index)
        if target < first:
            return False
        last = min(target, first + APPLY_ENTRIES_MAX - 1)
        for entry in self.log.cached(first, last) or self.log.load(first, last):
            self._apply(entry)
        self._applied_waiters.come_to(last)
        self.log.uncache(self.core.all_replicated_index, self.store.applied.index)
        return last < target

    def _apply(self, entry: Entry) -> None:
        outcome: Stored | EblaError | None = None
        if entry.kind == WRITE:
            batch = self._batches.pop(entry.index, None) or self._decoded(entry, decode_batch)
            outcome = self.rows.apply(entry, batch)
            self._tally.rows_applied += len(batch.keys)
        elif entry.kind == CONFIG:
            self.work.configuration = self._decoded(entry, _decode_configuration)
        elif entry.kind == ALTER:
            self._alter(entry)
        self.store.applied = Position(entry.index, entry.term, entry.chain)
        self.store.results.sweep(entry.index, entry.time_us)
        if entry.kind == CHECKPOINT:
            self.checkpoints.append(self.store.snapshot())
        waiter = self.waiters.pop(entry.index, None)
        if waiter is not None:
            self._answer(waiter, entry.term, outcome)

    def _alter(self, entry: Entry) -> None:
        try:
            self.rows.alter(self._decoded(entry, alteration.decode), entry.payload)
        except InvalidArgument as error:
            raise Corruption(f"tablet {self.tablet} cannot go on here: {error}") from error

    def _decoded(self, entry: Entry, decode: Callable[[bytes], T]) -> T:
        """No leader proposes what it cannot read: what it means cannot be guessed, so the replica stops."""
        try:
            return decode(entry.payload)
        except msgspec.MsgspecError as error:
            raise Corruption(
                f"entry {entry.index} of tablet {self.tablet} cannot be read: {error}"
            ) from error

    def _answer(self, waiter: Waiter, term: int, outcome: Stored | EblaError | None) -> None:
        self.unapplied_bytes -= waiter.bytes
        if waiter.future.done():
            return  # whoever asked has given up
        if waiter.term != term or outcome is None:
            waiter.future.set_exception(self._unknown())
        elif isinstance(outcome, EblaError):
            waiter.future.set_exception(outcome)
        else:
            waiter.future.set_result(outcome)
            return
        waiter.future.exception()  # looked at, so that asyncio does not complain if its time ran out meanwhile

    # -- ends

    def fail(self, error: EblaError) -> None:
        """Stop serving: the data cannot be believed. The server and its other replicas go on."""
        if self.state == RUNNING:
            self.state, self.error = FAILED, str(error)
        self._release_all()

    def close(self) -> None:
        self.state = DELETED
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
            raise errors.ReplicaFailed(
                f"the replica of tablet {self.tablet} failed here: {self.error}; another replica serves",
                tablet=self.tablet,
                reason=self.error,
            )
        if self.state != RUNNING:
            raise errors.TabletNotFound(f"tablet {self.tablet} is not on this server", tablet=self.tablet)

    @property
    def leads(self) -> bool:
        return self.state == RUNNING and self.core.role == "leader"

    def consensus(self) -> ConsensusState:
        return ConsensusState(self.core.hard_state, self.core.committed_configuration)

    def facts(self) -> tuple[object, ...]:
        """What the master wants to hear about at once when it changes."""
        core = self.core
        configuration, version = core.committed_configuration.order, self.rows.schema.version
        health = tuple(self.health.items()) if self.leads else ()
        return (self.state, core.term, core.role, core.leader, configuration, version, health, core.apart)

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
            role=core.role.removeprefix("pre_"),
            term=core.term,
            leader=core.leader,
            configuration=core.committed_configuration,
            schema_version=self.rows.schema.version,
            last_index=core.last_index,
            commit_index=core.commit_index,
            applied_index=self.store.applied.index,
            flushed_index=self.store.flushed.index,
            rows_bytes=self.store.size_bytes,
            error=self.error or core.apart,
            health=dict(self.health) if self.leads else {},
        )

    # -- helpers

    def _append_own(self, index: int, term: int, kind: int, payload: bytes) -> Entry:
        previous = self.log.last
        assert index == previous.index + 1, (self.tablet, index, previous)
        time_us = max(self._time_us, self._wall_us())
        entry = make_entry(self.tablet, previous, term, kind, time_us, payload)
        self._append(entry)
        return entry

    def _append(self, entry: Entry) -> None:
        previous = self.log.last
        self._time_us = max(self._time_us, entry.time_us)
        self._write(Unwritten(self, entry, previous, self.log.append(entry), self.core.log.epoch))

    def _truncate(self, from_index: int) -> None:
        self.log.truncate(from_index)
        for index in [i for i in self.waiters if i >= from_index]:
            self._answer(self.waiters.pop(index), -1, None)
        for index in [i for i in self._batches if i >= from_index]:
            del self._batches[index]

    def _abandon_clients(self) -> None:
        """No longer the leader: what waits may still be committed by the next one."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters.values():
            self._answer(waiter, -1, None)
        self._batches.clear()

    def _unknown(self) -> errors.OutcomeUnknown:
        return errors.OutcomeUnknown(
            f"leadership of tablet {self.tablet} changed while the write was under way; "
            "send it again with the same request id"
        )
