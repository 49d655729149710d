"""A master and toy tablet servers in virtual time, and what a client would do with them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import NetworkError, NotActive, NotFound, NotRunning, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.lineage import LineageImage
from ebla.actors.master.catalog.records import CatalogImage
from ebla.actors.master.messages import DrainReply, DrainRequest, MaintainReply, MaintainRequest
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.server import ActiveMaster
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.masters import alone, maker_of, start_alone
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.rows.alteration import Change
from tests.master.builders import create_request
from tests.master.toy_tablet_server import Script, ToyRaft, ToyTabletServer

MASTER = "master/m"
SEGMENT_TXNS = 10
OPTIONS = MasterOptions(
    bg_s=0.1,
    unresponsive_s=2.0,
    assignment_timeout_s=5.0,
    forget_min_s=5.0,
    rpc_backoff_max_s=1.0,
    checkpoint_edits=5,
)
T = TypeVar("T")


class Points:
    """Fault points of the master: a test crashes it, or holds it up, at a point that it names."""

    def __init__(self) -> None:
        self.acts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self.passed: dict[str, int] = {}

    async def here(self, point: str) -> None:
        self.passed[point] = self.passed.get(point, 0) + 1
        act = self.acts.pop(point, None)
        if act is not None:
            await act()

    def reached(self, mark: str) -> None:
        self.passed[mark] = self.passed.get(mark, 0) + 1


def content(catalog: Catalog) -> CatalogImage:
    """All of it, but for which masters served from it."""
    return replace(catalog.image(), lineage=LineageImage())


class Requests(ABC):
    """The requests of a client. `send` carries a change out; `ask` sends any request."""

    cluster: SimulatedCluster

    @abstractmethod
    async def ask(self, method: str, request: Any, reply: type[T]) -> T: ...

    async def send(self, method: str, request: Any, reply: type[T]) -> T:
        return await self.ask(method, request, reply)

    async def create(self, name: str = "flights", **changes: Any) -> m.TableInfo:
        return await self.send("create_table", create_request(name, **changes), m.TableInfo)

    async def drop(
        self, name: str = "flights", request_id: str | None = None, reserve_s: float | None = None
    ) -> None:
        request = m.DropTableRequest(request_id or f"drop {name}", name, reserve_s)
        await self.send("drop_table", request, m.Empty)

    async def alter(
        self, *changes: Change, name: str = "flights", request_id: str = "", **more: str
    ) -> m.TableInfo:
        request = m.AlterTableRequest(
            request_id or f"alter {name}", name, more.pop("table", ""), changes, **more
        )
        return await self.send("alter_table", request, m.TableInfo)

    async def recall(self, table: str = "flights", name: str = "", request_id: str = "") -> m.TableInfo:
        request = m.RecallTableRequest(request_id or f"recall {table} {name}", table, name)
        return await self.send("recall_table", request, m.TableInfo)

    async def drain(self, host: str, on: bool | None = True) -> DrainReply:
        return await self.persist(lambda: self.ask("drain", DrainRequest(host, on), DrainReply))

    async def maintain(self, host: str, on: bool | None = True) -> MaintainReply:
        return await self.persist(lambda: self.ask("maintain", MaintainRequest(host, on), MaintainReply))

    async def servers(self) -> tuple[m.ServerStatus, ...]:
        return (await self.ask("list_servers", m.Empty(), m.ListServersReply)).servers

    async def table(self, name: str = "flights") -> m.TableInfo:
        return await self.ask("get_table", m.TableName(name), m.TableInfo)

    async def exists(self, name: str = "flights") -> bool:
        try:
            await self.table(name)
        except NotFound:
            return False
        return True

    async def running(self, name: str = "flights") -> m.TableInfo:
        """Poll as a client does, through restarts of the master."""
        for _ in range(2000):
            try:
                info = await self.table(name)
            except (NetworkError, NotActive, NotRunning):
                info = None
            if info is not None and info.state == "running":
                return info
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} did not come up: {info}")

    async def made(self, name: str = "flights", **changes: Any) -> m.TableInfo:
        """Create a table, and return it when it runs."""
        await self.create(name, **changes)
        return await self.running(name)

    async def tablets(self, name: str = "flights", **changes: Any) -> list[str]:
        """Create a table, and return its tablets when it runs."""
        return [each.tablet for each in (await self.made(name, **changes)).tablets]

    async def persist(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat the request, as a client does, until there is a final answer."""
        for _ in range(2000):
            try:
                return await act()
            except (NetworkError, NotActive, NotRunning, Unavailable):
                await asyncio.sleep(0.05)
        raise AssertionError("no answer")

    async def until(self, holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
        deadline = self.cluster.loop.time() + timeout_s
        while not holds():
            assert self.cluster.loop.time() < deadline, "the condition did not hold in time"
            await asyncio.sleep(0.05)


class Stage(Requests):
    server_class = ToyTabletServer

    def __init__(self, options: MasterOptions | None = None) -> None:
        self.points = Points()
        self.cluster = SimulatedCluster(lambda address: self.points)
        self.client = self.cluster.client_world("client")
        self.options = options or MasterOptions(bg_s=0.1, unresponsive_s=2.0, assignment_timeout_s=5.0)
        self.group = alone(MASTER, self.options, SEGMENT_TXNS, purge_s=1.0)
        self.make_master = maker_of(self.group)
        self.raft = ToyRaft()
        self.scripts: dict[str, Script] = {}

    # -- the cast --------------------------------------------------------------------------------------------

    async def open(self, *hosts: str) -> None:
        """The master and a server on each host, all registered."""
        await start_alone(self.cluster, self.group)
        for host in hosts:
            await self.serve(host)
        await self.until(lambda: all(self.alive(host) for host in hosts))

    async def open_master_over(self, directory: DurableState, options: MasterOptions | None = None) -> None:
        """Start the master, which is down, over this directory; a new journal is formatted."""
        self.cluster.put_disk(MASTER, directory)
        group = replace(self.group, master=options or self.options)
        if directory.uuid is None:
            await start_alone(self.cluster, group)
        else:
            await self.cluster.start(MASTER, maker_of(group))

    async def serve(self, host: str) -> None:
        script = self.scripts[host] = Script(host, self.raft)
        await self.cluster.start(f"tablet-server/{host}", lambda world: self.server_class(world, script))

    @property
    def master(self) -> ActiveMaster:
        """What serves, or did last."""
        active_term = self.cluster.role(MASTER).active_term
        if active_term is not None:
            self._served = active_term.master
        return self._served

    def server(self, host: str) -> ToyTabletServer:
        return self.cluster.role(f"tablet-server/{host}")

    def alive(self, host: str) -> bool:
        """Whether the master had a heartbeat of the server of late."""
        servers = self.master.servers.alive(self.master.world.clock.monotonic())
        return self.server(host).uuid in [server.uuid for server in servers]

    def crash_at(self, point: str, *addresses: str) -> None:
        """The master, or these."""

        async def crash() -> None:
            for address in addresses or (MASTER,):
                self.cluster.crash(address)

        self.points.acts[point] = crash

    def revive_master(self) -> list[int]:
        """From now on a crashed master comes back, as on Ray; the list holds how often that was."""
        count = [0]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.5)
                if not self.cluster.alive(MASTER):
                    count[0] += 1
                    await self.cluster.restart(MASTER)

        self.watcher = asyncio.ensure_future(watch())
        return count

    # -- the client ------------------------------------------------------------------------------------------

    async def ask(self, method: str, request: Any, reply: type[T], timeout_s: float = 5.0) -> T:
        return await self.client.network.call(MASTER, method, request, reply, timeout_s)

    async def kept(self) -> list[m.TableSummary]:
        asked = m.ListTablesRequest(deleted=True)
        return list((await self.ask("list_tables", asked, m.ListTablesReply)).tables)

    async def status(self) -> m.MasterStatus:
        return await self.ask("status", m.Empty(), m.MasterStatus)

    # -- what happened ---------------------------------------------------------------------------------------

    def holders(self, tablet: str) -> list[str]:
        return sorted(host for host in self.scripts if tablet in self.server(host).replicas)

    def replicas(self) -> int:
        """How many replicas there are on all servers."""
        return sum(len(self.server(host).replicas) for host in self.scripts)


def play(
    scenario: Callable[[Stage], Coroutine[Any, Any, None]],
    seed: int = 0,
    options: MasterOptions | None = None,
    hosts: str = "",
) -> None:
    """`hosts`: the master and a server on each of them run, and know each other."""

    async def main() -> None:
        stage = Stage(options)
        if hosts:
            await stage.open(*hosts)
        await scenario(stage)

    loop.run(main(), seed)
