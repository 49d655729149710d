"""One replica's server in a simulated group: carries out a core's `Effects`, and keeps what survives a crash.

The disk is a sequence of commits. A crash loses a suffix of the commits under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ebla.actors import errors
from ebla.actors.messages import ServerInstance
from ebla.actors.messages.protocols import Answer, HardState, Request
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Effects, GroupCore, Pending, Plan, Send, Sent
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.storage.logs.entries import CONFIG, NO_OP, WRITE, Entry

if TYPE_CHECKING:
    from tests.stream.group import Group

REFUSALS = (errors.NotLeader, errors.Unavailable)

Core = TypeVar("Core", bound=GroupCore)


@dataclass
class Commit:
    """One write on its way to the disk. `since`: when it began to wait, by the server's clock."""

    number: int
    hard_state: HardState | None
    truncate_from: int | None
    entries: list[Entry]
    epoch: int
    since: float


@dataclass
class Disk:
    """What survives a crash."""

    hard_state: HardState
    entries: list[Entry] = field(default_factory=list)
    dropped: int = 0
    tombstone: tuple[int, int] | None = None  # index and term of a deleted replica's last entry

    def apply(self, commit: Commit) -> None:
        if commit.hard_state is not None:
            self.hard_state = commit.hard_state
        if commit.truncate_from is not None:
            del self.entries[commit.truncate_from - 1 :]
        for entry in commit.entries:
            assert entry.index == len(self.entries) + 1, (entry, len(self.entries))
            self.entries.append(entry)


class Call:
    """A request under way. Only its first outcome counts, and only in the incarnation that sent it."""

    def __init__(self, node: Node[Any], peer: str, sent: Sent) -> None:
        self.node, self.peer, self.sent = node, peer, sent
        self.incarnation = node.incarnation
        self.open = True

    def finish(
        self,
        answer: Answer | None,
        delivered: bool | None = None,
        refusal: str | None = None,
        process: ServerInstance | None = None,
    ) -> None:
        """`process`: that of the peer, which gave the answer."""
        if not self.open:
            return
        self.open = False
        node = self.node

        def deliver(core: GroupCore) -> None:
            if answer is not None:
                core.replied(node.clock(), self.peer, self.sent._replace(process=process), answer)
            else:
                core.failed(node.clock(), self.peer, self.sent, delivered, refusal)

        node.feed(self.incarnation, deliver)


def shown(active: Configuration) -> str:
    """The members, with the kind of each that is not a plain voter."""
    parts = []
    for peer in active.peers:
        kind = peer.kind.replace("_", "-") + (" to go" if peer.replace else "")
        parts.append(peer.uuid if kind == "voter" else f"{peer.uuid}({kind})")
    return " ".join(parts) + (f", forced {active.unsafe}" if active.unsafe else "")


class Node(ABC, Generic[Core]):
    def __init__(self, group: Group, name: str, initial: Configuration, first: HardState) -> None:
        self.group = group
        self.name = name
        self.initial = initial
        self.disk = Disk(first)
        self.disk_s = 0.001
        self.rate, self.origin = 1.0, 0.0
        self.core: Core | None = None
        self.entries: list[Entry] = []  # all entries from index 1 on; only the core drops entries
        self.incarnation = 0
        self.paused = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._commits: deque[Commit] = deque()
        self._commit_number = 0
        self._commits_done = 0
        self._hard_barrier = 0
        self._disk_free_at = 0.0
        self._fresh: list[Entry] = []  # entries that no commit has taken yet
        self._leaving: list[tuple[int, Callable[[], None]]] = []
        self._unanswered: list[tuple[Pending, Callable[[AppendReply], None]]] = []
        self._tick_version = 0

    # -- life

    def start(self, *, commit_index: int = 0) -> None:
        assert self.core is None
        self.entries = list(self.disk.entries)
        dropped = min(self.disk.dropped, commit_index)
        log = LogIndex(dropped, self.entries[dropped - 1].term if dropped else 0)
        for entry in self.entries[dropped:]:
            log.append(entry.term, len(entry.payload), entry.payload if entry.kind == CONFIG else None)
        configuration = self.group.oracle.committed_configuration(commit_index) or self.initial
        self.core = self.make_core(log, configuration, commit_index)
        self.absorb()

    @abstractmethod
    def make_core(self, log: LogIndex, configuration: Configuration, commit_index: int) -> Core: ...

    def answering(self, request: Request | None, answer: Answer) -> None:
        """Check an answer that leaves now, by the protocol's own promises."""

    def sending(self, send: Send) -> None:
        """Check a message that leaves now, by the protocol's own promises."""

    def crash(self, *, commits_kept: int = 0) -> None:
        was_alive = self.alive
        for _ in range(min(commits_kept, len(self._commits))):
            self.disk.apply(self._commits.popleft())
        self.core = None
        self.incarnation += 1
        self.paused = False
        for waiting in (self._inbox, self._commits, self._leaving, self._unanswered, self._fresh):
            waiting.clear()
        self._commits_done = self._commit_number
        self._disk_free_at = self.group.now
        if was_alive and self.group.ends_are_seen:
            self._report_end(self.incarnation)

    def _report_end(self, incarnation: int) -> None:
        """Another process of the host may see the end. While the server is down, no later process of it can have been met."""
        for other in self.group.nodes.values():
            for delay in self.group.network.delays(self.name, other.name) if other is not self else ():
                self.group.after(delay, "network", lambda other=other: self._reported(other, incarnation))

    def _reported(self, other: Node[Core], incarnation: int) -> None:
        if not self.alive and self.incarnation == incarnation:
            wait_s = self.group.random.choice([0.0, 0.2])
            other.feed(other.incarnation, lambda core: core.note_end(other.clock(), self.name, wait_s))

    @property
    def alive(self) -> bool:
        return self.core is not None

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        while self._inbox and not self.paused:
            self._inbox.popleft()()

    @property
    def instance(self) -> ServerInstance:
        return ServerInstance(self.name, self.incarnation + 1, f"start {self.incarnation}")

    def clock(self) -> float:
        return self.origin + self.group.now * self.rate

    def running(self) -> Core:
        assert self.core is not None, f"{self.name} is down"
        return self.core

    def feed(self, incarnation: int, event: Callable[[Core], None]) -> None:
        """Give the core an event, or keep the event until the process is resumed."""
        if incarnation != self.incarnation or self.core is None:
            return
        if self.paused:
            self._inbox.append(lambda: self.feed(incarnation, event))
            return
        event(self.core)
        self.absorb()

    # -- the duties of Effects

    def propose(self, payload: bytes) -> Entry:
        index, term = self.running().propose(self.clock(), WRITE, len(payload))
        return self._create(index, term, WRITE, payload)

    def receive(self, source: str, request: Request, respond: Callable[[Answer], None]) -> None:
        core = self.running()
        outcome = core.receive(self.clock(), source, request)
        self.absorb(request if isinstance(request, AppendRequest) else None)
        if isinstance(outcome, Pending):
            self._unanswered.append((outcome, respond))
            self._answer_pending()
        else:
            self._leave(lambda: self._respond(request, outcome, respond))

    def absorb(self, request: AppendRequest | None = None) -> None:
        """Carry out what the core has decided. No message leaves, and none is made, while a hard state is on its way to the disk: what
        it says later is newer (Replica.take_sends)."""
        core = self.running()
        for _ in range(16):
            self._realise(core.take(sends=False), request)
            wake = float("inf")  # a hard state that is durable is an event
            if self._hard_barrier > self._commits_done:
                break
            effects = core.take()
            self._realise(effects, request)
            for send in effects.sends:
                self._leave(lambda send=send: self._post(send))  # type: ignore[misc]
            wake = core.next_wake(self.clock())
            if not effects.sends or wake > self.clock():
                break
        # Time alone can only end leases, so a check of reads after every event is enough.
        self.group.oracle.observe(self)
        self.group.oracle.check_reads()
        self._schedule_tick(wake)

    def _realise(self, effects: Effects, request: AppendRequest | None) -> None:
        core = self.running()
        if effects.truncate_from is not None:
            self.group.record(f"{self.name} drops {effects.truncate_from}..{len(self.entries)}")
            del self.entries[effects.truncate_from - 1 :]
            self._fresh = [entry for entry in self._fresh if entry.index < effects.truncate_from]
        if effects.appended is not None:
            assert request is not None
            first, last = effects.appended
            new = [entry for entry in request.entries if first <= entry.index <= last]
            self.entries.extend(new)
            self._fresh.extend(new)
        if effects.became is not None:
            self.group.record(f"{self.name} becomes {effects.became} in term {core.term}")
        if effects.noop is not None:
            self._create(*effects.noop, NO_OP, b"")
        if effects.configured is not None:
            index, term, payload = effects.configured
            self._create(index, term, CONFIG, payload)
            self.group.record(f"{self.name} configures {shown(core.configuration)}")
        if effects.hard_state or effects.truncate_from or self._fresh:
            self._commit(effects.hard_state, effects.truncate_from, effects.log_epoch)

    def _create(self, index: int, term: int, kind: int, payload: bytes) -> Entry:
        entry = Entry(index, term, kind, 0, payload, 0)
        assert index == len(self.entries) + 1
        self.entries.append(entry)
        self._fresh.append(entry)
        return entry

    def _commit(self, hard_state: HardState | None, truncate_from: int | None, epoch: int) -> None:
        self._commit_number += 1
        fresh, self._fresh = self._fresh, []
        commit = Commit(self._commit_number, hard_state, truncate_from, fresh, epoch, self.clock())
        self._commits.append(commit)
        if hard_state is not None:
            self._hard_barrier = self._commit_number
        incarnation = self.incarnation
        self._disk_free_at = max(self.group.now, self._disk_free_at) + self.disk_s
        self.group.after(self._disk_free_at - self.group.now, "disk", lambda: self._committed(incarnation))

    def _committed(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        commit = self._commits.popleft()
        self.disk.apply(commit)

        def report(core: Core) -> None:
            self._commits_done = commit.number
            if commit.entries:
                last = commit.entries[-1]
                core.durable(last.index, last.term, commit.epoch)
            ready = [leave for barrier, leave in self._leaving if barrier <= self._commits_done]
            self._leaving = [item for item in self._leaving if item[0] > self._commits_done]
            for leave in ready:
                leave()
            self._answer_pending()

        self.feed(incarnation, report)

    def _leave(self, action: Callable[[], None]) -> None:
        """Carry out a send that must wait until the hard state is durable."""
        if self._hard_barrier <= self._commits_done:
            action()
        else:
            self._leaving.append((self._hard_barrier, action))

    def _answer_pending(self) -> None:
        core = self.running()
        waiting, self._unanswered = self._unanswered, []
        for pending, respond in waiting:
            if pending.until <= core.durable_index or pending.term != core.term:
                self._leave(lambda p=pending, r=respond: self._respond(None, core.answer(p), r))  # type: ignore[misc]
            else:
                self._unanswered.append((pending, respond))

    def _respond(self, request: Request | None, answer: Answer, respond: Callable[[Answer], None]) -> None:
        self.answering(request, answer)
        if isinstance(answer, AppendReply) and answer.success:
            self.group.oracle.acknowledged(self, answer.match)
        respond(answer)

    def _post(self, send: Send) -> None:
        self.sending(send)
        request: Request
        if isinstance(send.request, Plan):
            plan = send.request
            if self.core is None or self.core.term != plan.term or self.core.role != "leader":
                return
            request = plan.request(self.name, self.entries[plan.first - 1 : plan.last])
        else:
            request = send.request
        call = Call(self, send.peer, Sent(self.clock(), send.request))
        self.group.deliver(call, self.name, send.peer, request)

    def _schedule_tick(self, wake: float) -> None:
        core = self.running()
        self._tick_version += 1
        version, incarnation = self._tick_version, self.incarnation

        def tick() -> None:
            if version != self._tick_version:
                return
            if self.group.patient and core.role != "leader":
                self.group.after(0.01, "tick", tick)
                return
            self.feed(incarnation, lambda core: core.tick(self.clock()))

        if wake < float("inf"):
            wait = (wake - self.clock()) / self.rate
            self.group.after(max(0.0, wait) + 1e-9, "tick", tick)
