"""Servers of a PacificA tablet end, and start again shortly afterwards, while the master runs on."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from ebla.actors.errors import OutcomeUnknown
from ebla.actors.tablet.engine.links import CALL_TIMEOUT_S
from ebla.chaos.simulation.network import SimulatedNetwork
from tests.tablet.appointing import PacificaGroup, pacifica
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, address, play, row
from tests.tablet.test_pacifica_recent_copies import (
    EARLIER,
    LATER,
    A,
    C,
    alter_minimum,
    until_verified,
    write,
)

PAUSES_S = (0.0, 0.005, 0.02, 0.05, 0.1)  # at most between two starts
SEEDS = (
    27,
    42,
    43,
    45,
    52,
    55,
    79,
    103,
)  # of restarts during which a process reports while its ballot is being made durable


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_restart_of_all_servers_a_primary_comes(seed: int) -> None:
    chance = Random(seed)

    async def restart(group: PacificaGroup) -> None:
        await group.upsert(row(1))
        await group.settle()
        await group.sleep(chance.uniform(0, 3))
        group.crash_all()
        group.leader_hint = None
        order = list(HOSTS)
        chance.shuffle(order)
        for host in order:
            group.cluster.launch(address(host), group.make(host))
            await group.sleep(chance.choice(PAUSES_S) * chance.random())
        await until(group, lambda: any(leads(group, host) for host in HOSTS), "a primary comes", seconds=20.0)

    play(restart, seed=seed, kind=PacificaGroup)


def leads(group: PacificaGroup, host: str) -> bool:
    known = group.server(host).replicas.get(TABLET) if group.alive(host) else None
    return known is not None and known.leads


@pytest.mark.parametrize("early_s", [0.3, 0.6, 0.8])
@pacifica()
async def test_a_message_that_waits_while_its_receiver_restarts_is_not_for_the_next_process(
    group: PacificaGroup, monkeypatch: pytest.MonkeyPatch, early_s: float
) -> None:
    """The first two heartbeats to C get no answer, so later ones wait. C returns on a copy that lacks what was written since."""
    await write(group, *EARLIER)
    await alter_minimum(group, 3)
    await write(group, *EARLIER)
    call, lost = SimulatedNetwork.call, 0

    async def losing(self: Any, sender: str, to: str, method: str, message: Any, *more: Any) -> Any:
        nonlocal lost
        heartbeat = method == "replicate" and not any(each.entries for _, each in message.requests)
        if heartbeat and (sender, to) == (address(A), address(C)) and lost < 2:
            lost += 1
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise OutcomeUnknown("the heartbeat is lost", address=to)
        return await call(self, sender, to, method, message, *more)

    monkeypatch.setattr(SimulatedNetwork, "call", losing)
    await group.sleep(early_s)
    copy = group.disk(C).copy()
    for number in LATER:
        await group.upsert(row(number))
    committed = group.core(A).commit_index
    group.crash(C)
    group.cluster.put_disk(address(C), copy)
    group.cluster.launch(address(C), group.make(C))
    await until_verified(group, C)
    assert group.core(C).last_index >= committed
