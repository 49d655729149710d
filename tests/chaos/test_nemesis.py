"""A fault is in force until the last of its kind ends, is counted if it had an effect, and excuses nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ebla.chaos import soak
from ebla.chaos.plans import EVERYWHERE, Fault, Plan
from ebla.chaos.runs import Run
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.simulation import loop
from ebla.chaos.simulation import nemesis as nemesis_module
from ebla.chaos.simulation.deployment import Deployment, Shape, address_of
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.medium import COMMIT_S, DurableState
from ebla.chaos.simulation.nemesis import Nemesis
from ebla.chaos.simulation.network import SimulatedNetwork
from ebla.chaos.simulation.network_faults import NetworkFaults
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import NodeClock
from ebla.storage.errors import Corruption, DiskFailed
from tests.staged import staged

HOST, OTHER = "host-1", "host-2"
HERE, THERE = address_of(HOST), address_of(OTHER)

IN_FORCE: dict[str, Callable[[Deployment], object]] = {
    "pause": lambda deployment: deployment.cluster.paused(HERE),
    "isolate": lambda deployment: not deployment.cluster.network.connected(HERE, THERE),
    "cut": lambda deployment: not deployment.cluster.network.connected(THERE, HERE),
    "cut_one_way": lambda deployment: not deployment.cluster.network.connected(HERE, THERE),
    "split": lambda deployment: not deployment.cluster.network.connected(HERE, THERE),
    "lose": lambda deployment: deployment.cluster.network.drop_probability > 0,
    "repeat": lambda deployment: deployment.cluster.network.repeat_probability > 0,
    "delay": lambda deployment: deployment.cluster.network.slow_s > 0.25,
    "lose_parts": lambda deployment: "lose_parts" in deployment.cluster.network.parts,
    "slow_disk": lambda deployment: deployment.cluster.state(HERE).commit_s != COMMIT_S,
    "slow_disks": lambda deployment: deployment.cluster.state(THERE).commit_s != COMMIT_S,
    "hang_disk": lambda deployment: (
        deployment.cluster.state(HERE).hangs_until > deployment.cluster.loop.time()
    ),
    "full_disk": lambda deployment: deployment.cluster.state(HERE).full,
}
AMOUNTS = {
    "lose": (0.1, 0.2),
    "lose_parts": (0.1, 0.2),
    "repeat": (0.1, 0.2),
    "delay": (0.3, 0.4),
    "slow_disk": (0.1, 0.2),
}


def play(scenario: Callable[[Nemesis], Awaitable[None]], *faults: Fault) -> None:
    """Run the scenario on a deployment that has started, with a nemesis of these faults."""

    async def main() -> None:
        deployment = Deployment(Shape())
        await deployment.boot()
        await scenario(Nemesis(deployment, Plan("calm", 0, faults), Points()))
        deployment.close()

    loop.run(main(), 1)


@pytest.mark.parametrize("kind", IN_FORCE)
@pytest.mark.parametrize("second", [(0.5, 1.0), (0.5, 0.2)], ids=["ends later", "ends earlier"])
def test_overlapping_faults_end_with_the_last(kind: str, second: tuple[float, float]) -> None:
    seen: list[tuple[float, bool]] = []
    where = () if kind in EVERYWHERE else (HOST, OTHER) if "cut" in kind else (HOST,)
    first_amount, second_amount = AMOUNTS.get(kind, (0.1, 0.2) if kind == "slow_disks" else (0.0, 0.0))
    at_s, for_s = second
    faults = (
        Fault(0.0, kind, where, 1.0, first_amount),
        Fault(at_s, kind, where, for_s, second_amount),
    )
    ends_s = max(1.0, at_s + for_s)

    async def sample(deployment: Deployment, began: float) -> None:
        while True:
            await asyncio.sleep(0.011)
            seen.append((asyncio.get_running_loop().time() - began, bool(IN_FORCE[kind](deployment))))

    async def scenario(nemesis: Nemesis) -> None:
        sampling = asyncio.ensure_future(sample(nemesis.deployment, asyncio.get_running_loop().time()))
        await nemesis.run(2.0)
        await asyncio.sleep(0.5)
        sampling.cancel()

    play(scenario, *faults)
    assert {held for at, held in seen if at < ends_s - 0.02} == {True}
    assert {held for at, held in seen if at > ends_s + 0.02} == {False}


NOTHING = {
    "delay": (NetworkFaults, "_set_share"),
    "lose": (NetworkFaults, "_set_share"),
    "isolate": (SimulatedNetwork, "isolate"),
    "cut_master": (SimulatedNetwork, "cut"),
    "fail_sync": (DurableState, "fail_next_commit"),
    "clock_rate": (NodeClock, "set_rate"),
    "slow_disk": (nemesis_module, "_set_pace"),
    "hang_disk": (DurableState, "hang"),
    "grow_map": (MemoryDisk, "expire_snapshots"),
}


@pytest.mark.parametrize("kind", NOTHING)
def test_a_fault_without_effect_is_not_counted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is switched off, while another fault causes similar errors elsewhere."""
    where, name = NOTHING[kind]
    monkeypatch.setattr(where, name, lambda *_, **__: 0)
    on = () if kind in EVERYWHERE else (HOST,)
    amount = {"delay": 0.5, "lose": 0.2, "clock_rate": 1.05, "slow_disk": 1.0}.get(kind, 0.0)
    faults = (Fault(1.0, "crash", (OTHER,), 1.0), Fault(1.0, kind, on, 2.0, amount))
    report = soak.carry_out(soak.Task(Plan("registers", 1, faults)))
    assert report.effects.get("crash") == 1
    assert not report.effects.get(kind)


def test_a_clock_of_a_stopped_host_is_no_fault() -> None:
    faults = (Fault(0.5, "crash", (HOST,), 5.0), Fault(1.0, "clock_rate", (HOST,), 2.0, 1.05))
    report = soak.carry_out(soak.Task(Plan("registers", 1, faults)))
    assert (report.effects["crash"], report.effects["clock_rate"]) == (1, 0)


@pytest.mark.parametrize("kind", ["cut_master", "cut_clients"])
def test_a_server_that_is_cut_off_works_again_after_the_cut(kind: str) -> None:
    report = soak.carry_out(soak.Task(Plan("churn", 1, (Fault(1.0, kind, (HOST,), 4.0),))))
    assert (report.violation, report.effects[kind]) == ("", 1)


@staged(play, Fault(1.0, "lose_disk", (HOST,), 0.5))
async def test_damage_in_a_replaced_directory_is_not_tolerated(nemesis: Nemesis) -> None:
    """Later damage in the new directory is a defect."""
    cluster = nemesis.cluster
    nemesis._damages(HERE)
    assert nemesis.tolerates(HERE, Corruption("rot"), cluster.state(HERE))
    assert not nemesis.tolerates(THERE, Corruption("rot"), cluster.state(THERE))
    await nemesis.run(2.0)
    assert not nemesis.tolerates(HERE, Corruption("more"), cluster.state(HERE))


@pytest.mark.parametrize("host", [HOST, "journal-1", "master-1"])
def test_a_superseded_role_may_fail_in_its_replaced_directory(host: str) -> None:
    """The failing sync is armed while the role is paused; the role resumes beside its successor, which has another
    directory."""
    faults = (Fault(2.0, "zombie", (host,), 4.0), Fault(2.5, "fail_sync", (host,), 3.0))
    run = Run(replace(scenario("masters"), duration_s=6.5), Plan("masters", 1, faults))
    assert soak.quiet(run.go).violation == ""
    failures = run.nemesis.cluster.failures
    assert any(isinstance(failure.error, DiskFailed) for failure in failures)


@staged(play, Fault(0.0, "rot", (HOST,), 0.5))
async def test_damage_excuses_only_the_role_that_runs_in_the_damaged_directory(nemesis: Nemesis) -> None:
    directory = nemesis.cluster.state(HERE)
    nemesis._has_damaged(nemesis.plan.faults[0], HERE, directory, "data/t")
    await nemesis._replace(HOST)
    assert nemesis.tolerates(HERE, Corruption("rot"), directory)
    assert not nemesis.tolerates(HERE, Corruption("rot"), nemesis.cluster.state(HERE))
