"""Servers of a PacificA tablet end, and start again shortly afterwards, while the master runs on."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from ebla.actors.errors import OutcomeUnknown
from ebla.actors.tablet.engine.links import CALL_TIMEOUT_S
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.network import SimulatedNetwork
from tests.tablet.appointing import LIMITS, MASTER, PacificaGroup, pacifica
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, address, play, row
from tests.tablet.test_pacifica_recent_copies import (
    EARLIER,
    LATER,
    A,
    B,
    C,
    alter_minimum,
    end,
    require_everything,
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


def loaded(group: PacificaGroup, host: str) -> bool:
    return group.alive(host) and TABLET in group.server(host).replicas


def leads(group: PacificaGroup, host: str) -> bool:
    return loaded(group, host) and group.replica(host).leads


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


@pytest.mark.parametrize("meanwhile", ["nothing", "another master begins", "the primary is suspended"])
@pytest.mark.parametrize("least", [2, 3])
@pacifica()
async def test_a_hand_over_does_not_make_the_next_process_of_the_successor_the_primary(
    group: PacificaGroup, least: int, meanwhile: str
) -> None:
    """The request is late. Meanwhile the successor returns on a copy; the others restart when the request is granted."""
    await write(group, *EARLIER)
    await alter_minimum(group, least)
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(C).copy()
    await write(group, *LATER)
    group.cluster.network.cut(address(A), MASTER)
    core, now, ballot = group.core(A), group.server(A).world.now(), group.stored.index
    group.server(A).rounds.step(group.replica(A), core.step_down, now, group.uuid(C))
    await until(group, lambda: not group.replica(A).leads, "A has stepped down")
    if meanwhile == "the primary is suspended":
        group.detector.allowed = lambda uuid: uuid != group.uuid(A)
    await return_with_lease(group, copy)
    if meanwhile == "another master begins":
        group.stop_master()
        await group.start_master()
        await until(group, lambda: leased(group, C), "C has a lease of the new master")
    await granted(group, ballot)
    group.crash(A, B)
    group.leader_hint = None
    group.detector.allowed = lambda uuid: True
    for host in (A, B):
        group.cluster.launch(address(host), group.make(host))
    await require_everything(group)


async def return_with_lease(group: PacificaGroup, copy: DurableState) -> None:
    """C returns on the copy and gets a lease."""
    await end(group, C, copy=copy)
    group.cluster.launch(address(C), group.make(C))
    await until(group, lambda: group.alive(C) and leased(group, C), "C has a lease")


async def granted(group: PacificaGroup, ballot: int) -> None:
    """The master gets the request, and makes another ballot than this one."""
    group.heal()
    while group.stored.index == ballot:
        await group.sleep(0.0001)


def leased(group: PacificaGroup, host: str) -> bool:
    """Whether the present process of the server has a lease."""
    server = group.server(host)
    stamp = group.detector.lease(server.instance.uuid) if server.running else None
    return stamp is not None and stamp.start == server.instance.start


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("suspended", [False, True])
@pacifica()
async def test_a_primary_with_a_late_disk_leads_on_if_its_only_successor_returns_on_a_copy(
    group: PacificaGroup, least: int, suspended: bool, ends: bool
) -> None:
    """B is dead. A asks to lead no more, and to have no vote, so C alone would be left. A may be suspended for a moment."""
    await write(group, *EARLIER)
    await alter_minimum(group, least)
    await group.sleep(LIMITS.stable_s)
    group.crash(B)
    await until(group, lambda: len(group.stored.voters()) == 2, "B has lost its vote")
    await group.sleep(2 * LIMITS.grace_s)
    await group.upsert(row(1))
    copy = group.disk(C).copy()
    for number in LATER:
        await group.upsert(row(number))
    group.cluster.network.cut(address(A), MASTER)
    server, core, ballot = group.server(A), group.core(A), group.stored.index
    server.rounds.step(group.replica(A), hand_over_late, core, group.uuid(C), server.world.now())
    await until(group, lambda: not group.replica(A).leads, "A has stepped down")
    await return_with_lease(group, copy)
    if suspended:
        group.detector.allowed = lambda uuid: uuid != group.uuid(A)
        group.heal()
        await group.sleep(LIMITS.beacon_s)
        group.detector.allowed = lambda uuid: True
    await granted(group, ballot)
    if ends:
        group.crash(A)
        group.cluster.launch(address(A), group.make(A))
    group.leader_hint = None
    group.cluster.launch(address(B), group.make(B))
    await group.sleep(2 * LIMITS.grace_s)
    assert await group.get(*EARLIER, *LATER) == [row(number) for number in (*EARLIER, *LATER)]


def hand_over_late(core: Any, successor: str, now: float) -> None:
    core._pass_time(now)
    core._hand_over(core._lead, successor, late=True)
