"""The master with real tablet servers: the two sides of the protocol, written apart, mean the same."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.master.server import MasterOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import World
from tests.master.stage import MASTER, Stage, play

HOSTS = ("a", "b", "c", "d")
OPTIONS = MasterOptions(bg_s=0.1, unresponsive_s=2.0, forget_min_s=5.0, rpc_backoff_max_s=1.0)


async def open_stage(stage: Stage) -> None:
    await stage.open()
    for host in HOSTS:
        options = TabletServerOptions(masters=(MASTER,), host=host)

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
