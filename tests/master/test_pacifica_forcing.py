"""Forced configurations of PacificA tablets, and the evidence about their servers."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import ConfigurationMoved, NotFound, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.messages.diagnosis import ForceRequest, HolderEvidence, TabletEvidence
from ebla.actors.replication.configuration import NON_VOTER, Peer
from ebla.storage.errors import EblaError, InvalidArgument
from tests.master.stage import MASTER, Stage
from tests.master.stage import play as play_raft
from tests.master.toy_pacifica import LIMITS, PacificaStage, play
from tests.staged import staged

TIMES_S = LIMITS.grace_s + 1.0


async def with_a_learner(stage: PacificaStage) -> tuple[str, str]:
    """A tablet of three voters and a learner. Returns the tablet, and the host of the learner."""
    (tablet,) = await stage.opened("abcd")
    primary = stage.server(stage.primary(tablet))
    (host,) = [host for host in "abcd" if stage.server(host).uuid not in uuids(stage, tablet)]
    learner = Peer(stage.server(host).uuid, f"tablet-server/{host}", NON_VOTER, promote=False)
    change = m.ChangeMembersRequest(primary.uuid, tablet, (m.MemberChange(m.ADD, learner),))
    await stage.client.network.call(primary.world.address, "change_members", change, m.MembersReply, 5.0)
    await stage.server(host).put(primary.replicas[tablet])
    await stage.until(lambda: stage.appointer.planner.voters.runs(tablet, stage.server(host).uuid) is True)
    return tablet, host


def uuids(stage: PacificaStage, tablet: str) -> list[str]:
    return [peer.uuid for peer in stage.stored(tablet).peers]


async def silence(stage: PacificaStage, tablet: str) -> list[str]:
    """Let every voter end. Returns their hosts."""
    hosts = stage.voters(tablet)
    for host in hosts:
        stage.scripts[host].silent = True
    await asyncio.sleep(TIMES_S)
    return hosts


def request(stage: PacificaStage, tablet: str, host: str) -> ForceRequest:
    known = stage.stored(tablet)
    return ForceRequest(tablet, stage.server(host).uuid, known.index, known.unsafe, "ann@desk", 7, 9)


async def force(stage: Stage, made: ForceRequest) -> m.MembersReply:
    return await stage.ask("force_primary", made, m.MembersReply)


async def evidence(stage: Stage, tablet: str) -> TabletEvidence:
    return await stage.ask("tablet_evidence", m.TabletRequest(tablet), TabletEvidence)


def holder(found: TabletEvidence, host: str) -> HolderEvidence:
    return next(each for each in found.holders if each.address == f"tablet-server/{host}")


@staged(play)
async def test_a_learner_leads_after_the_loss_of_all_voters_and_the_record_stays(
    stage: PacificaStage,
) -> None:
    tablet, host = await with_a_learner(stage)
    hosts = await silence(stage, tablet)
    before = stage.stored(tablet)
    made = request(stage, tablet, host)
    reply = await force(stage, made)
    known = reply.configuration
    assert known == stage.stored(tablet)
    assert (known.order, known.min_members) == ((1, before.index + 1), before.min_members)
    assert [(peer.address, peer.kind) for peer in known.peers] == [(f"tablet-server/{host}", "voter")]
    await stage.until(lambda: stage.serving(tablet) == [host])
    assert await force(stage, made) == m.MembersReply(tablet, stage.stored(tablet)), "asked again"
    await stage.cluster.restart(MASTER)
    (record,) = stage.master.catalog.tablets[tablet].forced
    assert (record.ballot, record.by, record.last_index, record.committed) == (known.index, "ann@desk", 7, 9)
    assert record.survivor.uuid == made.survivor
    assert sorted(peer.address[-1] for peer in record.given_up) == hosts
    (place,) = (await stage.table()).tablets
    assert place.forced == (record,)
    again = Catalog()
    again.load(stage.master.catalog.image())
    assert again.tablets[tablet] == stage.master.catalog.tablets[tablet]


@staged(play)
async def test_nothing_is_forced_while_a_voter_may_have_the_data(stage: PacificaStage) -> None:
    tablet, host = await with_a_learner(stage)
    made = request(stage, tablet, host)
    with pytest.raises(InvalidArgument, match=r"has a voter of tablet .* with every acknowledged write"):
        await force(stage, made)
    *most, last = sorted(stage.voters(tablet), key=lambda each: each != stage.primary(tablet))
    for each in most:
        stage.scripts[each].silent = True
    await asyncio.sleep(TIMES_S)
    with pytest.raises(InvalidArgument, match=f"tablet-server/{last} has a voter"):
        await force(stage, request(stage, tablet, host))
    stage.scripts[last].silent = True
    await asyncio.sleep(LIMITS.grace_s - LIMITS.beacon_s - 0.5)
    with pytest.raises(InvalidArgument, match="its server answers"):
        await force(stage, request(stage, tablet, host))
    await asyncio.sleep(2.0)
    await force(stage, request(stage, tablet, host))


@staged(play)
async def test_a_voter_that_lacks_committed_entries_is_given_up_or_chosen(stage: PacificaStage) -> None:
    """It runs, on an older copy of its directory. Only an operator can say that what it lacks is lost."""
    tablet, _ = await with_a_learner(stage)
    first, primary = stage.voters(tablet), stage.primary(tablet)
    old = next(each for each in first if each != primary)
    await silence(stage, tablet)
    toy, voters = stage.server(old), stage.appointer.planner.voters
    stage.scripts[old].lacks = "its log lacks committed entries up to 9"
    stage.scripts[old].silent = False
    await toy.put(toy.replicas[tablet])
    await stage.until(lambda: voters.is_whole(tablet, toy.uuid) is False)
    assert stage.serving(tablet) == []
    assert holder(await evidence(stage, tablet), old).state == "running"
    await force(stage, request(stage, tablet, old))
    assert [peer.address[-1] for peer in stage.stored(tablet).voters()] == [old]


@staged(play)
async def test_a_voter_that_cannot_get_a_lease_has_its_data_still(stage: PacificaStage) -> None:
    tablet, host = await with_a_learner(stage)
    hosts = stage.voters(tablet)
    for each in hosts:
        stage.scripts[each].withholds = True
    await asyncio.sleep(TIMES_S)
    with pytest.raises(InvalidArgument, match="Let it serve; or end that server"):
        await force(stage, request(stage, tablet, host))
    found = await evidence(stage, tablet)
    assert {holder(found, each).lease for each in hosts} == {"ended"}


@staged(play)
async def test_a_new_master_waits_until_the_leases_are_over(stage: PacificaStage) -> None:
    tablet, host = await with_a_learner(stage)
    await silence(stage, tablet)
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.appointer.planner.voters.runs(tablet, stage.server(host).uuid) is True)
    with pytest.raises(Unavailable, match=r"may hold for up to [0-9.]+ s more"):
        await force(stage, request(stage, tablet, host))
    await asyncio.sleep(TIMES_S)
    await force(stage, request(stage, tablet, host))
    await stage.until(lambda: stage.serving(tablet) == [host])


@staged(play)
async def test_a_forced_configuration_names_the_ballot_and_a_running_replica(stage: PacificaStage) -> None:
    tablet, host = await with_a_learner(stage)
    gone = (await silence(stage, tablet))[0]
    for changes, error, words in (
        ({"ballot": 1}, ConfigurationMoved, "is in ballot [0-9]+ now"),
        ({"unsafe": 1}, ConfigurationMoved, "run `ebla tablet diagnose` again"),
        ({"survivor": "nowhere"}, InvalidArgument, "has no replica of tablet"),
        ({"tablet": "nowhere"}, NotFound, "there is no tablet 'nowhere'"),
        ({"survivor": stage.server(gone).uuid}, Unavailable, "has no lease now"),
    ):
        with pytest.raises(error, match=words):
            await force(stage, replace(request(stage, tablet, host), **changes))
    toy = stage.server(host)
    await toy.put(replace(toy.replicas[tablet], state="failed"))
    await stage.until(lambda: stage.appointer.planner.voters.runs(tablet, stage.server(host).uuid) is False)
    with pytest.raises(InvalidArgument, match="does not run, so it cannot become the primary"):
        await force(stage, request(stage, tablet, host))
    assert stage.stored(tablet).unsafe == 0


@staged(play)
async def test_a_live_primary_without_its_replica_is_given_up_once_it_has_declined(
    stage: PacificaStage,
) -> None:
    tablet, host = await with_a_learner(stage)
    hosts, first = await silence(stage, tablet), stage.primary(tablet)
    assert first in hosts
    toy = stage.server(first)
    await toy.put(replace(toy.replicas[tablet], state="failed"))
    stage.scripts[first].silent = False
    await stage.until(lambda: stage.appointer.planner.has_declined(tablet))
    await force(stage, request(stage, tablet, host))
    await stage.until(lambda: stage.serving(tablet) == [host])


@staged(play_raft)
async def test_a_tablet_of_raft_is_not_forced_by_the_master(stage: Stage) -> None:
    await stage.open(*"abc")
    (tablet,) = await stage.tablets(buckets=1)
    made = ForceRequest(tablet, "some", 1, 0, "ann", 0, 0)
    with pytest.raises(InvalidArgument, match="uses Raft; see `ebla tablet unsafe-change-config"):
        await force(stage, made)
    found = await evidence(stage, tablet)
    assert (found.replication, len(found.holders)) == ("raft", 3)
    assert {(each.part, each.alive, each.lease) for each in found.holders} == {("voter", True, "")}


@staged(play)
async def test_the_former_primary_gets_no_order_while_the_forced_ballot_becomes_durable(
    stage: PacificaStage,
) -> None:
    """It never got the order of its ballot. It has a lease again, and would lead."""
    tablet, host = await with_a_learner(stage)
    await silence(stage, tablet)
    first, held = stage.primary(tablet), asyncio.Event()
    stage.scripts[first].ballots[tablet] = 0
    stage.server(first).known.pop(tablet, None)
    stage.points.acts["master.force.before_edit"] = held.wait
    under_way = asyncio.ensure_future(force(stage, request(stage, tablet, host)))
    await asyncio.sleep(0.1)
    ordered = len(stage.scripts[first].orders)
    stage.scripts[first].silent = False
    detector, uuid = stage.appointer.detector, stage.server(first).uuid
    await stage.until(lambda: detector.lease(uuid) is not None)
    stage.appointer.planner.changed(tablet)
    stage.appointer.orders.send()
    await asyncio.sleep(1.0)
    assert len(stage.scripts[first].orders) == ordered and stage.serving(tablet) == []
    held.set()
    await under_way
    await stage.until(lambda: stage.serving(tablet) == [host])


@pytest.mark.parametrize("point", ["before_edit", "after_edit"])
@staged(play)
async def test_a_master_that_dies_while_it_forces_has_done_all_or_nothing(
    stage: PacificaStage, point: str
) -> None:
    tablet, host = await with_a_learner(stage)
    await silence(stage, tablet)
    made = request(stage, tablet, host)
    stage.crash_at(f"master.force.{point}")
    with pytest.raises(EblaError):
        await force(stage, made)
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(TIMES_S + 1.0)
    assert stage.stored(tablet).unsafe == (point == "after_edit")
    await force(stage, made)
    assert stage.stored(tablet).unsafe == 1 and len(stage.master.catalog.tablets[tablet].forced) == 1
    await stage.until(lambda: stage.serving(tablet) == [host])


@staged(play)
async def test_the_evidence_names_every_holder_and_its_lease(stage: PacificaStage) -> None:
    tablet, host = await with_a_learner(stage)
    first, *_ = stage.voters(tablet)
    stage.scripts[first].silent = True
    await asyncio.sleep(TIMES_S)
    found = await evidence(stage, tablet)
    assert (found.tablet, found.replication, found.replicas, found.min_members) == (tablet, "pacifica", 3, 2)
    assert found.configuration == stage.stored(tablet) and found.grace_s == LIMITS.grace_s
    assert found.committed == 1
    away, learner = holder(found, first), holder(found, host)
    assert (away.part, away.alive, away.lease, away.state) == ("pre_voter", False, "ended", "running")
    assert away.beacon_age_s is not None and away.beacon_age_s > LIMITS.grace_s
    assert (learner.part, learner.alive, learner.lease, learner.state) == (
        "non_voter",
        True,
        "alive",
        "running",
    )
    with pytest.raises(NotFound):
        await evidence(stage, "nowhere")
