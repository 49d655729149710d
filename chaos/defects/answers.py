"""What planted defects swap of the answers that tablets keep, of the log time by which they expire, and of who may refuse a write;
chaos/defects/planted_answers.py names them."""

from __future__ import annotations

from typing import Any

from ebla.actors.tablet.engine import replica
from ebla.actors.tablet.engine.log_time import LogTime
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.upkeep import maintenance
from ebla.chaos.defects.replication import Swap
from ebla.chaos.simulation.world import WALL_START_US
from ebla.storage.errors import EblaError
from ebla.storage.logs.entries import Entry, Position, chained
from ebla.storage.tablets.results import Answer, Results
from ebla.transport.router import Router
from ebla.transport.routes import Route


def take_log_time_from_the_wall_clock() -> list[Swap]:
    def next_us(self: LogTime, term: int, previous: Position) -> int:
        clock: Any = self._monotonic.__self__  # type: ignore[attr-defined]
        return max(previous.time_us, int(clock.wall_us()) - WALL_START_US)

    return [(LogTime, "next_us", next_us)]


def count_log_time_anew_in_each_term() -> list[Swap]:
    honest = LogTime.next_us

    def next_us(self: LogTime, term: int, previous: Position) -> int:
        before = Position(previous.index, previous.term, previous.chain, vars(self).get("own_us", 0))
        if term != self._term:
            before = Position(previous.index, previous.term, previous.chain, 0)
        vars(self)["own_us"] = honest(self, term, before)
        return int(vars(self)["own_us"])

    def make_entry(
        tablet: str, previous: Position, term: int, kind: int, time_us: int, payload: bytes
    ) -> Entry:
        index = previous.index + 1
        chain = chained(tablet, previous, index, term, kind, time_us, payload)
        return Entry(index, term, kind, time_us, payload, chain)

    return [(LogTime, "next_us", next_us), (replica, "make_entry", make_entry)]


def forget_refusals() -> list[Swap]:
    honest = Results.record

    def record(
        self: Results, client: bytes, sequence: int, first_incomplete: int, time_us: int, answer: Answer
    ) -> None:
        if answer.refusal is None:
            honest(self, client, sequence, first_incomplete, time_us, answer)

    return [(Results, "record", record)]


def end_writes_at_the_masters_word() -> list[Swap]:
    def fail(self: Router, route: Route, error: EblaError) -> None:
        for queue in route.queues:
            while queue:
                queue.popleft().fail(error)

    return [(Router, "_fail", fail)]


def expire_by_the_own_setting() -> list[Swap]:
    def expire(rounds: Rounds, replica: Replica, now: float, retention_us: int) -> None:
        replica.store.results.expire(replica.store.applied.time_us - retention_us)

    return [(maintenance, "expire", expire)]
