"""Defects of stored answers, of the log time by which they expire, and of refusals."""

from __future__ import annotations

from typing import Any

from ebla.actors.messages import WriteResult
from ebla.actors.tablet.engine import replica
from ebla.actors.tablet.engine.apply import Rows
from ebla.actors.tablet.engine.log_time import LogTime
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.upkeep.maintenance import Maintenance
from ebla.chaos.defects.defect import LATE_COPIES, LATE_DUPLICATES, Swap, defect
from ebla.chaos.simulation.world import WALL_START_US
from ebla.storage.errors import EblaError
from ebla.storage.logs.entries import Entry, Position, chained
from ebla.storage.tablets import positions, tablet_store
from ebla.storage.tablets.results import NO_ANSWERS, Results
from ebla.transport.batches import APPLIED, REJECTED, OpsUnit
from ebla.transport.router import Router
from ebla.transport.routes import Route


@defect("tokens", 20, Rows, "known_answer", seed=9)
def apply_twice(self: Rows, batch: object) -> None:
    """A retry is applied again."""


@defect("registers", 20, Results, "forgotten", seed=1, faults=LATE_DUPLICATES)
def forgotten_is_new(self: Results, client: object, sequence: object) -> bool:
    """A late duplicate of a write whose answer is forgotten is applied again."""
    return False


@defect("retries", 100, seed=1)
def answers_not_stored() -> list[Swap]:
    """A flush stores rows without the answers that belong to them."""
    put = positions.put_position
    return [
        (Results, "changes", lambda self, pending: []),
        (tablet_store, "put_position", lambda position, answers, altered: put(position, NO_ANSWERS, altered)),
    ]


@defect("crowds", 60, Results, "record", seed=0)
def open_request_forgotten(
    original: Any, self: Results, client: bytes, sequence: int, first_incomplete: int, *rest: Any
) -> None:
    """The lowest of a client's open requests counts as answered: its retry is refused."""
    original(self, client, sequence, first_incomplete + 1, *rest)


@defect("crowds", 60, OpsUnit, "succeed", seed=0)
def first_answer_for_all(original: Any, self: OpsUnit, result: WriteResult) -> None:
    """All callers whose rows travelled together get the answer of the first one."""
    for op in self.ops:
        if not op.future.done():
            op.future.set_result(REJECTED if 0 in result.rejected else APPLIED)
    original(self, result)


@defect("clocks", 60, LogTime, "next_us", seed=1)
def log_time_from_the_wall(self: LogTime, term: int, previous: Position) -> int:
    """Log time is the leader's wall clock, so that a step of it makes answers expire."""
    world: Any = self._monotonic.__self__  # type: ignore[attr-defined]
    return max(previous.time_us, int(world.clock.wall_us()) - WALL_START_US)


@defect("clocks", 20)
def log_time_of_each_term() -> list[Swap]:
    """Each leader counts log time from the beginning of its term, so that it goes back."""
    original = LogTime.next_us

    def next_us(self: LogTime, term: int, previous: Position) -> int:
        before = Position(previous.index, previous.term, previous.chain, vars(self).get("own_us", 0))
        if term != self._term:
            before = Position(previous.index, previous.term, previous.chain, 0)
        vars(self)["own_us"] = original(self, term, before)
        return int(vars(self)["own_us"])

    def make_entry(
        tablet: str, previous: Position, term: int, kind: int, time_us: int, payload: bytes
    ) -> Entry:
        index = previous.index + 1
        chain = chained(tablet, previous, index, term, kind, time_us, payload)
        return Entry(index, term, kind, time_us, payload, chain)

    return [(LogTime, "next_us", next_us), (replica, "make_entry", make_entry)]


@defect("refusals", 40, Results, "record", seed=11)
def refusals_forgotten(original: Any, self: Results, *request: Any) -> None:
    """A refusal is not stored as an answer, so that a late copy of the request is applied."""
    *_, answer = request
    if answer.refusal is None:
        original(self, *request)


@defect("refusals", 200, Router, "_fail", seed=15, faults=LATE_COPIES)
def refused_by_the_master(self: Router, route: Route, error: EblaError) -> None:
    """A write fails for certain when the master reports its table as dropped, and a late copy of it is applied
    after a recall."""
    for queue in route.queues:
        while queue:
            queue.popleft().fail(error)


@defect("clocks", 20, Maintenance, "_expire", seed=1)
def expired_by_the_own_setting(self: Maintenance, replica: Replica) -> None:
    """Each server forgets answers by its own setting, and not by the log."""
    replica.store.results.expire(replica.store.applied.time_us - int(self.options.results_retention_s * 1e6))
