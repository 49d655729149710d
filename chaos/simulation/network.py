"""A network between simulated roles: seeded delays, cuts, losses, and the two failures a caller can see.

Requests and answers travel as bytes: nodes share no objects, and every message is proven encodable. The outcome of a call:

    unknown address                  NotDelivered
    the role's node is down          NotDelivered or OutcomeUnknown, at random, soon
    the node dies with the request   OutcomeUnknown, soon
    request or answer lost or late   OutcomeUnknown, at the caller's timeout; a late request still runs

Single messages of an envelope between servers may fail while the rest of the envelope travels normally (`parts`):

    lose_parts     the request or its answer is lost: the sender gets `not_running` for this tablet
    repeat_parts   the request arrives a second time, in an envelope of its own, up to PART_LATE_S later
    delay_parts    the request travels in an envelope of its own, up to PART_LATE_S longer; the answers wait for it

The processes of one host may see each other end (`Neighbours` in actors/world.py).

A name in `cut` and `isolate` is an address (`master/host-a`) or a host (`host-a`, every role on it).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ebla.actors.errors import NetworkError, NotDelivered, OutcomeUnknown
from ebla.actors.messages.peers import Envelope, EnvelopeReply
from ebla.actors.messages.protocols import Answer
from ebla.actors.replication.health import NOT_RUNNING
from ebla.actors.world import ERROR, Dispatcher, decode_answer, encode
from ebla.chaos.plans import PARTS
from ebla.chaos.simulation.loop import Domain, SimulatedLoop

Request = TypeVar("Request")
Reply = TypeVar("Reply")

LATENCY_S = (0.0002, 0.002)  # one way, same data centre
SLOW_S = 0.05  # a message sometimes meets a full queue
SLOW_PROBABILITY = 0.01
LOSE_PARTS, REPEAT_PARTS, DELAY_PARTS = PARTS
PART_LATE_S = 1.0
END_SEEN = 0.7  # of all ends: the host may be lost as a whole, or the other process have just begun
END_SEEN_LATE_S = (0.0001, 0.05)


@dataclass
class Endpoint:
    """A role on the network, and the calls that it has received and not answered."""

    address: str
    domain: Domain
    dispatcher: Dispatcher
    received: dict[Exchange, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Exchange:
    """One call under way; `digest` is that of its data, `title` its name in a story."""

    title: str
    sender: str
    address: str
    method: str
    data: bytes
    digest: int
    answer: asyncio.Future[bytes]


class SimulatedNetwork:
    """All links of the cluster. The probabilities may be changed at any time."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.random = loop.derive("network")
        self.latency_s = LATENCY_S
        self.slow_probability = SLOW_PROBABILITY
        self.slow_s = SLOW_S
        self.drop_probability = 0.0
        self.repeat_probability = 0.0
        self.parts: dict[str, float] = {}  # by fault of PARTS: the share of messages
        self._endpoints: dict[str, Endpoint] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._isolated: dict[str, None] = {}
        self._connected: dict[tuple[str, str], bool] = {}  # a cache, cleared by every cut and mend
        self._exchanges = 0
        self.seen: Counter[str] = Counter()  # messages that were stopped, lost, repeated or late, by fault
        self.carried_out: Counter[str] = Counter()  # calls that a role answered without an error, by method
        self._taps: dict[str, list[Callable[[bytes], None]]] = {}  # by method

    # -- faults ----------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Stop all messages from `a` to `b`, and back unless `one_way`."""
        self._cuts[a, b] = None
        if not one_way:
            self._cuts[b, a] = None
        self._connected.clear()

    def mend(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Undo `cut(a, b)`, both ways unless `one_way`."""
        self._cuts.pop((a, b), None)
        if not one_way:
            self._cuts.pop((b, a), None)
        self._connected.clear()

    def isolate(self, name: str) -> None:
        self._isolated[name] = None
        self._connected.clear()

    def rejoin(self, name: str) -> None:
        self._isolated.pop(name, None)
        self._connected.clear()

    def heal(self) -> None:
        self._cuts.clear()
        self._isolated.clear()
        self._connected.clear()

    def connected(self, sender: str, receiver: str) -> bool:
        if not self._cuts and not self._isolated:
            return True
        known = self._connected.get((sender, receiver))
        if known is None:
            known = self._connected[sender, receiver] = self._find_connected(sender, receiver)
        return known

    def _find_connected(self, sender: str, receiver: str) -> bool:
        senders, receivers = _names(sender), _names(receiver)
        if any((a, b) in self._cuts for a in senders for b in receivers):
            return False
        return not any((name in senders) != (name in receivers) for name in self._isolated)

    def _stopped(self, sender: str, receiver: str) -> None:
        """Count the message for each cut and isolation that stops it."""
        senders, receivers = _names(sender), _names(receiver)
        for a, b in self._cuts:
            self.seen[f"cut {a} {b}"] += a in senders and b in receivers
        for name in self._isolated:
            self.seen[f"isolate {name}"] += (name in senders) != (name in receivers)

    # -- endpoints -------------------------------------------------------------------------------------------

    def register(self, address: str, domain: Domain, dispatcher: Dispatcher) -> None:
        self._endpoints[address] = Endpoint(address, domain, dispatcher)

    def unregister(self, address: str) -> None:
        """Remove the address: later calls are NotDelivered."""
        self.died(address)
        self._endpoints.pop(address, None)

    def died(self, address: str) -> None:
        """Fail the calls that the node has received, a little later: the node has died."""
        endpoint = self._endpoints.get(address)
        for exchange in endpoint.received if endpoint else ():
            lost = OutcomeUnknown(f"{address} died with the request {exchange.method}", address=address)
            self._later(self._fail, exchange, lost)
        if endpoint:
            endpoint.received = {}

    def tap(self, method: str, kind: type[Request], observe: Callable[[Request], None]) -> None:
        """Call `observe` with the request of every call of the method, decoded as this kind, when it is made."""
        decode = msgspec.msgpack.Decoder(kind).decode
        self._taps.setdefault(method, []).append(lambda data: observe(decode(data)))

    # -- calls -----------------------------------------------------------------------------------------------

    async def call(
        self,
        sender: str,
        address: str,
        method: str,
        message: msgspec.Struct,
        reply: type[Reply],
        timeout_s: float,
        late_s: float | None = None,
    ) -> Reply:
        """`late_s`: how much longer than others a part of an envelope travels; None for a whole message."""
        if late_s is None and self.parts and isinstance(message, Envelope):
            return await _carry_parts(self, sender, address, message, timeout_s)  # type: ignore[return-value]
        exchange = self.send(sender, address, method, message, late_s or 0.0)
        timer = self.loop.call_later(timeout_s, self._time_out, exchange, timeout_s)
        try:
            return decode_answer(await exchange.answer, reply)
        finally:
            timer.cancel()

    def send(
        self, sender: str, address: str, method: str, message: msgspec.Struct, late_s: float = 0.0
    ) -> Exchange:
        """Let a request travel, for `late_s` longer than others."""
        self._exchanges += 1
        answer: asyncio.Future[bytes] = self.loop.create_future()
        data = encode(message)
        for observe in self._taps.get(method, ()):
            observe(data)
        title = f"{self._exchanges} {sender} {address} {method}"
        exchange = Exchange(title, sender, address, method, data, zlib.crc32(data), answer)
        self._trace("call", exchange, exchange.digest)
        repeated = self.random.random() < self.repeat_probability
        self._travel(sender, address, self._arrive, exchange, late_s=late_s)
        if repeated:
            self.seen["repeat"] += 1
            self._travel(sender, address, self._arrive, exchange, late_s=late_s)
        return exchange

    def _arrive(self, exchange: Exchange) -> None:
        address = exchange.address
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            self._later(self._fail, exchange, NotDelivered(f"there is no role {address}", address=address))
        elif not endpoint.domain.alive:
            kind = NotDelivered if self.random.random() < 0.5 else OutcomeUnknown
            self._later(self._fail, exchange, kind(f"{address} is down", address=address))
        else:
            self._trace("arrive", exchange, exchange.digest)
            endpoint.received[exchange] = None
            endpoint.domain.context.run(self.loop.create_task, self._serve(endpoint, exchange))

    async def _serve(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Answer the call. Runs in the node's domain, and so ends when the node does."""
        data = await endpoint.dispatcher.answer(exchange.method, exchange.data)
        if endpoint.domain.alive:
            endpoint.received.pop(exchange, None)
            self.carried_out[exchange.method] += data[:1] != ERROR
            self._trace("answer", exchange, zlib.crc32(data))
            self._travel(exchange.address, exchange.sender, self._answered, exchange, data)

    def _answered(self, exchange: Exchange, data: bytes) -> None:
        if not exchange.answer.done():
            exchange.answer.set_result(data)

    def _time_out(self, exchange: Exchange, timeout_s: float) -> None:
        what = f"no answer to {exchange.method} from {exchange.address} within {timeout_s} s"
        self._fail(exchange, OutcomeUnknown(what, address=exchange.address))

    def _fail(self, exchange: Exchange, error: NetworkError) -> None:
        if not exchange.answer.done():
            self._trace(type(error).__name__, exchange, 0)
            exchange.answer.set_exception(error)

    def _travel(
        self,
        sender: str,
        receiver: str,
        arrive: Callable[..., None],
        *arguments: object,
        late_s: float = 0.0,
    ) -> None:
        """Carry a message from `sender` to `receiver`. A cut at the departure or at the arrival stops it."""
        delay_s = self._delay_s() + late_s
        if self.random.random() < self.drop_probability:
            self.seen["lose"] += 1
        elif self.connected(sender, receiver):
            self.loop.call_later(delay_s, self._at_the_far_end, sender, receiver, arrive, arguments)
        else:
            self._stopped(sender, receiver)

    def _at_the_far_end(
        self, sender: str, receiver: str, arrive: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if self.connected(sender, receiver):
            arrive(*arguments)
        else:
            self._stopped(sender, receiver)

    def _later(self, act: Callable[..., None], *arguments: object) -> None:
        self.loop.call_later(self._delay_s(), act, *arguments)

    def _delay_s(self) -> float:
        chance = self.random.random
        low, high = self.latency_s
        if chance() < self.slow_probability:
            low, high = high, self.slow_s
            self.seen["delay"] += self.slow_probability > SLOW_PROBABILITY  # not those that are always late
        return low + (high - low) * chance()

    def _trace(self, what: str, exchange: Exchange, digest: int) -> None:
        self.loop.note(f"{what} {exchange.title} {digest}")


@dataclass(frozen=True)
class NodeNetwork:
    """The network as one node sees it: the `network` of its World."""

    network: SimulatedNetwork
    address: str

    def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Coroutine[Any, Any, Reply]:
        return self.network.call(self.address, address, method, message, reply, timeout_s)


def _names(address: str) -> tuple[str, str, str]:
    """The names by which faults select a node: its address, its host or number, and its kind (`client`, `master`)."""
    return address, address.rpartition("/")[2], address.partition("/")[0]


async def _carry_parts(
    network: SimulatedNetwork, sender: str, address: str, envelope: Envelope, timeout_s: float
) -> EnvelopeReply:
    """Send an envelope, draw what happens to each of its messages, and return one answer to all of them."""

    def late_s() -> float:
        return network.random.uniform(0.0, PART_LATE_S)

    async def call(places: Sequence[int], after_s: float) -> EnvelopeReply:
        part = _only(envelope, places)
        return await network.call(sender, address, "replicate", part, EnvelopeReply, timeout_s, after_s)

    fates = [_fate(network) for _ in envelope.requests]
    lost = [place for place, fate in enumerate(fates) if fate == LOSE_PARTS]
    unseen = [place for place in lost if network.random.random() < 0.5]  # of the others the answer is lost
    late = [place for place, fate in enumerate(fates) if fate == DELAY_PARTS]
    for place in (place for place, fate in enumerate(fates) if fate == REPEAT_PARTS):
        network.send(sender, address, "replicate", _only(envelope, [place]), late_s()).answer.cancel()
    there = [place for place in range(len(fates)) if place not in unseen and place not in late]
    groups = [(there, 0.0), *(([place], late_s()) for place in late)]
    replies = await asyncio.gather(*(call(*group) for group in groups))
    outcomes: dict[int, tuple[Answer | None, str | None]] = {}
    for (places, _), reply in zip(groups, replies, strict=True):
        found = zip(reply.answers, reply.refusals, strict=True)
        outcomes.update(zip(places, found, strict=True))
    outcomes.update((place, (None, NOT_RUNNING)) for place in lost)
    answers, refusals = zip(*(outcomes[place] for place in range(len(fates))), strict=True)
    return EnvelopeReply(replies[0].source, answers, refusals)


def _fate(network: SimulatedNetwork) -> str:
    """The fault that hits a message, or ""."""
    for kind, share in network.parts.items():
        if network.random.random() < share:
            network.seen[kind] += 1
            return kind
    return ""


def _only(envelope: Envelope, places: Sequence[int]) -> Envelope:
    return replace(envelope, requests=tuple(envelope.requests[place] for place in places))


# -- the processes of one host -----------------------------------------------------------------------------


class SimulatedHosts:
    """`host_of`: the host of the process at an address. `seen`: the share of ends that another process sees."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._random = loop.derive("neighbours")
        self._waiting: dict[asyncio.Future[bytes], str] = {}  # with the address of the process that waits
        self.host_of: Callable[[str], str] = lambda address: address
        self.seen = END_SEEN

    def wait(self, address: str) -> asyncio.Future[bytes]:
        waiting = self._loop.create_future()
        self._waiting[waiting] = address
        waiting.add_done_callback(lambda _: self._waiting.pop(waiting, None))
        return waiting

    def ended(self, address: str, shown: bytes) -> None:
        self._waiting = {waiting: other for waiting, other in self._waiting.items() if other != address}
        for waiting, other in self._waiting.items() if shown else ():
            if self.host_of(other) == self.host_of(address) and self._random.random() < self.seen:
                self._loop.call_later(self._random.uniform(*END_SEEN_LATE_S), _settle, waiting, shown)


class SimulatedNeighbours:
    """Of the process at one address."""

    def __init__(self, hosts: SimulatedHosts, address: str) -> None:
        self._hosts = hosts
        self._address = address
        self._shown = b""

    def show(self, process: bytes) -> None:
        self._shown = process

    async def ended(self) -> bytes:
        return await self._hosts.wait(self._address)

    def end(self) -> None:
        """The process ends."""
        self._hosts.ended(self._address, self._shown)


def _settle(waiting: asyncio.Future[bytes], shown: bytes) -> None:
    if not waiting.done():
        waiting.set_result(shown)
