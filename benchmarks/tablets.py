"""Measures what a hundred servers with 100,000 tablets cost the master: a takeover, heartbeats, and the death of a server.

    python -m benchmarks.tablets 100000

In a process of its own, the real master and journal nodes run in virtual time. The tablet servers are scripted: they send heartbeats
and reports, and follow orders without rows. Only the steps of the master count; the network and its actors are not measured.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
from msgspec.structs import replace

from benchmarks.figures import Figure, in_another_process
from benchmarks.reassignment import BEAT_S, Server
from benchmarks.takeover import MASTER, OPTIONS, PEERS, image, serves, simulated
from ebla.actors import messages as m
from ebla.actors.master.catalog.lineage import Beginning, LineageImage
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.server import ActiveMaster
from ebla.actors.messages.raft import RaftView
from ebla.actors.replication.configuration import RAFT, Configuration, Peer
from ebla.actors.world import World, rpc
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.loop import run
from ebla.storage.errors import EblaError
from ebla.storage.schema import Column, Hash, Partitioning, TableSchema

IDLE_S = 10.0
CREATED = 4000  # tablets of a new table
COMMIT_S, COPY_S = 0.02, 1.0  # of a change of members; of a copy, of which COPIES run to one server at a time
COPIES = 2
ELECTED_S = 1.5  # from the death to new leaders
FAILED_S = 5.0  # from then on, until leaders report the silence of the dead server's replicas


class Span(msgspec.Struct, frozen=True):
    """What the master did from one event to another: seconds of virtual time and of its CPU, and its longest step."""

    seconds: float
    cpu_s: float
    step_ms: float
    step: str


class Many(msgspec.Struct, frozen=True):
    """`serves`: from the start of the master until it serves; `known`: from then on, until it knows a leader of every tablet.
    `idle`: heartbeats without news. `ordered`: from the first report of the silence of a dead server's replicas until every leader
    has the order to replace its one; `waves`: the orders in each second. `whole`: until no tablet has a member there."""

    tablets: int
    servers: int
    memory_mb: float
    serves: Span
    known: Span
    full_report_ms: float
    idle: Span
    lookup_ms: float
    listing_ms: float
    held: int
    ordered: Span
    waves: list[int]
    whole: Span
    created: Span
    dropped: Span


class Steps:
    """The steps of one node, while the simulation runs: their CPU, and the longest one."""

    def __init__(self, address: str) -> None:
        self.cpu_s = self.longest_s = 0.0
        self.longest = ""
        send = loop._Mortal.send

        def timed(mortal: Any, value: Any) -> Any:
            if not mortal._domain.name.startswith(address):
                return send(mortal, value)
            name = mortal.task.get_name() if mortal.task else ""
            began = time.process_time()
            try:
                return send(mortal, value)
            finally:
                took_s = time.process_time() - began
                self.cpu_s += took_s
                if took_s > self.longest_s:
                    self.longest_s, self.longest = took_s, name

        loop._Mortal.send = timed  # type: ignore[method-assign]

    async def until(self, holds: Callable[[], bool], every_s: float = 0.02) -> Span:
        clock = asyncio.get_running_loop()
        began, before = clock.time(), self.cpu_s
        self.longest_s, self.longest = 0.0, ""
        while not holds():
            await asyncio.sleep(every_s)
        return Span(clock.time() - began, self.cpu_s - before, self.longest_s * 1000, self.longest)

    async def during(self, seconds: float) -> Span:
        until = asyncio.get_running_loop().time() + seconds
        return await self.until(lambda: asyncio.get_running_loop().time() >= until)


class Follower(Server):
    """A tablet server with Raft replicas. `ordered`: its tablets whose leader it is, and that got the order to add a member."""

    def __init__(self, world: World, peer: Peer, tablets: dict[str, Configuration]) -> None:
        super().__init__(world, peer, tablets)
        self.peer = peer
        led = (tablet for tablet, known in tablets.items() if known.peers[0].uuid == peer.uuid)
        self.leads = dict.fromkeys(led, 7)  # and the terms
        self.lost: dict[str, None] = {}  # uuids of dead servers
        self.changed: dict[str, None] = {}
        self.removed: dict[str, None] = {}
        self.sent: tuple[dict[str, None], dict[str, None]] = {}, {}
        self.ordered: dict[str, float] = {}
        self.others: dict[str, Follower] = {}
        self.wake = asyncio.Event()
        self.copies = asyncio.Semaphore(COPIES)

    async def start(self) -> None:
        self.world.spawn(self._beats(), "heartbeats")

    async def _beats(self) -> None:
        self._full, self._sequence, self._taken = True, 0, 0
        await self.world.clock.sleep(self.world.random.random() * BEAT_S)
        while not self.silent:
            self.wake.clear()
            try:
                await self._beat()
            except EblaError:
                # The master does not serve yet, or is busy: the next heartbeat repeats the changes.
                changed, removed = self.sent
                self.changed, self.removed = changed | self.changed, removed | self.removed
            try:
                async with self.world.clock.timeout(BEAT_S):
                    await self.wake.wait()
            except TimeoutError:
                pass

    def report(self) -> m.TabletReport:
        self.sent, self.changed, self.removed = (self.changed, self.removed), {}, {}
        changed, removed = self.sent
        names = self.tablets if self._full else [name for name in changed if name in self.tablets]
        updated = tuple(self._report(name, self.tablets[name]) for name in names)
        return m.TabletReport(
            self._sequence,
            not self._full,
            updated,
            tuple(name for name in removed if name not in self.tablets),
        )

    def _report(self, tablet: str, known: Configuration) -> m.ReplicaReport:
        if (term := self.leads.get(tablet)) is None:
            return m.ReplicaReport(tablet, "running", RaftView("follower", 7, None, 1, 1), known)
        view = RaftView("leader", term, self.instance.uuid, 1, 1)
        health = {
            peer.uuid: "silent" if peer.uuid in self.lost else "healthy"
            for peer in known.peers
            if peer.uuid != self.instance.uuid
        }
        return m.ReplicaReport(tablet, "running", view, known, health=health)

    def set(self, tablet: str, known: Configuration | None) -> None:
        if known is None:
            self.tablets.pop(tablet, None)
            self.leads.pop(tablet, None)
            self.removed[tablet] = None
        else:
            self.tablets[tablet] = known
            self.removed.pop(tablet, None)
        self.changed[tablet] = None
        self.wake.set()

    @rpc
    async def change_members(self, request: m.ChangeMembersRequest) -> m.MembersReply:
        tablet, (change,) = request.tablet, request.changes
        known = self.tablets[tablet]
        await self.world.clock.sleep(COMMIT_S)
        peers = tuple(peer for peer in known.peers if peer.uuid != change.peer.uuid)
        if change.kind == m.ADD:
            self.ordered[tablet] = asyncio.get_running_loop().time()
            self.world.spawn(self._copy(tablet, change.peer), f"copy {tablet}")
            peers += (change.peer,)
        self._reconfigure(tablet, peers)
        return m.MembersReply(tablet, self.tablets[tablet])

    def _reconfigure(self, tablet: str, peers: tuple[Peer, ...]) -> None:
        made = replace(self.tablets[tablet], peers=peers, index=self.tablets[tablet].index + 1)
        for peer in peers:
            self.others[peer.uuid].set(tablet, made)

    async def _copy(self, tablet: str, to: Peer) -> None:
        async with self.others[to.uuid].copies:
            await self.world.clock.sleep(COPY_S)
        voter = Peer(to.uuid, to.address)
        self._reconfigure(
            tablet, tuple(voter if peer.uuid == to.uuid else peer for peer in self.tablets[tablet].peers)
        )

    @rpc
    async def create_tablet(self, request: m.CreateTabletRequest) -> m.Empty:
        self.set(request.tablet, request.configuration)
        if request.configuration.peers[0].uuid == self.instance.uuid:
            self.leads[request.tablet] = 7
        return m.Empty()

    @rpc
    async def delete_tablet(self, request: m.DeleteTabletRequest) -> m.Empty:
        self.set(request.tablet, None)
        return m.Empty()

    def lose(self, uuid: str) -> None:
        """Note that a peer is silent: its leaders report it, all at once."""
        self.lost[uuid] = None
        for tablet in self.leads:
            if self.tablets[tablet].peer(uuid) is not None:
                self.changed[tablet] = None
        self.wake.set()


def _spread(table: int, bucket: int) -> Configuration:
    """Three of the servers at random, so that the tablets of a server are led by all others."""
    return Configuration(tuple(random.Random(f"{table} {bucket}").sample(PEERS, 3)), 7)


async def _followers(cluster: Any, tablets: tuple[Any, ...]) -> list[Follower]:
    held: dict[str, dict[str, Configuration]] = {peer.uuid: {} for peer in PEERS}
    for record in tablets:
        for peer in record.configuration.peers:
            held[peer.uuid][record.tablet] = record.configuration
    roles: dict[str, Follower] = {}
    for peer in PEERS:
        await cluster.start(peer.address, lambda world, peer=peer: Follower(world, peer, held[peer.uuid]))
        roles[peer.uuid] = cluster.role(peer.address)
        roles[peer.uuid].others = roles
    return list(roles.values())


async def _death(
    cluster: Any, steps: Steps, active: ActiveMaster, followers: list[Follower]
) -> dict[str, Any]:
    dead, alive = followers[0], followers[1:]
    held = list(dead.tablets)
    cluster.crash(dead.peer.address)
    await asyncio.sleep(ELECTED_S)
    for tablet in dead.leads:
        successor = dead.others[dead.tablets[tablet].peers[1].uuid]
        successor.leads[tablet] = 8
        successor.changed[tablet] = None
        successor.wake.set()
    await asyncio.sleep(FAILED_S)
    began = asyncio.get_running_loop().time()
    for each in alive:
        each.lose(dead.instance.uuid)
    ordered = await steps.until(lambda: sum(len(each.ordered) for each in alive) >= len(held))
    waves = Counter(int(at - began) for each in alive for at in each.ordered.values())

    def left() -> int:
        known = (active.catalog.tablets[tablet].configuration for tablet in held)
        return sum(each is not None and each.peer(dead.instance.uuid) is not None for each in known)

    whole = await steps.until(lambda: left() == 0, 0.1)
    return {
        "held": len(held),
        "ordered": ordered,
        "waves": [waves[second] for second in range(int(max(waves)) + 1)],
        "whole": whole,
    }


async def _creation(
    steps: Steps, active: ActiveMaster, followers: list[Follower], call: Callable[..., Any]
) -> tuple[Span, Span]:
    columns = (Column("k", "binary", nullable=False), Column("v", "binary"))
    schema = TableSchema(columns, ("k",), Partitioning(hash=Hash(("k",), CREATED)))
    before = sum(len(each.tablets) for each in followers)
    request = m.CreateTableRequest("1" * 32, "new", schema, 3)
    await call("create_table", request, m.TableInfo)
    created = await steps.until(lambda: not active.catalog.preparing and not active.catalog.creating)
    await call("drop_table", m.DropTableRequest("2" * 32, "new"), m.Empty)
    return created, await steps.until(lambda: sum(len(each.tablets) for each in followers) == before)


async def measured(tablets: int) -> Many:
    before = LineageImage("bench", (Beginning(1, "before", 0),))
    made = replace(image(tablets, _spread, RAFT), lineage=before)
    cluster = await simulated([MASTER], made)
    followers = await _followers(cluster, made.tablets)
    gc.collect()
    gc.freeze()
    memory = psutil.Process().memory_info().rss
    steps = Steps(MASTER)
    began = time.process_time()
    starting = asyncio.ensure_future(cluster.start(MASTER, lambda world: Master(world, OPTIONS)))
    await steps.until(starting.done)
    master = starting.result()
    assert isinstance(master, Master)
    serving = await steps.until(lambda: serves(master))
    serving = replace(serving, cpu_s=time.process_time() - began)
    assert master.active_term is not None
    active = master.active_term.master

    def known() -> bool:
        views = active.views.tablets
        return len(views) == tablets and all(view.leader is not None for view in views.values())

    found = await steps.until(known, 0.1)
    memory = psutil.Process().memory_info().rss - memory
    idle = await steps.during(IDLE_S)
    world = cluster.client_world("client")

    async def call(method: str, request: Any, reply: Any) -> Any:
        return await world.network.call(MASTER, method, request, reply, 60.0)

    costs = {}
    for method, request, reply in (
        ("get_table", m.TableName("table-7"), m.TableInfo),
        ("list_tables", m.ListTablesRequest(), m.ListTablesReply),
    ):
        before_s = steps.cpu_s
        for _ in range(5):
            await call(method, request, reply)
        costs[method] = (steps.cpu_s - before_s) / 5 * 1000
    full = max(followers, key=lambda each: len(each.tablets))
    full._full, steps.longest_s = True, 0.0
    await full._beat()
    full_ms = steps.longest_s * 1000
    died = await _death(cluster, steps, active, followers)
    created, dropped = await _creation(steps, active, followers[1:], call)
    return Many(
        tablets=tablets,
        servers=len(PEERS),
        memory_mb=memory / 2**20,
        serves=serving,
        known=found,
        full_report_ms=full_ms,
        idle=idle,
        lookup_ms=costs["get_table"],
        listing_ms=costs["list_tables"],
        created=created,
        dropped=dropped,
        **died,
    )


def figures(tablets: int = 100_000) -> Iterator[Figure]:
    """The virtual network has delays, and the CPU costs no virtual time: so both are figures."""
    found = in_another_process("tablets", Many, str(tablets))
    among = f"{found.servers} servers with {found.tablets:,} tablets"
    beats = found.idle.cpu_s / found.idle.seconds * 1000
    yield Figure(f"CPU of the active master, {among} without news", beats, "ms/s", better="lower")
    yield Figure(f"full report of a server, {among}", found.full_report_ms, "ms", target=200, better="lower")
    yield Figure(f"a master starts with {among}, until it serves", found.serves.cpu_s, "s of CPU")
    memory = f"{found.memory_mb:.0f} MB of memory, in which is what the simulation keeps"
    spans = {
        "until a new active master knows their leaders": (found.known, memory),
        f"until all {found.held:,} replicas of a dead one are being replaced": (
            found.ordered,
            f"orders in each second: {found.waves}",
        ),
        "until they are replaced": (
            found.whole,
            f"a copy takes {COPY_S:g} s, and {COPIES} run to a server at a time",
        ),
        f"a table with {CREATED:,} tablets is created": (found.created, ""),
        "it is dropped": (found.dropped, ""),
    }
    for what, (span, note) in spans.items():
        spent = f"{span.seconds:.1f} s of virtual time" + (f"; {note}" if note else "")
        yield Figure(f"{among}: {what}", span.cpu_s, "s of the master's CPU", better="lower", note=spent)
        yield Figure(f"{among}: {what}, longest step", span.step_ms, "ms", target=200, better="lower")
    yield Figure(f"{among}: one look-up of a table of 100", found.lookup_ms, "ms", better="lower")
    yield Figure(f"{among}: the list of all tables", found.listing_ms, "ms", better="lower")


if __name__ == "__main__":
    print(msgspec.json.encode(run(measured(int(sys.argv[1])), 0, steps_max=10**9)).decode())
