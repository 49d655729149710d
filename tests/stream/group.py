"""A group in memory: real cores; a network, disks and clocks that the test controls.

Events happen only in `run(seconds)`, which carries out all due events in order of virtual time, and in `settle()`,
which carries out only messages and disk writes under way, and no timer. Faults of the model:

    network   messages and answers are lost, delayed, doubled and reordered; each direction can be cut
    disk      a commit takes time; a crash loses a suffix of the commits under way
    process   pauses (events wait, in order), crashes (memory is lost), clocks with another rate and origin
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from ebla.actors.messages.protocols import Answer, Request
from ebla.actors.replication.configuration import Configuration
from ebla.storage.logs.entries import Entry
from tests.stream.invariants import Oracle
from tests.stream.node import Call, Node

N = TypeVar("N", bound=Node[Any])

EVENTS_MAX = 200_000  # per run; more is a livelock
CALL_TIMEOUT_S = 1.0


@dataclass
class Network:
    """Decides how long a message takes, and how many copies of it arrive."""

    random: Random
    latency_s: float = 0.005
    jitter_s: float = 0.0
    loss: float = 0.0
    twice: float = 0.0
    cut: dict[tuple[str, str], None] = field(default_factory=dict)
    lost: dict[tuple[str, str], int] = field(default_factory=dict)  # so many more messages are lost

    def delays(self, source: str, target: str) -> list[float]:
        """Return one delay for each copy that arrives."""
        if self.lost.get((source, target), 0) > 0:
            self.lost[source, target] -= 1
            return []
        if (source, target) in self.cut:
            return []
        if not (self.loss or self.twice or self.jitter_s):
            return [self.latency_s]
        copies = 0 if self.random.random() < self.loss else 1 + (self.random.random() < self.twice)
        return [self.latency_s + self.random.random() ** 4 * self.jitter_s for _ in range(copies)]


class Group(ABC, Generic[N]):
    """The servers of one tablet. `initial`: the configuration at creation; `spares`: servers outside of it."""

    oracle: Oracle

    def __init__(self, initial: Configuration, *, spares: str = "", seed: int = 0) -> None:
        self.random = Random(seed)
        self.network = Network(self.random)
        self.patient = False  # no timer starts a campaign
        self.ends_are_seen = False  # by another process of the host, which reports them
        self.now = 0.0
        self.transcript: list[tuple[float, str]] = []
        self.trace: Callable[[str, str, Request | Answer], None] | None = None
        self._queue: list[tuple[float, int, str, Callable[[], None]]] = []
        self._sequence = 0
        self.prepare()
        names = [peer.uuid for peer in initial.peers] + list(spares)
        self.nodes = {name: self.make_node(name, initial) for name in names}
        for node in self.nodes.values():
            node.start()

    @abstractmethod
    def prepare(self) -> None:
        """Make what the nodes need."""

    @abstractmethod
    def make_node(self, name: str, initial: Configuration) -> N: ...

    def arrive(
        self, call: Call, node: N, source: str, request: Request, respond: Callable[[Answer], None]
    ) -> None:
        node.receive(source, request, respond)

    # -- time

    def after(self, delay_s: float, kind: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._sequence, kind, action))

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Carry out all events due within `seconds`; return True as soon as `until` holds."""
        end = self.now + seconds
        for _ in range(EVENTS_MAX):
            if until():
                return True
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                return until()
            self._step()
        raise AssertionError(f"more than {EVENTS_MAX} events in {seconds} s: a livelock")

    def settle(self) -> None:
        """Carry out all messages and disk writes under way, and no timer."""
        later = []
        for _ in range(EVENTS_MAX):
            if not any(kind in ("network", "disk") for _, _, kind, _ in self._queue):
                break
            if self._queue[0][2] in ("network", "disk"):
                self._step()
            else:
                later.append(heapq.heappop(self._queue))
        else:
            raise AssertionError("the group does not settle")
        for item in later:
            heapq.heappush(self._queue, item)

    def _step(self) -> None:
        at, _, _, action = heapq.heappop(self._queue)
        self.now = max(self.now, at)
        action()

    # -- network

    def deliver(self, call: Call, source: str, target: str, request: Request) -> None:
        if self.trace:
            self.trace(source, target, request)
        node = self.nodes[target]

        def respond(answer: Answer) -> None:
            if self.trace:
                self.trace(target, source, answer)
            process = node.instance
            for delay in self.network.delays(target, source):
                self.after(delay, "network", lambda: call.finish(answer, process=process))

        def arrive() -> None:
            if not node.alive:
                self.after(self.network.latency_s, "network", lambda: call.finish(None, False))
            elif node.paused:
                incarnation = node.incarnation
                node._inbox.append(lambda: arrive() if incarnation == node.incarnation else None)
            else:
                self.arrive(call, node, source, request, respond)

        for delay in self.network.delays(source, target):
            self.after(delay, "network", arrive)
        self.after(CALL_TIMEOUT_S, "timeout", lambda: call.finish(None, None))

    def lose(self, source: str, target: str, count: str = "1") -> None:
        self.network.lost[source, target] = int(count)

    def cut(self, one: str, other: str) -> None:
        self.network.cut[one, other] = self.network.cut[other, one] = None

    def isolate(self, name: str) -> None:
        for other in self.nodes:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        self.network.cut.clear()

    # -- views and shortcuts

    def record(self, what: str) -> None:
        self.transcript.append((self.now, what))

    def leaders(self) -> list[N]:
        return [node for node in self.nodes.values() if node.core is not None and node.core.role == "leader"]

    def leader(self) -> N:
        """Return the leader of the highest term."""
        found = self.leaders()
        assert found, "there is no leader"
        return max(found, key=lambda node: node.running().term)

    def propose(self, name: str, payload: bytes = b"x") -> Entry:
        node = self.nodes[name]
        entry = node.propose(payload)
        node.absorb()
        return entry
