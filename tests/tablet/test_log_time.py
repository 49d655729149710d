"""Log time does not depend on wall clocks and never goes back; answers expire by it at the same entry on every replica."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.storage.tablets.results import Client
from tests.tablet.copies import copied, entomb, fill, until
from tests.tablet.harness import HOSTS, SLOW_HEARTBEATS, Group, address, row, simulated

A, B, X = b"client-A-0000000", b"client-B-0000000", b"client-X-0000000"
JUMP_US = 7_200_000_000


async def many_entries(group: Group, until_index: int = 1100) -> None:
    """Let another client write many entries in a few seconds."""
    leader, number = await group.leader(), 1
    while group.replica(leader).store.applied.index < until_index:
        batches = [group.batch(m.UPSERT, [row(100 + n)], number + n, client=X) for n in range(50)]
        await asyncio.gather(*map(group.write_bytes, batches))
        number += 50


def answers(group: Group, host: str) -> dict[bytes, Client]:
    return dict(sorted(group.replica(host).store.results.clients.items()))


def log_time_us(group: Group, host: str) -> int:
    """Return the time of the last entry."""
    log = group.replica(host).log
    (entry,) = log.load(log.last_index, log.last_index)
    return entry.time_us


@pytest.mark.parametrize("whose", ["the leader's clock", "the next leader's clock"])
@simulated(**SLOW_HEARTBEATS)
async def test_a_wall_clock_that_jumps_ahead_does_not_turn_a_retry_into_a_new_request(
    group: Group, whose: str
) -> None:
    leader = await group.leader()
    old = group.batch(m.UPSERT, [row(1, "old")], 1, client=A)
    first = await group.write_bytes(old)
    await group.write_bytes(group.batch(m.UPSERT, [row(1, "new")], 1, client=B))
    other = (await group.followers())[0]
    ahead = leader if whose == "the leader's clock" else other
    group.cluster.clock(address(ahead)).wall_offset_us += JUMP_US
    await group.lead(ahead)
    await many_entries(group)
    await group.sleep(5.0)
    assert await group.write_bytes(old) == first
    assert (await group.get(1))[0]["v"] == "new"


@pytest.mark.parametrize("leads", [False, True])
@simulated(**SLOW_HEARTBEATS)
async def test_replicas_agree_on_answers_when_one_server_keeps_them_shorter(
    group: Group, leads: bool
) -> None:
    odd = HOSTS[-1]
    group.crash(odd)
    group.options["results_retention_s"] = 60.0
    await group.cluster.start(address(odd), group.make(odd))
    await group.write_bytes(group.batch(m.UPSERT, [row(1, "old")], 1, client=A))
    await group.lead(odd if leads else HOSTS[0])
    for _ in range(7):
        await group.upsert(row(2))
        await group.sleep(20.0)
    await many_entries(group)
    await group.sleep(5.0)
    await group.settle()
    assert all(answers(group, host) == answers(group, odd) for host in HOSTS)
    assert (A in answers(group, odd)) == (not leads)


@simulated(results_retention_s=60.0, **SLOW_HEARTBEATS)
async def test_answers_of_an_idle_client_expire_while_others_write(group: Group) -> None:
    await group.write_bytes(group.batch(m.UPSERT, [row(1)], 1, client=A))
    for _ in range(12):
        await group.upsert(row(2))
        await group.sleep(10.0)
    await group.settle()
    for host in HOSTS:
        assert list(answers(group, host)) == [b"client-number-01"]


@simulated(results_retention_s=120.0, **SLOW_HEARTBEATS)
async def test_time_without_entries_counts_up_to_a_limit(group: Group) -> None:
    """A jump of a monotonic clock counts for at most a minute, so one jump expires nothing."""
    await group.write_bytes(group.batch(m.UPSERT, [row(1)], 1, client=A))
    await group.upsert(row(2))
    leader = await group.leader()
    before_us = log_time_us(group, leader)
    await group.sleep(300.0)
    await group.upsert(row(2))
    await group.sleep(5.0)
    assert 0 < log_time_us(group, leader) - before_us <= 60_000_000
    assert A in answers(group, leader)


@simulated(**SLOW_HEARTBEATS)
async def test_log_time_is_the_leaders_monotonic_time_and_stops_without_a_leader(group: Group) -> None:
    await group.upsert(row(1))
    before_us = log_time_us(group, await group.leader())
    for _ in range(4):
        await group.sleep(10.0)
        await group.upsert(row(1))
    leader = await group.leader()
    after_us = log_time_us(group, leader)
    assert 39_000_000 < after_us - before_us < 41_000_000
    group.crash_all()
    await group.sleep(30.0)
    await group.restart()
    await group.upsert(row(1))
    assert after_us <= log_time_us(group, await group.leader()) < after_us + 5_000_000


@simulated(**SLOW_HEARTBEATS)
async def test_log_time_does_not_go_back_after_a_copy(group: Group) -> None:
    await fill(group, 50)
    await group.sleep(20.0)
    await group.upsert(row(1))
    leader = await group.leader()
    before_us = log_time_us(group, leader)
    await group.settle()
    await group.flush(leader)
    target = (await group.followers())[0]
    await entomb(group, target)
    await copied(group, target, leader)
    assert not group.replica(target).log.slots
    group.cluster.clock(address(target)).wall_offset_us -= JUMP_US
    await group.lead(target)
    await group.upsert(row(2))
    assert log_time_us(group, target) >= before_us


@simulated(log_retained_entries_max=2, **SLOW_HEARTBEATS)
async def test_log_time_does_not_go_back_when_all_replicas_restart_with_empty_logs(group: Group) -> None:
    await fill(group, 600, at_once=50)
    await group.sleep(20.0)
    await group.upsert(row(1))
    leader = await group.leader()
    before_us, last = log_time_us(group, leader), group.replica(leader).log.last_index
    await group.settle()
    await group.flush(*HOSTS)
    for host in HOSTS:
        await until(
            group, lambda host=host: group.replica(host).log.dropped.index == last, "the log is empty"
        )  # type: ignore[misc]
    await group.restart_all()
    await group.upsert(row(2))
    assert log_time_us(group, await group.leader()) >= before_us
