"""Flushes and trims during full disks, damage, and deletions of tablets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.server import TabletServer
from ebla.actors.tablet.upkeep import maintenance
from ebla.actors.tablet.upkeep.maintenance import FROZEN_MAX
from ebla.actors.tablet.upkeep.scrubber import RETRY_S
from ebla.storage.environment import Batch, Snapshot
from ebla.storage.errors import Corruption, Damaged, DiskFull, StorageError, TooManyFiles
from ebla.storage.logs import private_log
from ebla.storage.logs.private_log import PrivateLog
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OTHER, SLOW_HEARTBEATS, TABLET, Group, held, row, simulated
from tests.tablet.test_members import change, members, peer_of, removes


def damage_commits(server: TabletServer, tablet: str) -> None:
    """Let commits fail as LMDB does at a damaged page."""
    environment = server.replicas[tablet].store.environment

    async def commit(batch: Batch) -> None:
        raise Corruption("damaged inside", path=environment.path)

    environment.commit = commit  # type: ignore[method-assign]


async def refused(group: Group, host: str) -> None:
    group.disk(host).fill()
    with pytest.raises(DiskFull):
        await group.flush(host)


async def cancelled(group: Group, host: str) -> None:
    group.disk(host).commit_s = (0.05, 0.06)
    flush = asyncio.ensure_future(group.replica(host).store.flush())
    await group.sleep(0.01)
    group.disk(host).fill()  # the commit under way is not written either
    flush.cancel()
    await group.sleep(0.1)


@pytest.mark.parametrize("flush", [refused, cancelled])
@simulated()
async def test_a_flush_that_fails_loses_no_answer(
    group: Group, flush: Callable[[Group, str], Awaitable[None]]
) -> None:
    upsert = group.batch(m.UPSERT, [row(1, "first")], 1)
    insert = group.batch(m.INSERT, [row(7, "mine"), row(7, "twice")], 2)
    first = [await group.write_bytes(upsert), await group.write_bytes(insert)]
    assert first[1].rejected == (1,)
    await group.settle()
    for host in HOSTS:
        await flush(group, host)
        group.disk(host).free()
    await group.upsert(row(1, "second"), sequence=3)
    await group.settle()
    await group.flush(*HOSTS)
    await group.restart_all()
    assert [await group.write_bytes(upsert), await group.write_bytes(insert)] == first
    assert await group.get(1, 7) == [row(1, "second"), row(7, "mine")]


@simulated(memtable_bytes=20_000)
async def test_memtables_that_are_too_large_together_are_flushed_one_right_after_the_other(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablets = await group.create_many(8)
    monkeypatch.setattr(maintenance, "CHECK_S", 60.0)
    await group.sleep(1.0)
    for tablet in tablets:
        await group.upsert(*[row(k, "x" * 200) for k in range(40)], tablet=tablet)
    server = group.server(HOSTS[0])

    def held() -> int:
        return sum(replica.store.memory_bytes for replica in server.replicas.values())

    assert held() > 3 * server.options.memtable_bytes
    await until(group, lambda: held() <= server.options.memtable_bytes, "one check flushes what is too much")
    assert server.load.memtable_bytes == held()


@simulated()
async def test_memtables_that_scans_freeze_are_flushed_before_reads_visit_many(group: Group) -> None:
    most = 0
    for k in range(100):
        await group.upsert(row(k))
        assert (await group.scan()).num_rows == k + 1
        most = max(most, *(len(group.replica(host).store.frozen) for host in HOSTS))
        await group.sleep(0.02)
    assert FROZEN_MAX < most <= FROZEN_MAX + 5


@pytest.mark.parametrize("seed", range(6))
@simulated(memtable_bytes=20_000)
async def test_a_tablet_may_be_deleted_while_several_flushes_of_it_are_under_way(
    group: Group, seed: int
) -> None:
    (host, _) = await group.followers()
    group.disk(host).commit_s = (0.05, 0.06)
    for k in range(10):
        await group.upsert(*[row(k * 50 + i, "x" * 200) for i in range(50)])
    asked = [asyncio.ensure_future(group.flush(host)) for _ in range(2)]
    await group.sleep(0.01 * seed)
    await group.drop(host)
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(outcome is None or type(outcome) is errors.TabletNotFound for outcome in outcomes)
    await group.sleep(1)
    assert group.alive(host)
    assert not group.server(host).world.disk.exists(f"data/{TABLET}")


@simulated()
async def test_a_deletion_waits_for_the_flush_under_way(group: Group) -> None:
    host = await group.settled(row(1))
    _, over = held(group.replica(host).store.environment, "commit")
    flush = asyncio.ensure_future(group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply))
    await group.sleep(0.1)
    deletion = asyncio.ensure_future(group.drop(host))
    await group.sleep(0.5)
    assert not deletion.done()
    over.set()
    await deletion
    assert (await flush).flushed.keys() == {TABLET}
    assert TABLET not in group.server(host).replicas


@pytest.mark.usefixtures("unmended")
@simulated(memtable_bytes=20_000)
async def test_damage_found_by_a_flush_fails_that_replica_and_the_server_keeps_running(group: Group) -> None:
    await group.create(OTHER)
    (host, _) = await group.followers()
    damage_commits(group.server(host), TABLET)
    for k in range(10):
        await group.upsert(*[row(k * 50 + i, "x" * 200) for i in range(50)])
        await group.upsert(row(k), tablet=OTHER)
    await group.sleep(2)
    assert group.alive(host)
    assert group.replica(host).state == "failed"
    assert group.replica(host, OTHER).state == "running"
    reply = await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
    assert list(reply.flushed) == [OTHER]
    assert group.points.reached["tablet.flush.replica_gone"] > 0


@pytest.mark.parametrize("method", ["flush", "local_snapshot"])
@simulated()
async def test_a_flush_that_finds_damage_answers_that_the_replica_failed(group: Group, method: str) -> None:
    host = await group.settled(row(1))
    damage_commits(group.server(host), TABLET)
    with pytest.raises(errors.ReplicaFailed, match="damaged inside"):
        if method == "flush":
            await group.flush(host)
        else:
            request = m.LocalSnapshotRequest(TABLET, 0, 1.0)
            await group.ask(host, "local_snapshot", request, m.LocalSnapshot)
    assert group.replica(host).state == "failed"
    await group.upsert(row(2))


@simulated(log_retained_bytes_max=50_000, memtable_bytes=30_000)
async def test_a_log_retains_limited_bytes_for_a_peer_that_is_down(group: Group) -> None:
    (away, _) = await group.followers()
    await group.settle()
    last = group.replica(away).log.last_index
    group.crash(away)
    for k in range(60):
        await group.upsert(row(k, "x" * 3000))
    await group.sleep(1)
    log = group.replica(await group.leader()).log
    assert log.size_bytes == sum(slot.size for slot in log.slots)
    assert log.size_bytes <= 50_000 + 30_000  # and the unflushed entries
    assert log.dropped.index > last
    assert len(await group.scan()) == 60


@pytest.mark.usefixtures("unmended")
@simulated(shared_log_bytes=40_000, memtable_bytes=30_000)
async def test_a_failed_replica_whose_entries_were_dropped_stays_failed_after_a_restart(group: Group) -> None:
    await group.create(OTHER)
    host = await group.settled(*[row(k) for k in range(20)])
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
    await group.drop(host)
    assert not server.world.disk.exists(f"data/{TABLET}")


@pytest.mark.usefixtures("unmended")
@simulated(scrub_s=20.0, **SLOW_HEARTBEATS)
async def test_a_damaged_row_is_found_by_a_scrub(group: Group) -> None:
    await group.upsert(row(1))
    await group.settle()
    await group.flush(*HOSTS)
    await group.sleep(3.0)  # the first scrub finds no damage
    assert [group.replica(host).state for host in HOSTS] == ["running"] * 3
    state = group.disk(HOSTS[1])
    (key,) = state.environments[f"data/{TABLET}"]["rows"]
    state.rot(f"data/{TABLET}", "rows", key)
    await group.sleep(group.server(HOSTS[1]).options.scrub_s)
    await group.sleep(3.0)
    assert [group.replica(host).state for host in HOSTS] == ["running", "failed", "running"]
    assert "checksum" in str(group.replica(HOSTS[1]).error)


@pytest.mark.usefixtures("unmended")
@simulated(**SLOW_HEARTBEATS)
async def test_a_scrub_whose_snapshot_expired_is_repeated_soon(group: Group) -> None:
    environment = group.replica(HOSTS[1]).store.environment
    original, expired = environment.snapshot, []

    def expiring() -> Snapshot:
        """Return an expired snapshot, as when the map grows during a scrub."""
        environment.snapshot = original  # type: ignore[method-assign]
        expired.append(original())
        expired[0].close()
        return expired[0]

    environment.snapshot = expiring  # type: ignore[method-assign]
    await group.upsert(row(1))
    await group.settle()
    await group.flush(HOSTS[1])
    await group.sleep(3.0)
    assert len(expired) == 1
    state = group.disk(HOSTS[1])
    (key,) = state.environments[f"data/{TABLET}"]["rows"]
    state.rot(f"data/{TABLET}", "rows", key)
    assert group.replica(HOSTS[1]).state == "running"
    await group.sleep(RETRY_S)
    assert group.replica(HOSTS[1]).state == "failed", "the next regular scrub is a day later"


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("point", ["tablet.abandon.before_mark", "tablet.abandon.after_mark"])
@simulated(shared_log_bytes=40_000, memtable_bytes=30_000)
async def test_a_crash_while_a_failed_replica_is_abandoned_leaves_its_entries_or_its_mark(
    group: Group, point: str
) -> None:
    await group.create(OTHER)
    host = await group.settled(*[row(k) for k in range(20)])
    group.crash_at(host, point)
    group.replica(host).fail(Corruption("rot was found"))
    for k in range(60):
        await group.upsert(row(k, "x" * 3000), tablet=OTHER)
    await group.sleep(2)
    assert not group.alive(host)
    await group.restart(host)
    if point.endswith("before_mark"):
        assert group.replica(host).state == "running", "the failure was not stored, and no entry was dropped"
        assert group.replica(host).log.last_index >= 1
    else:
        assert list(group.server(host).lifecycle.broken) == [TABLET]
    await group.upsert(row(77))
    assert await group.get(19, 77) == [row(19), row(77)]


@simulated(shared_log_bytes=40_000)
async def test_a_crash_before_entries_are_moved_to_the_private_log_loses_none(group: Group) -> None:
    (away, host) = await group.followers()
    group.crash(away)
    point = "tablet.private_log.before_extend"
    group.crash_at(host, point)
    for k in range(60):
        write = asyncio.ensure_future(group.upsert(row(k, "x" * 3000)))
        while not write.done():
            if not group.alive(host):
                await group.restart(host)
            await group.sleep(0.02)
        await write
    assert group.points.crashed[point] == 1
    await group.restart(away)
    await group.settle()
    assert len(await group.scan(away)) == 60


@simulated(memtable_bytes=1)
async def test_the_memory_of_a_deleted_tablet_is_not_counted_any_more(group: Group) -> None:
    await group.upsert(row(1))
    await group.settle()
    for host in HOSTS:
        group.disk(host).fill()
    await group.sleep(0.2)  # the flush has failed on the full disk, and pauses
    for host in HOSTS:
        group.disk(host).free()
        await group.drop(host)
        group.server(host).rounds.touched.clear()  # as if the tablet had not changed since it was measured
    await group.sleep(3.0)
    assert [group.server(host).load.memtable_bytes for host in HOSTS] == [0, 0, 0]


@simulated(shared_log_bytes=100_000, log_retained_entries_max=1, log_retained_bytes_max=1)
async def test_a_log_retains_a_committed_configuration_until_the_consensus_record_has_it(
    group: Group,
) -> None:
    """That record may be slow or out of space. A voter that restarts with an older one could elect a second leader."""
    leader, *followers = await group.roles()
    await group.create(OTHER)
    second_leader = await group.leader(OTHER)
    target, other = sorted(followers, key=lambda host: host == second_leader)
    await group.upsert(row(1))
    await group.settle()
    server, replica = group.server(target), group.replica(target)
    environment = server.consensus.environment
    original = environment.commit

    async def commit(changes: Any) -> None:
        if replica.store.applied.index >= replica.core.committed_configuration.index > 0:
            raise DiskFull("no space left")
        await original(changes)

    environment.commit = commit  # type: ignore[method-assign]
    await change(group, leader, removes(peer_of(group, other)))
    index = members(group, leader).index
    await until(group, lambda: replica.store.applied.index >= index, "the change is applied")
    for turn in range(100):
        await group.upsert(*[row(turn * 20 + k, "y" * 400) for k in range(20)], tablet=OTHER)
        if turn == 50:
            await group.flush(target)
    assert server.shared.first_seq > 50, "the shared log was trimmed, twice"
    group.crash(leader, other)
    await group.restart(target)
    assert len(group.replica(target).core.configuration.peers) == 2


@simulated()
async def test_entries_that_find_no_free_descriptor_are_applied_later_and_once(group: Group) -> None:
    await group.upsert(row(1, "first"))
    leader = await group.leader()
    rows, tries = group.replica(leader).rows, 0
    apply = rows.apply

    def crowded(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise TooManyFiles("too many files are open")
        return apply(*arguments)

    rows.apply = crowded  # type: ignore[method-assign]
    sent = [asyncio.ensure_future(group.upsert(row(key, "later"))) for key in (2, 3, 4)]
    await asyncio.gather(*sent)
    assert tries == 3 + len(sent)
    assert group.alive(leader)
    assert await group.get(1, 2, 3, 4) == [row(1, "first"), row(2, "later"), row(3, "later"), row(4, "later")]


@simulated(memtable_bytes=1)
async def test_a_flush_that_finds_no_free_descriptor_is_tried_again(group: Group) -> None:
    leader = await group.leader()
    store, tries = group.replica(leader).store, 0
    flush = store.flush

    async def crowded() -> Any:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise TooManyFiles("too many files are open")
        return await flush()

    store.flush = crowded  # type: ignore[method-assign]
    await group.upsert(row(1, "first"))
    await until(group, lambda: store.flushed.index == store.applied.index, "flushed", 10.0)
    assert tries > 2 and group.alive(leader)


@pytest.mark.parametrize("error", [TooManyFiles("too many files are open"), Damaged("its key is unknown")])
@simulated(shared_log_bytes=60_000)
async def test_trouble_of_one_private_log_leaves_the_server_alive(
    group: Group, monkeypatch: pytest.MonkeyPatch, error: StorageError
) -> None:
    a, b, c = group.hosts
    crowded = isinstance(error, TooManyFiles)
    tries, extend = 0, PrivateLog.extend

    async def extend_later(self: PrivateLog, entries: Any) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise error
        await extend(self, entries)

    def troubled(*given: Any) -> Any:
        raise error

    await group.lead(a)
    await group.settled(row(1))
    if crowded:
        monkeypatch.setattr(PrivateLog, "extend", extend_later)
    group.cut(c, a, b)
    for number in range(2, 80):
        await group.upsert(row(number, "z" * 3000))
    await group.flush(a, b)
    for number in range(80, 120):
        await group.upsert(row(number, "z" * 3000))
    await until(group, lambda: group.replica(a).log.private_last > 0, "entries have moved")
    group.crash(a, b)
    await group.restart(a, b)
    leader = await group.leader()
    with monkeypatch.context() as patch:
        patch.setattr(private_log, "from_item", troubled)
        if crowded:
            patch.setattr(PrivateLog, "read", troubled)
        group.heal()
        await group.sleep(3.0)
    assert group.alive(leader)
    assert group.state_of(leader) == (m.RUNNING if crowded else m.FAILED)
    await group.sleep(30.0)
    assert len(await group.scan()) == 119
