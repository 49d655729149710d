"""Replicas during crashes, damage, lag, creation and deletion."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from tests.tablet.harness import CODEC, HOSTS, OTHER, TABLET, Group, address, row, simulated


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
    group.crash_all()
    await group.restart()
    assert len(await group.scan()) == 60


@simulated()
async def test_uncommitted_entries_of_a_cut_off_leader_are_replaced_by_the_majoritys(group: Group) -> None:
    await group.upsert(row(1, "base"))
    old = await group.leader()
    others = [h for h in HOSTS if h != old]
    group.cut(old, *others)
    lost = group.batch(m.UPSERT, [row(1, "lost")], 77)
    await group.write_once(old, lost, 0.2)
    group.leader_hint = others[0]
    await group.upsert(row(1, "won"))
    group.heal()
    await group.settle()
    digests_agree(group)
    assert await group.get(1) == [row(1, "won")]
    group.crash_all()
    await group.restart()
    await group.settle()
    digests_agree(group)
    assert await group.get(1) == [row(1, "won")]


@simulated()
async def test_leadership_is_handed_over_to_the_named_successor(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    successor = (await group.followers())[1]
    reply = await group.step_down(leader, successor)
    assert reply.leader == address(successor)
    assert await group.leader() == successor
    assert await group.get(1) == [row(1)]


@simulated()
async def test_a_graceful_stop_flushes_and_hands_over_and_the_next_start_serves(group: Group) -> None:
    await group.upsert(*[row(k) for k in range(50)])
    leader = await group.leader()
    await group.cluster.stop(address(leader))
    await group.upsert(row(50))
    await group.restart(leader)
    await group.settle()
    digests_agree(group)


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
    await group.upsert(row(1, "good"))
    await group.settle()
    victim = (await group.followers())[0]
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
    await group.upsert(row(1, "good"))
    await group.settle()
    victim = (await group.followers())[0]
    await group.flush(victim)
    group.crash(victim)
    state = group.disk(victim)
    state.rot("wals/shared", "entries", next(iter(state.environments["wals/shared"]["entries"])))
    await group.restart(victim)
    await group.upsert(row(2))
    await group.settle()
    digests_agree(group)


@pytest.mark.parametrize("path", ["data", "consensus"])
@simulated()
async def test_missing_data_or_votes_are_damage_and_not_a_new_replica(group: Group, path: str) -> None:
    await group.upsert(row(1))
    await group.settle()
    victim = (await group.followers())[0]
    group.crash(victim)
    state = group.disk(victim)
    if path == "data":
        state.lose_environment(f"data/{TABLET}")
    else:
        state.environments["consensus-meta"]["records"].clear()
    await group.restart(victim)
    assert await group.reported(victim) == {TABLET: "failed"}
    await group.upsert(row(2))


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
    await group.ask(host, "create_tablet", group.creation(host, TABLET), m.Empty)
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
                await group.ask(host, "create_tablet", group.creation(host), m.Empty)
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
    await group.upsert(row(1))
    await group.settle()
    victim = (await group.followers())[0]
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


@simulated()
async def test_a_deleted_replica_does_not_stop_the_others(group: Group) -> None:
    await group.create(OTHER)
    victim = (await group.followers())[0]
    await group.drop(victim)
    await group.upsert(row(1))
    await group.upsert(row(2), tablet=OTHER)
    await group.settle(OTHER)


@pytest.mark.parametrize("seed", range(6))
@simulated(memtable_bytes=20_000, shared_log_bytes=60_000)
async def test_inserts_apply_exactly_once_under_crashes_cuts_and_retries(group: Group, seed: int) -> None:
    """Each write inserts one new key; a second application would be a rejection."""
    chance = random.Random(seed)
    group.cluster.network.drop_probability = 0.02
    group.cluster.network.repeat_probability = 0.05
    isolated = False
    for k in range(60):
        event = chance.random()
        host = chance.choice(HOSTS)
        whole = all(group.alive(h) for h in HOSTS) and not isolated
        if event < 0.10 and whole:
            group.crash(host)
        elif event < 0.20:
            for other in HOSTS:
                if not group.alive(other):
                    await group.restart(other)
        elif event < 0.25 and whole:
            group.cluster.network.isolate(host)
            isolated = True
        elif event < 0.35:
            group.heal()
            isolated = False
        elif event < 0.40 and group.alive(host):
            group.client.spawn(flush(group, host), "flush")
        result = await group.write(m.INSERT, [row(k, "x" * chance.randrange(2000), k)])
        assert result.rejected == (), (seed, k)
    group.heal()
    for host in HOSTS:
        if not group.alive(host):
            await group.restart(host)
    group.cluster.network.drop_probability = 0.0
    await group.settle()
    digests_agree(group)
    assert (await group.scan())["k"].to_pylist() == list(range(60))


async def flush(group: Group, host: str) -> None:
    try:
        await group.ask(host, "flush", m.FlushRequest(), m.FlushReply, 1.0)
    except errors.EblaError:
        pass  # the host may be down
