"""Disks that hang or are lost: other servers lead, other tablets continue, and no call waits forever."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.serving.admission import READ_WAIT_S
from ebla.storage.tablets.tablet_store import path_of
from tests.tablet.copies import until
from tests.tablet.harness import CODEC, HOSTS, OTHER, SLOW_HEARTBEATS, TABLET, Group, address, row, simulated

OTHERS = tuple(f"{number:032x}" for number in range(3))
LONG_S = 1000.0


def hang(group: Group, *hosts: str, for_s: float = LONG_S) -> None:
    for host in hosts:
        group.disk(host).hang(for_s)


@pytest.mark.parametrize("trouble", ["hangs", "is full"])
@simulated()
async def test_a_leader_whose_disk_hangs_or_is_full_hands_over(group: Group, trouble: str) -> None:
    for tablet in OTHERS:
        await group.create(tablet)
        await group.upsert(row(1), tablet=tablet)
    await group.upsert(row(1))
    host = await group.leader()
    state = group.disk(host)
    hang(group, host) if trouble == "hangs" else state.fill()
    began = group.client.clock.monotonic()
    await group.upsert(row(1, "new"))
    assert await group.get(1) == [row(1, "new")]
    for tablet in OTHERS:
        await group.upsert(row(2), tablet=tablet)
        assert await group.get(2, tablet=tablet) == [row(2)]
    assert group.client.clock.monotonic() - began < 8.0
    held = group.server(host).replicas.values()
    await until(
        group, lambda: not any(replica.leads for replica in held), "its disk trails, and it leads nothing"
    )


@simulated(**SLOW_HEARTBEATS)
async def test_a_server_whose_disk_hangs_does_not_lead_until_the_disk_answers(group: Group) -> None:
    await group.upsert(row(1))
    host = await group.leader()
    hang(group, host, for_s=60.0)
    await group.upsert(row(2))
    term = group.replica(await group.leader()).core.term
    for n in range(40):
        await group.upsert(row(2, n=n))
        await group.sleep(1.0)
    leader = await group.leader()
    assert leader != host and group.replica(leader).core.term == term
    await group.sleep(30.0)
    await group.settle()
    await group.lead(host)
    assert await group.get(2) == [row(2, n=39)]


@simulated()
async def test_a_read_waiting_at_a_leader_that_hands_over_is_refused_at_once(group: Group) -> None:
    await group.upsert(row(1))
    host = await group.leader()
    hang(group, host)
    writing = asyncio.ensure_future(group.upsert(row(1, "new")))
    await group.sleep(0.1)
    replica = group.replica(host)
    assert replica.core.commit_index > replica.store.applied.index
    assert isinstance(await group.read_once(host, timeout_s=LONG_S), errors.NotLeader)
    await writing


@simulated()
async def test_a_read_waiting_for_a_disk_is_refused_in_time_without_a_successor(group: Group) -> None:
    await group.upsert(row(1))
    host = await group.leader()
    hang(group, host)
    writing = asyncio.ensure_future(group.upsert(row(1, "new")))
    await group.sleep(0.1)  # the followers have committed it
    hang(group, *HOSTS)
    more = asyncio.ensure_future(group.upsert(row(2)))
    await group.sleep(0.1)
    began = group.client.clock.monotonic()
    refused = await group.read_once(host, timeout_s=LONG_S)
    assert isinstance(refused, errors.Unavailable) and refused.retriable
    assert group.client.clock.monotonic() - began < READ_WAIT_S + 0.5
    writing.cancel()
    more.cancel()


@simulated()
async def test_calls_do_not_accumulate_at_a_server_whose_disk_hangs(group: Group) -> None:
    for tablet in OTHERS:
        await group.create(tablet)
    await group.upsert(row(1))
    host = await group.leader()
    hang(group, host)
    waiting: list[int] = []
    for _ in range(2):
        for n in range(100):
            await group.upsert(row(1, n=n))
            await group.sleep(0.2)
        replica = group.replica(host)
        held = len(replica._hard_waiters) + len(replica._durable_waiters._waiting)
        waiting.append(len(group.cluster._nodes[address(host)].domain.unfinished) + held)
    assert waiting[1] <= waiting[0] + 10, waiting


# -- data disks; in simulation each tablet's rows have a disk of their own


MEMTABLE_BYTES = 20_000
HUNG_S = 1.0
HELD_BYTES_MAX = 4 * MEMTABLE_BYTES  # twice the limit, and what arrives between two checks


async def load(group: Group, *tablets: str, turns: int = 30) -> None:
    for turn in range(turns):
        for tablet in tablets:
            await group.upsert(*[row(turn * 20 + k, "x" * 200) for k in range(20)], tablet=tablet)


async def hang_data(group: Group, host: str) -> None:
    """Begin a flush of TABLET on the host that does not end."""
    group.disk(host).hang_data(path_of(TABLET))
    server = group.server(host)
    # Above the limit at which a flush begins, and below that at which a leader refuses.
    await load(group, TABLET, turns=7)
    await until(group, lambda: bool(server.maintenance.hung()), "the disk hangs")


async def two_tablets(group: Group) -> str:
    """Create a second tablet; return a host that follows in both."""
    await group.create(OTHER)
    led = await group.leader(), await group.leader(OTHER)
    return next(host for host in HOSTS if host not in led)


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_other_tablets_are_flushed_while_a_disk_hangs(group: Group) -> None:
    host = await two_tablets(group)
    await hang_data(group, host)
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
    await hang_data(group, host)
    server, held = group.server(host), group.replica(host)
    await load(group, OTHER, turns=40)
    await until(group, lambda: server.shared.bytes < 100_000, "the shared log is trimmed")
    assert held.log.private_last > 0 and held.store.flushed.index < held.log.private_last
    group.crash(host)
    group.disk(host).unhang_data(path_of(TABLET))
    await group.restart(host)
    await group.settle()
    assert len(await group.scan(host)) == 140


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_a_flush_to_a_hanging_disk_is_refused_and_other_tablets_are_flushed(group: Group) -> None:
    host = await two_tablets(group)
    await hang_data(group, host)
    with pytest.raises(errors.Unavailable, match="has not answered for 1 s"):
        await group.flush(host)
    assert (await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)).flushed.keys() == {OTHER}


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=HUNG_S)
async def test_a_hanging_data_disk_of_a_leader_delays_only_its_own_writers(group: Group) -> None:
    await group.create(OTHER)
    leader = await group.leader()
    if (led := await group.leader(OTHER)) != leader:
        await group.step_down(led, leader, OTHER)
    await hang_data(group, leader)
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
    await hang_data(group, host)
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


# -- a lost data disk whose replicas cannot be replaced


@pytest.mark.parametrize("noticed", [False, True])
@simulated()
async def test_a_server_with_a_lost_data_disk_reports_its_status_without_a_majority(
    group: Group, noticed: bool
) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    host = HOSTS[0]
    group.crash(*HOSTS[1:])
    group.disk(host).lose_data(f"data/{TABLET}")
    if noticed:
        await group.sleep(5.0)
    assert await group.reported(host) == {TABLET: "failed" if noticed else "running", OTHER: "running"}
    (reporter,) = group.server(host).reporters
    assert {each.tablet for each in reporter._report(True, 0).updated} == {TABLET, OTHER}


@simulated()
async def test_a_get_from_a_lost_data_disk_fails_the_replica_and_another_one_serves(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    await group.flush(leader)
    request = m.ReadRequest(0, (m.TabletKeys(TABLET, [CODEC.encode_key({"k": 1})]),))
    group.disk(leader).lose_data(f"data/{TABLET}")
    reply = await group.server(leader).read(request)  # before the loss is noticed
    assert reply.errors[0] is not None and reply.errors[0][0] == "ReplicaFailed"
    assert group.replica(leader).state == "failed"
    assert await group.get(1) == [row(1)]
