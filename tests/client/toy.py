"""A toy deployment: one master and three servers that share their tablets in memory.

It answers the client's RPCs as the real roles do, with stored answers for exactly-once writes. A test makes it refuse requests,
stay silent or lose answers. `calls` has every request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import xxhash

from ebla import aio
from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, RowBatch
from ebla.actors.tablet.engine.batches import columnar, packed
from ebla.actors.tablet.serving.scans import _to_ipc
from ebla.actors.world import Role, World, rpc
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.errors import EblaError, SnapshotExpired
from ebla.storage.predicates import expressions
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.transport.client import DeploymentClient
from tests.staged import staged

HOSTS = ("host-a", "host-b", "host-c")
MASTER = "master/0"


def address(host: str) -> str:
    return f"tablet-server/{host}"


@dataclass
class Tablet:
    """Rows by key, and answers by request id."""

    id: str
    bucket: int
    codec: RowCodec
    leader: str
    rows: dict[bytes, bytes] = field(default_factory=dict)
    answers: dict[tuple[bytes, int], tuple[int, m.WriteResult]] = field(default_factory=dict)
    floors: dict[bytes, int] = field(default_factory=dict)
    applied: list[RowBatch] = field(default_factory=list)
    term: int = 1

    @property
    def seed(self) -> int:
        return checksum.seed(self.id)


@dataclass
class Table:
    info: m.TableInfo
    tablets: list[Tablet]


Fault = Callable[[], Coroutine[Any, Any, None]]


def refuse(error: EblaError, after_s: float = 0.0) -> Fault:
    async def act() -> None:
        if after_s:
            await asyncio.sleep(after_s)
        raise error

    return act


def silence(seconds: float = 1e6) -> Fault:
    async def act() -> None:
        await asyncio.sleep(seconds)

    return act


class Toy:
    """The state that the roles share, and the faults of a test."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.tablets: dict[str, Tablet] = {}
        self.tablets_made = 0
        self.calls: list[tuple[str, str, Any]] = []
        # By address and method: the faults of the next calls, before and after their work.
        self.before: dict[tuple[str, str], list[Fault]] = {}
        self.after: dict[tuple[str, str], list[Fault]] = {}
        self.refusals: dict[str, list[EblaError]] = {}  # by tablet: the answers to its next writes and reads
        self.scanners: dict[str, list[m.ScanBlock]] = {}
        self.scans_opened = 0
        self.block_rows = 1000
        self.schema_version = 0  # of the next created tables
        self.ready_after = 0  # number of "preparing" answers of get_table
        self.on_call: Callable[[str], object] = lambda method: None

    def requests(self, method: str) -> list[Any]:
        return [request for _, called, request in self.calls if called == method]

    def count(self, method: str) -> int:
        return len(self.requests(method))

    def batches(self) -> list[tuple[str, RowBatch]]:
        """List every batch that was sent, with repetitions, in order."""
        decode = msgspec.msgpack.Decoder(RowBatch).decode
        return [
            (each.tablet, decode(each.batch)) for request in self.requests("write") for each in request.writes
        ]

    def rows(self, table: str = "t") -> int:
        return sum(len(tablet.rows) for tablet in self.tables[table].tablets)

    def lead(self, tablet: Tablet, host: str) -> None:
        tablet.leader = address(host)
        tablet.term += 1

    def lead_all(self, host: str | None = None) -> None:
        """Every tablet of the table `t` gets this leader, or the next host of each."""
        for tablet in self.tables["t"].tablets:
            self.lead(tablet, host or HOSTS[(tablet.bucket + 1) % 3])

    async def meet(self, faults: dict[tuple[str, str], list[Fault]], where: str, method: str) -> None:
        if waiting := faults.get((where, method)):
            await waiting.pop(0)()


class ToyRole(Role):
    def __init__(self, world: World, toy: Toy) -> None:
        self.world = world
        self.toy = toy

    async def _called(self, method: str, request: Any) -> None:
        self.toy.calls.append((self.world.address, method, request))
        self.toy.on_call(method)
        await self.toy.meet(self.toy.before, self.world.address, method)


class ToyMaster(ToyRole):
    @rpc
    async def create_table(self, request: m.CreateTableRequest) -> m.TableInfo:
        await self._called("create_table", request)
        if known := self.toy.tables.get(request.name):
            if known.info.properties.get("request") != request.request_id:
                raise errors.AlreadyPresent(f"table {request.name!r} exists already", what="table")
            return self._info(known)
        number = self.toy.tablets_made
        self.toy.tablets_made += request.schema.partitioning.tablets
        schema = msgspec.structs.replace(request.schema, version=self.toy.schema_version)
        codec = RowCodec(schema)
        tablets = [
            Tablet(f"t{number + bucket:03}", bucket, codec, address(HOSTS[bucket % len(HOSTS)]))
            for bucket in range(request.schema.partitioning.tablets)
        ]
        info = m.TableInfo(
            f"id-{request.name}-{number}",
            request.name,
            "running",
            schema,
            request.replicas,
            request.replication,
            0,
            (),
            {"request": request.request_id},
            min_members=request.min_members,
        )
        self.toy.tables[request.name] = Table(info, tablets)
        self.toy.tablets.update({tablet.id: tablet for tablet in tablets})
        await self.toy.meet(self.toy.after, self.world.address, "create_table")
        return self._info(self.toy.tables[request.name])

    @rpc
    async def get_table(self, request: m.TableName) -> m.TableInfo:
        await self._called("get_table", request)
        return self._info(self._table(request.name))

    @rpc
    async def drop_table(self, request: m.DropTableRequest) -> m.Empty:
        await self._called("drop_table", request)
        for tablet in self._table(request.name).tablets:
            del self.toy.tablets[tablet.id]
        del self.toy.tables[request.name]
        return m.Empty()

    @rpc
    async def list_tables(self, request: m.ListTablesRequest) -> m.ListTablesReply:
        await self._called("list_tables", request)
        return m.ListTablesReply(
            tuple(
                m.TableSummary(table.info.table, name, "running", len(table.tablets), table.info.replicas, 0)
                for name, table in self.toy.tables.items()
                if name.startswith(request.prefix)
            )
        )

    def _table(self, name: str) -> Table:
        table = self.toy.tables.get(name)
        if table is None:
            raise errors.NotFound(f"there is no table {name!r}", what="table")
        return table

    def _info(self, table: Table) -> m.TableInfo:
        preparing = self.toy.ready_after > 0
        self.toy.ready_after = max(0, self.toy.ready_after - 1)
        replicas = tuple(m.ReplicaLocation(h, address(h), "follower", True) for h in HOSTS)
        tablets = tuple(
            m.TabletLocation(each.id, each.bucket, "creating", None, 0, ())
            if preparing
            else m.TabletLocation(each.id, each.bucket, "running", each.leader, each.term, replicas)
            for each in table.tablets
        )
        state = "preparing" if preparing else "running"
        return msgspec.structs.replace(table.info, tablets=tablets, state=state)


class ToyServer(ToyRole):
    def _led(self, tablet_id: str) -> Tablet:
        if refusals := self.toy.refusals.get(tablet_id):
            raise refusals.pop(0)
        tablet = self.toy.tablets.get(tablet_id)
        if tablet is None:
            raise errors.TabletNotFound(f"no tablet {tablet_id} here", tablet=tablet_id)
        if tablet.leader != self.world.address:
            raise errors.NotLeader(
                "not the leader", tablet=tablet_id, leader=tablet.leader or None, term=tablet.term
            )
        return tablet

    @rpc
    async def write(self, request: m.WriteRequest) -> m.WriteReply:
        await self._called("write", request)
        results, failures = self._each(request.writes, self._apply)
        await self.toy.meet(self.toy.after, self.world.address, "write")
        return m.WriteReply(results, failures)

    def _each(self, parts: Iterable[Any], work: Callable[[Tablet, Any], Any]) -> Iterator[tuple[Any, ...]]:
        """Do the work for each part, on its tablet: the results and the failures, None for a part without."""

        def outcome(part: Any) -> tuple[Any, Any]:
            try:
                return work(self._led(part.tablet), part), None
            except EblaError as error:
                return None, (type(error).__name__, error.message, error.values())

        return zip(*map(outcome, parts), strict=True)

    def _apply(self, tablet: Tablet, write: Any) -> m.WriteResult:
        batch = msgspec.msgpack.decode(write.batch, type=RowBatch)
        request = (batch.client, batch.sequence)
        if known := tablet.answers.get(request):
            if known[0] != batch.digest:
                raise errors.RequestReused("other rows")
            return known[1]
        if batch.sequence < tablet.floors.get(batch.client, 0):
            raise errors.StaleRequest("the answer is gone")
        if batch.columnar:
            assert batch.digest == xxhash.xxh3_64_intdigest(batch.columnar, batch.kind)
            columnar(tablet.codec, batch, tablet.seed).check()
            keys, values = packed(tablet.codec, batch, tablet.seed)
            batch = msgspec.structs.replace(batch, keys=keys, values=values)
        else:
            assert batch.digest == checksum.rows_digest(batch.kind, batch.columns, batch.keys, batch.values)
        if batch.values:
            checksum.verify([k + v for k, v in zip(batch.keys, batch.values, strict=True)], tablet.seed)
        tablet.applied.append(batch)
        result = m.WriteResult(len(tablet.applied), tuple(self._change(tablet, batch)))
        tablet.answers[request] = (batch.digest, result)
        floor = tablet.floors[batch.client] = max(tablet.floors.get(batch.client, 0), batch.first_incomplete)
        for client, sequence in list(tablet.answers):
            if client == batch.client and sequence < floor:
                del tablet.answers[client, sequence]
        return result

    def _change(self, tablet: Tablet, batch: RowBatch) -> list[int]:
        rejected = []
        patch_codec = RowCodec(tablet.codec.schema, batch.columns) if batch.kind == UPDATE else None
        for at, key in enumerate(batch.keys):
            old = tablet.rows.get(key)
            refused = old is not None if batch.kind == INSERT else old is None and batch.kind != UPSERT
            if refused:
                rejected.append(at)
            elif batch.kind == DELETE:
                del tablet.rows[key]
            elif patch_codec is not None:
                assert old is not None
                (tablet.rows[key],) = tablet.codec.patch(
                    [key + old], [key], [batch.values[at]], patch_codec, tablet.seed
                )
            else:
                tablet.rows[key] = batch.values[at]
        return rejected

    @rpc
    async def read(self, request: m.ReadRequest) -> m.ReadReply:
        await self._called("read", request)

        def values(tablet: Tablet, wanted: Any) -> list[bytes | None]:
            if request.schema_version != tablet.codec.schema.version:
                raise errors.SchemaMismatch("another version")
            return [tablet.rows.get(key) for key in wanted.keys]

        return m.ReadReply(*self._each(request.reads, values))

    @rpc
    async def scan(self, request: m.ScanRequest) -> m.ScanBlock:
        await self._called("scan", request)
        first = self._scan(request.tablet, request)
        others: list[tuple[str, m.ScanBlock]] = []
        for tablet in request.others:
            if (others[-1][1] if others else first).scanner is not None:
                break
            if self.toy.tablets[tablet].leader == self.world.address:
                others.append((tablet, self._scan(tablet, request)))
        return msgspec.structs.replace(first, others=tuple(others))

    def _scan(self, name: str, request: m.ScanRequest) -> m.ScanBlock:
        tablet = self._led(name)
        stop = request.stop
        keys = [k for k in sorted(tablet.rows) if request.start <= k and (stop is None or k < stop)]
        predicate = None
        read = list(request.columns)
        if request.predicate is not None:
            predicate = expressions.bind(expressions.decode(request.predicate), tablet.codec.schema)
            read += [name for name in expressions.columns(predicate) if name not in read]
        batch = tablet.codec.decode([k + tablet.rows[k] for k in keys], tablet.seed, read)
        if predicate is not None:
            batch = batch.filter(expressions.mask(predicate, batch))
        batch = batch.select(list(request.columns)).slice(0, request.limit)
        size, index = self.toy.block_rows, len(tablet.applied)
        parts = [batch.slice(at, size) for at in range(0, max(1, batch.num_rows), size)]
        self.toy.scans_opened += 1
        name = f"scanner-{self.toy.scans_opened}"
        blocks = [
            m.ScanBlock(name, i, _to_ipc([part], tablet.codec, request.columns), part.num_rows, index)
            for i, part in enumerate(parts)
        ]
        blocks[-1] = msgspec.structs.replace(blocks[-1], scanner=None)
        if len(blocks) > 1:
            self.toy.scanners[name] = blocks
        return blocks[0]

    @rpc
    async def scan_more(self, request: m.ScanContinue) -> m.ScanBlock:
        await self._called("scan_more", request)
        blocks = self.toy.scanners.get(request.scanner)
        if blocks is None:
            raise SnapshotExpired("the scan is no longer open")
        block = blocks[request.block]
        if block.scanner is None:
            del self.toy.scanners[request.scanner]
        return block

    @rpc
    async def scan_close(self, request: m.ScanClose) -> m.Empty:
        await self._called("scan_close", request)
        self.toy.scanners.pop(request.scanner, None)
        return m.Empty()

    @rpc
    async def flush(self, request: m.FlushRequest) -> m.FlushReply:
        await self._called("flush", request)
        assert request.tablet is not None
        tablet = self._led(request.tablet)
        return m.FlushReply({tablet.id: len(tablet.applied)})


@dataclass
class Bench:
    """A running toy deployment and a connected client."""

    cluster: SimulatedCluster
    toy: Toy
    world: World
    session: DeploymentClient
    db: aio.Database

    def crash(self, host: str) -> None:
        self.cluster.crash(address(host))

    @contextmanager
    def lasts(self, below_s: float, above_s: float = 0.0) -> Iterator[None]:
        """Check the duration of the block in virtual time."""
        began_s = self.world.clock.monotonic()
        yield
        assert above_s <= self.world.clock.monotonic() - began_s < below_s

    def client(self, name: str) -> aio.Database:
        """Another, independent client."""
        return aio.Database(DeploymentClient(self.cluster.client_world(name)))


def simulate(scenario: Callable[[Bench], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    """Run the scenario in virtual time on a new deployment."""

    async def main() -> None:
        cluster = SimulatedCluster()
        toy = Toy()
        await cluster.start(MASTER, lambda world: ToyMaster(world, toy))
        for host in HOSTS:
            await cluster.start(address(host), lambda world: ToyServer(world, toy))
        world = cluster.client_world("client")
        session = DeploymentClient(world)
        await scenario(Bench(cluster, toy, world, session, aio.Database(session)))
        session.close()

    run(main(), seed)


on_toys = staged(simulate)
