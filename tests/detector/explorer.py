"""Every history of a small deployment: servers that may restart, two masters that follow each other, a network that loses,
delays and doubles messages, and clocks of different speeds.

The explorer drives the real cores (`Lease`, `Detector`). A state is a whole deployment at one instant; a step is one event.
States that differ only in the time of day are the same state, so the search ends: it visits all that can happen with so
many messages under way at once. In every state at most one server serves the tablet, and only the one that the durable
catalog names as its primary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ebla.actors.detector import detector, lease
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.messages import ServerInstance

T = TypeVar("T")

LEASE_S, GRACE_S = 20, 25
BEACON, ANSWER, ORDER = "beacon", "answer", "order"


class Message(NamedTuple):
    """`sent`: the tick. `rest`: the ballot of an order."""

    kind: str
    server: int
    incarnation: int
    lease: int
    sent: int
    rest: int = 0


class Broken(AssertionError):
    """An invariant does not hold; `steps` led there."""

    def __init__(self, problem: str, steps: list[str]) -> None:
        super().__init__(f"{problem} after: {', '.join(steps)}")


@dataclass
class Server:
    """`order`: the last one that it followed, as (ballot, lease number); 0 for none. `ballot_max`: of all orders; durable."""

    lease: lease.Lease
    incarnation: int = 1
    order: tuple[int, int] = (0, 0)
    ballot_max: int = 0

    def serves(self, now: float) -> bool:
        return self.order[0] > 0 and self.lease.holds(now, self.order[1])


@dataclass(frozen=True)
class Rules:
    """What a search may do, and the parts under test. `tick_s`: how far the masters' clock goes in one step;
    `slow_tick_s`: the clock of server 0. Once the last server has ended, other servers have the tablet. `troubles`: see troubles.py."""

    tick_s: float = 10
    slow_tick_s: float = 10
    servers: int = 1
    messages_max: int = 2
    troubles: int = 0
    lease: type[lease.Lease] = lease.Lease
    detector: type[detector.Detector] = detector.Detector
    grace_s: float = GRACE_S

    @property
    def limits(self) -> DetectorLimits:
        return DetectorLimits(lease_s=LEASE_S, grace_s=self.grace_s, stable_s=1e-9)


def instance(number: int, incarnation: int) -> ServerInstance:
    return ServerInstance(str(number), incarnation, f"start {incarnation}")


def copy(one: T) -> T:
    """As copy.copy, which would take two thirds of a search."""
    made: T = object.__new__(type(one))
    made.__dict__.update(one.__dict__)
    return made


def copy_of(one: detector._Watched) -> detector._Watched:
    """As copy.copy, which would take a third of a search."""
    return detector._Watched(
        one.state,
        one.instance,
        one.heard_at,
        one.begun_at,
        one.met_at,
        one.lease,
        one.restarts,
        one.end,
        one.dead_at,
    )


class Deployment:
    """One state. `primary`, `ballot` and `recorded`, the incarnations: the durable catalog. `master`: the number of the active master."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ticks = 0
        self.servers = [Server(rules.lease(rules.limits)) for _ in range(rules.servers)]
        self.master = 1
        self.recorded = [instance(number, 1) for number in range(rules.servers)]
        self.detector = self._new_detector()
        self.primary, self.ballot = 0, 1
        self.messages: tuple[Message, ...] = ()

    def _new_detector(self) -> detector.Detector:
        servers = ((known.uuid, known) for known in self.recorded)
        return self.rules.detector(self.rules.limits, self.now(), servers)

    def now(self) -> float:
        return self.ticks * self.rules.tick_s

    def now_at(self, server: int) -> float:
        """The time by the clock of a server. Server 0 has the clock under test."""
        return self.ticks * self._tick_of(server)

    def _tick_of(self, server: int) -> float:
        return self.rules.slow_tick_s if server == 0 else self.rules.tick_s

    def copy(self) -> Deployment:
        made = copy(self)
        made.servers = [copy(server) for server in self.servers]
        for server in made.servers:
            server.lease = copy(server.lease)
        made.detector = copy(self.detector)
        made.detector._servers = {k: copy_of(v) for k, v in self.detector._servers.items()}
        return made

    # -- what can happen

    def steps(self) -> Iterator[tuple[str, Deployment]]:
        yield "tick", self._then(Deployment._tick)
        room = len(self.messages) < self.rules.messages_max
        for number in range(len(self.servers)):
            if room:
                yield f"beacon of {number}", self._then(Deployment._beacon, number)
            if self.servers[number].incarnation == 1:
                yield f"restart of {number}", self._then(Deployment._restart, number)
            else:
                yield (
                    f"the end of process 1 of {number} is reported",
                    self._then(Deployment._report_end, number),
                )
        for message in dict.fromkeys(self.messages):
            yield f"{message} arrives", self._then(Deployment._arrive, message, keep=False)
            yield (
                f"{message} arrives, and once more later",
                self._then(Deployment._arrive, message, keep=True),
            )
            yield f"{message} is lost", self._then(Deployment._lose, message)
        for end in self.detector.decide(
            self.now()
        ):  # this has no effect: each event has had it decide already
            yield f"the end of {end.uuid} is durable", self._then(Deployment._record, end)
        if room and self.primary < len(self.servers) and self.detector.lease(str(self.primary)) is not None:
            yield "an order", self._then(Deployment._order)
        if self.primary == len(self.servers) and self.detector.lease("0") is not None:
            yield "0 is the primary again", self._then(Deployment._give_back)
        if self.master == 1:
            yield "another master", self._then(Deployment._take_over)

    def _then(self, act: Callable[..., None], *arguments: object, **named: object) -> Deployment:
        made = self.copy()
        act(made, *arguments, **named)
        made.messages = tuple(message for message in made.messages if made._matters(message))
        return made

    def _matters(self, message: Message) -> bool:
        """Whether anyone may still take the message. The others leave room for more."""
        if message.kind == BEACON:
            return True  # it went to every master; one that was a standby then may be active when it arrives
        server = self.servers[message.server]
        if message.incarnation != server.incarnation or (
            message.kind == ORDER and message.rest <= server.ballot_max
        ):
            return False
        return message.lease == server.lease.number  # a lease ignores what names another one

    def _tick(self) -> None:
        self.ticks += 1
        self.detector.decide(self.now())

    def _beacon(self, number: int) -> None:
        server = self.servers[number]
        named = server.lease.beacon(self.now_at(number), log_stalled=False)
        assert named is not None
        self._send(Message(BEACON, number, server.incarnation, named, self.ticks, 0))

    def _send(self, message: Message) -> None:
        self.messages = (*self.messages, message)

    def _lose(self, message: Message) -> None:
        left = list(self.messages)
        left.remove(message)
        self.messages = tuple(left)

    def _arrive(self, message: Message, *, keep: bool) -> None:
        if not keep:
            self._lose(message)
        number, server = message.server, self.servers[message.server]
        now = self.now_at(number)
        if message.kind == BEACON:
            shown = instance(number, message.incarnation)
            answer = self.detector.beacon(self.now(), shown, message.lease)
            if answer == detector.ACKNOWLEDGED and len(self.messages) < self.rules.messages_max:
                self._send(message._replace(kind=ANSWER, rest=0))
        elif message.kind == ANSWER:
            server.lease.acknowledged(now, message.lease, message.sent * self._tick_of(number))
        elif server.lease.holds(now, message.lease):
            server.order, server.ballot_max = (message.rest, message.lease), message.rest

    def _order(self) -> None:
        known, named = (
            self.detector._servers[str(self.primary)].instance,
            self.detector.lease(str(self.primary)),
        )
        assert known is not None and named is not None
        self._send(Message(ORDER, self.primary, known.seqno, named.number, 0, self.ballot))

    def _restart(self, number: int) -> None:
        server = self.servers[number]
        server.lease = self.rules.lease(self.rules.limits)
        server.incarnation, server.order = 2, (0, 0)

    def _report_end(self, number: int) -> None:
        """Another process of the host has seen the first process of the server end."""
        self.detector.process_ended(self.now(), instance(number, 1))
        self.detector.decide(self.now())

    def _record(self, end: detector.End) -> None:
        """The edit of a server's end: the next server in line becomes the primary of a new ballot."""
        self.detector.decide(self.now())
        self.detector.ended(end)
        number = int(end.uuid)
        if end.instance is not None:
            self.recorded = [*self.recorded[:number], end.instance, *self.recorded[number + 1 :]]
        if number == self.primary:
            self.primary, self.ballot = self._successor(), self.ballot + 1

    def _successor(self) -> int:
        return self.primary + 1

    def _give_back(self) -> None:
        self.primary, self.ballot = 0, self.ballot + 1

    def _take_over(self) -> None:
        self.master = 2
        self.detector = self._new_detector()
        self.detector.decide(self.now())

    # -- what must hold

    def problem(self) -> str | None:
        serving = [n for n, server in enumerate(self.servers) if server.serves(self.now_at(n))]
        if len(serving) > 1:
            return f"servers {serving} serve at once"
        if serving and serving != [self.primary]:
            return f"server {serving[0]} serves, and {self.primary} is the primary by the catalog"
        return None

    def key(self) -> tuple[object, ...]:
        """The state without the time of day and without what can make no difference any more."""
        now, base = self.now(), self.ballot
        servers = []
        for number, server in enumerate(self.servers):
            left = max(server.lease.until - self.now_at(number), 0)
            under = server.order[1] == server.lease.number, max(server.order[0] - base, -2)
            servers.append((left, server.lease._begun, server.incarnation, under, server.ballot_max == base))
        watched = [
            (
                each.state,
                each.instance and each.instance.seqno,
                min(now - each.heard_at, GRACE_S) if each.state == detector.ALIVE else 0,
                each.lease == self.servers[int(uuid)].lease.number,
                each.end,
                each.dead_at is not None,
            )
            for uuid, each in self.detector._servers.items()
        ]
        messages = sorted(map(self._relative, self.messages))
        recorded = tuple(known.seqno for known in self.recorded)
        return tuple(servers), tuple(watched), tuple(messages), self.master, self.primary, recorded

    def _relative(self, message: Message) -> tuple[object, ...]:
        server = self.servers[message.server]
        current = (message.incarnation, message.lease) == (server.incarnation, server.lease.number)
        age = min(self.ticks - message.sent, LEASE_S // self.rules.slow_tick_s + 1)
        last = max(message.rest - self.ballot, -2) if message.kind == ORDER else age
        return message.kind, message.server, message.incarnation, current, last


def explore(first: Deployment) -> int:
    """Visit every state after the first one, breadth first, and return how many there are. Raises Broken, with the shortest way there."""
    came_from: dict[tuple[object, ...], tuple[tuple[object, ...] | None, str]] = {first.key(): (None, "")}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        key = state.key()
        for name, after in state.steps():
            found = after.key()
            if found in came_from:
                continue
            came_from[found] = (key, name)
            problem = after.problem()
            if problem is not None:
                raise Broken(problem, _way(came_from, found))
            queue.append(after)
    return len(came_from)


def _way(
    came_from: dict[tuple[object, ...], tuple[tuple[object, ...] | None, str]], end: tuple[object, ...]
) -> list[str]:
    steps: list[str] = []
    at: tuple[object, ...] | None = end
    while at is not None:
        at, name = came_from[at]
        steps.append(name)
    return [name for name in reversed(steps) if name]
