"""A Raft group in memory: real cores; a network, disks and clocks that the test controls.

Events happen only in `run(seconds)`, which carries out all due events in order of virtual time, and in `settle()`,
which carries out only messages and disk writes under way, and no timer. Faults of the model:

    network   messages and answers are lost, delayed, doubled and reordered; each direction can be cut
    disk      a commit takes time; a crash loses a suffix of the commits under way
    process   pauses (events wait, in order), crashes (memory is lost), clocks with another rate and origin
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ebla.actors.messages.raft import Answer, HardState, Request
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.replication.health import TABLET_DELETED
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.storage.logs.entries import Entry
from tests.raft.invariants import Oracle
from tests.raft.node import Call, Node

EVENTS_MAX = 200_000  # per run; more is a livelock
CALL_TIMEOUT_S = 1.0


def configuration(voters: str, others: str = "") -> Configuration:
    """Voters and non-voters by their one-letter names."""
    peers = [Peer(name, f"host-{name}") for name in voters]
    return Configuration(tuple(peers + [Peer(name, f"host-{name}", "non_voter") for name in others]))


@dataclass
class Network:
    """Decides how long a message takes, and how many copies of it arrive."""

    random: Random
    latency_s: float = 0.005
    jitter_s: float = 0.0
    loss: float = 0.0
    twice: float = 0.0
    cut: dict[tuple[str, str], None] = field(default_factory=dict)

    def delays(self, source: str, target: str) -> list[float]:
        """Return one delay for each copy that arrives."""
        if (source, target) in self.cut:
            return []
        if not (self.loss or self.twice or self.jitter_s):
            return [self.latency_s]
        copies = 0 if self.random.random() < self.loss else 1 + (self.random.random() < self.twice)
        return [self.latency_s + self.random.random() ** 4 * self.jitter_s for _ in range(copies)]


class Group:
    def __init__(
        self,
        initial: Configuration,
        *,
        spares: str = "",
        seed: int = 0,
        limits: RaftLimits | None = None,
    ) -> None:
        self.random = Random(seed)
        self.limits = limits or RaftLimits()
        self.network = Network(self.random)
        self.tombstone_votes = 0
        self.patient = False  # no timer starts a campaign
        self.now = 0.0
        self.transcript: list[tuple[float, str]] = []
        self.trace: Callable[[str, str, Request | Answer], None] | None = None
        self.oracle = Oracle(self)
        self._queue: list[tuple[float, int, str, Callable[[], None]]] = []
        self._sequence = 0
        names = [peer.uuid for peer in initial.peers] + list(spares)
        self.nodes = {name: Node(self, name, initial) for name in names}
        for node in self.nodes.values():
            node.start()

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
            for delay in self.network.delays(target, source):
                self.after(delay, "network", lambda: call.finish(answer))

        def arrive() -> None:
            if not node.alive:
                self.after(self.network.latency_s, "network", lambda: call.finish(None, False))
            elif node.paused:
                incarnation = node.incarnation
                node._inbox.append(lambda: arrive() if incarnation == node.incarnation else None)
            elif node.tombstone is not None:
                if not node.receive_as_tombstone(request, respond):
                    for delay in self.network.delays(target, source):
                        self.after(delay, "network", lambda: call.finish(None, True, TABLET_DELETED))
            else:
                node.receive(source, request, respond)

        for delay in self.network.delays(source, target):
            self.after(delay, "network", arrive)
        self.after(CALL_TIMEOUT_S, "timeout", lambda: call.finish(None, None))

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

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None and node.core.role == "leader"]

    def leader(self) -> Node:
        """Return the leader of the highest term."""
        found = self.leaders()
        assert found, "there is no leader"
        return max(found, key=lambda node: node.running().term)

    def campaign(self, name: str) -> None:
        """Let the node's election timeout end now."""
        node = self.nodes[name]
        core = node.running()
        core.timer.deadline = node.clock()
        core.tick(node.clock())
        node.absorb()

    def propose(self, name: str, payload: bytes = b"x") -> Entry:
        node = self.nodes[name]
        entry = node.propose(payload)
        node.absorb()
        return entry

    def copy(self, source: Node, target: Node) -> None:
        """Copy a tablet in one step: the source's durable log replaces the target's, and term and vote are merged.
        A log that ends before the target's log did is refused: the target has acknowledged more."""
        if target.core is not None:
            target.delete()
        target.crash()
        core, disk = source.running(), target.disk
        ends = source.disk.entries[-1] if source.disk.entries else None
        assert disk.tombstone is not None
        if ends is None or (ends.term, ends.index) < disk.tombstone[::-1]:
            target.start()
            return
        disk.entries, disk.tombstone = list(source.disk.entries), None
        disk.dropped = core.log.dropped_index
        if source.disk.hard_state.term > disk.hard_state.term:
            disk.hard_state = HardState(source.disk.hard_state.term)
        target.start(commit_index=disk.dropped)
