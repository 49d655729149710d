"""PacificA tables over real tablet servers: the master and its servers agree on ballots, leases and members."""

from __future__ import annotations

import asyncio

from ebla import aio
from ebla.actors import messages as m
from ebla.actors.master.messages import DrainReply, DrainRequest, MoveReplicaRequest
from ebla.actors.messages.repair import MembersReply
from tests.master.healed import asked
from tests.master.real_servers import OPTIONS, members_of, open_stage, role, server, table
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

ROWS = [{"id": n, "note": "kept"} for n in range(20)]
LATER = [{"id": n, "note": "later"} for n in range(20, 30)]


async def with_rows(
    stage: Stage, hosts: str = "abc", failed_s: float = 6.0, **changes: object
) -> tuple[str, aio.Table]:
    """A tablet whose primary leads, and its table, which has `ROWS`."""
    await open_stage(stage, failed_s=failed_s, hosts=tuple(hosts))
    (tablet,) = await stage.tablets("flights", buckets=1, replication="pacifica", **changes)
    await stage.until(lambda: leads(stage, tablet))
    flights = await table(stage)
    await flights.upsert(ROWS)
    return tablet, flights


def stored(stage: Stage, tablet: str):
    return stage.master.catalog.tablets[tablet].configuration


def host_of(stage: Stage, tablet: str) -> str:
    known = stored(stage, tablet)
    return known.peer(known.primary).address.rpartition("/")[2]


def leads(stage: Stage, tablet: str) -> bool:
    first = host_of(stage, tablet)
    if not stage.cluster.alive(server(first)) or tablet not in role(stage, first).replicas:
        return False
    return role(stage, first).replicas[tablet].leads


async def rows(flights) -> int:
    return len(await flights.scan().to_arrow())


@staged(play, 0, OPTIONS)
async def test_a_dead_primary_is_replaced_and_returns_as_a_voter(stage: Stage) -> None:
    tablet, flights = await with_rows(stage)
    first = host_of(stage, tablet)
    stage.cluster.crash(server(first))
    await stage.until(lambda: host_of(stage, tablet) != first and leads(stage, tablet))
    assert await rows(flights) == 20
    await flights.upsert(LATER)
    await stage.cluster.restart(server(first))
    await stage.until(lambda: members_of(stage, tablet) == dict.fromkeys("abc", "voter"))
    assert await rows(flights) == 30
    await stage.until(lambda: not stage.master.appointer.planner.unled)


@staged(play, 0, OPTIONS)
async def test_another_voter_leads_at_once_when_the_master_sees_the_process_of_the_primary_end(
    stage: Stage,
) -> None:
    stage.cluster.hosts.host_of, stage.cluster.hosts.seen = lambda address: "one", 1.0
    tablet, flights = await with_rows(stage)
    first, before = host_of(stage, tablet), stored(stage, tablet)
    stage.cluster.crash(server(first))
    async with stage.master.world.clock.timeout(OPTIONS.detector.grace_s / 4):
        await flights.upsert(LATER)
    known = stored(stage, tablet)
    assert known.primary != before.primary and known.peer(before.primary) not in known.voters()
    await stage.cluster.restart(server(first))
    await stage.until(lambda: whole(stage, tablet))


@staged(play, 0, OPTIONS)
async def test_a_secondary_whose_process_ends_keeps_its_vote_if_it_is_soon_back(stage: Stage) -> None:
    stage.cluster.hosts.host_of, stage.cluster.hosts.seen = lambda address: "one", 1.0
    tablet, flights, second = await with_a_secondary(stage, "abc")
    before = stored(stage, tablet)
    stage.cluster.crash(server(second))
    uuid = next(peer.uuid for peer in before.peers if peer.address == server(second))
    await stage.until(lambda: stage.master.appointer.detector.has_ended(uuid))
    await stage.cluster.restart(server(second))
    await asyncio.sleep(2.0)
    await flights.upsert(LATER)
    assert stored(stage, tablet) == before


@staged(play, 0, OPTIONS)
async def test_no_write_waits_for_a_secondary_whose_process_has_ended(stage: Stage) -> None:
    stage.cluster.hosts.host_of, stage.cluster.hosts.seen = lambda address: "one", 1.0
    _, flights, second = await with_a_secondary(stage, "abc")
    stage.cluster.crash(server(second))
    async with stage.master.world.clock.timeout(0.5):
        await flights.upsert(LATER)
    await stage.cluster.restart(server(second))
    await flights.upsert(ROWS)


@staged(play, 0, OPTIONS)
async def test_voters_that_are_killed_together_keep_their_votes(stage: Stage) -> None:
    stage.cluster.hosts.host_of, stage.cluster.hosts.seen = lambda address: "one", 1.0
    tablet, flights = await with_rows(stage)
    voters = [peer.uuid for peer in stored(stage, tablet).voters()]
    for host in "abc":
        stage.cluster.crash(server(host))
    await asyncio.sleep(1.0)
    for host in "abc":
        await stage.cluster.restart(server(host))
    await flights.upsert(LATER)
    assert [peer.uuid for peer in stored(stage, tablet).voters()] == voters


@staged(play, 0, OPTIONS)
async def test_all_servers_and_the_master_restart(stage: Stage) -> None:
    tablet, flights = await with_rows(stage)
    for host in "abc":
        stage.cluster.crash(server(host))
    await stage.cluster.restart(MASTER)
    for host in "abc":
        await stage.cluster.restart(server(host))
    await stage.until(lambda: leads(stage, tablet))
    assert await rows(flights) == 20


@staged(play, 0, OPTIONS)
async def test_with_min_members_left_a_replacement_is_added_without_waiting(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abc", 60.0, replicas=2)
    first = host_of(stage, tablet)
    other = next(h for h in members_of(stage, tablet) if h != first)
    stage.cluster.crash(server(other))
    await stage.until(
        lambda: (
            len([k for k in members_of(stage, tablet).values() if k == "voter"]) == 2
            and members_of(stage, tablet).get(other) != "voter"
        ),
        100,
    )
    await flights.upsert(LATER)
    assert await rows(flights) == 30


@staged(play, 0, OPTIONS)
async def test_a_hand_over_and_a_move(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abcd")
    first = host_of(stage, tablet)
    await stage.client.network.call(
        server(first), "step_down", m.StepDownRequest(tablet, None, 3.0), m.StepDownReply, 5.0
    )
    await stage.until(lambda: host_of(stage, tablet) != first and leads(stage, tablet))
    spare = next(h for h in "abcd" if h not in members_of(stage, tablet))
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, first, spare))
    await stage.until(
        lambda: members_of(stage, tablet).get(spare) == "voter" and first not in members_of(stage, tablet),
        200,
    )
    assert await rows(flights) == 20
    await stage.until(lambda: not stage.master.catalog.tablets[tablet].former, 200)


@staged(play, 0, OPTIONS)
async def test_a_primary_leaves_a_host_that_is_drained_and_writes_go_on(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abcd")
    first = host_of(stage, tablet)
    await stage.ask("drain", DrainRequest(first), DrainReply)
    await flights.upsert(LATER)
    await stage.until(lambda: first not in members_of(stage, tablet), 200)
    assert sorted(members_of(stage, tablet).values()) == ["voter"] * 3
    assert host_of(stage, tablet) != first and await rows(flights) == 30
    await stage.until(lambda: tablet not in role(stage, first).replicas, 200)


FAILED_S = 6.0
LONG_S = 5 * FAILED_S
WHOLE = ("voter",) * 3


async def with_a_secondary(stage: Stage, hosts: str) -> tuple[str, aio.Table, str]:
    """A tablet and its table with rows, and a host with a secondary."""
    tablet, flights = await with_rows(stage, hosts, FAILED_S)
    return tablet, flights, next(host for host in members_of(stage, tablet) if host != host_of(stage, tablet))


def whole(stage: Stage, tablet: str) -> bool:
    return tuple(members_of(stage, tablet).values()) == WHOLE


async def copies(stage: Stage, host: str) -> int:
    """The copies of the tablet that the process at this host has made."""
    call = stage.client.network.call
    jobs = await call(server(host), "list_copies", m.Empty(), m.CopyJobs, 5.0)
    return len(jobs.jobs) + len(jobs.ended)


@staged(play, 0, OPTIONS)
async def test_a_dead_secondary_keeps_its_place_while_no_other_server_takes_it(stage: Stage) -> None:
    tablet, flights, dead = await with_a_secondary(stage, "abc")
    stage.cluster.crash(server(dead))
    await stage.until(lambda: members_of(stage, tablet)[dead] == "pre_voter")
    await flights.upsert(LATER)
    await asyncio.sleep(LONG_S)
    assert members_of(stage, tablet)[dead] == "pre_voter"
    await stage.cluster.restart(server(dead))
    await stage.until(lambda: whole(stage, tablet))
    assert await copies(stage, dead) == 0, "its log and rows were still there"
    assert await rows(flights) == 30


@staged(play, 0, OPTIONS)
async def test_a_secondary_that_returns_before_its_replacement_votes_again(stage: Stage) -> None:
    tablet, _, dead = await with_a_secondary(stage, "abcd")
    (spare,) = set("abcd") - set(members_of(stage, tablet))
    stage.cluster.state(server(spare)).fill()  # it takes no replica now
    stage.cluster.crash(server(dead))
    await asyncio.sleep(LONG_S)
    assert set(members_of(stage, tablet)) == set("abcd") - {spare}
    await stage.cluster.restart(server(dead))
    await stage.until(lambda: whole(stage, tablet))
    assert await copies(stage, dead) == 0


@staged(play, 0, OPTIONS)
async def test_data_elsewhere_is_surplus_only_while_the_tablet_is_whole(stage: Stage) -> None:
    tablet, flights, dead = await with_a_secondary(stage, "abcd")
    (spare,) = set("abcd") - set(members_of(stage, tablet))
    stage.cluster.crash(server(dead))
    await stage.until(lambda: whole(stage, tablet) and spare in members_of(stage, tablet))
    second = next(h for h in members_of(stage, tablet) if h not in (host_of(stage, tablet), spare))
    stage.cluster.crash(server(second))
    await stage.until(lambda: members_of(stage, tablet)[second] == "pre_voter")
    await stage.cluster.restart(server(dead))
    await asyncio.sleep(FAILED_S / 2)
    assert role(stage, dead).replicas[tablet].state == "running", "it left, and the tablet is not whole"
    await stage.until(lambda: members_of(stage, tablet).get(dead) == "voter", 200)
    await stage.until(lambda: second not in members_of(stage, tablet))
    await stage.cluster.restart(server(second))
    gone = role(stage, second)
    await stage.until(lambda: tablet not in gone.replicas and not stage.master.catalog.tablets[tablet].former)
    assert whole(stage, tablet) and await rows(flights) == 20
    assert leads(stage, tablet)


@staged(play, 0, OPTIONS)
async def test_a_silent_server_in_maintenance_keeps_its_pacifica_replicas(stage: Stage) -> None:
    tablet, _, down = await with_a_secondary(stage, "abcd")
    before = set(members_of(stage, tablet))
    await stage.maintain(down)
    stage.cluster.crash(server(down))
    await asyncio.sleep(LONG_S)
    assert set(members_of(stage, tablet)) == before and members_of(stage, tablet)[down] == "pre_voter"
    await stage.maintain(down, False)
    await stage.until(lambda: whole(stage, tablet) and down not in members_of(stage, tablet), 200)


@staged(play, 0, OPTIONS)
async def test_a_server_whose_lease_outlasts_the_grace_gets_none(stage: Stage) -> None:
    await open_stage(stage, hosts=("a", "b", "c"), beacon_lease_s=12.0)
    await stage.create("flights", buckets=1, replication="pacifica")
    await stage.until(lambda: all(role(stage, host).leasing.refusal() for host in "abc"))
    await asyncio.sleep(8.0)
    for each in (role(stage, host) for host in "abc"):
        assert "its lease is too long" in each.leasing.refusal() and not each.leasing.holds()
        assert not any(replica.leads for replica in each.replicas.values())


@staged(play, 0, OPTIONS)
async def test_a_server_without_members_may_start_again_while_its_end_is_being_recorded(stage: Stage) -> None:
    await open_stage(stage, failed_s=6.0, seqno_s=0.5)
    (tablet,) = await stage.tablets("flights", buckets=1, replication="pacifica")
    await stage.until(lambda: leads(stage, tablet))
    (spare,) = {*"abcd"} - members_of(stage, tablet).keys()
    left = next(host for host in members_of(stage, tablet) if host != host_of(stage, tablet))
    await stage.persist(
        lambda: stage.ask("move_replica", MoveReplicaRequest(tablet, left, spare), MembersReply)
    )
    await stage.until(lambda: left not in members_of(stage, tablet))
    await asyncio.sleep(10.0)
    begun = asyncio.Event()

    async def started_again() -> None:
        await stage.cluster.restart(server(left))
        await asyncio.sleep(0.3)  # its first beacon comes
        begun.set()

    stage.cluster.crash(server(left))
    stage.points.acts["master.appoint.before_edit"] = started_again
    await begun.wait()
    await asyncio.sleep(5.0)
    assert stage.cluster.alive(MASTER) and role(stage, left).running
