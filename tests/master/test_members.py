"""Requests of operators about members and drains: idempotent, refused with a reason, finished by any active master."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import NetworkError, NotFound, Unavailable
from ebla.actors.master.messages import (
    AddReplicaRequest,
    MoveReplicaRequest,
    RemoveReplicaRequest,
)
from ebla.actors.replication.health import SILENT
from ebla.storage.errors import InvalidArgument
from tests.master.healed import (
    OPTIONS,
    asked,
    configuration,
    follower,
    host,
    hosts_of,
    leader,
    opened,
    silence,
    spare,
    well,
)
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged


@pytest.mark.parametrize("of_leader", [True, False])
@pytest.mark.parametrize("master_dies", [True, False])
@staged(play, 0, OPTIONS)
async def test_a_move_can_be_repeated_and_continues_without_its_operator(
    stage: Stage, of_leader: bool, master_dies: bool
) -> None:
    (tablet,) = await opened(stage)
    source = leader(stage, tablet) if of_leader else follower(stage, tablet)
    target = spare(stage, tablet)
    stage.raft.copies = False
    move = MoveReplicaRequest(tablet, source, target)
    first = await stage.ask("move_replica", move, m.MembersReply)
    assert [(host(p), p.promote) for p in first.configuration.peers if p.member != "voter"] == [
        (target, True)
    ]
    assert [host(p) for p in first.configuration.peers if p.replace] == [source]
    assert await asked(stage, "move_replica", move) == first
    sent = stage.scripts[leader(stage, tablet)].changes
    assert {request.configuration_index for request in sent} == {-1}, "compare-and-set"
    if master_dies:
        await stage.cluster.restart(MASTER)
    assert await asked(stage, "move_replica", move) == first
    stage.raft.copies = True
    await stage.until(lambda: well(stage) and source not in hosts_of(stage, tablet))
    assert target in hosts_of(stage, tablet)
    done = await asked(stage, "move_replica", move)
    assert done.configuration == configuration(stage, tablet)
    assert done.configuration.index > first.configuration.index


@staged(play, 0, OPTIONS)
async def test_a_removed_replica_leaves_after_its_replacement_and_does_not_return(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    fewest = 3

    def has_left(out: str) -> bool:
        nonlocal fewest
        fewest = min(fewest, len(configuration(stage, tablet).voters()))
        return well(stage) and out not in hosts_of(stage, tablet)

    for out in (follower(stage, tablet), leader(stage, tablet)):
        await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, out))
        await stage.until(partial(has_left, out))
        again = await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, out))
        assert again.configuration == configuration(stage, tablet)
    assert fewest == 3
    stays = hosts_of(stage, tablet)
    for name in [h for h in "abcd" if h not in stays]:
        silence(stage, name)
    await asyncio.sleep(3.0)
    gone = follower(stage, tablet)
    at_once = RemoveReplicaRequest(tablet, gone, at_once=True)
    with pytest.raises(Unavailable, match="no live server could take the place"):
        await stage.ask("remove_replica", RemoveReplicaRequest(tablet, gone), m.MembersReply)
    with pytest.raises(Unavailable, match=r"would be made again at tablet-server/. at once"):
        await stage.ask("remove_replica", at_once, m.MembersReply)
    await stage.drain(gone)
    await asked(stage, "remove_replica", at_once)
    await asyncio.sleep(10.0)
    assert hosts_of(stage, tablet) == [host for host in stays if host != gone], "fewer replicas suffice"


@staged(play, 0, OPTIONS)
async def test_an_added_replica_must_be_missing(stage: Stage) -> None:
    (tablet,) = await opened(stage, "abcde")
    chosen = [h for h in "abcde" if h not in hosts_of(stage, tablet)][1]
    add = AddReplicaRequest(tablet, chosen)
    with pytest.raises(InvalidArgument, match="has the 3 replicas that its table wants"):
        await stage.ask("add_replica", add, m.MembersReply)
    with pytest.raises(InvalidArgument, match="cannot become a non-voter"):
        await stage.ask(
            "add_replica", AddReplicaRequest(tablet, leader(stage, tablet), "non_voter"), m.MembersReply
        )
    with pytest.raises(NotFound, match="there is no server 'nowhere'; there are tablet-server/a, "):
        await stage.ask("add_replica", AddReplicaRequest(tablet, "nowhere"), m.MembersReply)
    with pytest.raises(InvalidArgument, match="role is voter"):
        await stage.ask("add_replica", AddReplicaRequest(tablet, chosen, "boss"), m.MembersReply)
    learner = AddReplicaRequest(tablet, chosen, "non_voter")
    reply = await stage.ask("add_replica", learner, m.MembersReply)
    assert len(reply.configuration.voters()) == 3 and len(reply.configuration.peers) == 4
    await asyncio.sleep(5.0)
    with pytest.raises(InvalidArgument, match="has the 3 replicas that its table wants"):
        await asked(stage, "add_replica", add)  # as a voter it would be evicted: it is not needed
    assert (await asked(stage, "add_replica", learner)).configuration == reply.configuration
    stage.master.repairs.begins_at = 1e9  # so that the operator is faster
    out = follower(stage, tablet)
    await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, out, at_once=True))
    await stage.until(lambda: out not in hosts_of(stage, tablet))
    await asked(stage, "add_replica", add)
    await stage.until(lambda: well(stage))
    assert chosen in hosts_of(stage, tablet)


@staged(play, 0, OPTIONS)
async def test_a_non_voter_is_replaced_by_a_missing_voter(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    extra, out = spare(stage, tablet), follower(stage, tablet)
    await asked(stage, "add_replica", AddReplicaRequest(tablet, extra, "non_voter"))
    await stage.until(lambda: extra in hosts_of(stage, tablet))
    silence(stage, out)
    await stage.until(lambda: SILENT in stage.master.views.of(tablet).leader_report.health.values())
    await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, extra, at_once=True))
    await stage.until(lambda: well(stage) and out not in hosts_of(stage, tablet))
    assert extra in hosts_of(stage, tablet)


@staged(play, 0, OPTIONS)
async def test_a_change_that_costs_the_majority_is_refused(stage: Stage) -> None:
    (tablet,) = await opened(stage, "abc")
    first, second = [h for h in hosts_of(stage, tablet) if h != leader(stage, tablet)]
    silence(stage, first)
    await stage.until(lambda: SILENT in stage.master.views.of(tablet).leader_report.health.values())
    with pytest.raises(Unavailable, match="no majority of the voters"):
        await stage.ask("remove_replica", RemoveReplicaRequest(tablet, second, at_once=True), m.MembersReply)


@pytest.mark.parametrize(("replicas", "least"), [(3, 2), (5, 3)])
@staged(play, 0, OPTIONS)
async def test_consecutive_removals_leave_a_majority(stage: Stage, replicas: int, least: int) -> None:
    (tablet,) = await opened(stage, "abcdefg", replicas=replicas)
    stage.raft.copies = False

    def voters() -> list[str]:
        return [host(peer) for peer in configuration(stage, tablet).voters()]

    for left in reversed(range(least, replicas)):
        await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, voters()[-1], at_once=True))
        await stage.until(lambda left=left: len(voters()) == left)
    for out in voters():
        at_once = RemoveReplicaRequest(tablet, out, at_once=True)
        with pytest.raises(Unavailable, match=rf"healthy voters?, and a table of . replicas keeps {least}"):
            await stage.ask("remove_replica", at_once, m.MembersReply)
    before = voters()
    await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, before[0]))
    await asyncio.sleep(5.0)
    assert voters() == before, "it has the flag and stays"
    stage.raft.copies = True
    await stage.until(lambda: well(stage, replicas) and before[0] not in hosts_of(stage, tablet))


@staged(play, 0, OPTIONS)
async def test_a_failed_voter_can_always_be_removed_at_once(stage: Stage) -> None:
    (tablet,) = await opened(stage, "abcdefg", replicas=5)
    stage.master.repairs.begins_at = 1e9  # so that the operator is faster
    *well_ones, broken = [h for h in hosts_of(stage, tablet) if h != leader(stage, tablet)][:3]
    for name in well_ones:
        await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, name, at_once=True))
        await stage.until(lambda name=name: name not in hosts_of(stage, tablet))
    silence(stage, broken)
    await stage.until(lambda: SILENT in stage.master.views.of(tablet).leader_report.health.values())
    await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, broken, at_once=True))
    await stage.until(lambda: len(hosts_of(stage, tablet)) == 2)


@staged(play, 0, OPTIONS)
async def test_a_move_to_an_unsuitable_server_is_refused(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    first, second = hosts_of(stage, tablet)[:2]
    with pytest.raises(InvalidArgument, match="has a replica of tablet"):
        await stage.ask("move_replica", MoveReplicaRequest(tablet, first, second), m.MembersReply)
    with pytest.raises(InvalidArgument, match="has a replica of tablet"):
        await stage.ask("move_replica", MoveReplicaRequest(tablet, first, first), m.MembersReply)
    with pytest.raises(NotFound, match="has no replica at 'nowhere'; it has replicas at tablet-server/"):
        await stage.ask("move_replica", MoveReplicaRequest(tablet, "nowhere", first), m.MembersReply)
    silence(stage, target := spare(stage, tablet))
    await asyncio.sleep(5.0)
    with pytest.raises(Unavailable, match="has sent no heartbeat of late"):
        await stage.ask("move_replica", MoveReplicaRequest(tablet, first, target), m.MembersReply)


@staged(play, 0, OPTIONS)
async def test_a_single_replica_can_move_but_not_be_removed(stage: Stage) -> None:
    (tablet,) = await opened(stage, "abc", replicas=1)
    only = leader(stage, tablet)
    with pytest.raises(InvalidArgument, match="has the only voter"):
        await stage.ask("remove_replica", RemoveReplicaRequest(tablet, only), m.MembersReply)
    target = spare(stage, tablet)
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, only, target))
    await stage.until(lambda: well(stage, 1) and hosts_of(stage, tablet) == [target])


# -- draining ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [None, "master.drain.before_edit", "master.drain.after_edit"])
@staged(play, 0, OPTIONS)
async def test_a_draining_server_loses_its_replicas_and_gets_none(stage: Stage, point: str | None) -> None:
    tablets = await opened(stage, "abcde", buckets=6)
    revived = stage.revive_master()
    if point is not None:
        stage.crash_at(point)
    (reported,) = (await stage.drain("b")).servers
    assert (reported.address, reported.draining, reported.blocked) == ("tablet-server/b", True, 0)
    assert reported.replicas == sum("b" in hosts_of(stage, tablet) for tablet in tablets) > 0
    await stage.until(lambda: well(stage))
    assert (await stage.drain("b", None)).servers[0].replicas == 0
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: all(stage.alive(h) for h in "abcde"))
    listed = await stage.servers()
    assert [server.host for server in listed if server.draining] == ["b"]
    await stage.made("more", buckets=4)
    assert all("b" not in hosts_of(stage, tablet) for tablet in stage.master.catalog.tablets)
    with pytest.raises(InvalidArgument, match="drains and gets nothing new"):
        add = MoveReplicaRequest(tablets[0], follower(stage, tablets[0]), "b")
        await asked(stage, "move_replica", add)
    assert (await stage.drain(stage.server("b").uuid, False)).servers[0].draining is False
    await asked(stage, "move_replica", MoveReplicaRequest(tablets[0], follower(stage, tablets[0]), "b"))
    await stage.until(lambda: well(stage) and "b" in hosts_of(stage, tablets[0]))
    assert revived[0] == (point is not None)
    stage.watcher.cancel()


@staged(play, 0, OPTIONS)
async def test_an_unmovable_replica_stays_on_a_draining_server_and_is_reported(stage: Stage) -> None:
    await opened(stage, "abc", buckets=2)
    (reported,) = (await stage.drain("tablet-server/b")).servers
    assert (reported.replicas, reported.blocked) == (2, 2)
    await asyncio.sleep(10.0)
    assert (await stage.drain("b", None)).servers == (reported,)
    await stage.serve("d")
    await stage.until(lambda: well(stage))
    with pytest.raises(NotFound, match="no server 'nowhere'"):
        await stage.drain("nowhere")


@staged(play, 0, OPTIONS)
async def test_a_non_voter_does_not_take_a_voters_place(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    extra, out = spare(stage, tablet), follower(stage, tablet)
    await asked(stage, "add_replica", AddReplicaRequest(tablet, extra, "non_voter"))
    await stage.until(lambda: extra in hosts_of(stage, tablet))
    (reported,) = (await stage.drain(out)).servers
    assert (reported.replicas, reported.blocked) == (1, 1)
    await asyncio.sleep(10.0)
    assert (await stage.drain(out, None)).servers == (reported,)
    await asked(stage, "add_replica", AddReplicaRequest(tablet, extra, "voter"))
    await stage.until(lambda: well(stage) and extra in hosts_of(stage, tablet))
    assert out not in hosts_of(stage, tablet)


@staged(play, 0, OPTIONS)
async def test_an_unreported_server_can_be_drained_and_released(stage: Stage) -> None:
    (tablet,) = await opened(stage, "abcd")
    out = follower(stage, tablet)
    stage.cluster.crash(f"tablet-server/{out}")
    stage.raft.unhealthy[stage.server(out).uuid] = SILENT
    await stage.cluster.restart(MASTER)
    await stage.drain(out)
    await stage.until(lambda: out not in hosts_of(stage, tablet) and len(hosts_of(stage, tablet)) == 3)
    assert (await stage.drain(out, False)).servers[0].draining is False


@staged(play, 0, OPTIONS)
async def test_requests_without_a_leader_or_a_tablet_are_refused(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    with pytest.raises(NotFound, match="there is no tablet 'x'"):
        await stage.ask("remove_replica", RemoveReplicaRequest("x", "a"), m.MembersReply)
    for name in "abcd":
        stage.scripts[name].silent = True
    await stage.cluster.restart(MASTER)
    with pytest.raises((Unavailable, NetworkError), match="has not reported yet"):
        await stage.ask("remove_replica", RemoveReplicaRequest(tablet, "a"), m.MembersReply)


@staged(play, 0, OPTIONS)
async def test_a_new_master_answers_a_repeated_move_or_removal(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    source, target = follower(stage, tablet), spare(stage, tablet)
    move, removal = MoveReplicaRequest(tablet, source, target), RemoveReplicaRequest(tablet, source)
    await asked(stage, "move_replica", move)
    await stage.until(lambda: well(stage) and source not in hosts_of(stage, tablet))
    silence(stage, source)
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(8.0)
    for method, request in (("move_replica", move), ("remove_replica", removal)):
        done = await asked(stage, method, request)
        assert done.configuration == configuration(stage, tablet)
    with pytest.raises(NotFound, match="there is no server 'nobody'"):
        await stage.ask("remove_replica", RemoveReplicaRequest(tablet, "nobody"), m.MembersReply)
