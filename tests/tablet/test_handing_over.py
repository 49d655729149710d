"""A server with many tablets stops: it hands over all leaderships in time."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.tablet.serving import handing_over
from ebla.actors.world import STOP_S
from tests.tablet.copies import until
from tests.tablet.harness import OPTIONS, Group, address, row, simulated

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


@simulated()
async def test_a_stopping_server_hands_over_many_tablets_even_with_slow_disks(group: Group) -> None:
    for number in range(MANY - 1):
        await group.create(f"{number:032x}")
    await group.upsert(row(1))
    host = await lead_everything(group)
    for each in group.hosts:
        group.disk(each).commit_s = (0.1, 0.3)
    stopping = asyncio.ensure_future(group.cluster.stop(address(host)))
    async with group.client.clock.timeout(STOP_S / 3):  # what follows are flushes
        while led_elsewhere(group, host) < MANY:
            await group.sleep(0.1)
    group.hosts = tuple(each for each in group.hosts if each != host)
    assert await group.get(1) == [row(1)]
    await stopping


@simulated()
async def test_tablets_without_a_successor_do_not_delay_the_stop(group: Group) -> None:
    for number in range(MANY - 1):
        await group.create(f"{number:032x}")
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
    for number in range(MANY - 1):
        await group.create(f"{number:032x}")
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
