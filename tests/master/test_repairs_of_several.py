"""Moves and drains with several masters: requested of the active one, and finished by the next."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import NotActive
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.messages import DrainReply, DrainRequest, MoveReplicaRequest
from ebla.actors.messages.repair import MembersReply
from tests.master.group_stage import GroupStage, play
from tests.staged import staged


def catalog(stage: GroupStage) -> Catalog | None:
    """The active master's view, if there is one now."""
    serving = stage.serving()
    return stage.role(serving[0]).active_term.master.catalog if serving else None


def hosts_of(stage: GroupStage, tablet: str) -> list[str]:
    """The hosts of its voters, or nothing if there are other members."""
    known = catalog(stage)
    peers = known.tablets[tablet].configuration.peers if known else ()
    if any(peer.member != "voter" or peer.replace for peer in peers):
        return []
    return sorted(peer.address.rpartition("/")[2] for peer in peers)


async def opened(stage: GroupStage, buckets: int = 1) -> list[str]:
    await stage.ready()
    tablets = await stage.tablets("flights", buckets=buckets)
    await stage.until(lambda: stage.replicas() == 3 * buckets)
    return tablets


@pytest.mark.parametrize("seed", range(2))
@staged(play, hosts="abcd")
async def test_a_move_continues_after_its_master_is_gone(stage: GroupStage, seed: int) -> None:
    (tablet,) = await opened(stage)
    before = hosts_of(stage, tablet)
    (free,) = [host for host in stage.hosts if host not in before]
    move = MoveReplicaRequest(tablet, before[0], free)
    standby = stage.other(stage.serving()[0])
    with pytest.raises(NotActive):
        await stage.at(standby, "move_replica", move, MembersReply)
    await stage.persist(lambda: stage.ask("move_replica", move, MembersReply))
    stage.cluster.crash(stage.serving()[0])
    wanted = sorted({*before[1:], free})
    await stage.until(lambda: stage.serving() == [standby] and hosts_of(stage, tablet) == wanted)
    again = await stage.persist(lambda: stage.ask("move_replica", move, MembersReply))
    assert sorted(peer.address.rpartition("/")[2] for peer in again.configuration.peers) == wanted
    await stage.until(lambda: stage.replicas() == 3)


@staged(play, 0, hosts="abcd")
async def test_the_next_master_finishes_a_drain(stage: GroupStage) -> None:
    tablets = await opened(stage, buckets=4)
    await stage.persist(lambda: stage.ask("drain", DrainRequest("b"), DrainReply))
    first = stage.serving()[0]
    stage.cluster.crash(first)
    await stage.until(lambda: stage.serving() == [stage.other(first)])
    await stage.until(
        lambda: all(len(hosts_of(stage, t)) == 3 and "b" not in hosts_of(stage, t) for t in tablets)
    )
    reported = await stage.ask("list_servers", m.Empty(), m.ListServersReply)
    assert [server.host for server in reported.servers if server.draining] == ["b"]
    (left,) = (await stage.ask("drain", DrainRequest("b", None), DrainReply)).servers
    assert (left.replicas, left.blocked, left.draining) == (0, 0, True)
