"""Flushes and trims beside full disks, damage, and tablets that go meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.server import TabletServer
from ebla.actors.tablet.upkeep.scrubber import RETRY_S
from ebla.storage.environment import Batch, Snapshot
from ebla.storage.errors import Corruption, DiskFull
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulate
from tests.tablet.test_members import change, members, peer_of, removes
from tests.tablet.test_replicas import CrashAt

OTHER = "f" * 32


def damage_commits(server: TabletServer, tablet: str) -> None:
    """What LMDB answers when it meets a damaged page while it changes the tree."""
    environment = server.replicas[tablet].store.environment

    async def commit(batch: Batch) -> None:
        raise Corruption("damaged inside", path=environment.path)

    environment.commit = commit  # type: ignore[method-assign]


async def delete(group: Group, host: str, tablet: str = TABLET) -> None:
    request = m.DeleteTabletRequest(group.server(host).instance.uuid, tablet, "dropped")
    await group.ask(host, "delete_tablet", request, m.Empty)


def test_a_flush_on_a_full_disk_forgets_no_answer() -> None:
    async def scenario(group: Group) -> None:
        upsert = group.batch(m.UPSERT, [row(1, "first")], 1)
        insert = group.batch(m.INSERT, [row(7, "mine")], 2)
        first = [await group.write_bytes(upsert), await group.write_bytes(insert)]
        await group.settle()
        for host in HOSTS:
            group.cluster.state(address(host)).fill()
            with pytest.raises(DiskFull):
                await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
            group.cluster.state(address(host)).free()
        await group.upsert(row(1, "second"), sequence=3)
        await group.settle()
        for host in HOSTS:
            await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
        group.crash_all()
        await group.restart()
        assert [await group.write_bytes(upsert), await group.write_bytes(insert)] == first
        assert await group.get(1, 7) == [row(1, "second"), row(7, "mine")]

    simulate(scenario)


def test_a_flush_that_is_cancelled_forgets_no_answer() -> None:
    async def scenario(group: Group) -> None:
        batch = group.batch(m.INSERT, [row(7, "mine")], 77)
        first = await group.write_bytes(batch)
        await group.settle()
        for host in HOSTS:
            group.cluster.state(address(host)).commit_s = (0.05, 0.06)
            flush = asyncio.ensure_future(group.replica(host).store.flush())
            await group.sleep(0.01)
            group.cluster.state(address(host)).fill()  # what is under way is not written either
            flush.cancel()
            await group.sleep(0.1)
            group.cluster.state(address(host)).free()
        await group.upsert(row(1))
        await group.settle()
        for host in HOSTS:
            await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
        group.crash_all()
        await group.restart()
        assert await group.write_bytes(batch) == first

    simulate(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_a_tablet_may_be_deleted_while_it_is_flushed_and_others_wait_to_flush_it(seed: int) -> None:
    async def scenario(group: Group) -> None:
        (host, _) = await group.followers()
        group.cluster.state(address(host)).commit_s = (0.05, 0.06)
        for k in range(10):
            await group.upsert(*[row(k * 50 + i, "x" * 200) for i in range(50)])
        asked = [asyncio.ensure_future(flush(group, host)) for _ in range(2)]
        await group.sleep(0.01 * seed)
        await delete(group, host)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert all(outcome is None or type(outcome) is errors.TabletNotFound for outcome in outcomes)
        await group.sleep(1)
        assert group.cluster.alive(address(host))
        assert not group.server(host).world.disk.exists(f"data/{TABLET}")

    async def flush(group: Group, host: str) -> None:
        await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)

    simulate(scenario, seed=seed, memtable_bytes=20_000)


def test_a_deletion_waits_for_the_flush_under_way() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        (host, _) = await group.followers()
        gate = asyncio.Event()
        store = group.replica(host).store
        environment, commit = store.environment, store.environment.commit

        async def slow(batch: Batch) -> None:
            await gate.wait()
            await commit(batch)

        environment.commit = slow  # type: ignore[method-assign]
        flush = asyncio.ensure_future(group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply))
        await group.sleep(0.1)
        deletion = asyncio.ensure_future(delete(group, host))
        await group.sleep(0.5)
        assert not deletion.done()
        gate.set()
        await deletion
        assert (await flush).flushed.keys() == {TABLET}
        assert TABLET not in group.server(host).replicas

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_damage_met_by_a_flush_fails_that_replica_and_the_server_goes_on() -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        (host, _) = await group.followers()
        damage_commits(group.server(host), TABLET)
        for k in range(10):
            await group.upsert(*[row(k * 50 + i, "x" * 200) for i in range(50)])
            await group.upsert(row(k), tablet=OTHER)
        await group.sleep(2)
        assert group.cluster.alive(address(host))
        assert group.replica(host).state == "failed"
        assert group.replica(host, OTHER).state == "running"
        reply = await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
        assert list(reply.flushed) == [OTHER]
        assert plan.hits["tablet.flush.replica_gone"] > 0

    simulate(scenario, memtable_bytes=20_000, faults=plan.of)


@pytest.mark.parametrize("method", ["flush", "local_snapshot"])
def test_whoever_asks_for_a_flush_that_meets_damage_is_told_that_the_replica_failed(method: str) -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        (host, _) = await group.followers()
        damage_commits(group.server(host), TABLET)
        with pytest.raises(errors.ReplicaFailed, match="damaged inside"):
            if method == "flush":
                await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)
            else:
                request = m.LocalSnapshotRequest(TABLET, 0, 1.0)
                await group.ask(host, "local_snapshot", request, m.LocalSnapshot)
        assert group.replica(host).state == "failed"
        await group.upsert(row(2))

    simulate(scenario)


def test_a_graceful_stop_passes_over_a_damaged_replica_and_a_full_disk() -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        await group.upsert(row(1))
        await group.upsert(row(2), tablet=OTHER)
        await group.settle()
        first, second = await group.followers()
        damage_commits(group.server(first), TABLET)
        await group.cluster.stop(address(first))
        group.cluster.state(address(second)).fill()
        await group.cluster.stop(address(second))
        group.cluster.state(address(second)).free()
        await group.restart(first, second)
        assert await group.get(1) == [row(1)]
        assert await group.get(2, tablet=OTHER) == [row(2)]

    simulate(scenario)


def test_a_log_keeps_no_more_bytes_for_an_absent_peer_than_it_may() -> None:
    async def scenario(group: Group) -> None:
        (away, _) = await group.followers()
        await group.settle()
        last = group.replica(away).log.last_index
        group.cluster.crash(address(away))
        for k in range(60):
            await group.upsert(row(k, "x" * 3000))
        await group.sleep(1)
        log = group.replica(await group.leader()).log
        assert log.size_bytes == sum(slot.size for slot in log.slots)
        assert log.size_bytes <= 50_000 + 30_000  # and what is not flushed yet
        assert log.dropped.index > last
        assert len(await group.scan()) == 60

    simulate(scenario, log_retained_bytes_max=50_000, memtable_bytes=30_000)


@pytest.mark.usefixtures("unmended")
def test_a_failed_replica_whose_entries_were_let_go_does_not_come_back_as_one_that_forgot() -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        await group.upsert(*[row(k) for k in range(20)])
        await group.settle()
        (host, _) = await group.followers()
        group.replica(host).fail(Corruption("rot was found"))
        seen = group.server(host).shared.next_seq
        for k in range(60):
            await group.upsert(row(k, "x" * 3000), tablet=OTHER)
        await group.sleep(2)
        assert group.server(host).shared.first_seq > seen, "its entries do not fill the disk"
        await group.restart(host)
        server = group.server(host)
        assert list(server.lifecycle.broken) == [TABLET]
        assert "rot was found" in server.lifecycle.broken[TABLET].error
        assert list(server.replicas) == [OTHER]
        await delete(group, host)
        assert not server.world.disk.exists(f"data/{TABLET}")

    simulate(scenario, shared_log_bytes=40_000, memtable_bytes=30_000)


@pytest.mark.usefixtures("unmended")
def test_a_rotten_row_that_nobody_asks_for_is_found_in_the_background() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        for host in HOSTS:
            await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
        await group.sleep(3.0)  # walked once, and good
        assert [group.replica(host).state for host in HOSTS] == ["running"] * 3
        state = group.cluster.state(address(HOSTS[1]))
        (key,) = state.environments[f"data/{TABLET}"]["rows"]
        state.rot(f"data/{TABLET}", "rows", key)
        await group.sleep(group.server(HOSTS[1]).options.scrub_s)
        await group.sleep(3.0)
        assert [group.replica(host).state for host in HOSTS] == ["running", "failed", "running"]
        assert "checksum" in str(group.replica(HOSTS[1]).error)

    simulate(scenario, scrub_s=20.0)


@pytest.mark.usefixtures("unmended")
def test_a_walk_whose_snapshot_expired_is_made_again_soon() -> None:
    async def scenario(group: Group) -> None:
        environment = group.replica(HOSTS[1]).store.environment
        honest, expired = environment.snapshot, []

        def expiring() -> Snapshot:
            """What a walk meets when the map has to grow meanwhile."""
            environment.snapshot = honest  # type: ignore[method-assign]
            expired.append(honest())
            expired[0].close()
            return expired[0]

        environment.snapshot = expiring  # type: ignore[method-assign]
        await group.upsert(row(1))
        await group.settle()
        await group.ask(HOSTS[1], "flush", m.FlushRequest(), m.FlushReply)
        await group.sleep(3.0)
        assert len(expired) == 1
        state = group.cluster.state(address(HOSTS[1]))
        (key,) = state.environments[f"data/{TABLET}"]["rows"]
        state.rot(f"data/{TABLET}", "rows", key)
        assert group.replica(HOSTS[1]).state == "running"
        await group.sleep(RETRY_S)
        assert group.replica(HOSTS[1]).state == "failed", "the next walk by plan is a day away"

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("point", ["tablet.abandon.before_mark", "tablet.abandon.after_mark"])
def test_a_crash_while_a_failed_replica_is_given_up_leaves_it_with_its_entries_or_marked(point: str) -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        await group.create(OTHER)
        await group.upsert(*[row(k) for k in range(20)])
        await group.settle()
        (host, _) = await group.followers()
        plan.armed[address(host), point] = 1
        group.replica(host).fail(Corruption("rot was found"))
        for k in range(60):
            await group.upsert(row(k, "x" * 3000), tablet=OTHER)
        await group.sleep(2)
        assert (address(host), point) not in plan.armed and not group.cluster.alive(address(host))
        await group.restart(host)
        if point.endswith("before_mark"):
            assert group.replica(host).state == "running", "what failed was only said, and nothing was let go"
            assert group.replica(host).log.last_index >= 1
        else:
            assert list(group.server(host).lifecycle.broken) == [TABLET]
        await group.upsert(row(77))
        assert await group.get(19, 77) == [row(19), row(77)]

    simulate(scenario, faults=plan.of, shared_log_bytes=40_000, memtable_bytes=30_000)


def test_a_crash_before_entries_are_moved_to_the_private_log_loses_none() -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        (away, host) = await group.followers()
        group.cluster.crash(address(away))
        point = "tablet.private_log.before_extend"
        plan.armed[address(host), point] = 1
        for k in range(60):
            write = asyncio.ensure_future(group.upsert(row(k, "x" * 3000)))
            while not write.done():
                if not group.cluster.alive(address(host)):
                    await group.restart(host)
                await group.sleep(0.02)
            await write
        assert (address(host), point) not in plan.armed
        await group.restart(away)
        await group.settle()
        assert len(await group.scan(away)) == 60

    simulate(scenario, faults=plan.of, shared_log_bytes=40_000)


def test_the_memory_of_a_tablet_that_was_deleted_is_nobodys_to_flush() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        for host in HOSTS:
            group.cluster.state(address(host)).fill()
        await group.sleep(0.2)  # its flush has met the full disk, and makes a pause
        for host in HOSTS:
            group.cluster.state(address(host)).free()
            await delete(group, host)
            group.server(
                host
            ).rounds.touched.clear()  # as if nothing had happened to it since it was measured
        await group.sleep(3.0)
        assert [group.server(host).load.memtable_bytes for host in HOSTS] == [0, 0, 0]

    simulate(scenario, memtable_bytes=1)


def test_a_log_keeps_a_committed_configuration_until_the_record_of_consensus_has_it() -> None:
    """That record's own disk space ran out, or it is slow; a voter that came back with an older one could elect beside the others."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await group.create(OTHER)
        await group.upsert(row(1))
        await group.settle()
        server, replica = group.server(target), group.replica(target)
        environment = server.consensus.environment
        honest = environment.commit

        async def commit(changes: Any) -> None:
            if replica.store.applied.index >= replica.core.committed_configuration.index > 0:
                raise DiskFull("no space left")
            await honest(changes)

        environment.commit = commit  # type: ignore[method-assign]
        await change(group, leader, removes(peer_of(group, other)))
        index = members(group, leader).index
        await until(group, lambda: replica.store.applied.index >= index, "it is applied")
        for turn in range(100):
            await group.upsert(*[row(turn * 20 + k, "y" * 400) for k in range(20)], tablet=OTHER)
            if turn == 50:
                await group.ask(target, "flush", m.FlushRequest(TABLET), m.FlushReply)
        assert server.shared.first_seq > 50, "the shared log was trimmed, twice"
        for host in (leader, other):
            group.cluster.crash(address(host))
        await group.restart(target)
        assert len(group.replica(target).core.configuration.peers) == 2

    simulate(scenario, shared_log_bytes=100_000, log_retained_entries_max=1, log_retained_bytes_max=1)
