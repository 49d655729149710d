"""The catalog of an only master goes into a journal, once, whatever ends on the way; several masters then share it."""

from __future__ import annotations

import asyncio
import copy

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import NetworkError, NotActive, NotRunning, Unavailable
from ebla.actors.fault_points import MOVE_POINTS
from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.leadership.group import GroupMaster
from ebla.actors.master.leadership.mover import CatalogMover, Moved
from ebla.actors.master.options import GroupOptions, MasterOptions
from ebla.actors.master.server import Master
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Role, World
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.options import ClientWorld
from ebla.storage.errors import InvalidArgument
from ebla.transport.client import DeploymentClient
from tests.master.builders import create_request
from tests.master.group_stage import MASTER

MASTERS = ("master/0", "master/1")
NODES = ("journal/0", "journal/1", "journal/2")
HOSTS = "abc"
JOURNAL = JournalOptions(
    journal=JournalId("catalog", "one"),
    nodes=NODES,
    write_timeout_s=3.0,
    read_timeout_s=3.0,
    recovery_timeout_s=3.0,
)
NAMES = ["arrivals", "flights", "gates"]
AGAIN = create_request("flights")


class Stage:
    """First one master with a log of its own and some tables; then a journal, the mover, and two masters."""

    def __init__(self) -> None:
        self.points = Points()
        self.cluster = SimulatedCluster(self.points.of)
        self.outside = self.cluster.client_world("outside")
        self.session = DeploymentClient(
            ClientWorld(self.outside.clock, self.outside.network, self.outside.random, self.outside.spawn),
            "moved",
            MASTERS,
        )

    async def live_alone(self, names: list[str], checkpoint_edits: int = 4) -> None:
        options = MasterOptions(bg_s=0.1, settle_s=0.2, checkpoint_edits=checkpoint_edits)
        await self.cluster.start("master/0", lambda world: Master(world, options))
        for host in HOSTS:
            await self.cluster.start(f"tablet-server/{host}", self._server(host))
        for name in names:
            request = AGAIN if name == "flights" else create_request(name)
            await self.ask("create_table", request, m.TableInfo)
        for name in names:
            await self.until_running(name)
        await self.cluster.stop("master/0")
        for node in NODES:
            await self.cluster.start(node, lambda world: JournalNode(world, JournalNodeOptions()))
        await format_journal(self.outside, JOURNAL)

    def _server(self, host: str):
        options = TabletServerOptions(masters=MASTERS, host=host, heartbeat_s=0.2)
        return lambda world: TabletServer(world, options)

    async def move(self) -> Moved:
        """As `ebla up` does: a mover in the only master's place, asked once, and gone afterwards."""
        await self.cluster.start("master/0", lambda world: CatalogMover(world, JOURNAL))
        try:
            return await self.outside.network.call("master/0", "move", m.Empty(), Moved, 30.0)
        finally:
            if self.cluster.alive("master/0"):
                await self.cluster.stop("master/0")

    async def share(self) -> None:
        for master in MASTERS:
            await self.cluster.start(master, self._shared)

    @staticmethod
    def _shared(world: World) -> Role:
        return GroupMaster(world, GroupOptions(masters=MASTERS, journal=JOURNAL, master=MASTER))

    async def ask(self, method, request, reply):
        for _ in range(200):
            try:
                return await self.session.ask_master(method, request, reply, deadline_s=60.0)
            except (NetworkError, NotRunning, NotActive, Unavailable):
                await asyncio.sleep(0.1)
        raise AssertionError("no answer")

    async def until_running(self, name: str) -> None:
        for _ in range(1000):
            if (await self.ask("get_table", m.TableName(name), m.TableInfo)).state == "running":
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} did not come up")

    async def names(self) -> list[str]:
        told = await self.ask("list_tables", m.ListTablesRequest(), m.ListTablesReply)
        return [table.name for table in told.tables]


def play(scenario, seed: int = 0) -> None:
    async def main() -> None:
        await scenario(Stage())

    loop.run(main(), seed)


@pytest.mark.parametrize("checkpoint_edits", [4, 1000])
def test_several_masters_go_on_with_the_catalog_of_the_only_one(checkpoint_edits: int):
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES, checkpoint_edits)
        assert await stage.move() == Moved(tables=3, tablets=3, again=False)
        await stage.share()
        assert await stage.names() == NAMES
        for name in NAMES:
            await stage.until_running(name)
        first = await stage.ask("get_table", m.TableName("flights"), m.TableInfo)
        repeated = await stage.ask("create_table", AGAIN, m.TableInfo)
        assert repeated.table == first.table, "a retry of a request from before gets its first answer"
        await stage.ask("create_table", create_request("hangars"), m.TableInfo)
        active = next(a for a in MASTERS if stage.cluster.role(a).reign is not None)
        stage.cluster.crash(active)
        assert await stage.names() == [*NAMES, "hangars"]

    play(scenario)


@pytest.mark.parametrize("point", MOVE_POINTS)
def test_a_move_that_ends_at_any_step_is_finished_by_the_next_and_done_once(point: str):
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES)
        stage.points.arm("master/0", point, lambda: stage.cluster.crash("master/0"))
        with pytest.raises(NetworkError):
            await stage.move()
        stage.points.disarm_all()
        moved = await stage.move()
        assert (moved.tables, moved.again) == (3, point != "master.move.before_edit")
        assert await stage.move() == Moved(tables=3, tablets=3, again=True)
        await stage.share()
        assert await stage.names() == NAMES

    play(scenario, MOVE_POINTS.index(point))


@pytest.mark.parametrize("point", [*MOVE_POINTS, ""])
def test_a_single_master_does_not_begin_where_the_catalog_has_moved_or_is_on_its_way(point: str):
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES)
        if point:
            stage.points.arm("master/0", point, lambda: stage.cluster.crash("master/0"))
            with pytest.raises(NetworkError):
                await stage.move()
        else:
            await stage.move()
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="was moved into a journal"):
                await stage.cluster.start("master/0", lambda world: Master(world, MASTER))
        await stage.move()
        await stage.share()
        assert await stage.names() == NAMES

    play(scenario)


def test_a_move_that_finds_no_majority_leaves_the_catalog_where_it_is():
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES)
        for node in NODES[1:]:
            stage.cluster.crash(node)
        with pytest.raises(QuorumFailed):
            await stage.move()
        for node in NODES[1:]:
            await stage.cluster.restart(node)
        assert (await stage.move()).again is False
        await stage.share()
        assert await stage.names() == NAMES

    play(scenario)


def test_a_catalog_without_tables_moves_too():
    async def scenario(stage: Stage) -> None:
        await stage.live_alone([])
        assert await stage.move() == Moved(tables=0, tablets=0, again=False)
        await stage.share()
        assert await stage.names() == []

    play(scenario)


def test_an_empty_directory_is_not_taken_for_an_empty_catalog():
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES)
        stage.cluster.lose_disk("master/0")
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="no catalog to move"):
                await stage.cluster.start("master/0", lambda world: CatalogMover(world, JOURNAL))

    play(scenario)


def test_a_journal_that_has_another_catalog_is_refused():
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES)
        await stage.cluster.start("master/1", other)
        stage.session.master = "master/1"
        await stage.ask("create_table", create_request("hangars"), m.TableInfo)
        await stage.cluster.stop("master/1")
        with pytest.raises(InvalidArgument, match="has a catalog of its own already"):
            await stage.move()

    def other(world: World) -> Role:
        return GroupMaster(world, GroupOptions(masters=("master/1",), journal=JOURNAL, master=MASTER))


def test_a_directory_that_is_not_the_one_whose_catalog_was_moved_is_refused():
    async def scenario(stage: Stage) -> None:
        await stage.live_alone(NAMES)
        before = copy.deepcopy(stage.cluster.state("master/0"))
        await stage.move()
        stage.cluster.put_disk("master/0", before)
        await stage.cluster.start("master/0", lambda world: Master(world, MASTER))
        stage.session.master = "master/0"
        await stage.ask("create_table", create_request("hangars"), m.TableInfo)
        await stage.cluster.stop("master/0")
        with pytest.raises(InvalidArgument, match="of another moment"):
            await stage.move()

    play(scenario)
