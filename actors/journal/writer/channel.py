"""The writer's channel to one journal node: ordered requests, one under way, the rest in a bounded queue.

A node that failed to take edits is *out of sync*: it gets no more edits of this segment, only periodic
heartbeats, and is back with the next segment. The queue of a slow node fills up; a full queue refuses
more edits, and the other nodes are not held up. Every request carries the next serial, so the node
refuses an abandoned request that arrives late.

A node may lose its directory, restart, or come back while there are no writes, and a whole segment may
hold only a marker. So the channel also sends heartbeats to an idle node now and then. A node that was
restarted takes no more of this segment and is left out; so is a node that has promised a later epoch. The
writer starts the next segment when a node rejoins (node/rejoin.py), or when a node that was left out
answers again, even if it refuses this epoch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

import msgspec

from ebla.actors.errors import OutcomeUnknown
from ebla.actors.figures import Latencies, Percentiles
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import JournalBroken, OutOfSync, StaleEpoch, TooFarBehind
from ebla.actors.journal.options import JournalOptions
from ebla.actors.world import World
from ebla.storage.errors import DiskFull, EblaError

T = TypeVar("T")
Build = Callable[[m.Stamp], msgspec.Struct]

EDITS, FINALIZE, START, OTHER = "edits", "finalize", "start", "other"


class ChannelStatus(msgspec.Struct, frozen=True):
    """`lag_txns` and `lag_ms`: how far this node's last acknowledged edit is behind the committed txid; time
    without writes does not count. `error`: why the node is left out."""

    node: str
    out_of_sync: bool
    acked: int
    lag_txns: int
    lag_ms: float
    queue_txns: int
    queue_bytes: int
    rpc_ms: Percentiles
    end_to_end_ms: Percentiles
    error: str = ""

    def __str__(self) -> str:
        why = f": {self.error}" if self.error else ""
        note = f" (back with the next segment{why})" if self.out_of_sync else ""
        return f"{self.node}: written {self.acked}, {self.lag_txns} txns / {self.lag_ms:.0f} ms behind{note}"


@dataclass(eq=False, slots=True)
class _Call:
    """A request in the queue. `epoch`: of the writer when it was queued, also if the epoch changes.
    `repeat_s`: for how long the request is repeated if there is no answer."""

    kind: str
    method: str
    build: Build
    reply: type[Any]
    since: float
    epoch: int
    repeat_s: float = 0.0
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    bytes: int = 0
    txns: int = 0
    last: int = 0


class Commits:
    """The last committed txid that the writer knows, and since when; shared by its channels."""

    def __init__(self) -> None:
        self.txid = 0
        self.at = 0.0


class Channel:
    def __init__(self, world: World, options: JournalOptions, node: str, commits: Commits) -> None:
        self.node = node
        self.epoch = 0
        self.promised = 0  # the highest promised epoch that the node named when it refused ours
        self.out_of_sync = False
        self.broken: JournalBroken | None = None
        self.acked = 0
        self._wrote = 0  # the last edit that the node has acknowledged to this writer
        self.queue_bytes = self.queue_txns = 0
        self.rpc_s, self.end_to_end_s = Latencies(), Latencies()
        self._world = world
        self._options = options
        self._commits = commits
        self._serial = 0
        self._gap = False  # the full queue refused edits: the node cannot take later edits of this segment
        self._left_at = -inf  # when the node was left out
        self._why = ""
        self._token = ""  # of a node that has lost its directory: from its last answer to a heartbeat
        self._segment: int | None = None  # started by the node, which was not asked to finalize it
        self._carried = ""  # the token in the last start of a segment
        self._joined = ""  # the token in the last start of a segment that the node has carried out
        self._known_committed = 0  # the last committed txid that the node has received
        self._acked_since = self._last_contact = world.now()
        self._heartbeat_at = -inf
        self._closed: EblaError | None = None
        self._queue: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._draining = world.spawn(self._drain(), f"journal channel to {node}")

    # -- what the writer asks --------------------------------------------------------------------------------

    def ask(
        self, method: str, build: Build, reply: type[T], kind: str = OTHER, repeat_s: float = 0.0
    ) -> asyncio.Future[T]:
        """Queue a request, to be sent when those before are answered. Fails with any error of the call."""
        return self._put(_Call(kind, method, build, reply, self._world.now(), self.epoch, repeat_s))

    def promise(self, request: m.NewEpochRequest) -> asyncio.Future[m.NewEpochReply]:
        call = self.ask("new_epoch", lambda stamp: request, m.NewEpochReply)
        call.add_done_callback(self._promised)
        return call

    def start_segment(self, start: int, before: int) -> asyncio.Future[m.Done]:
        self._gap = False
        token = self._carried = self._token
        call = self.ask(
            "start_segment",
            lambda stamp: m.StartSegment(stamp, start, before, token),
            m.Done,
            START,
        )
        call.add_done_callback(lambda call: self._started(call, start, token))
        return call

    def edits(self, segment: int, first: int, edits: Sequence[bytes], digest: int) -> asyncio.Future[m.Done]:
        """Queue edits. Fails at once if the queue is full; an empty queue takes a batch of any size."""
        if self.acked >= self._commits.txid:  # the node has all committed edits: a lag begins with these
            self._acked_since = self._world.now()
        size, options = sum(map(len, edits)), self._options
        batch = tuple(edits)
        call = _Call(
            EDITS,
            "journal",
            lambda stamp: m.JournalRequest(stamp, segment, first, batch, digest),
            m.Done,
            self._world.now(),
            self.epoch,
        )
        call.bytes, call.txns, call.last = size, len(batch), first + len(batch) - 1
        limit = ""
        if self.queue_txns:
            if self.queue_bytes + size > options.queue_bytes_max:
                limit = "queue_bytes_max"
            elif self.queue_txns + len(batch) > options.queue_txns_max:
                limit = "queue_txns_max"
        if limit or self._gap:
            behind = self._too_far_behind(limit)
            if not self.left_out:
                self._leave_out(behind)
            self._gap = True
            call.answer.set_exception(behind)
            return call.answer
        if self._closed is None:
            self.queue_bytes += size
            self.queue_txns += len(batch)
        return self._put(call)

    def finalize(self, start: int, end: int, digest: int) -> asyncio.Future[m.Done]:
        self._segment = None
        return self.ask(
            "finalize", lambda stamp: m.FinalizeRequest(stamp, start, end, digest), m.Done, FINALIZE
        )

    def send_heartbeat(self) -> None:
        """Send a heartbeat if the node is idle, and is left out, lacks the committed txid, or was silent."""
        quiet = self.left_out or self._world.now() - self._last_contact >= self._options.quiet_s
        if not self._queue and (self._known_committed < self._commits.txid or quiet) and self._due():
            self._heartbeat_at = self._world.now()
            call = self.ask("journal_heartbeat", m.Heartbeat, m.HeartbeatAnswer)
            call.add_done_callback(self._heartbeat_answered)

    @property
    def left_out(self) -> bool:
        return self.out_of_sync or self._gap

    @property
    def is_back(self) -> bool:
        """Whether the node is left out, and has answered since. A node with a full disk cannot answer."""
        return self.left_out and not (self._queue or self.rejoins) and self._last_contact > self._left_at

    @property
    def rejoins(self) -> bool:
        """Whether the node lost its directory and, as far as this writer knows, started no segment since."""
        return self._token not in ("", self._joined)

    @property
    def lost(self) -> bool:
        """Whether the node has lost its directory and was not asked to start a segment since."""
        return self._token not in ("", self._carried)

    def status(self) -> ChannelStatus:
        lag = max(0, self._commits.txid - self.acked)
        behind_s = max(0.0, self._commits.at - self._acked_since) if lag else 0.0
        return ChannelStatus(
            node=self.node,
            out_of_sync=self.left_out,
            acked=self.acked,
            lag_txns=lag,
            lag_ms=behind_s * 1000,
            queue_txns=self.queue_txns,
            queue_bytes=self.queue_bytes,
            rpc_ms=self.rpc_s.percentiles(),
            end_to_end_ms=self.end_to_end_s.percentiles(),
            error=self._why if self.left_out else "",
        )

    def close(self, error: EblaError) -> None:
        """Send no more requests; the one under way may still arrive."""
        self._closed = error
        self._draining.cancel()
        while self._queue:
            self._settle(self._queue.popleft(), error)

    # -- carrying it out -------------------------------------------------------------------------------------

    def _put(self, call: _Call) -> asyncio.Future[Any]:
        if self._closed is not None:
            call.answer.set_exception(self._closed)
            return call.answer
        self._queue.append(call)
        self._wake.set()
        return call.answer

    async def _drain(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                call = self._queue[0]
                if self._refuses(call):
                    while self._queue and self._refuses(self._queue[0]):
                        self._leave(self._queue[0], self._left_out())
                    await self._heartbeat()
                    continue
                try:
                    answer = await self._answer(call)
                except EblaError as error:
                    if isinstance(error, JournalBroken):
                        self.broken = error
                    if not self._can_try_again(error):
                        if call.kind in (EDITS, START):
                            self._leave_out(error)
                        if call.kind == EDITS:
                            self.out_of_sync = True
                    self._leave(call, error)
                else:
                    self._took(call)
                    self._leave(call, answer)

    def _can_try_again(self, error: EblaError) -> bool:
        """Whether the only node has certainly written nothing, so that a retry is safe: see writer.py."""
        return isinstance(error, DiskFull) and len(self._options.nodes) == 1

    def _refuses(self, call: _Call) -> bool:
        """Whether not to send a request.

        Edits that were queued before a gap are still sent, but the node can no longer finalize the segment.
        """
        if call.kind == EDITS:
            return self.out_of_sync
        return call.kind == FINALIZE and self.left_out

    async def _answer(self, call: _Call) -> Any:
        """Send a request; repeat it if its time runs out without an answer, which may be lost."""
        until, timeout_s = self._world.now() + call.repeat_s, self._options.write_timeout_s
        while True:
            began = self._world.now()
            try:
                return await self._send(call)
            except OutcomeUnknown:
                node_is_gone = self._world.now() - began < timeout_s / 2
                if node_is_gone or self._world.now() + timeout_s > until:
                    raise

    async def _send(self, call: _Call) -> Any:
        self._serial += 1
        committed = self._commits.txid
        # What is not committed may have been dropped since, by a recovery of which this writer does not know.
        acknowledged = min(self._wrote, committed)
        stamp = m.Stamp(self._options.journal, call.epoch, self._serial, committed, acknowledged)
        began = self._world.now()
        timeout_s = self._options.write_timeout_s
        try:
            answer = await self._world.network.call(
                self.node, call.method, call.build(stamp), call.reply, timeout_s
            )
        except StaleEpoch as error:
            self.promised = max(self.promised, error.promised or 0)
            self._last_contact = self._world.now()
            raise
        self._known_committed = max(self._known_committed, committed if call.epoch else 0)
        self._last_contact = self._world.now()
        if call.kind == EDITS:
            self.rpc_s.add(self._world.now() - began)
            self.end_to_end_s.add(self._world.now() - call.since)
        return answer

    def _took(self, call: _Call) -> None:
        if call.kind == START:
            self.out_of_sync = False
            self._why = ""
        elif call.kind == EDITS:
            self.acked = self._wrote = call.last
            self._acked_since = call.since

    def _leave_out(self, error: EblaError) -> None:
        """Leave the node out. Keep the first error: OutOfSync of a later request only follows from it."""
        self._left_at = self._world.now()
        if not (self._why and isinstance(error, OutOfSync)):
            self._why = f"{type(error).__name__}: {error}"

    def _leave(self, call: _Call, outcome: Any) -> None:
        if self._queue and self._queue[0] is call:
            self._queue.popleft()
            self._settle(call, outcome)

    def _settle(self, call: _Call, outcome: Any) -> None:
        self.queue_bytes -= call.bytes
        self.queue_txns -= call.txns
        if call.answer.done():
            return
        if isinstance(outcome, EblaError):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)

    async def _heartbeat(self) -> None:
        """Send the committed txid to a node that is left out."""
        if not self._due():
            return
        self._heartbeat_at = self._world.now()
        call = _Call(
            OTHER, "journal_heartbeat", m.Heartbeat, m.HeartbeatAnswer, self._world.now(), self.epoch
        )
        try:
            self._token = (await self._send(call)).token
        except EblaError:
            return  # the node is already left out, and the next heartbeat follows

    def _heartbeat_answered(self, call: asyncio.Future[m.HeartbeatAnswer]) -> None:
        if call.cancelled():
            return
        error = call.exception()
        if isinstance(error, StaleEpoch) and not self.left_out:
            self._leave_out(error)
            self.out_of_sync = True
        if error is not None:
            return
        answer = call.result()
        self._token = answer.token
        if not (self.left_out or self.rejoins) and self._segment not in (None, answer.segment):
            self._leave_out(self._restarted())
            self.out_of_sync = True

    def _promised(self, call: asyncio.Future[m.NewEpochReply]) -> None:
        if not call.cancelled() and call.exception() is None:
            last = call.result().last
            self.acked = last.end if last is not None else 0

    def _started(self, call: asyncio.Future[m.Done], start: int, token: str) -> None:
        if not call.cancelled() and call.exception() is None:
            self._segment = start
            self._joined = token

    def _due(self) -> bool:
        return self._world.now() - self._heartbeat_at >= self._options.heartbeat_s

    def _left_out(self) -> OutOfSync:
        name = self._options.journal.name
        return OutOfSync(f"{self.node} is left out of journal {name} until the next segment", journal=name)

    def _restarted(self) -> OutOfSync:
        name = self._options.journal.name
        why = f"{self.node} was started again, and takes no more of this segment of journal {name}"
        return OutOfSync(why, journal=name)

    def _too_far_behind(self, limit: str) -> TooFarBehind:
        name = self._options.journal.name
        return TooFarBehind(
            f"{self.node} is too far behind in journal {name}: {self.queue_txns} edits, {self.queue_bytes} bytes wait "
            "for it; it is left out until the next segment",
            journal=name,
            limit=limit or None,
        )
