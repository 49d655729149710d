"""The master with real tablet servers, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebla import aio
from ebla.actors.master.options import MasterOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.transport.client import DeploymentClient
from tests.master.stage import MASTER, Stage

HOSTS = ("a", "b", "c", "d")
OPTIONS = MasterOptions(bg_s=0.1, unresponsive_s=2.0, forget_min_s=5.0, rpc_backoff_max_s=1.0)


async def open_stage(
    stage: Stage, failed_s: float = 60.0, hosts: Sequence[str] = HOSTS, **given: Any
) -> None:
    """`given`: options of the servers."""
    await stage.open()
    for host in hosts:
        await start_server(stage, host, failed_s, **given)
    alive = stage.master.servers.alive
    await stage.until(lambda: len(alive(stage.master.world.clock.monotonic())) == len(hosts))


async def start_server(stage: Stage, host: str, failed_s: float, **given: Any) -> None:
    options = TabletServerOptions(masters=(MASTER,), host=host, follower_failed_s=failed_s, **given)
    await stage.cluster.start(server(host), lambda world: TabletServer(world, options))


def replicas(stage: Stage) -> int:
    return sum(len(stage.cluster.role(f"tablet-server/{host}").replicas) for host in HOSTS)


def voters(stage: Stage, tablet: str) -> list[str]:
    peers = stage.master.catalog.tablets[tablet].configuration.peers
    return sorted(peer.address.rpartition("/")[2] for peer in peers if peer.member == "voter")


def healed(stage: Stage) -> bool:
    """Each tablet has three running voters, and other servers have at most tombstones."""
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


async def with_a_tablet(
    stage: Stage, hosts: Sequence[str] = HOSTS, replicas: int = 3, **given: Any
) -> tuple[str, str]:
    """Create a table of one tablet on some of the hosts. Returns the tablet, and the host of a follower."""
    await open_stage(stage, failed_s=6.0, hosts=hosts, **given)
    (tablet,) = await stage.tablets("flights", buckets=1, replicas=replicas)
    await stage.until(lambda: all(tablet in role(stage, host).replicas for host in voters(stage, tablet)))
    led = stage.master.views.of(tablet).leader
    return tablet, next(host for host in voters(stage, tablet) if role(stage, host).instance.uuid != led)


def role(stage: Stage, host: str) -> TabletServer:
    found: TabletServer = stage.cluster.role(server(host))
    return found


def members_of(stage: Stage, tablet: str) -> dict[str, str]:
    peers = stage.master.catalog.tablets[tablet].configuration.peers
    return {peer.address.rpartition("/")[2]: peer.kind for peer in peers}


async def table(stage: Stage, name: str = "flights") -> aio.Table:
    """Options of a client that reads and writes."""
    world = stage.cluster.client_world("writer")
    session = DeploymentClient(world, "real", (MASTER,))
    return await aio.Database(session).table(name)
