"""A server with many tablets stops: it hands over all leaderships in time, leads no more, and flushes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from ebla.actors.tablet.engine.core import CANDIDATE
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.serving import handing_over
from ebla.actors.world import STOP_S
from ebla.storage.errors import Corruption, DiskFull
from ebla.storage.tablets.tablet_store import path_of
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OPTIONS, OTHER, TABLET, Group, address, held, row, simulated

MANY, AT_ONCE = 20, 16


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "AT_ONCE_MAX", AT_ONCE)


async def lead_everything(group: Group) -> str:
    """Let one host lead all tablets; return it."""
    host = await group.leader()
    for tablet in group.tablets:
        await group.lead(host, tablet)
    assert all(replica.leads for replica in group.server(host).replicas.values())
    return host


def led_elsewhere(group: Group, host: str) -> int:
    others = [group.server(other) for other in group.hosts if other != host]
    return sum(any(server.replicas[tablet].leads for server in others) for tablet in group.tablets)


def handed_over_at_once(group: Group, host: str) -> int:
    cores = [replica.core for replica in group.server(host).replicas.values()]
    return sum(core.handing_over or core.awaits_successor for core in cores)


@contextlib.asynccontextmanager
async def handed_over(group: Group, host: str) -> AsyncIterator[None]:
    """Stop the host; what follows happens when it has handed over and before it flushes."""
    begun, flush = held(group.server(host).copies, "close")
    stopping = asyncio.ensure_future(group.cluster.stop(address(host)))
    await begun.wait()
    yield
    flush.set()
    await stopping


@simulated()
async def test_a_stopping_server_hands_over_many_tablets_even_with_slow_disks(group: Group) -> None:
    await group.create_many(MANY - 1)
    await group.upsert(row(1))
    host = await lead_everything(group)
    for each in group.hosts:
        group.disk(each).commit_s = (0.1, 0.3)
    seen = [0]

    async def watch() -> None:
        while True:
            seen.append(handed_over_at_once(group, host))
            await group.sleep(0.01)

    watching = asyncio.ensure_future(watch())
    began = group.client.clock.monotonic()
    async with handed_over(group, host):
        watching.cancel()
        assert group.client.clock.monotonic() - began < STOP_S / 3
        assert led_elsewhere(group, host) == MANY, "it waits for its successors"
        assert max(seen) == AT_ONCE
        group.hosts = tuple(each for each in group.hosts if each != host)
        assert await group.get(1) == [row(1)]


@simulated()
async def test_a_candidate_that_is_elected_during_the_stop_hands_over(group: Group) -> None:
    leader, stopping_host, _ = await group.roles()
    for each in group.hosts:
        group.disk(each).commit_s = (0.1, 0.3)
    asked = asyncio.ensure_future(group.step_down(leader, stopping_host))
    core = group.replica(stopping_host).core
    await until(group, lambda: core.role == CANDIDATE, "the successor campaigns")
    async with handed_over(group, stopping_host):
        assert "elected" in core.story() and led_elsewhere(group, stopping_host) == 1
    await asked


@simulated()
async def test_a_server_that_flushes_before_its_end_leads_no_tablet(group: Group) -> None:
    """The leader of all tablets crashes and is back at once, while another server flushes. That server would not serve."""
    await group.create_many(MANY - 1)
    stopping_host, leader, _ = HOSTS
    for tablet in group.tablets:
        await group.lead(leader, tablet)
    async with handed_over(group, stopping_host):
        group.crash(leader)
        await group.restart(leader)
        async with group.client.clock.timeout(8 * OPTIONS["election_s_min"]):
            for tablet in group.tablets:
                assert await group.leader(tablet) != stopping_host


@simulated()
async def test_tablets_that_were_not_handed_over_elect_other_leaders_during_the_flushes(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to hand over is up at once. The stopping server then sends no heartbeats."""
    monkeypatch.setattr(handing_over, "ALL_S_MAX", 0.0)
    host = await lead_everything(group)
    async with handed_over(group, host):
        assert group.replica(host).leads
        async with group.client.clock.timeout(8 * OPTIONS["election_s_min"]):
            assert await group.leader() != host


@simulated()
async def test_handing_over_ends_when_its_time_is_up(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tablets are handed over one after the other, and the disks are slow."""
    monkeypatch.setattr(handing_over, "AT_ONCE_MAX", 1)
    monkeypatch.setattr(handing_over, "ALL_S_MAX", 2.0)
    await group.create_many(MANY - 1)
    host = await lead_everything(group)
    for each in group.hosts:
        group.disk(each).commit_s = (0.3, 0.4)
    began = group.client.clock.monotonic()
    async with handed_over(group, host):
        assert 2.0 <= group.client.clock.monotonic() - began < 2.5
        assert 0 < led_elsewhere(group, host) < MANY


@simulated()
async def test_a_hand_over_that_fails_is_not_tried_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor never catches up."""
    monkeypatch.setattr(Leadership, "successor_ready", lambda *_: False)
    host = await group.leader()
    began = group.client.clock.monotonic()
    async with handed_over(group, host):
        assert group.replica(host).leads
        assert group.client.clock.monotonic() - began < 2 * OPTIONS["election_s_min"]


@simulated(hosts=HOSTS[:1])
async def test_a_tablet_of_one_replica_is_flushed_at_the_stop_without_a_successor(group: Group) -> None:
    await group.upsert(row(1))
    (host,) = group.hosts
    replica = group.replica(host)
    await group.cluster.stop(address(host))
    assert replica.store.flushed == replica.store.applied
    await group.restart(host)
    assert await group.get(1) == [row(1)]


@pytest.mark.parametrize("error", [None, DiskFull("no space left"), Corruption("a damaged page")])
@simulated()
async def test_a_data_disk_in_trouble_ends_only_its_own_flushes_of_a_stop(
    group: Group, error: Exception | None
) -> None:
    """It hangs (None), is full or damaged. In simulation each tablet's rows have a disk of their own."""
    await group.create(OTHER)
    for tablet in group.tablets:
        await group.upsert(row(1), tablet=tablet)
    host = (await group.followers())[0]
    await group.settle(OTHER)
    server, other = group.server(host), group.replica(host, OTHER)
    assert list(server.replicas) == [TABLET, OTHER] and other.store.flushed != other.store.applied
    if error is None:
        group.disk(host).hang_data(path_of(TABLET))
    else:
        environment: Any = group.replica(host).store.environment
        environment.commit = AsyncMock(side_effect=error)
    stopping = asyncio.ensure_future(group.cluster.stop(address(host)))
    await until(group, lambda: other.store.flushed == other.store.applied, "the other disk's flush", 10.0)
    group.disk(host).unhang_data(path_of(TABLET))
    await stopping
    await group.restart(host)
    assert [await group.get(1, tablet=tablet) for tablet in group.tablets] == [[row(1)]] * 2


@simulated()
async def test_tablets_without_a_successor_do_not_delay_the_stop(group: Group) -> None:
    await group.create_many(MANY - 1)
    host = await lead_everything(group)
    for other in group.hosts:
        if other != host:
            group.cut(host, other)
    began = group.client.clock.monotonic()
    await group.cluster.stop(address(host))
    assert group.client.clock.monotonic() - began < STOP_S


@pytest.mark.parametrize("apart_s", [0.0, 0.002, 0.01, 0.1])
@simulated()
async def test_servers_that_stop_together_do_not_wait_for_successors(group: Group, apart_s: float) -> None:
    """No tablet can have a leader when all servers have stopped."""
    await group.create_many(MANY - 1)
    await group.upsert(row(1))
    for number, tablet in enumerate(group.tablets):
        await group.lead(group.hosts[number % 3], tablet)

    async def stop_after(seconds: float, host: str) -> None:
        await group.sleep(seconds)
        await group.cluster.stop(address(host))

    began = group.client.clock.monotonic()
    await asyncio.gather(*(stop_after(each * apart_s, host) for each, host in enumerate(group.hosts)))
    assert group.client.clock.monotonic() - began < 4 * OPTIONS["election_s_min"]
    await group.restart()
    assert await group.get(1) == [row(1)]


@simulated()
async def test_a_stopping_server_refuses_to_take_over(group: Group) -> None:
    """Its peer gets the refusal at once, and does not wait for it to lead."""
    leader, stopping, _ = await group.roles()
    group.server(stopping).stopping = True
    core = group.replica(leader).core
    asked = asyncio.ensure_future(group.step_down(leader, stopping))
    await until(group, lambda: "refuses to" in core.story(), "the refusal")
    assert not core.awaits_successor and core.leader is None
    assert "abdicated" not in group.replica(stopping).core.story()
    await asked


@simulated()
async def test_the_last_server_that_stops_waits_for_no_answer(group: Group) -> None:
    leader, *others = await group.roles()
    group.crash(*others)
    began = group.client.clock.monotonic()
    await group.cluster.stop(address(leader))
    assert group.client.clock.monotonic() - began < 3 * OPTIONS["election_s_min"]
