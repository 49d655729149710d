"""Several masters, journal nodes and real tablet servers in virtual time, and a client that knows all masters.

At no time may two masters serve at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Role, World
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.transport.client import DeploymentClient
from tests.master.healed import OPTIONS
from tests.master.stage import Requests

T = TypeVar("T")

LOOK_S = 0.005  # between two checks of the serving masters
JOURNAL = JournalId("catalog", "one")
MASTER = replace(OPTIONS, checkpoint_edits=8)


class GroupStage(Requests):
    """Masters `master/0`, ..., journal nodes `journal/0`, ..., tablet servers `tablet-server/a`, ..."""

    def __init__(
        self, masters: int = 2, journals: int = 3, hosts: str = "abc", recalls: bool = False, **options: Any
    ) -> None:
        self.recalls = recalls
        self.points = Points()
        self.cluster = SimulatedCluster(self.points.of)
        self.masters = tuple(f"master/{number}" for number in range(masters))
        self.journals = tuple(f"journal/{number}" for number in range(journals))
        self.hosts = hosts
        segments = {
            "segment_txns": 10,
            "write_timeout_s": 3.0,
            "recovery_timeout_s": 3.0,
            "read_timeout_s": 3.0,
        }
        self.journal = JournalOptions(journal=JOURNAL, nodes=self.journals, **segments)
        given = {"master": MASTER, "purge_s": 1.0, **options}
        self.options = GroupOptions(masters=self.masters, journal=self.journal, **given)
        self.outside = self.cluster.client_world("outside")
        world = self.cluster.client_world("client")
        self.session = DeploymentClient(world, "group", self.masters)
        self.served: list[str] = []  # the masters that served, in order

    # -- the cast --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Returns when a master is active and knows every server."""
        self.watching = asyncio.ensure_future(self._watch())
        for node in self.journals:
            await self.cluster.start(node, lambda world: JournalNode(world, JournalNodeOptions(sync_s=2.0)))
        await format_journal(self.outside, self.journal)
        for master in self.masters:
            await self.cluster.start(master, self.make_master)
        for host in self.hosts:
            await self.cluster.start(f"tablet-server/{host}", self._make_server(host))
        await self.ready()

    def make_master(self, world: World) -> Role:
        return Master(world, self.options)

    def _make_server(self, host: str) -> Callable[[World], Role]:
        options = TabletServerOptions(masters=self.masters, host=host, heartbeat_s=0.2)
        return lambda world: TabletServer(world, options)

    def role(self, address: str) -> Any:
        return self.cluster.role(address)

    def serving(self) -> list[str]:
        """Every master that would answer now; a paused one does not."""
        return [address for address in self.masters if self._serves(address)]

    def _serves(self, address: str) -> bool:
        if not self.cluster.alive(address) or self.cluster.paused(address):
            return False
        active_term = self.role(address).active_term
        return active_term is not None and active_term.serves()

    async def _watch(self) -> None:
        while True:
            serving = self.serving()
            if len(serving) > 1:
                self.cluster.loop.abort(AssertionError(f"two masters serve: {serving}"))
                return
            if serving and serving != self.served[-1:]:
                self.served += serving
            await asyncio.sleep(LOOK_S)

    async def active(self) -> str:
        """The active master, as soon as there is one."""
        await self.until(lambda: len(self.serving()) == 1)
        return self.serving()[0]

    async def ready(self) -> str:
        """The active master, when it knows every server that is up."""
        await self.until(lambda: len(self.serving()) == 1 and self._all_alive(self.serving()[0]))
        return self.serving()[0]

    def _all_alive(self, master: str) -> bool:
        servers = self.role(master).active_term.master.servers
        up = [f"tablet-server/{host}" for host in self.hosts if self.cluster.alive(f"tablet-server/{host}")]
        alive = [server.address for server in servers.alive(servers_now(self.role(master)))]
        return sorted(alive) == sorted(up)

    def cut_from_journals(self, master: str) -> None:
        for node in self.journals:
            self.cluster.network.cut(master, node)

    def mend_to_journals(self, master: str) -> None:
        for node in self.journals:
            self.cluster.network.mend(master, node)

    def other(self, master: str) -> str:
        return next(each for each in self.masters if each != master)

    # -- clients ---------------------------------------------------------------------------------------------

    async def at(self, master: str, method: str, request: Any, reply: type[T], timeout_s: float = 5.0) -> T:
        """Send the request once, to one master."""
        return await self.outside.network.call(master, method, request, reply, timeout_s)

    async def ask(self, method: str, request: Any, reply: type[T], deadline_s: float = 60.0) -> T:
        """As clients do: send to the active master until there is an answer."""
        return await self.session.master.ask(method, request, reply, deadline_s=deadline_s)

    async def send(self, method: str, request: Any, reply: type[T]) -> T:
        return await self.persist(lambda: self.ask(method, request, reply))

    async def names(self) -> list[str]:
        reported = await self.ask("list_tables", m.ListTablesRequest(), m.ListTablesReply)
        return [table.name for table in reported.tables]

    def replicas(self) -> int:
        servers = [f"tablet-server/{host}" for host in self.hosts]
        return sum(len(self.role(server).replicas) for server in servers if self.cluster.alive(server))


def servers_now(master: Master) -> float:
    return master.world.clock.monotonic()


def play(scenario: Callable[[GroupStage], Coroutine[Any, Any, None]], seed: int = 0, **options: Any) -> None:
    async def main() -> None:
        stage = GroupStage(**options)
        await stage.open()
        await scenario(stage)
        stage.watching.cancel()

    loop.run(main(), seed)
