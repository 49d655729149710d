"""A server with many tablets stops: it hands over all leaderships in time."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.ray_shell import STOP_S
from ebla.actors.tablet.serving import handing_over
from tests.tablet.harness import Group, address, row, simulated

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
