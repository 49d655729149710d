"""A data disk that hangs delays only the replicas on it. In simulation each tablet's rows have a disk of their own."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.tablets.tablet_store import path_of
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OTHER, TABLET, Group, row, simulated

MEMTABLE_BYTES = 20_000
HUNG_S = 1.0
HELD_BYTES_MAX = 4 * MEMTABLE_BYTES  # twice the limit, and what arrives between two checks


async def load(group: Group, *tablets: str, turns: int = 30) -> None:
    for turn in range(turns):
        for tablet in tablets:
            await group.upsert(*[row(turn * 20 + k, "x" * 200) for k in range(20)], tablet=tablet)


async def hang(group: Group, host: str) -> None:
    """Begin a flush of TABLET on the host that does not end."""
    group.disk(host).hang_data(path_of(TABLET))
    server = group.server(host)
    await load(group, TABLET, turns=10)
    await until(group, lambda: bool(server.maintenance.hung()), "the disk hangs")


async def two_tablets(group: Group) -> str:
    """Create a second tablet; return a host that follows in both."""
    await group.create(OTHER)
    led = await group.leader(), await group.leader(OTHER)
    return next(host for host in HOSTS if host not in led)


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_other_tablets_are_flushed_while_a_disk_hangs(group: Group) -> None:
    host = await two_tablets(group)
    await hang(group, host)
    held, flushed = group.replica(host), group.replica(host, OTHER)
    before = held.store.flushed
    await load(group, OTHER)
    await until(group, lambda: flushed.store.memory_bytes < MEMTABLE_BYTES, "the other tablet is flushed")
    assert flushed.store.flushed.index > 1 and held.store.flushed == before
    group.disk(host).unhang_data(path_of(TABLET))
    await until(group, lambda: held.store.flushed != before, "the replica is flushed when its disk answers")
    assert held.state == "running"


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S, shared_log_bytes=60_000)
async def test_the_shared_log_is_trimmed_while_a_disk_hangs(group: Group) -> None:
    """Entries that a replica on that disk still needs move to its private log on another disk; a restart has all rows."""
    host = await two_tablets(group)
    await hang(group, host)
    server, held = group.server(host), group.replica(host)
    await load(group, OTHER, turns=40)
    await until(group, lambda: server.shared.bytes < 100_000, "the shared log is trimmed")
    assert held.log.private_last > 0 and held.store.flushed.index < held.log.private_last
    group.crash(host)
    group.disk(host).unhang_data(path_of(TABLET))
    await group.restart(host)
    await group.settle()
    assert len(await group.scan(host)) == 200


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_a_flush_to_a_hanging_disk_is_refused_and_other_tablets_are_flushed(group: Group) -> None:
    host = await two_tablets(group)
    await hang(group, host)
    with pytest.raises(errors.Unavailable, match="has not answered for 1 s"):
        await group.flush(host)
    assert (await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)).flushed.keys() == {OTHER}


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_a_hanging_data_disk_of_a_leader_delays_only_its_own_writers(group: Group) -> None:
    await group.create(OTHER)
    leader = await group.leader()
    if (led := await group.leader(OTHER)) != leader:
        await group.step_down(led, leader, OTHER)
    await hang(group, leader)
    group.leader_hint = leader
    writes = asyncio.ensure_future(load(group, TABLET, turns=100))
    server = group.server(leader)
    await until(group, lambda: server.rounds.tally.refused["memtable_bytes"] > 0, "writers wait")
    assert group.replica(leader).leads
    await load(group, OTHER)
    assert not writes.done()
    assert group.replica(leader).store.memory_bytes < HELD_BYTES_MAX
    group.disk(leader).unhang_data(path_of(TABLET))
    await writes


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_a_follower_with_a_hanging_disk_keeps_its_memory_limit_and_catches_up_later(
    group: Group,
) -> None:
    host = await two_tablets(group)
    await hang(group, host)
    held, other = group.replica(host), group.replica(host, OTHER)
    await load(group, TABLET, OTHER, turns=60)
    assert held.store.memory_bytes < HELD_BYTES_MAX
    await until(group, lambda: other.log.last_index > held.log.last_index + 20, "others take everything")
    term = held.core.term
    await group.sleep(5.0)
    assert (held.state, held.core.role, held.core.term) == ("running", "follower", term), "it gets heartbeats"
    group.disk(host).unhang_data(path_of(TABLET))
    await group.settle()
    assert len(await group.scan(host)) == 1200


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_a_tablet_continues_after_the_disks_of_a_majority_hung(group: Group) -> None:
    for host in HOSTS[1:]:
        group.disk(host).hang_data(path_of(TABLET))
    writes = asyncio.ensure_future(load(group, TABLET, turns=60))
    for host in HOSTS[1:]:
        load_of = group.server(host).load
        await until(
            group, lambda load_of=load_of: load_of.is_full_for(TABLET), "the replica takes no more entries"
        )
    for host in HOSTS[1:]:
        group.disk(host).unhang_data(path_of(TABLET))
    await writes
    await group.settle()
    assert [len(await group.scan(host)) for host in HOSTS] == [1200] * 3
