"""Three tablet servers in the deterministic world, one tablet, and a client that retries as a client must."""

from __future__ import annotations

import io
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Faults
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.errors import EblaError
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema

TABLET = "0123456789abcdef0123456789abcdef"
SCHEMA = TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int32())]), ["k"])
CODEC = RowCodec(SCHEMA)
HOSTS = ("host-a", "host-b", "host-c")
FIVE = (*HOSTS, "host-d", "host-e")
CLIENT = b"client-number-01"
OPTIONS: dict[str, Any] = {"raft_heartbeat_s": 0.1, "election_s_min": 0.6, "lease_s": 0.4}


def address(host: str) -> str:
    return f"tablet-server/{host}"


def row(k: int, v: str | None = "x", n: int | None = 0) -> dict[str, Any]:
    return {"k": k, "v": v, "n": n}


@dataclass
class Group:
    """The cluster of one test. `host(…)` names are the short ones."""

    cluster: SimulatedCluster
    options: dict[str, Any]
    hosts: tuple[str, ...] = HOSTS
    tablets: list[str] = field(default_factory=list)
    sequence: int = 0
    leader_hint: str | None = None

    # -- life

    async def boot(self) -> None:
        for host in self.hosts:
            await self.cluster.start(address(host), self.make(host))
        self.client = self.cluster.client_world("client")
        await self.create(TABLET)

    def make(self, host: str) -> Callable[[Any], TabletServer]:
        options = TabletServerOptions(masters=("master/0",), host=host, **{**OPTIONS, **self.options})
        return lambda world: TabletServer(world, options)

    def server(self, host: str) -> TabletServer:
        return self.cluster.role(address(host))

    def replica(self, host: str, tablet: str = TABLET) -> Replica:
        return self.server(host).replicas[tablet]

    async def create(self, tablet: str) -> None:
        peers = tuple(Peer(self.server(h).instance.uuid, address(h)) for h in self.hosts)
        for host in self.hosts:
            request = m.CreateTabletRequest(
                self.server(host).instance.uuid, tablet, "table", "t", SCHEMA, 0, Configuration(peers)
            )
            await self.ask(host, "create_tablet", request, m.Empty)
        self.tablets.append(tablet)

    async def ask(self, host: str, method: str, request: Any, reply: Any, timeout_s: float = 5.0) -> Any:
        return await self.client.network.call(address(host), method, request, reply, timeout_s)

    async def sleep(self, seconds: float) -> None:
        await self.client.clock.sleep(seconds)

    def crash_all(self) -> None:
        for host in self.hosts:
            if self.cluster.alive(address(host)):
                self.cluster.crash(address(host))

    async def restart(self, *hosts: str) -> None:
        for host in hosts or self.hosts:
            await self.cluster.restart(address(host))

    # -- a client that retries with the same id until it knows

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
        """`encoded`: the columns that an update's values really hold, if it lies."""
        seed = checksum.seed(tablet)
        codec = RowCodec(SCHEMA, encoded or columns) if kind == m.UPDATE else CODEC
        if kind == m.DELETE:
            keys, values = [CODEC.encode_key(r) for r in rows], []
        else:
            pairs = [codec.encode_row(r, seed) for r in rows]
            keys, values = [k for k, _ in pairs], [v for _, v in pairs]
        digest = checksum.rows_digest(keys, values)
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
                more = m.ScanContinue(blocks[-1].scanner, blocks[-1].block + 1)
                blocks.append(await self.ask(asked, "scan_more", more, m.ScanBlock))
            return pa.concat_tables([pa.ipc.open_stream(io.BytesIO(b.data)).read_all() for b in blocks])

        return await attempt(host) if host else await self.until_led(attempt)

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
        """The host that leads, once one does and has committed in its term."""
        for _ in range(2000):
            for host in self.hosts:
                if self.cluster.alive(address(host)) and self.server(host).running:
                    replica = self.server(host).replicas.get(tablet)
                    if replica is not None and replica.leads and _readable(self.server(host), replica):
                        return host
            await self.sleep(0.02)
        raise AssertionError("no leader within 40 s")

    async def followers(self) -> list[str]:
        leader = await self.leader()
        return [host for host in self.hosts if host != leader]

    async def settle(self, tablet: str = TABLET) -> None:
        """Until every replica has applied everything."""
        for _ in range(2000):
            replicas = [self.server(h).replicas[tablet] for h in self.hosts]
            last = max(r.log.last_index for r in replicas)
            if all(r.state != "running" or r.store.applied.index == last for r in replicas):
                return
            await self.sleep(0.02)
        raise AssertionError([(r.state, r.log.last_index, r.store.applied.index) for r in replicas])


def _readable(server: TabletServer, replica: Replica) -> bool:
    try:
        replica.core.read_index(server.world.clock.monotonic())
    except EblaError:
        return False
    return True


def simulate(
    scenario: Callable[[Group], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    hosts: tuple[str, ...] = HOSTS,
    faults: Callable[[str], Faults] | None = None,
    **options: Any,
) -> None:
    """Run one scenario against a fresh group."""

    async def main() -> None:
        group = Group(SimulatedCluster(faults), options, hosts)
        await group.boot()
        await scenario(group)

    loop.run(main(), seed=seed)
