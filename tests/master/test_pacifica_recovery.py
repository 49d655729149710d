"""PacificA tablets on real tablet servers after the loss of all voters: without force, and with a forced configuration."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.master.catalog.records import RUNNING
from ebla.actors.messages.diagnosis import ForceRequest
from ebla.actors.replication.health import DELETED
from tests.master.real_servers import OPTIONS, members_of, open_stage, role, server, start_server, table
from tests.master.stage import Stage, play
from tests.master.test_pacifica_servers import LATER, host_of, leads, rows, stored, with_rows
from tests.staged import staged

ENDED_S = OPTIONS.detector.grace_s + 1.0


async def lose(stage: Stage, hosts: list[str]) -> None:
    for host in hosts:
        stage.cluster.crash(server(host))
    await asyncio.sleep(ENDED_S)


async def serves(stage: Stage, tablet: str) -> None:
    """Wait until the tablet has two voters at least, all of them alive, and its primary leads."""

    def well() -> bool:
        voters = [host for host, kind in members_of(stage, tablet).items() if kind == "voter"]
        alive = all(stage.cluster.alive(server(host)) for host in voters)
        return alive and len(voters) >= 2 and leads(stage, tablet)

    await stage.until(well, 300)


@staged(play, 0, OPTIONS)
async def test_a_single_voter_that_returns_recovers_the_tablet_without_force(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abcd", 60.0)
    members = list(members_of(stage, tablet))
    assert members_of(stage, tablet) == dict.fromkeys(members, "voter")
    await lose(stage, members)
    last = next(host for host, kind in members_of(stage, tablet).items() if kind == "voter")
    await stage.cluster.restart(server(last))
    await serves(stage, tablet)
    assert await rows(flights) == 20
    await flights.upsert(LATER)
    assert stored(stage, tablet).unsafe == 0 and not stage.master.catalog.tablets[tablet].forced


@staged(play, 0, OPTIONS)
async def test_a_forced_learner_serves_and_the_data_of_former_voters_goes_into_quarantine(
    stage: Stage,
) -> None:
    tablet, flights = await with_rows(stage, "abcd", 60.0)
    members = list(members_of(stage, tablet))
    first = host_of(stage, tablet)
    survivor = next(host for host in members if host != first)
    stage.cluster.crash(server(survivor))
    await stage.until(lambda: members_of(stage, tablet).get(survivor) == "pre_voter")
    await flights.upsert(LATER)
    voters = [host for host, kind in members_of(stage, tablet).items() if kind == "voter"]
    await lose(stage, voters)
    await stage.cluster.restart(server(survivor))
    await stage.until(
        lambda: stage.master.appointer.planner.voters.runs(tablet, uuid_of(stage, survivor)) is True
    )
    known, core = stored(stage, tablet), role(stage, survivor).replicas[tablet].core
    assert not core.leader or core.leader != uuid_of(stage, survivor)
    request = ForceRequest(
        tablet, uuid_of(stage, survivor), known.index, known.unsafe, "ann@desk", core.last_index, 0
    )
    await stage.ask("force_primary", request, m.MembersReply)
    await serves(stage, tablet)
    assert await rows(flights) == 20, "the later rows were only on the voters"
    await flights.upsert([{"id": 100, "note": "new"}])
    for host in voters:
        await stage.cluster.restart(server(host))
    await stage.until(lambda: not stage.master.catalog.tablets[tablet].former, 120)
    for host in voters:
        await stage.until(lambda host=host: role(stage, host).lifecycle.quarantine.list(), 120)
        (entry,) = role(stage, host).lifecycle.quarantine.list()
        assert entry.record.tablet == tablet
        state = role(stage, host).lifecycle.state_of(tablet)
        assert state == DELETED or members_of(stage, tablet).get(host), state
    await stage.until(lambda: not stage.master.views.unsettled, 300)
    assert await rows(flights) == 21
    await flights.upsert(LATER)
    assert stored(stage, tablet).unsafe == 1


def uuid_of(stage: Stage, host: str) -> str:
    return role(stage, host).instance.uuid


@pytest.mark.parametrize("which", ["a secondary", "the primary"])
@staged(play, 0, OPTIONS)
async def test_a_voter_that_lost_its_directory_votes_again_on_its_host_though_none_may_leave(
    stage: Stage, which: str
) -> None:
    """There are as many hosts as replicas, and writes take all of them."""
    tablet, flights = await with_rows(stage, "ab", replicas=2, min_members=2)
    first = host_of(stage, tablet)
    lost = first if which == "the primary" else next(host for host in "ab" if host != first)
    former = uuid_of(stage, lost)
    stage.cluster.crash(server(lost))
    stage.cluster.lose_disk(server(lost))
    await stage.cluster.restart(server(lost))
    await stage.until(
        lambda: (
            members_of(stage, tablet) == dict.fromkeys("ab", "voter")
            and stored(stage, tablet).peer(former) is None
            and leads(stage, tablet)
        ),
        120,
    )
    await flights.upsert(LATER)
    assert await rows(flights) == 30


@staged(play, 0, OPTIONS)
async def test_a_tablet_that_never_committed_anything_is_replaced_when_its_primary_is_lost(
    stage: Stage,
) -> None:
    await open_stage(stage, failed_s=6.0, hosts=tuple("abc"))
    for host in "bc":
        stage.cluster.crash(server(host))
    await stage.create(buckets=1, replication="pacifica")
    (tablet,) = stage.master.catalog.named("flights").tablets
    await stage.until(lambda: tablet in stage.master.catalog.creating and leads(stage, tablet))
    assert host_of(stage, tablet) == "a"
    await lose(stage, ["a"])
    for host in "bc":
        await stage.cluster.restart(server(host))
    await start_server(stage, "d", failed_s=6.0)
    await stage.until(lambda: tablet not in stage.master.catalog.named("flights").tablets)
    (successor,) = stage.master.catalog.named("flights").tablets
    await stage.until(lambda: stage.master.catalog.tablets[successor].state == RUNNING)
    flights = await table(stage)
    await flights.upsert(LATER)
    assert await rows(flights) == len(LATER)
