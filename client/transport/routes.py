"""Routes: where each tablet of a table is served, and which server to ask after a refusal.

A route is the client's knowledge of one tablet: the server to ask now. Answers of servers correct it (`NotLeader` names the
leader); the master is asked only if the servers cannot help. `react` decides; router.py carries the decision out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ebla.actors.asking.retries import BACKOFF_MAX_S, backoff_s
from ebla.actors.errors import (
    NetworkError,
    NotFound,
    NotLeader,
    SchemaMismatch,
    TabletNotFound,
    Throttled,
    TimedOut,
    WrongServer,
)
from ebla.actors.messages import TableInfo, TabletLocation
from ebla.actors.world import Random
from ebla.options import HOPS_MAX, THROTTLE_MAX_S, Written
from ebla.storage.errors import EblaError
from ebla.storage.rows.checksum import seed
from ebla.storage.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from ebla.storage.rows.partition import Partitioner
    from ebla.table_codec import TableCodec

# Kinds of work that queue at a route; each kind has its own calls.
READ, WRITE, BULK = 0, 1, 2
KINDS = (READ, WRITE, BULK)

# Whether a move asks the master: never, during the next attempt, or before it.
NEVER, DURING, BEFORE = "never", "during", "before"


class Move(NamedTuple):
    """The reaction to a refusal: ask `target` next, after `delay_s`."""

    target: str
    delay_s: float
    master: str = NEVER


class Route:
    """One tablet, as far as this client knows. `target` is the server to ask now."""

    def __init__(self, table: TableRoutes, location: TabletLocation) -> None:
        self.table = table
        self.bucket = location.bucket
        self.tablet = location.tablet
        self.seed = seed(location.tablet)
        self.running = False
        self.replicas: list[str] = []
        self.target = ""
        self.failures = 0
        self.last = "none yet"
        self.moved: asyncio.Future[EblaError | None] | None = None  # set while it moves to another target
        self.paused: dict[int, None] = {}  # kinds of work that a server has throttled
        self.queues: tuple[deque[Unit], ...] = (deque(), deque(), deque())
        self.ops: deque[WriteOp] = deque()  # single rows that are not in a batch yet
        self.outstanding: dict[int, None] = {}  # sequences that the tablet has not answered, ascending
        self.locate(location)

    def locate(self, location: TabletLocation) -> None:
        """Take the location from the master. A target that works is kept."""
        if location.tablet != self.tablet:
            assert not self.running, "a running tablet is never replaced"
            self.tablet, self.seed = location.tablet, seed(location.tablet)
        self.running = self.running or location.state == "running"
        self.replicas = [r.address for r in sorted(location.replicas, key=lambda r: not r.alive)]
        if not self.target or self.failures or self.target not in self.replicas:
            self.target = location.leader or (self.replicas[0] if self.replicas else "")

    @property
    def version(self) -> int:
        """That of the table's schema, as this client knows it."""
        return self.table.codec.version

    def next_to(self, address: str, suspect: Callable[[str], bool]) -> str:
        """The replica after `address`, skipping replicas that were silent a moment ago."""
        if not self.replicas:
            return address
        at = self.replicas.index(address) + 1 if address in self.replicas else 0
        ring = self.replicas[at:] + self.replicas[:at]
        return next((replica for replica in ring if not suspect(replica)), ring[0])

    def busy(self, kind: int) -> bool:
        """Whether work of this kind waits here."""
        return bool(self.queues[kind]) or (kind == WRITE and bool(self.ops))

    def sequence(self, number: int) -> int:
        """Note a new request number; returns the lowest number that this tablet has not answered.

        A number is sent to one tablet only, and each tablet keeps its own answers, so counting per tablet is safe and lets
        each tablet forget answers early. A request that ended in TimedOut is never sent again and does not count: a copy of
        it that arrives late is refused instead of applied.
        """
        self.outstanding[number] = None
        return next(iter(self.outstanding))

    def timed_out(self, what: str, deadline_s: float) -> TimedOut:
        """The error of a call that had no answer in time."""
        outcome = "" if what in ("get", "scan") else "; it may have been applied or not"
        return TimedOut(
            f"{what} on table {self.table.name!r}, tablet {self.tablet}: no answer within {deadline_s:g} s"
            f"{outcome}; last tried {self.last}",
            deadline_s=deadline_s,
        )


class TableRoutes:
    """A table as the master describes it, and a route for each tablet. An altered table gets a new `codec`. pyarrow and numpy
    are imported with the first codec: commands that only ask roles start without them."""

    def __init__(self, info: TableInfo) -> None:
        self.info = info
        self.codec = _codec(info.schema)
        self.routes = [Route(self, location) for location in _by_bucket(info)]
        self.all_running = all(route.running for route in self.routes)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def schema(self) -> TableSchema:
        return self.codec.schema

    @property
    def arrow(self) -> pa.Schema:
        return self.codec.arrow

    @property
    def partitioner(self) -> Partitioner:
        return self.codec.partitioner

    def update(self, info: TableInfo) -> None:
        """Take a description from the master; one with an older schema than the known one is ignored. Raises NotFound if the
        name now belongs to another table."""
        if info.table != self.info.table:
            raise self.dropped()
        if info.schema.version < self.schema.version:
            return
        locations = _by_bucket(info)
        for route, location in zip(self.routes, locations, strict=True):
            if route.running and location.tablet != route.tablet:
                raise self.dropped()
        self.info = info
        if info.schema.version > self.schema.version:
            self.codec = _codec(info.schema)
        for route, location in zip(self.routes, locations, strict=True):
            route.locate(location)
        self.all_running = all(route.running for route in self.routes)

    def dropped(self) -> NotFound:
        return NotFound(
            f"table {self.name!r} was dropped; if there is a new one of that name, open it with "
            f"db.table({self.name!r})",
            what="table",
        )


def _codec(schema: TableSchema) -> TableCodec:
    from ebla.table_codec import TableCodec

    return TableCodec(schema)


def _by_bucket(info: TableInfo) -> list[TabletLocation]:
    found = sorted(info.tablets, key=lambda tablet: tablet.bucket)
    assert [t.bucket for t in found] == list(range(info.schema.partitioning.tablets)), info.name
    return found


def throttle_s(error: Throttled, random: Random) -> float:
    """The pause that the server asked for, and a little more so that clients do not return in step."""
    return min(error.retry_after_s or BACKOFF_MAX_S, THROTTLE_MAX_S) * random.uniform(1.0, 1.25)


def react(
    route: Route, address: str, error: EblaError, suspect: Callable[[str], bool], random: Random
) -> Move:
    """The move after `address` refused with `error`. `route.failures` includes this refusal."""
    pause_s = backoff_s(route.failures, random)
    following = route.next_to(address, suspect)
    if isinstance(error, (TabletNotFound, WrongServer)):
        return Move(following, pause_s, BEFORE)
    if isinstance(error, SchemaMismatch):  # client or server has an old schema, and will get the new one
        return Move(address, pause_s, BEFORE)
    if isinstance(error, NotLeader) and error.leader not in (None, address) and not suspect(error.leader):
        return Move(error.leader, 0.0 if route.failures <= HOPS_MAX else pause_s)
    if isinstance(error, NetworkError) and route.failures == 1 and following != address:
        return Move(following, 0.0)
    round_done = route.failures % max(1, len(route.replicas)) == 0
    return Move(following, pause_s, DURING if round_done else NEVER)


class Unit(Protocol):
    route: Route
    size: int

    def succeed(self, result: Any) -> None: ...

    def again(self, error: EblaError) -> None:
        """An attempt ended in this error, and the unit will be sent again."""

    def fail(self, error: EblaError) -> None: ...

    def expire(self, now: float) -> bool:
        """End the operations whose deadline has passed in TimedOut. Returns whether no caller waits any more."""


@dataclass(slots=True, eq=False)
class WriteOp:
    """One row of one caller, encoded in this version of the table."""

    kind: int
    columns: tuple[str, ...]
    key: bytes
    value: bytes
    future: asyncio.Future[Written]
    deadline: float
    deadline_s: float
    version: int
