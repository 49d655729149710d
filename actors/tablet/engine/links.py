"""Links to other tablet servers: one message per peer server for all tablets, a few under way at a time.

A message is encoded when its envelope leaves, so a plan of a former leadership is dropped instead
of carrying another term's entries. A missing answer is reported to the core as a failure, and it
probes. If the server answers and the replica cannot, the core gets the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from ebla.actors import errors
from ebla.actors.messages.peers import Envelope, EnvelopeReply
from ebla.actors.messages.protocols import Request
from ebla.actors.replication.configuration import Peer
from ebla.actors.replication.health import DAMAGED, NOT_RUNNING, WRONG_SERVER
from ebla.actors.tablet.engine.core import LEADER, Plan, Send, Sent
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.world import World
from ebla.storage.errors import Corruption, EblaError, TooManyFiles

P = ParamSpec("P")
T = TypeVar("T")

IN_FLIGHT_MAX = 4  # envelopes with entries per peer server
# Envelopes of heartbeats and votes. They are sent separately, because an envelope is answered when
# its slowest part is synced, and a lease must not wait for a disk.
QUICK_IN_FLIGHT_MAX = 2
ENVELOPE_BYTES_MAX = 2 << 20
OUTBOX_MAX = 10_000  # messages waiting for one peer; beyond, the oldest are reported as failed
CALL_TIMEOUT_S = 3.0


class Step(Protocol):
    """Feeds an event to a replica: see Rounds.step."""

    def __call__(
        self, replica: Replica, event: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> T: ...


class Outgoing(NamedTuple):
    """A message for the peer's process `start`, as far as it was known when the message was made."""

    replica: Replica
    send: Send
    start: str


class Lane:
    """Messages of one kind: those without entries are answered at once, the others after a sync."""

    def __init__(self, in_flight_max: int) -> None:
        self.outbox: deque[Outgoing] = deque()
        self.in_flight = 0
        self.in_flight_max = in_flight_max


class Link:
    """The messages to one server (address and uuid), in any of its incarnations."""

    def __init__(self, world: World, identity: Identity, peer: Peer, step: Step) -> None:
        self.world = world
        self.identity = identity
        self.peer = peer
        self.step = step
        self.lanes = (Lane(QUICK_IN_FLIGHT_MAX), Lane(IN_FLIGHT_MAX))

    def post(self, replica: Replica, send: Send) -> None:
        assert send.peer == self.peer.uuid, ("a link leads to one server", send.peer, self.peer)
        plan = send.request
        lane = self.lanes[isinstance(plan, Plan) and plan.last >= plan.first]
        if len(lane.outbox) >= OUTBOX_MAX:
            self._failed(lane.outbox.popleft(), delivered=False)
        lane.outbox.append(Outgoing(replica, send, self._known_start()))

    def pump(self) -> None:
        """Send waiting messages, as far as the windows allow."""
        for lane in self.lanes:
            while lane.outbox and lane.in_flight < lane.in_flight_max:
                messages, requests = self._pack(lane)
                if messages:
                    lane.in_flight += 1
                    envelope = self.identity.envelope(self.peer.uuid, tuple(requests))
                    name = f"{self.identity.uuid} to {self.peer.address}"
                    self.world.spawn(self._exchange(lane, messages, envelope), name)

    def _known_start(self) -> str:
        return self.identity.others.known(self.peer.uuid).start

    def _pack(self, lane: Lane) -> tuple[list[Outgoing], list[tuple[str, Request]]]:
        messages: list[Outgoing] = []
        requests: list[tuple[str, Request]] = []
        size, start = 0, self._known_start()
        while lane.outbox and size < ENVELOPE_BYTES_MAX:
            outgoing = lane.outbox.popleft()
            made = None
            if outgoing.start == start:  # a later process must not take it for one that is meant for it
                made = outgoing.replica.explained(_materialise, outgoing)
            if made is None:
                self._failed(outgoing, delivered=False)
                continue
            request, entries_bytes = made
            size += entries_bytes
            messages.append(outgoing)
            requests.append((outgoing.replica.tablet, request))
        assert len(messages) == len(requests), ("each message has its request", len(messages), len(requests))
        return messages, requests

    async def _exchange(self, lane: Lane, messages: list[Outgoing], envelope: Envelope) -> None:
        at = self.world.now()  # before it leaves: the leader's lease counts from here
        try:
            reply = await self.world.network.call(
                self.peer.address, "replicate", envelope, EnvelopeReply, CALL_TIMEOUT_S
            )
        except EblaError as error:
            self.identity.failed(error)
            delivered = not isinstance(error, errors.NotDelivered)
            self._all_failed(messages, delivered=delivered, refusal=_refusal(error))
        else:
            if self.identity.answered(reply):
                self._deliver(messages, reply, at)
            else:
                self._all_failed(messages, delivered=True)
        finally:
            lane.in_flight -= 1
            assert 0 <= lane.in_flight < lane.in_flight_max, ("an envelope has a place", lane.in_flight)
        self.pump()

    def _deliver(self, messages: list[Outgoing], reply: EnvelopeReply, at: float) -> None:
        now = self.world.now()
        for outgoing, answer, refusal in zip(messages, reply.answers, reply.refusals, strict=True):
            replica, send, _ = outgoing
            if replica.state != RUNNING:
                continue
            if answer is None:
                self._failed(outgoing, delivered=True, refusal=refusal or DAMAGED)
                continue
            sent = Sent(at, send.request, reply.source)
            self.step(replica, replica.core.replied, now, send.peer, sent, answer)

    def _all_failed(self, messages: list[Outgoing], *, delivered: bool, refusal: str | None = None) -> None:
        for outgoing in messages:
            self._failed(outgoing, delivered=delivered, refusal=refusal)

    def _failed(self, outgoing: Outgoing, *, delivered: bool, refusal: str | None = None) -> None:
        replica, send, _ = outgoing
        if replica.state == RUNNING:
            now = self.world.now()
            sent = Sent(now, send.request)
            self.step(replica, replica.core.failed, now, send.peer, sent, delivered, refusal)


def _refusal(error: EblaError) -> str | None:
    """Why a server that answered with an error cannot answer for its replicas; None if the error
    means no more than a missing answer."""
    if isinstance(error, errors.WrongServer):
        return WRONG_SERVER
    return NOT_RUNNING if isinstance(error, errors.NotRunning) else None


def _materialise(outgoing: Outgoing) -> tuple[Request, int] | None:
    """The request and the bytes of its entries, or None if it is outdated, or cannot be read now."""
    replica, send, _ = outgoing
    plan = send.request
    if replica.state != RUNNING:
        return None
    if not isinstance(plan, Plan):
        return plan, 0
    core, log = replica.core, replica.log
    if core.term != plan.term or core.role != LEADER:
        return None
    entries = []
    assert plan.last <= log.last_index, (
        "a leader keeps the entries that it plans to send",
        plan,
        log.last_index,
    )
    if plan.last >= plan.first:
        if plan.first < log.first_index:
            return None  # the entries were dropped since: the core will find that the peer needs a copy
        try:
            entries = log.cached(plan.first, plan.last) or log.load(plan.first, plan.last)
        except TooManyFiles:
            return None
        except Corruption as error:
            replica.fail(error)
            return None
    return plan.request(core.me, entries), sum(len(entry.payload) for entry in entries)
