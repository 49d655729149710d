"""Leases of PacificA tables on tablet servers: how they begin and end, and what stops without one."""

from __future__ import annotations

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.pacifica.state import INACTIVE
from tests.tablet.appointing import LIMITS, MASTER, PacificaGroup, pacifica, voting
from tests.tablet.copies import fill, same_rows, until
from tests.tablet.harness import HOSTS, SLOW_HEARTBEATS, address, held, row
from tests.tablet.test_handing_over import handed_over

A, B, C = HOSTS


@pacifica()
async def test_without_a_master_the_lease_ends_and_service_comes_back_with_a_master(
    group: PacificaGroup,
) -> None:
    await group.upsert(row(1))
    group.stop_master()
    await group.sleep(LIMITS.lease_s + 0.2)
    for host in HOSTS:
        assert isinstance(await group.read_once(host), errors.NotLeader | errors.Unavailable)
    assert group.core(A).standing == INACTIVE
    refused = await group.write_once(A, group.batch(m.UPSERT, [row(2)], 50))
    assert isinstance(refused, errors.NotLeader)
    ballot = group.stored.index
    await group.start_master()
    await group.upsert(row(3))
    assert await group.get(1, 3) == [row(1), row(3)]
    assert group.stored.index > ballot and await group.leader() == A


@pacifica()
async def test_a_master_that_is_away_for_less_than_a_lease_is_not_missed(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    ballot = group.stored.index
    group.stop_master()
    await group.sleep(LIMITS.lease_s - LIMITS.beacon_s - 0.5)
    await group.start_master()
    for _ in range(20):
        await group.sleep(0.5)
        assert await group.read_once(A) is None
    assert group.stored.index == ballot


@pacifica()
async def test_a_server_that_stops_without_a_master_waits_for_less_than_a_lease(group: PacificaGroup) -> None:
    await fill(group, 10)
    await group.leader()
    group.stop_master()
    began = group.client.clock.monotonic()
    await group.cluster.stop(address(A))
    assert group.client.clock.monotonic() - began < LIMITS.lease_s + 1.0


@pacifica()
async def test_a_server_that_flushes_before_its_end_asks_for_no_lease(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    async with handed_over(group, B):
        await group.sleep(3 * LIMITS.beacon_s)
        shown = group.detector.shown(group.master.world.clock.monotonic(), group.uuid(B))
        assert shown is not None and shown.beacon_age_s >= 3 * LIMITS.beacon_s - 0.1


@pacifica(**SLOW_HEARTBEATS)
async def test_a_primary_steps_down_at_the_moment_when_its_lease_ends(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    group.stop_master()
    await group.sleep(1.0)
    lease, clock = group.server(A).leasing.lease, group.server(A).world.clock
    for _ in range(3):
        await group.sleep(lease.until - clock.monotonic() - 0.01)
        assert group.replica(A).leads
        await group.sleep(0.012)
        assert not group.replica(A).leads
        await group.start_master()
        await group.leader()
        group.stop_master()
        await group.sleep(0.3)


@pacifica()
async def test_a_server_gets_its_lease_soon_after_its_start(group: PacificaGroup) -> None:
    """Its first beacon is not acknowledged: the master records its incarnation before."""
    await group.upsert(row(1))
    await group.restart(B)
    await until(group, group.server(B).leasing.holds, "it has a lease", LIMITS.beacon_s / 2)


@pacifica()
async def test_a_server_whose_log_writer_stalls_loses_its_lease(group: PacificaGroup) -> None:
    await fill(group, 10)
    await group.leader()
    began = group.client.clock.monotonic()
    group.disk(A).hang(30.0)
    batch = group.batch(m.UPSERT, [row(77, "acknowledged once")], 500)
    await group.write_once(A, batch, 0.2)
    await group.sleep(LIMITS.lease_s)
    assert group.points.reached["tablet.beacon.withheld"] > 0
    group.leader_hint = B
    await group.write_bytes(batch)
    assert await group.leader() in (B, C)
    assert await group.get(77) == [row(77, "acknowledged once")]
    assert group.client.clock.monotonic() - began < 15.0
    await group.sleep(30.0)
    await voting(group, *HOSTS)
    await same_rows(group, *HOSTS)


@pytest.mark.parametrize("trouble", ["slow", "full", "hung"])
@pacifica()
async def test_a_primary_hands_over_when_its_disk_delays_what_all_others_hold(
    group: PacificaGroup, trouble: str
) -> None:
    """Its lease goes on for longer: the server withholds no beacon for less than half a lease."""
    await group.upsert(row(1))
    await group.leader()
    await group.settle()
    disk, clock = group.disk(A), group.client.clock
    if trouble == "slow":
        disk.commit_s = (LIMITS.lease_s / 2, LIMITS.lease_s / 2)
    elif trouble == "full":
        disk.fill()
    else:
        disk.hang(60.0)
    began = clock.monotonic()
    await group.upsert(row(2))
    assert clock.monotonic() - began < LIMITS.lease_s / 2
    assert await group.leader() in (B, C) and group.kinds()["host-a"] == "pre_voter"
    assert await group.get(1, 2) == [row(1), row(2)]


@pacifica()
async def test_a_primary_whose_disk_hangs_leads_on_if_the_others_are_suspended(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    assert await group.leader() == A
    group.detector.allowed = lambda uuid: uuid == group.uuid(A)
    await group.sleep(2 * LIMITS.lease_s)
    group.disk(A).hang(6.0)
    await group.upsert(row(2))
    assert await group.leader() == A and await group.get(2) == [row(2)]


@pacifica()
async def test_an_idle_server_with_a_hung_disk_keeps_its_lease(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    await group.settle()
    group.disk(A).hang(10.0)
    await group.sleep(8.0)
    assert await group.read_once(A) is None and group.points.reached["tablet.beacon.withheld"] == 0


@pacifica()
async def test_a_primary_without_a_majority_serves_nothing_that_others_may_change(
    group: PacificaGroup,
) -> None:
    """The primary is cut off from its secondaries and from the master."""
    await group.upsert(row(1, "old"))
    await group.leader()
    group.isolate(A)
    group.leader_hint = B
    await group.upsert(row(1, "new"))
    group.heal()
    assert isinstance(await group.read_once(A), errors.NotLeader | errors.Unavailable)
    assert await group.get(1) == [row(1, "new")]
    await voting(group, *HOSTS)
    await same_rows(group, *HOSTS)
    assert group.cluster.alive(MASTER)


@pacifica()
async def test_a_lease_counts_from_the_sending_of_the_beacon(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    lease, clock = group.server(A).leasing.lease, group.server(A).world.clock
    begun, over = held(group.appointer, "beacon")
    await begun.wait()
    await group.sleep(2.5)
    before = lease.until
    over.set()
    await until(group, lambda: lease.until > before, "a late answer extends the lease", 1.0)
    assert lease.until - clock.monotonic() < LIMITS.lease_s - LIMITS.beacon_s / 2


@pacifica()
async def test_a_primary_reports_until_it_has_another_ballot(group: PacificaGroup) -> None:
    """The master has taken the first reports for older than its order."""
    await group.upsert(row(1))
    planner = group.appointer.planner
    take, planner.take = planner.take, lambda *report: False  # type: ignore[method-assign]
    server, now = group.server(A), group.server(A).world.clock.monotonic()
    server.leasing.lease.number += 1
    server.rounds.step(group.replica(A), group.core(A).tick, now)
    assert group.core(A).standing == INACTIVE
    ballot = group.stored.index
    await group.sleep(1.8)
    assert group.stored.index == ballot
    planner.take = take  # type: ignore[method-assign]
    await until(group, lambda: group.stored.index > ballot, "the master appoints it again", 5.0)
    assert await group.get(1) == [row(1)]
