"""Faults that overlap on one host: each is in force until the last of them ends, and then none is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ebla.chaos.plans import Fault, Plan
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.deployment import Deployment, Shape, address_of
from ebla.chaos.simulation.disk import COMMIT_S
from ebla.chaos.simulation.nemesis import Nemesis
from ebla.chaos.simulation.points import Points

HOST, OTHER = "host-1", "host-2"
HERE, THERE = address_of(HOST), address_of(OTHER)

LOOKS: dict[str, Callable[[Deployment], object]] = {
    "pause": lambda deployment: deployment.cluster.paused(HERE),
    "isolate": lambda deployment: not deployment.cluster.network.connected(HERE, THERE),
    "cut": lambda deployment: not deployment.cluster.network.connected(THERE, HERE),
    "cut_one_way": lambda deployment: not deployment.cluster.network.connected(HERE, THERE),
    "split": lambda deployment: not deployment.cluster.network.connected(HERE, THERE),
    "lose": lambda deployment: deployment.cluster.network.drop_probability > 0,
    "repeat": lambda deployment: deployment.cluster.network.repeat_probability > 0,
    "delay": lambda deployment: deployment.cluster.network.slow_s > 0.25,
    "slow_disk": lambda deployment: deployment.cluster.state(HERE).commit_s != COMMIT_S,
    "slow_disks": lambda deployment: deployment.cluster.state(THERE).commit_s != COMMIT_S,
    "full_disk": lambda deployment: deployment.cluster.state(HERE).full,
}
AMOUNTS = {"lose": (0.1, 0.2), "repeat": (0.1, 0.2), "delay": (0.3, 0.4), "slow_disk": (0.1, 0.2)}


@pytest.mark.parametrize("kind", LOOKS)
@pytest.mark.parametrize("second", [(0.5, 1.0), (0.5, 0.2)], ids=["ends later", "ends earlier"])
def test_the_last_of_two_that_overlap_ends_it(kind: str, second: tuple[float, float]) -> None:
    seen: list[tuple[float, bool]] = []
    where = () if kind in ("lose", "repeat", "delay") else (HOST, OTHER) if "cut" in kind else (HOST,)
    first_amount, second_amount = AMOUNTS.get(kind, (0.1, 0.2) if kind == "slow_disks" else (0.0, 0.0))
    at_s, for_s = second
    faults = (
        Fault(0.0, kind, where, 1.0, first_amount),
        Fault(at_s, kind, where, for_s, second_amount),
    )
    ends_s = max(1.0, at_s + for_s)

    async def look(deployment: Deployment, began: float) -> None:
        while True:
            await asyncio.sleep(0.011)
            seen.append((asyncio.get_running_loop().time() - began, bool(LOOKS[kind](deployment))))

    async def run() -> None:
        deployment = Deployment(Shape())
        await deployment.boot()
        nemesis = Nemesis(deployment, Plan("calm", 0, faults), Points())
        looking = asyncio.ensure_future(look(deployment, asyncio.get_running_loop().time()))
        await nemesis.run(2.0)
        await asyncio.sleep(0.5)
        looking.cancel()
        deployment.close()

    loop.run(run(), 1)
    assert {held for at, held in seen if at < ends_s - 0.02} == {True}
    assert {held for at, held in seen if at > ends_s + 0.02} == {False}
