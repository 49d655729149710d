"""Three tablet servers in the deterministic world, one tablet, and a client that retries until it knows the outcome."""

from __future__ import annotations

import asyncio
import functools
import io
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.protocols import HardState
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.errors import EblaError
from ebla.storage.rows import checksum
from ebla.storage.rows.alteration import Alteration
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema
from tests.staged import staged

TABLET, OTHER = "0123456789abcdef0123456789abcdef", "f" * 32
SCHEMA = TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int32())]), ["k"])
CODEC = RowCodec(SCHEMA)
HOSTS = ("host-a", "host-b", "host-c")
FIVE = (*HOSTS, "host-d", "host-e")
CLIENT = b"client-number-01"
OPTIONS: dict[str, Any] = {"leader_heartbeat_s": 0.1, "election_s_min": 0.6, "lease_s": 0.4}
# For tests that wait for long in virtual time: heartbeats are most of their cost.
SLOW_HEARTBEATS: dict[str, Any] = {"leader_heartbeat_s": 0.5, "election_s_min": 3.0, "lease_s": 2.0}


def address(host: str) -> str:
    return f"tablet-server/{host}"


def row(k: int, v: str | None = "x", n: int | None = 0) -> dict[str, Any]:
    return {"k": k, "v": v, "n": n}


@dataclass
class Group:
    """The cluster of one test. Hosts have short names, such as host-a."""

    cluster: SimulatedCluster
    points: Points
    options: dict[str, Any]
    hosts: tuple[str, ...] = HOSTS
    tablets: list[str] = field(default_factory=list)
    sequence: int = 0
    leader_hint: str | None = None
    storage: str = SCHEMA.storage  # of tablets that are created from now on

    # -- life

    async def boot(self) -> None:
        for host in self.hosts:
            await self.cluster.start(address(host), self.make(host))
        self.client = self.cluster.client_world("client")
        await self.create(TABLET)

    def make(self, host: str) -> Callable[[Any], TabletServer]:
        options = TabletServerOptions(**{"masters": ("master/0",), "host": host, **OPTIONS, **self.options})
        return lambda world: TabletServer(world, options)

    def server(self, host: str) -> TabletServer:
        return self.cluster.role(address(host))

    def uuid(self, host: str) -> str:
        return self.server(host).instance.uuid

    def replica(self, host: str, tablet: str = TABLET) -> Replica:
        return self.server(host).replicas[tablet]

    def state_of(self, host: str, tablet: str = TABLET) -> str:
        return self.server(host).lifecycle.state_of(tablet)

    async def reported(self, host: str) -> dict[str, str]:
        """Return the state of each tablet in the server's status."""
        status = await self.ask(host, "status", m.Empty(), m.ServerState)
        return {report.tablet: report.state for report in status.replicas}

    def disk(self, host: str) -> DurableState:
        return self.cluster.state(address(host))

    def creation(self, host: str, tablet: str = OTHER) -> m.CreateTabletRequest:
        peers = Configuration(tuple(Peer(self.uuid(h), address(h)) for h in self.hosts))
        schema = msgspec.structs.replace(SCHEMA, storage=self.storage)
        return m.CreateTabletRequest(self.uuid(host), tablet, "table", "t", schema, 0, peers)

    async def create_at(self, host: str, tablet: str = OTHER) -> None:
        await self.ask(host, "create_tablet", self.creation(host, tablet), m.Empty)

    async def create(self, tablet: str) -> None:
        for host in self.hosts:
            await self.create_at(host, tablet)
        self.tablets.append(tablet)

    async def create_many(self, count: int) -> list[str]:
        """Create tablets beside TABLET; return them."""
        tablets = [f"{number:032x}" for number in range(1, count + 1)]
        for tablet in tablets:
            await self.create(tablet)
        return tablets

    async def drop(self, host: str, tablet: str = TABLET) -> None:
        request = m.DeleteTabletRequest(self.uuid(host), tablet, "dropped")
        await self.ask(host, "delete_tablet", request, m.Empty)

    async def delete(self, host: str, index: int | None = None, *, unsafe: int = 0) -> None:
        """Make the host's replica a tombstone. `index`, `unsafe`: the configuration without it."""
        request = m.DeleteTabletRequest(self.uuid(host), TABLET, "it left", True, index, unsafe)
        await self.ask(host, "delete_tablet", request, m.Empty, 10.0)

    def hard_state(self, host: str) -> HardState:
        """Term and vote on the host's disk."""
        kept = self.server(host).consensus.get(TABLET)
        assert kept is not None
        return kept.hard_state

    def tombstone(self, host: str) -> Tombstone:
        return self.server(host).lifecycle.tombstones[TABLET]

    async def cancel_copy(self, host: str) -> None:
        request = m.CancelCopyRequest(self.uuid(host), TABLET)
        await self.ask(host, "cancel_copy", request, m.Empty, 30.0)

    async def alter(self, alteration: Alteration) -> None:
        async def attempt(host: str) -> None:
            request = m.AlterTabletRequest(self.uuid(host), TABLET, alteration)
            await self.ask(host, "alter_tablet", request, m.Empty, 8.0)

        await self.until_led(attempt)

    async def flush(self, *hosts: str, tablet: str = TABLET) -> None:
        for host in hosts:
            await self.ask(host, "flush", m.FlushRequest(tablet), m.FlushReply)

    async def ask(self, host: str, method: str, request: Any, reply: Any, timeout_s: float = 5.0) -> Any:
        return await self.client.network.call(address(host), method, request, reply, timeout_s)

    async def sleep(self, seconds: float) -> None:
        await self.client.clock.sleep(seconds)

    # -- faults

    def alive(self, host: str) -> bool:
        return self.cluster.alive(address(host))

    def crash(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.crash(address(host))

    def crash_all(self) -> None:
        self.crash(*filter(self.alive, self.hosts))

    def crash_at(self, host: str, point: str) -> None:
        self.points.arm(address(host), point, lambda: self.crash(host))

    def fill_at(self, host: str, point: str) -> None:
        self.points.arm(address(host), point, self.disk(host).fill)

    async def restart(self, *hosts: str) -> None:
        for host in hosts or self.hosts:
            await self.cluster.restart(address(host))

    async def restart_all(self) -> None:
        """Crash all at once, and start them again."""
        self.crash_all()
        await self.restart()

    def cut(self, host: str, *others: str) -> None:
        for other in others:
            self.cluster.network.cut(address(host), address(other))

    def isolate(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.network.isolate(address(host))

    def heal(self) -> None:
        self.cluster.network.heal()

    # -- single requests

    async def write_once(self, host: str, batch: bytes, timeout_s: float = 2.0) -> Exception | None:
        """Send a write to one host; return its error."""
        request = m.WriteRequest((m.TabletWrite(TABLET, batch),), timeout_s)
        reply = await self.ask(host, "write", request, m.WriteReply)
        return errors.from_triple(reply.errors[0]) if reply.errors[0] is not None else None

    async def read_once(
        self, host: str, k: int = 1, version: int = 0, timeout_s: float = 5.0
    ) -> Exception | None:
        """Send a get to one host; return its error."""
        request = m.ReadRequest(version, (m.TabletKeys(TABLET, [CODEC.encode_key({"k": k})]),))
        reply = await self.ask(host, "read", request, m.ReadReply, timeout_s)
        assert (reply.values[0] is None) == (reply.errors[0] is not None)
        return errors.from_triple(reply.errors[0]) if reply.errors[0] is not None else None

    async def replicate(self, host: str, sender: str, *requests: Any, timeout_s: float = 5.0) -> Any:
        """Send Raft messages of the sender to the host; return its reply."""
        sent = tuple((TABLET, each) for each in requests)
        envelope = self.server(sender).identity.envelope(self.uuid(host), sent)
        return await self.ask(host, "replicate", envelope, peers.EnvelopeReply, timeout_s)

    async def begin_session(self, source: str, target: str) -> m.CopyBegun:
        term = self.replica(source).core.term
        request = m.BeginCopyRequest(self.uuid(source), TABLET, self.uuid(target), term)
        return await self.ask(source, "begin_copy_session", request, m.CopyBegun)

    def propose_without(self, leader: str, host: str) -> int:
        """Let the leader propose a configuration without the host; return its index."""
        server, core = self.server(leader), self.replica(leader).core
        stay = tuple(peer for peer in core.configuration.peers if peer.uuid != self.uuid(host))
        wanted = Configuration(stay, core.configuration.index)
        now = server.world.clock.monotonic()
        return server.rounds.step(self.replica(leader), core.propose_configuration, now, wanted)[0]

    # -- a client that retries with the same id until it knows the outcome

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def batch(
        self,
        kind: int,
        rows: list[dict[str, Any]],
        sequence: int,
        *,
        client: bytes = CLIENT,
        first_incomplete: int = 0,
        columns: tuple[str, ...] = (),
        encoded: tuple[str, ...] = (),
        tablet: str = TABLET,
    ) -> bytes:
        """`encoded`: the columns that an update's values really hold, if they differ from `columns`."""
        seed = checksum.seed(tablet)
        codec = RowCodec(SCHEMA, encoded or columns) if kind == m.UPDATE else CODEC
        if kind == m.DELETE:
            keys, values = [CODEC.encode_key(r) for r in rows], []
        else:
            pairs = [codec.encode_row(r, seed) for r in rows]
            keys, values = [k for k, _ in pairs], [v for _, v in pairs]
        digest = checksum.rows_digest(kind, columns, keys, values)
        version = SCHEMA.version
        return msgspec.msgpack.encode(
            m.RowBatch(client, sequence, first_incomplete, kind, version, digest, keys, values, columns)
        )

    async def write_bytes(
        self, batch: bytes, *, tablet: str = TABLET, deadline_s: float = 30.0
    ) -> m.WriteResult:
        request = m.WriteRequest((m.TabletWrite(tablet, batch),), 2.0)

        async def attempt(host: str) -> m.WriteResult:
            reply = await self.ask(host, "write", request, m.WriteReply, 3.0)
            if reply.errors[0] is not None:
                raise errors.from_triple(reply.errors[0])
            return reply.results[0]

        return await self.until_led(attempt, deadline_s)

    async def write(self, kind: int, rows: list[dict[str, Any]], **options: Any) -> m.WriteResult:
        sequence = options.pop("sequence", None) or self.next_sequence()
        tablet = options.get("tablet", TABLET)
        return await self.write_bytes(self.batch(kind, rows, sequence, **options), tablet=tablet)

    async def upsert(self, *rows: dict[str, Any], **options: Any) -> m.WriteResult:
        return await self.write(m.UPSERT, list(rows), **options)

    async def get(self, *keys: int, tablet: str = TABLET) -> list[dict[str, Any] | None]:
        encoded = [CODEC.encode_key({"k": k}) for k in keys]
        request = m.ReadRequest(SCHEMA.version, (m.TabletKeys(tablet, encoded),))

        async def attempt(host: str) -> list[dict[str, Any] | None]:
            reply = await self.ask(host, "read", request, m.ReadReply, 3.0)
            if reply.errors[0] is not None:
                raise errors.from_triple(reply.errors[0])
            return self.decode(encoded, reply.values[0], tablet)

        return await self.until_led(attempt)

    def decode(self, keys: list[bytes], values: list[bytes | None], tablet: str = TABLET) -> list[Any]:
        seed = checksum.seed(tablet)
        return [
            None if value is None else CODEC.decode_row(key, value, seed)
            for key, value in zip(keys, values, strict=True)
        ]

    async def scan(self, host: str | None = None, **options: Any) -> pa.Table:
        options = {"columns": ("k", "v", "n"), **options}
        request = m.ScanRequest(TABLET, SCHEMA.version, at_leader=host is None, **options)

        async def attempt(asked: str) -> pa.Table:
            blocks = [await self.ask(asked, "scan", request, m.ScanBlock)]
            while blocks[-1].scanner:
                blocks.append(await self.next_block(asked, blocks[-1]))
            return pa.concat_tables([pa.ipc.open_stream(io.BytesIO(b.data)).read_all() for b in blocks])

        return await attempt(host) if host else await self.until_led(attempt)

    async def first_block(self, host: str, columns: tuple[str, ...] = ("k",), **options: Any) -> m.ScanBlock:
        """Open a scan with small blocks."""
        request = m.ScanRequest(TABLET, columns=columns, **{"schema_version": 0, "block_bytes": 1, **options})
        return await self.ask(host, "scan", request, m.ScanBlock)

    async def next_block(self, host: str, block: m.ScanBlock, timeout_s: float = 5.0) -> m.ScanBlock:
        """Return the block after this one of its scan."""
        more = m.ScanContinue(block.scanner, block.block + 1)
        return await self.ask(host, "scan_more", more, m.ScanBlock, timeout_s)

    async def checksum_index(self) -> int:
        """Let the leader append a checkpoint entry; return its index."""
        started = m.ChecksumStart((TABLET,)), m.ChecksumStarted
        (index,) = (await self.ask(await self.leader(), "checksum_start", *started)).indexes
        return index

    async def digest(self, host: str, index: int) -> tuple[int, int]:
        """Return rows and digest of the host's replica as of the index."""
        query = m.ChecksumQuery(((TABLET, index),))
        (digest,) = (await self.ask(host, "checksum", query, m.ChecksumReply)).digests
        return digest.rows, digest.digest

    async def until_led(
        self, attempt: Callable[[str], Coroutine[Any, Any, Any]], deadline_s: float = 30.0
    ) -> Any:
        clock = self.client.clock
        deadline = clock.monotonic() + deadline_s
        turn = 0
        while True:
            host = self.leader_hint or self.hosts[turn % len(self.hosts)]
            turn += 1
            try:
                return await attempt(host)
            except EblaError as error:
                if not (error.retriable or error.possibly_applied) or isinstance(error, errors.RequestReused):
                    raise
                if isinstance(error, errors.StaleRequest) or clock.monotonic() > deadline:
                    raise
                led = error.leader if isinstance(error, errors.NotLeader) else None
                self.leader_hint = led.rpartition("/")[2] if led else None
            await clock.sleep(0.05)

    async def leader(self, tablet: str = TABLET) -> str:
        """Wait for a leader that has committed an entry of its term; return its host."""
        for _ in range(2000):
            for host in self.hosts:
                if self.alive(host) and self.server(host).running:
                    replica = self.server(host).replicas.get(tablet)
                    if replica is not None and replica.leads and is_readable(self.server(host), replica):
                        return host
            await self.sleep(0.02)
        raise AssertionError("no leader within 40 s")

    async def followers(self) -> list[str]:
        leader = await self.leader()
        return [host for host in self.hosts if host != leader]

    async def roles(self) -> list[str]:
        """Return the leader, then its followers."""
        return [await self.leader(), *await self.followers()]

    async def lead(self, host: str, tablet: str = TABLET) -> None:
        """Hand leadership over to the host, unless it leads."""
        self.leader_hint = None
        leader = await self.leader(tablet)
        if leader != host:
            await self.step_down(leader, host, tablet)
        assert await self.leader(tablet) == host

    async def step_down(
        self, leader: str, successor: str | None = None, tablet: str = TABLET
    ) -> m.StepDownReply:
        request = m.StepDownRequest(tablet, self.uuid(successor) if successor else None)
        return await self.ask(leader, "step_down", request, m.StepDownReply, 10.0)

    async def settled(self, *rows: dict[str, Any]) -> str:
        """Write the rows; return a follower when every replica has applied them."""
        await self.upsert(*rows)
        await self.settle()
        return (await self.followers())[0]

    async def settle(self, tablet: str = TABLET) -> None:
        """Wait until every replica has applied all entries."""
        for _ in range(2000):
            replicas = [self.server(h).replicas[tablet] for h in self.hosts]
            last = max(r.log.last_index for r in replicas)
            if all(r.state != "running" or r.store.applied.index == last for r in replicas):
                return
            await self.sleep(0.02)
        raise AssertionError([(r.state, r.log.last_index, r.store.applied.index) for r in replicas])


def is_readable(server: TabletServer, replica: Replica) -> bool:
    try:
        replica.core.read_index(server.world.clock.monotonic())
    except EblaError:
        return False
    return True


def held(
    owner: Any, name: str, patch: Callable[[Any, str, Any], None] = setattr
) -> tuple[asyncio.Event, asyncio.Event]:
    """Let calls of a method wait; return an event for the first call, and one that lets all calls continue."""
    original, begun, over = getattr(owner, name), asyncio.Event(), asyncio.Event()

    async def waiting(*given: Any) -> Any:
        begun.set()
        await over.wait()
        return await original(*given)

    patch(owner, name, waiting)
    return begun, over


def play(
    scenario: Callable[[Any], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    hosts: tuple[str, ...] = HOSTS,
    kind: type[Group] = Group,
    **options: Any,
) -> None:
    """Run a scenario against a new group. `kind`: the class of the group; `options`: of the servers."""

    async def main() -> None:
        points = Points()
        group = kind(SimulatedCluster(points.of), points, options, hosts)
        await group.boot()
        await scenario(group)

    loop.run(main(), seed=seed)


simulated = functools.partial(staged, play)
