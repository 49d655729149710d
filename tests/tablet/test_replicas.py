"""Replicas through crashes, damage, lag, creation and deletion."""

from __future__ import annotations

import random

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from tests.tablet.harness import CODEC, HOSTS, SCHEMA, TABLET, Group, address, row, simulate

OTHER = "f" * 32


class CrashAt:
    """Faults that crash a node the nth time it comes to a point."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.armed: dict[tuple[str, str], int] = {}
        self.hits: dict[str, int] = {}

    def of(self, node: str) -> NodeFaults:
        return NodeFaults(self, node)


class NodeFaults:
    def __init__(self, plan: CrashAt, node: str) -> None:
        self.plan = plan
        self.node = node

    async def here(self, point: str) -> None:
        plan = self.plan
        plan.hits[point] = plan.hits.get(point, 0) + 1
        left = plan.armed.get((self.node, point))
        if left is None or plan.group is None:
            return
        plan.armed[self.node, point] = left - 1
        if left == 1:
            del plan.armed[self.node, point]
            group = plan.group
            group.cluster.loop.call_soon(group.cluster.crash, self.node)
            await group.cluster.loop.create_future()

    def reached(self, mark: str) -> None:
        self.plan.hits[mark] = self.plan.hits.get(mark, 0) + 1


def digests_agree(group: Group) -> None:
    positions = [group.replica(host).store.applied for host in HOSTS]
    assert positions[0] == positions[1] == positions[2], positions


def test_a_crashed_follower_catches_up_from_the_log() -> None:
    async def scenario(group: Group) -> None:
        (first, _) = await group.followers()
        await group.upsert(row(1))
        group.cluster.crash(address(first))
        for k in range(2, 40):
            await group.upsert(row(k))
        await group.restart(first)
        await group.settle()
        digests_agree(group)
        assert (await group.scan(first))["k"].to_pylist() == list(range(1, 40))

    simulate(scenario)


def test_entries_that_a_follower_still_needs_outlive_the_shared_log() -> None:
    async def scenario(group: Group) -> None:
        (first, _) = await group.followers()
        leader = await group.leader()
        group.cluster.crash(address(first))
        for k in range(60):
            await group.upsert(row(k, "x" * 3000))
            await group.sleep(0.05)
        server = group.server(leader)
        assert server.shared.first_seq > 1 and server.replicas[TABLET].log.private is not None
        assert server.shared.bytes < 100_000
        await group.restart(first)
        await group.settle()
        digests_agree(group)
        group.crash_all()
        await group.restart()
        assert len(await group.scan()) == 60

    simulate(scenario, shared_log_bytes=40_000, memtable_bytes=30_000)


def test_a_follower_cut_off_with_uncommitted_entries_takes_over_what_the_majority_wrote() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1, "base"))
        old = await group.leader()
        others = [h for h in HOSTS if h != old]
        for other in others:
            group.cluster.network.cut(address(old), address(other))
        lost = group.batch(m.UPSERT, [row(1, "lost")], 77)
        await group.ask(old, "write", m.WriteRequest((m.TabletWrite(TABLET, lost),), 0.2), m.WriteReply)
        group.leader_hint = others[0]
        await group.upsert(row(1, "won"))
        group.cluster.network.heal()
        await group.settle()
        digests_agree(group)
        assert await group.get(1) == [row(1, "won")]
        group.crash_all()
        await group.restart()
        await group.settle()
        digests_agree(group)
        assert await group.get(1) == [row(1, "won")]

    simulate(scenario)


def test_leadership_is_handed_over_gracefully_and_to_the_one_that_was_named() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        leader = await group.leader()
        successor = (await group.followers())[1]
        request = m.StepDownRequest(TABLET, group.server(successor).instance.uuid)
        reply = await group.ask(leader, "step_down", request, m.StepDownReply)
        assert reply.leader == address(successor)
        assert await group.leader() == successor
        assert await group.get(1) == [row(1)]

    simulate(scenario)


def test_a_graceful_stop_flushes_and_hands_over_and_the_next_start_serves() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(*[row(k) for k in range(50)])
        leader = await group.leader()
        await group.cluster.stop(address(leader))
        await group.upsert(row(50))
        await group.restart(leader)
        await group.settle()
        digests_agree(group)

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_a_rotten_row_fails_its_replica_and_is_never_served() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1, "good"), row(2, "good"))
        await group.settle()
        leader = await group.leader()
        await group.ask(leader, "flush", m.FlushRequest(), m.FlushReply)
        key = CODEC.encode_key({"k": 1})
        group.cluster.state(address(leader)).rot(f"data/{TABLET}", "rows", key)
        assert await group.get(1, 2) == [row(1, "good"), row(2, "good")]
        assert group.replica(leader).state == "failed"
        assert "checksum" in (group.replica(leader).error or "")
        state = await group.ask(leader, "status", m.Empty(), m.ServerState)
        assert [r.state for r in state.replicas] == ["failed"]

    simulate(scenario)


def test_a_rotten_log_entry_that_is_still_needed_fails_the_replica_at_start() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1, "good"))
        await group.settle()
        victim = (await group.followers())[0]
        group.cluster.crash(address(victim))
        state = group.cluster.state(address(victim))
        entries = state.environments["wals/shared"]["entries"]
        state.rot("wals/shared", "entries", list(entries)[-1])
        await group.restart(victim)
        reported = await group.ask(victim, "status", m.Empty(), m.ServerState)
        assert [(r.state, r.tablet) for r in reported.replicas] == [("failed", TABLET)]
        await group.upsert(row(2, "without it"))
        assert await group.get(1, 2) == [row(1, "good"), row(2, "without it")]
        await group.restart(victim)
        again = await group.ask(victim, "status", m.Empty(), m.ServerState)
        assert [r.state for r in again.replicas] == ["failed"]

    simulate(scenario)


def test_a_rotten_log_entry_that_was_flushed_is_not_missed() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1, "good"))
        await group.settle()
        victim = (await group.followers())[0]
        await group.ask(victim, "flush", m.FlushRequest(), m.FlushReply)
        group.cluster.crash(address(victim))
        state = group.cluster.state(address(victim))
        state.rot("wals/shared", "entries", next(iter(state.environments["wals/shared"]["entries"])))
        await group.restart(victim)
        await group.upsert(row(2))
        await group.settle()
        digests_agree(group)

    simulate(scenario)


@pytest.mark.parametrize("path", ["data", "consensus"])
def test_missing_data_or_votes_are_damage_and_never_taken_for_a_new_replica(path: str) -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        victim = (await group.followers())[0]
        group.cluster.crash(address(victim))
        state = group.cluster.state(address(victim))
        if path == "data":
            state.lose_environment(f"data/{TABLET}")
        else:
            state.environments["consensus-meta"]["records"].clear()
        await group.restart(victim)
        reported = await group.ask(victim, "status", m.Empty(), m.ServerState)
        assert [r.state for r in reported.replicas] == ["failed"]
        await group.upsert(row(2))

    simulate(scenario)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_data_disk_that_is_lost_fails_the_replicas_on_it_and_the_server_goes_on(victim: str) -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        await group.upsert(row(1))
        host = (await group.followers())[0] if victim == "follower" else await group.leader()
        server, state = group.server(host), group.cluster.state(address(host))
        lost, other = group.replica(host), group.replica(host, OTHER)
        state.lose_data(f"data/{TABLET}")
        async with group.client.clock.timeout(10.0):  # nobody asks it for anything
            while server.replicas.get(TABLET) in (lost, None):
                await group.sleep(0.05)
        assert "is lost" in str(lost.error)
        assert group.server(host) is server and group.replica(host, OTHER) is other
        assert other.state == group.replica(host).state == "running"
        await group.upsert(row(2))
        await group.restart(host)
        reported = await group.ask(host, "status", m.Empty(), m.ServerState)
        assert {r.tablet: r.state for r in reported.replicas} == {TABLET: "running", OTHER: "running"}
        assert await group.get(1) == [row(1)] and await group.get(2) == [row(2)]

    simulate(scenario)


@pytest.mark.parametrize("lost", ["data disk", "its data as well, and the log is kept"])
def test_a_replica_whose_data_disk_is_lost_while_its_server_is_down_is_copied_onto(lost: str) -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        await group.upsert(row(1))
        host = (await group.followers())[0]
        group.cluster.crash(address(host))
        group.cluster.state(address(host)).lose_data(f"data/{TABLET}")
        if lost != "data disk":
            group.cluster.state(address(host)).environments[f"data/{TABLET}"].clear()
        await group.restart(host)
        assert group.replica(host, OTHER).state == "running"
        async with group.client.clock.timeout(10.0):
            while TABLET not in group.server(host).replicas:
                await group.sleep(0.05)
        await group.upsert(row(2))
        assert group.replica(host).state == "running"

    simulate(scenario)


def test_creating_a_tablet_again_changes_nothing_and_another_server_uuid_is_refused() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        host = HOSTS[0]
        peers = group.replica(host).core.configuration
        uuid = group.server(host).instance.uuid
        request = m.CreateTabletRequest(uuid, TABLET, "table", "t", SCHEMA, 0, peers)
        await group.ask(host, "create_tablet", request, m.Empty)
        assert await group.get(1) == [row(1)]
        wrong = m.CreateTabletRequest("0" * 32, OTHER, "table", "t", SCHEMA, 0, peers)
        with pytest.raises(errors.WrongServer):
            await group.ask(host, "create_tablet", wrong, m.Empty)
        stranger = Configuration((Peer("1" * 32, "tablet-server/nowhere"),))
        with pytest.raises(errors.InvalidArgument, match="not in the configuration"):
            request = m.CreateTabletRequest(uuid, OTHER, "table", "t", SCHEMA, 0, stranger)
            await group.ask(host, "create_tablet", request, m.Empty)

    simulate(scenario)


def points(prefix: str) -> list[str]:
    found = {
        "tablet.create.": ["before_consensus", "before_data", "before_superblock", "after_superblock"],
        "tablet.delete.": [
            "before_mark",
            "after_mark",
            "after_data",
            "after_log",
            "after_consensus",
            "after_superblock",
        ],
    }
    return [prefix + name for name in found[prefix]]


@pytest.mark.parametrize("point", points("tablet.create."))
def test_a_crash_at_any_step_of_creation_is_finished_by_asking_again(point: str) -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        victim = HOSTS[1]
        plan.armed[address(victim), point] = 1
        peers = tuple(Peer(group.server(h).instance.uuid, address(h)) for h in HOSTS)
        for _ in range(2):
            for host in HOSTS:
                if not group.cluster.alive(address(host)):
                    await group.restart(host)
                uuid = group.server(host).instance.uuid
                request = m.CreateTabletRequest(uuid, OTHER, "table", "t", SCHEMA, 0, Configuration(peers))
                try:
                    await group.ask(host, "create_tablet", request, m.Empty)
                except errors.OutcomeUnknown:
                    assert host == victim
        assert plan.hits[point] >= 1 and (address(victim), point) not in plan.armed
        await group.upsert(row(1), tablet=OTHER)
        assert await group.get(1, tablet=OTHER) == [row(1)]
        await group.settle(OTHER)

    simulate(scenario, faults=plan.of)


@pytest.mark.parametrize("point", points("tablet.delete."))
def test_a_crash_at_any_step_of_deletion_is_finished_at_the_next_start_or_undone(point: str) -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        await group.upsert(row(1))
        await group.settle()
        victim = (await group.followers())[0]
        plan.armed[address(victim), point] = 1
        request = m.DeleteTabletRequest(group.server(victim).instance.uuid, TABLET, "dropped")
        with pytest.raises(errors.OutcomeUnknown):
            await group.ask(victim, "delete_tablet", request, m.Empty)
        await group.restart(victim)
        server = group.server(victim)
        if point.endswith("before_mark"):
            assert server.replicas[TABLET].state == "running"
            await group.ask(victim, "delete_tablet", request, m.Empty)
        assert TABLET not in server.replicas and not server.lifecycle.broken
        environments = group.cluster.state(address(victim)).environments
        assert f"data/{TABLET}" not in environments and f"wals/{TABLET}" not in environments
        await group.ask(victim, "delete_tablet", request, m.Empty)

    simulate(scenario, faults=plan.of)


def test_a_replica_that_is_gone_is_no_reason_to_stop_the_others() -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        victim = (await group.followers())[0]
        request = m.DeleteTabletRequest(group.server(victim).instance.uuid, TABLET, "dropped")
        await group.ask(victim, "delete_tablet", request, m.Empty)
        await group.upsert(row(1))
        await group.upsert(row(2), tablet=OTHER)
        await group.settle(OTHER)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_increments_apply_exactly_once_under_crashes_cuts_and_retries(seed: int) -> None:
    """Each write appends one new key by INSERT; a second application would show as a rejection."""
    chance = random.Random(seed)

    async def scenario(group: Group) -> None:
        group.cluster.network.drop_probability = 0.02
        group.cluster.network.repeat_probability = 0.05
        isolated = False
        for k in range(60):
            event = chance.random()
            host = chance.choice(HOSTS)
            whole = all(group.cluster.alive(address(h)) for h in HOSTS) and not isolated
            if event < 0.10 and whole:
                group.cluster.crash(address(host))
            elif event < 0.20:
                for other in HOSTS:
                    if not group.cluster.alive(address(other)):
                        await group.restart(other)
            elif event < 0.25 and whole:
                group.cluster.network.isolate(host)
                isolated = True
            elif event < 0.35:
                group.cluster.network.heal()
                isolated = False
            elif event < 0.40 and group.cluster.alive(address(host)):
                group.client.spawn(flush(group, host), "flush")
            result = await group.write(m.INSERT, [row(k, "x" * chance.randrange(2000), k)])
            assert result.rejected == (), (seed, k)
        group.cluster.network.heal()
        for host in HOSTS:
            if not group.cluster.alive(address(host)):
                await group.restart(host)
        group.cluster.network.drop_probability = 0.0
        await group.settle()
        digests_agree(group)
        assert (await group.scan())["k"].to_pylist() == list(range(60))

    simulate(scenario, seed=seed, memtable_bytes=20_000, shared_log_bytes=60_000)


async def flush(group: Group, host: str) -> None:
    try:
        await group.ask(host, "flush", m.FlushRequest(), m.FlushReply, 1.0)
    except errors.EblaError:
        pass  # the host is away: so be it
