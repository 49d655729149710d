"""The master with real tablet servers: the two sides of the protocol, written apart, mean the same."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.master.messages import DrainReply, DrainRequest, MoveReplicaRequest
from ebla.actors.master.server import MasterOptions
from ebla.actors.repair_messages import MembersReply
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import World
from tests.master.stage import MASTER, Stage, play

HOSTS = ("a", "b", "c", "d")
OPTIONS = MasterOptions(bg_s=0.1, unresponsive_s=2.0, forget_min_s=5.0, rpc_backoff_max_s=1.0)


async def open_stage(stage: Stage, failed_s: float = 60.0) -> None:
    await stage.open()
    for host in HOSTS:
        options = TabletServerOptions(masters=(MASTER,), host=host, follower_failed_s=failed_s)

        def make(world: World, options: TabletServerOptions = options) -> TabletServer:
            return TabletServer(world, options)

        await stage.cluster.start(f"tablet-server/{host}", make)
    await stage.until(lambda: len(stage.master.servers.alive(stage.master.world.clock.monotonic())) == 4)


def replicas(stage: Stage) -> int:
    return sum(len(stage.cluster.role(f"tablet-server/{host}").replicas) for host in HOSTS)


def test_servers_that_share_no_tablet_hear_of_each_other_from_the_master():
    async def scenario(stage: Stage) -> None:
        await open_stage(stage)
        servers = [stage.cluster.role(f"tablet-server/{host}") for host in HOSTS]
        shown = {server.instance.uuid: server.instance.start for server in servers}
        await asyncio.sleep(150.0)  # numbers are raised every minute
        for server in servers:
            heard = {known.uuid: known.start for known in server.identity.others.all()}
            assert {server.instance.uuid: server.instance.start, **heard} == shown

    play(scenario, 0, OPTIONS)


@pytest.mark.parametrize("seed", range(2))
def test_a_table_on_real_servers_is_created_survives_crashes_and_is_dropped_without_remains(seed: int):
    async def scenario(stage: Stage) -> None:
        await open_stage(stage)
        created = await stage.create("flights", buckets=8)
        assert (await stage.running("flights")).table == created.table
        await stage.until(lambda: replicas(stage) == 24)

        stage.cluster.crash("tablet-server/a")
        await stage.cluster.restart(MASTER)
        await asyncio.sleep(5.0)
        tablets = (await stage.table("flights")).tablets
        assert all(tablet.leader not in (None, "tablet-server/a") for tablet in tablets), "others lead now"

        left = sum(r.address == "tablet-server/a" for tablet in tablets for r in tablet.replicas)
        await stage.drop("flights")
        await stage.until(lambda: replicas(stage) == left)
        await stage.cluster.restart(MASTER)
        await stage.cluster.restart("tablet-server/a")
        await stage.until(lambda: replicas(stage) == 0 and len(stage.master.catalog.tables) == 0)
        status = await stage.status()
        assert (status.tablets_unknown, status.leader_conflicts) == (0, 0)

    play(scenario, seed, OPTIONS)


def voters(stage: Stage, tablet: str) -> list[str]:
    peers = stage.master.catalog.tablets[tablet].configuration.peers
    return sorted(peer.address.rpartition("/")[2] for peer in peers if peer.member == "voter")


def healed(stage: Stage) -> bool:
    """Three voters each, all of them running, and nobody else has more than a tombstone."""
    for tablet, record in stage.master.catalog.tablets.items():
        running = [
            h
            for h in HOSTS
            if stage.cluster.alive(server(h)) and tablet in stage.cluster.role(server(h)).replicas
        ]
        if len(record.configuration.peers) != 3 or record.former or voters(stage, tablet) != running:
            return False
    return not stage.master.views.unsettled


def server(host: str) -> str:
    return f"tablet-server/{host}"


async def asked(stage: Stage, method: str, request: object) -> MembersReply:
    return await stage.persist(lambda: stage.ask(method, request, MembersReply))


@pytest.mark.parametrize("seed", range(2))
def test_tables_on_real_servers_heal_move_and_drain_and_leave_nothing_when_they_are_dropped(seed: int):
    async def scenario(stage: Stage) -> None:
        await open_stage(stage, failed_s=4.0)
        await stage.create("flights", buckets=4)
        tablets = [tablet.tablet for tablet in (await stage.running("flights")).tablets]
        await stage.until(lambda: replicas(stage) == 12)

        stage.cluster.crash(server("a"))
        await stage.until(lambda: all("a" not in voters(stage, tablet) for tablet in tablets))
        await stage.cluster.restart(server("a"))
        await stage.until(lambda: healed(stage))

        moved = tablets[0]
        source = stage.master.views.of(moved).leader
        free = next(h for h in HOSTS if h not in voters(stage, moved))
        move = MoveReplicaRequest(moved, source, free)
        await asked(stage, "move_replica", move)
        await stage.cluster.restart(MASTER)
        await stage.until(lambda: free in voters(stage, moved) and healed(stage))
        assert stage.master.catalog.tablets[moved].member(source) is None

        await stage.persist(lambda: stage.ask("drain", DrainRequest("b"), DrainReply))
        await stage.until(lambda: healed(stage) and all("b" not in voters(stage, t) for t in tablets))
        await stage.drop("flights")
        await stage.until(lambda: replicas(stage) == 0 and len(stage.master.catalog.tables) == 0)
        held = [stage.cluster.role(server(h)).lifecycle.all() for h in HOSTS]
        assert not any(held), "no tombstone stays of a table that was dropped"
        status = await stage.status()
        assert (status.tablets_unknown, status.leader_conflicts) == (0, 0)

    play(scenario, seed, OPTIONS)
