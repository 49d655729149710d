"""One server's disk hangs: other servers lead its tablets and serve writes and reads, and no call waits forever."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors.tablet.serving.admission import READ_WAIT_S
from tests.tablet.harness import HOSTS, SLOW_HEARTBEATS, Group, address, row, simulated

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
    assert not any(replica.leads for replica in group.server(host).replicas.values())


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
