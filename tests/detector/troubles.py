"""Every history of several servers, with several masters one after the other, that has so many troubles at most.

explorer.py lets everything happen at any time, which one server with two messages under way bounds. Here a message arrives
at once and an edit is durable at once, unless a trouble prevents that, and the troubles are bounded instead:

    late        a message arrives at any later moment, or never
    doubled     a message arrives, and once more at any later moment, or never
    cut         until any later moment all beacons of a server are lost, or all that it should get
    slow        an edit is durable at any later moment
    restart     a later incarnation of a server begins; at any later moment, or never, the end of the former one is reported
    take-over   another master becomes active

The clock of server 0 is slow. In addition to what explorer.py checks, the end of one server changes nothing about another
one, and a server that no trouble of its own has hit has a lease and is not ended, whatever happens to the other servers and to
the masters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ebla.actors.detector import detector
from tests.detector.explorer import BEACON, Deployment, Message, Rules

MANY = 99
TO, FROM = "to", "from"  # the direction of a cut, as the server sees it


class Troubled(Deployment):
    """`fresh`: messages that arrive now. `left`: troubles that may still come. `hit`: the servers that had one. `slow`: edits
    wait. `to_order`: the primary gets an order now, if it has a lease. `wrong`: what the last step has broken."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(replace(rules, messages_max=MANY))
        self.left = rules.troubles
        self.fresh: tuple[Message, ...] = ()
        self.hit = (False,) * rules.servers
        self.cut: tuple[tuple[int, str], ...] = ()
        self.slow = self.to_order = False
        self.wrong = ""

    # -- what can happen

    def steps(self) -> Iterator[tuple[str, Deployment]]:
        if self.fresh:
            yield from self._fates(self.fresh[0])
        elif not self.slow and (ends := self.ends()):
            yield f"the end of {ends[0].uuid} is durable", self._then(Troubled._record, ends[0])
            if self.left:
                yield "edits are slow", self._then(Troubled._slow_down)
        elif self.to_order:
            yield "the primary is ordered", self._then(Troubled._order_now)
        else:
            yield from self._at_any_time()

    def ends(self) -> list[detector.End]:
        return self.detector.decide(self.now())  # as in explorer.py

    def _fates(self, message: Message) -> Iterator[tuple[str, Deployment]]:
        yield f"{message} arrives", self._then(Troubled._take, message)
        if self.left:
            yield f"{message} is late", self._then(Troubled._take, message, arrives=False, later=True)
            yield f"{message} is doubled", self._then(Troubled._take, message, later=True)

    def _at_any_time(self) -> Iterator[tuple[str, Deployment]]:
        yield "tick", self._then(Troubled._tick)
        for message in dict.fromkeys(self.messages):
            yield f"{message} arrives late", self._then(Troubled._arrive, message, keep=False)
        for end in self.ends():
            yield f"the end of {end.uuid} is durable", self._then(Troubled._record, end)
        for number, server in enumerate(self.servers):
            if server.incarnation == 2:
                yield (
                    f"the end of process 1 of {number} is reported",
                    self._then(Troubled._report_end, number),
                )
        for broken in self.cut:
            yield f"{broken} is whole", self._then(Troubled._heal, broken)
        if not self.left:
            return
        yield "another master", self._then(Troubled._take_over)
        for number, server in enumerate(self.servers):
            if server.incarnation == 1:
                yield f"restart of {number}", self._then(Troubled._restart, number)
            for way in (TO, FROM):
                if (number, way) not in self.cut:
                    yield f"cut {way} {number}", self._then(Troubled._sever, number, way)

    def _trouble(self, number: int | None = None) -> None:
        self.left -= 1
        if number is not None:
            self.hit = (*self.hit[:number], True, *self.hit[number + 1 :])

    def _send(self, message: Message) -> None:
        lost = (message.server, FROM if message.kind == BEACON else TO) in self.cut
        if not lost and self._matters(message):
            self.fresh = (*self.fresh, message)

    def _take(self, message: Message, *, arrives: bool = True, later: bool = False) -> None:
        self.fresh = self.fresh[1:]
        if later:
            self._trouble(message.server)
            self.messages = (*self.messages, message)
        if arrives:
            self._arrive(message, keep=True)

    def _tick(self) -> None:
        super()._tick()
        for number in range(len(self.servers)):
            self._beacon(number)
        self.to_order = True

    def _order_now(self) -> None:
        self.to_order = False
        if self.primary == len(self.servers):
            self.primary, self.ballot = self._with_a_lease(), self.ballot + 1
        if self.detector.lease(str(self.primary)) is not None:
            self._order()

    def _with_a_lease(self) -> int:
        """The first server that has a lease; behind the last one if there is none."""
        leased = (n for n in range(len(self.servers)) if self.detector.lease(str(n)) is not None)
        return next(leased, len(self.servers))

    def _successor(self) -> int:
        return self._with_a_lease()

    def _slow_down(self) -> None:
        self._trouble()
        self.slow = True

    def _record(self, end: detector.End) -> None:
        number = int(end.uuid)
        others = self._known_but(number)
        super()._record(end)
        self.slow, self.to_order = False, True
        if self._known_but(number) != others:
            self.wrong = f"the end of {number} touches another server"

    def _known_but(self, number: int) -> list[object]:
        """What the master knows of all other servers."""
        known = self.detector._servers.items()
        return [(uuid, each.state, each.heard_at, each.lease) for uuid, each in known if uuid != str(number)]

    def _restart(self, number: int) -> None:
        self._trouble(number)
        super()._restart(number)

    def _take_over(self) -> None:
        self._trouble()
        super()._take_over()
        self.slow, self.to_order = False, True

    def _sever(self, number: int, way: str) -> None:
        self._trouble(number)
        self.cut = tuple(sorted((*self.cut, (number, way))))

    def _heal(self, broken: tuple[int, str]) -> None:
        self.cut = tuple(each for each in self.cut if each != broken)

    # -- what must hold

    def problem(self) -> str | None:
        found = super().problem() or self.wrong
        begun = self.ticks > 1 or (self.ticks == 1 and not self.fresh)
        for number, server in enumerate(self.servers):
            if found or self.hit[number]:
                continue
            if self.detector._servers[str(number)].state != detector.ALIVE:
                found = f"the master ends server {number}, which no trouble has hit"
            elif begun and not server.lease.holds(self.now_at(number), server.lease.number):
                found = f"server {number} has no lease, although no trouble has hit it"
        return found or None

    def key(self) -> tuple[object, ...]:
        fresh = tuple(map(self._relative, self.fresh))
        started = min(self.ticks, 2)
        return (*super().key(), fresh, self.left, self.hit, self.cut, self.slow, self.to_order, started)
