"""Replicas during crashes, damage, lag, creation and deletion."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import Configuration, Peer
from tests.tablet.harness import CODEC, HOSTS, OTHER, TABLET, Group, row, simulated


def digests_agree(group: Group) -> None:
    positions = [group.replica(host).store.applied for host in HOSTS]
    assert positions[0] == positions[1] == positions[2], positions


@simulated(shared_log_bytes=40_000, memtable_bytes=30_000)
async def test_entries_that_a_follower_needs_stay_after_the_shared_log_is_trimmed(group: Group) -> None:
    (first, _) = await group.followers()
    leader = await group.leader()
    group.crash(first)
    for k in range(60):
        await group.upsert(row(k, "x" * 3000))
        await group.sleep(0.05)
    server = group.server(leader)
    assert server.shared.first_seq > 1 and server.replicas[TABLET].log.private is not None
    assert server.shared.bytes < 100_000
    await group.restart(first)
    await group.settle()
    digests_agree(group)
    assert (await group.scan(first))["k"].to_pylist() == list(range(60))
    await group.restart_all()
    assert len(await group.scan()) == 60


@simulated()
async def test_uncommitted_entries_of_a_cut_off_leader_are_replaced_by_the_majoritys(group: Group) -> None:
    await group.upsert(row(1, "base"))
    old, *others = await group.roles()
    group.cut(old, *others)
    lost = group.batch(m.UPSERT, [row(1, "lost")], 77)
    await group.write_once(old, lost, 0.2)
    group.leader_hint = others[0]
    await group.upsert(row(1, "won"))
    group.heal()
    await group.settle()
    digests_agree(group)
    assert await group.get(1) == [row(1, "won")]
    await group.restart_all()
    await group.settle()
    digests_agree(group)
    assert await group.get(1) == [row(1, "won")]


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_a_damaged_row_fails_its_replica_and_is_never_served(group: Group) -> None:
    await group.upsert(row(1, "good"), row(2, "good"))
    await group.settle()
    leader = await group.leader()
    await group.flush(leader)
    key = CODEC.encode_key({"k": 1})
    group.disk(leader).rot(f"data/{TABLET}", "rows", key)
    assert await group.get(1, 2) == [row(1, "good"), row(2, "good")]
    assert group.replica(leader).state == "failed"
    assert "checksum" in (group.replica(leader).error or "")
    assert await group.reported(leader) == {TABLET: "failed"}


@simulated()
async def test_a_damaged_log_entry_that_is_needed_fails_the_replica_at_its_start(group: Group) -> None:
    victim = await group.settled(row(1, "good"))
    group.crash(victim)
    state = group.disk(victim)
    entries = state.environments["wals/shared"]["entries"]
    state.rot("wals/shared", "entries", list(entries)[-1])
    await group.restart(victim)
    assert await group.reported(victim) == {TABLET: "failed"}
    await group.upsert(row(2, "without it"))
    assert await group.get(1, 2) == [row(1, "good"), row(2, "without it")]
    await group.restart(victim)
    assert await group.reported(victim) == {TABLET: "failed"}


@simulated()
async def test_a_damaged_log_entry_that_was_flushed_does_no_harm(group: Group) -> None:
    victim = await group.settled(row(1, "good"))
    await group.flush(victim)
    group.crash(victim)
    state = group.disk(victim)
    state.rot("wals/shared", "entries", next(iter(state.environments["wals/shared"]["entries"])))
    await group.restart(victim)
    await group.upsert(row(2))
    await group.settle()
    digests_agree(group)


@pytest.mark.parametrize("victim", ["leader", "follower"])
@simulated()
async def test_a_lost_data_disk_fails_the_replicas_on_it_and_the_server_keeps_running(
    group: Group, victim: str
) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    host = (await group.followers())[0] if victim == "follower" else await group.leader()
    server, state = group.server(host), group.disk(host)
    lost, other = group.replica(host), group.replica(host, OTHER)
    state.lose_data(f"data/{TABLET}")
    async with group.client.clock.timeout(10.0):  # without any request
        while server.replicas.get(TABLET) in (lost, None):
            await group.sleep(0.05)
    assert "is lost" in str(lost.error)
    assert group.server(host) is server and group.replica(host, OTHER) is other
    assert other.state == group.replica(host).state == "running"
    await group.upsert(row(2))
    await group.restart(host)
    assert await group.reported(host) == {TABLET: "running", OTHER: "running"}
    assert await group.get(1) == [row(1)] and await group.get(2) == [row(2)]


@pytest.mark.parametrize("lost", ["data disk", "its data as well, and the log is kept"])
@simulated()
async def test_a_replica_whose_data_disk_was_lost_while_its_server_was_down_is_copied(
    group: Group, lost: str
) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    host = (await group.followers())[0]
    group.crash(host)
    group.disk(host).lose_data(f"data/{TABLET}")
    if lost != "data disk":
        group.disk(host).environments[f"data/{TABLET}"].clear()
    await group.restart(host)
    assert group.replica(host, OTHER).state == "running"
    async with group.client.clock.timeout(10.0):
        while TABLET not in group.server(host).replicas:
            await group.sleep(0.05)
    await group.upsert(row(2))
    assert group.replica(host).state == "running"


@simulated()
async def test_a_repeated_creation_changes_nothing_and_another_servers_uuid_is_refused(group: Group) -> None:
    await group.upsert(row(1))
    host = HOSTS[0]
    await group.create_at(host, TABLET)
    assert await group.get(1) == [row(1)]
    wrong = replace(group.creation(host), dest_uuid="0" * 32)
    with pytest.raises(errors.WrongServer):
        await group.ask(host, "create_tablet", wrong, m.Empty)
    nonmember = Configuration((Peer("1" * 32, "tablet-server/nowhere"),))
    with pytest.raises(errors.InvalidArgument, match="not in the configuration"):
        request = replace(group.creation(host), configuration=nonmember)
        await group.ask(host, "create_tablet", request, m.Empty)


CREATE_STEPS = ("before_consensus", "before_data", "before_superblock", "after_superblock")
DELETE_STEPS = ("before_mark", "after_mark", "after_data", "after_log", "after_consensus", "after_superblock")


@pytest.mark.parametrize("point", [f"tablet.create.{step}" for step in CREATE_STEPS])
@simulated()
async def test_a_creation_that_crashed_at_any_step_is_finished_by_a_repeated_request(
    group: Group, point: str
) -> None:
    victim = HOSTS[1]
    group.crash_at(victim, point)
    for _ in range(2):
        for host in HOSTS:
            if not group.alive(host):
                await group.restart(host)
            try:
                await group.create_at(host)
            except errors.OutcomeUnknown:
                assert host == victim
    assert group.points.crashed[point] == 1
    await group.upsert(row(1), tablet=OTHER)
    assert await group.get(1, tablet=OTHER) == [row(1)]
    await group.settle(OTHER)


@pytest.mark.parametrize("point", [f"tablet.delete.{step}" for step in DELETE_STEPS])
@simulated()
async def test_a_deletion_that_crashed_at_any_step_is_finished_or_undone_at_the_next_start(
    group: Group, point: str
) -> None:
    victim = await group.settled(row(1))
    group.crash_at(victim, point)
    with pytest.raises(errors.OutcomeUnknown):
        await group.drop(victim)
    await group.restart(victim)
    server = group.server(victim)
    if point.endswith("before_mark"):
        assert server.replicas[TABLET].state == "running"
        await group.drop(victim)
    assert TABLET not in server.replicas and not server.lifecycle.broken
    environments = group.disk(victim).environments
    assert f"data/{TABLET}" not in environments and f"wals/{TABLET}" not in environments
    await group.drop(victim)
