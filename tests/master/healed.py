"""Tables whose members change, on toy tablet servers."""

from __future__ import annotations

import asyncio

from ebla.actors import messages as m
from ebla.actors.master.options import MasterOptions
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.replication.health import SILENT
from ebla.storage.errors import EblaError
from tests.master.stage import MASTER, Stage

OPTIONS = MasterOptions(
    bg_s=0.1,
    unresponsive_s=2.0,
    assignment_timeout_s=10.0,
    settle_s=0.5,
    forget_min_s=5.0,
    rpc_backoff_max_s=1.0,
)


async def opened(stage: Stage, hosts: str = "abcd", buckets: int = 1, **changes: int) -> list[str]:
    """Create a table on these hosts; returns its tablets."""
    await stage.open(*hosts)
    info = await stage.made("flights", buckets=buckets, **changes)
    await stage.until(lambda: not stage.master.catalog.unseen)
    return [tablet.tablet for tablet in info.tablets]


def host(peer: Peer) -> str:
    return peer.address.rpartition("/")[2]


def configuration(stage: Stage, tablet: str) -> Configuration:
    return stage.master.catalog.tablets[tablet].configuration


def hosts_of(stage: Stage, tablet: str) -> list[str]:
    return sorted(host(peer) for peer in configuration(stage, tablet).peers)


def well(stage: Stage, replicas: int = 3) -> bool:
    """Every tablet has its voters on healthy servers and no other member, and other servers have at most tombstones."""
    if not stage.cluster.alive(MASTER):
        return False
    for tablet, record in stage.master.catalog.tablets.items():
        peers = record.configuration.peers
        if len(peers) != replicas or any(p.member != "voter" or p.replace for p in peers) or record.former:
            return False
        if any(p.uuid in stage.raft.unhealthy or p.address in stage.master.catalog.draining for p in peers):
            return False
        running = [h for h in stage.holders(tablet) if stage.server(h).replicas[tablet].state == "running"]
        if running != sorted(host(peer) for peer in peers):
            return False
    return True


def has_left(stage: Stage, name: str, tablets: list[str]) -> bool:
    """False while there is no master."""
    if not stage.cluster.alive(MASTER) or not stage.master.catalog.tablets:
        return False
    return all(name not in hosts_of(stage, tablet) for tablet in tablets)


def leader(stage: Stage, tablet: str) -> str:
    peer = configuration(stage, tablet).peer(stage.raft.leaders[tablet])
    return host(peer)


def follower(stage: Stage, tablet: str) -> str:
    return next(h for h in hosts_of(stage, tablet) if h != leader(stage, tablet))


def spare(stage: Stage, tablet: str) -> str:
    return next(h for h in stage.scripts if h not in hosts_of(stage, tablet))


def silence(stage: Stage, name: str, word: str = SILENT) -> None:
    stage.raft.unhealthy[stage.server(name).uuid] = word
    stage.scripts[name].silent = True


def wake(stage: Stage, name: str) -> None:
    del stage.raft.unhealthy[stage.server(name).uuid]
    stage.scripts[name].silent = False


async def asked(stage: Stage, method: str, request: object) -> m.MembersReply:
    """Repeat the request, as the command does."""
    for _ in range(2000):
        try:
            return await stage.ask(method, request, m.MembersReply)
        except EblaError as error:
            if not (error.retriable or error.possibly_applied):
                raise
        await asyncio.sleep(0.05)
    raise AssertionError("no answer")
