"""PacificA tablets whose master is slow, or whose servers crash again and again, stop, or are reached in one direction only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors.errors import NotDelivered, OutcomeUnknown
from ebla.chaos.simulation.network import SimulatedNetwork
from tests.tablet.appointing import LIMITS, MASTER, OPTIONS, PacificaGroup, pacifica
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, address
from tests.tablet.test_pacifica_recent_copies import A, B, C, alter_minimum, copied, require_everything, write
from tests.tablet.test_pacifica_restarts import leads, leased, loaded

UNREACHABLE_S = (
    OPTIONS.unresponsive_s + 2 * LIMITS.grace_s
)  # until a server that is not reached has lost its lease


async def require_primary(group: PacificaGroup, *hosts: str, within_s: float) -> None:
    group.leader_hint = None
    await until(
        group, lambda: any(leads(group, host) for host in hosts), f"one of {hosts} leads", seconds=within_s
    )


async def start_with_lease(group: PacificaGroup, host: str) -> None:
    group.cluster.launch(address(host), group.make(host))
    await until(group, lambda: group.alive(host) and leased(group, host), f"{host} has a lease")


@pytest.mark.parametrize("stale", [A, C])
@pytest.mark.parametrize("hang_s", [4.0, 6.0, 12.0])
@pacifica()
async def test_a_copy_does_not_lead_while_a_slow_catalog_delays_the_leases_of_the_others(
    group: PacificaGroup, stale: str, hang_s: float
) -> None:
    """Their beacons arrive; the edit that records their processes takes longer than the grace."""
    await copied(group, stale)
    await start_with_lease(group, stale)
    group.cluster.state(MASTER).hang(hang_s)
    for host in HOSTS:
        if host != stale:
            group.cluster.launch(address(host), group.make(host))
    await until(group, lambda: all(loaded(group, host) for host in HOSTS), "all run")
    await group.sleep(hang_s + 2.0)
    await require_everything(group)


@pytest.mark.parametrize("period_s", [0.5, 3.0])
@pacifica()
async def test_two_voters_lead_while_the_third_crashes_again_and_again(
    group: PacificaGroup, period_s: float
) -> None:
    """The two restart together."""
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)

    async def crash_again_and_again() -> None:
        while True:
            await group.sleep(period_s)
            group.crash(C)
            group.cluster.launch(address(C), group.make(C))

    crashing = asyncio.ensure_future(crash_again_and_again())
    await group.sleep(7 * period_s)
    group.crash(A, B)
    for host in (A, B):
        group.cluster.launch(address(host), group.make(host))
    await require_primary(group, A, B, within_s=2 * LIMITS.grace_s)
    crashing.cancel()


def lose(monkeypatch: pytest.MonkeyPatch, sender: str, to: str, method: str = "") -> None:
    """From now on no message of this kind arrives; "": none at all."""
    call = SimulatedNetwork.call

    async def losing(self: Any, source: str, target: str, name: str, *more: Any) -> Any:
        if (source, target) == (sender, to) and method in ("", name):
            await asyncio.sleep(0.5)
            raise (OutcomeUnknown if method else NotDelivered)("it is lost", address=target)
        return await call(self, source, target, name, *more)

    monkeypatch.setattr(SimulatedNetwork, "call", losing)


@pytest.mark.parametrize("deaf", [B, C])
@pacifica()
async def test_another_voter_leads_if_the_master_cannot_call_the_one_that_it_has_appointed(
    group: PacificaGroup, monkeypatch: pytest.MonkeyPatch, deaf: str
) -> None:
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)
    lose(monkeypatch, MASTER, address(deaf))
    await group.sleep(3.0)
    group.crash(A)
    await require_primary(group, B, C, within_s=LIMITS.grace_s + UNREACHABLE_S)
    monkeypatch.undo()
    await group.sleep(UNREACHABLE_S)
    assert leased(group, deaf), "it is reached again, and no order to it was necessary since"


@pytest.mark.parametrize("silent", [A, B])
@pytest.mark.parametrize("restart", ["all servers", "the master"])
@pacifica()
async def test_other_voters_lead_if_the_master_gets_no_heartbeats_of_one(
    group: PacificaGroup, monkeypatch: pytest.MonkeyPatch, silent: str, restart: str
) -> None:
    """Its beacons arrive."""
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)
    lose(monkeypatch, address(silent), MASTER, "heartbeat")
    if restart == "all servers":
        group.crash_all()
        for host in HOSTS:
            group.cluster.launch(address(host), group.make(host))
    else:
        group.stop_master()
        await group.sleep(LIMITS.grace_s + 1.0)
        await group.start_master()
    await require_primary(group, *HOSTS, within_s=LIMITS.grace_s + UNREACHABLE_S)


def lose_answers(monkeypatch: pytest.MonkeyPatch, to: str, most: int) -> None:
    """The master's next orders to this server are carried out, and their answers are lost."""
    call, left = SimulatedNetwork.call, most

    async def losing(self: Any, source: str, target: str, name: str, *more: Any) -> Any:
        nonlocal left
        answer = await call(self, source, target, name, *more)
        if (source, target, name) == (MASTER, to, "appoint") and left:
            left -= 1
            await asyncio.sleep(LIMITS.lease_s / 2)
            raise OutcomeUnknown("the answer is lost", address=target)
        return answer

    monkeypatch.setattr(SimulatedNetwork, "call", losing)


@pytest.mark.parametrize("tables", [1, 12])
@pacifica()
async def test_a_server_that_follows_its_orders_and_whose_answers_are_lost_keeps_its_lease(
    group: PacificaGroup, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)
    lose_answers(monkeypatch, address(A), tables)
    for number in range(tables):
        await group.create(f"{number:032x}")
        await group.sleep(1.0)
    for _ in range(200):
        await group.sleep(0.1)
        assert leads(group, A) and group.server(A).leasing.holds(), group.server(A).leasing.refusal()


@pytest.mark.parametrize("before_s", [0.3, 3.5])
@pytest.mark.parametrize("stale", [B, C])
@pacifica()
async def test_a_copy_waits_for_a_voter_whose_first_heartbeat_is_lost(
    group: PacificaGroup, monkeypatch: pytest.MonkeyPatch, stale: str, before_s: float
) -> None:
    """All were away for long. The other voter returns so long before the time of the copy is over; its beacons arrive."""
    other = C if stale == B else B
    await copied(group, stale)
    await group.sleep(2 * OPTIONS.unresponsive_s)
    await start_with_lease(group, stale)
    await group.sleep(LIMITS.grace_s - before_s)
    lose(monkeypatch, address(other), MASTER, "heartbeat")
    group.cluster.launch(address(other), group.make(other))
    await until(group, lambda: loaded(group, other), "it runs")
    await group.sleep(LIMITS.grace_s)
    monkeypatch.undo()
    await group.sleep(2 * LIMITS.grace_s)
    group.cluster.launch(address(A), group.make(A))
    await require_everything(group)


@pytest.mark.parametrize("after_s", [0.001, 0.003])
@pacifica()
async def test_a_primary_that_stops_while_its_tablet_is_altered_does_not_lead_again(
    group: PacificaGroup, after_s: float
) -> None:
    """The alteration is the edit before its request: it is appointed once more."""
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)
    group.cluster.state(MASTER).hang(0.02)
    altering = asyncio.ensure_future(alter_minimum(group, 1))
    await group.sleep(0.018 + after_s)
    stopping = asyncio.ensure_future(group.cluster.stop(address(A)))
    await require_primary(group, B, C, within_s=LIMITS.grace_s / 2)
    await stopping
    await altering


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.9])
@pacifica()
async def test_a_primary_that_stops_just_after_a_take_over_is_followed_by_the_voter_that_has_just_restarted(
    group: PacificaGroup, after_s: float
) -> None:
    """C is dead, and B and the master restart together, as with a host of both."""
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)
    group.crash(C)
    await until(group, lambda: len(group.stored.voters()) == 2, "C has lost its vote")
    await group.sleep(2 * LIMITS.grace_s)
    group.stop_master()
    group.crash(B)
    group.cluster.launch(address(B), group.make(B))
    await until(group, lambda: loaded(group, B) and group.core(B).verified, "B has everything")
    await group.start_master()
    await until(group, lambda: group.cluster.role(MASTER).active_term is not None, "the master serves")
    await group.sleep(after_s)
    stopping = asyncio.ensure_future(group.cluster.stop(address(A)))
    await require_primary(group, B, within_s=LIMITS.grace_s)
    await stopping


@pytest.mark.parametrize("away_s", [6.0, 11.0])
@pacifica()
async def test_a_voter_that_returns_leads_instead_of_a_server_that_stops(
    group: PacificaGroup, away_s: float
) -> None:
    """C is dead, and B is suspended when A asks for it as its successor: so A is appointed again, and declines."""
    await write(group, 1)
    await group.sleep(LIMITS.stable_s)
    group.crash(C)
    await until(group, lambda: len(group.stored.voters()) == 2, "C has lost its vote")
    await group.sleep(2 * LIMITS.grace_s)
    suspended = {group.uuid(B)}
    group.detector.allowed = lambda uuid: uuid not in suspended
    stopping = asyncio.ensure_future(group.cluster.stop(address(A)))
    await group.sleep(away_s)
    assert group.stored.primary == group.uuid(A) and not stopping.done()
    suspended.clear()
    await require_primary(group, B, within_s=LIMITS.grace_s / 2)
    await stopping
