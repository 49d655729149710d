"""Carries out a plan of faults on a real Ray cluster, and undoes every one of them.

The kinds are those of chaos/plans.py, with one function each in `KINDS`. A fault that this machine cannot carry out is skipped
with the reason; one that has no target is missed; one that was carried out must have an effect that was seen, or the run is void
(chaos/ray/report/injection.py). A host has one fault at a time: a second one waits for the end of the first, and is missed if the
act is over by then. Different hosts have faults at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil
from msgspec.structs import replace

from ebla.actors.deadlines import timeout
from ebla.chaos.plans import EVERY_HOST, MASTER, Fault, Plan, misplaced
from ebla.chaos.ray.faults import disks, network, nodes, processes
from ebla.chaos.ray.faults.probes import CALLS
from ebla.chaos.ray.report.injection import (
    MISSED,
    OBSERVED,
    SKIPPED,
    UNOBSERVED,
    Failed,
    FaultReport,
    Injection,
    Unobserved,
)
from ebla.chaos.ray.stage import victims
from ebla.chaos.ray.stage.stage import HEAD, RayStage
from ebla.placement.local import node as local_node
from ebla.storage.errors import EblaError

FAULT_S_MAX = 600.0  # for one fault from its beginning to its end

Strike = Callable[[RayStage, Fault, Injection], Awaitable[None]]
Show = Callable[[str], None]

KINDS: dict[str, Strike] = {
    "crash": processes.crash,
    "stop": processes.stop,
    "pause": processes.pause,
    "zombie": processes.zombie,
    "blackout": processes.blackout,
    "client_crash": processes.client_crash,
    "client_pause": processes.client_pause,
    "node_loss": nodes.node_loss,
    "node_pause": nodes.node_pause,
    "lose_host": nodes.lose_host,
    "isolate": network.isolate,
    "split": network.split,
    "cut": network.cut,
    "cut_one_way": network.cut,
    "slow_disk": disks.slow_disk,
    "slow_disks": disks.slow_disks,
    "full_disk": disks.full_disk,
    "fail_sync": disks.fail_sync,
    "lose_disk": disks.lose_disk,
}


@dataclass
class Nemesis:
    """`reasons`: by kind, why faults of it are skipped. `tablets`: the tablets of the pulse, and their numbers."""

    stage: RayStage
    plan: Plan
    reasons: Mapping[str, str]
    tablets: Mapping[str, int]
    show: Show

    def __post_init__(self) -> None:
        faults = enumerate(self.plan.faults)
        self.injections = [Injection(number, fault, self.stage.now_s) for number, fault in faults]
        self._began_s: float | None = None  # act one
        self._busy = {host: asyncio.Lock() for host in self.stage.victims}

    def reports(self) -> list[FaultReport]:
        return [injection.report for injection in self.injections]

    def measured(self, calls: Sequence[float | None]) -> None:
        """Note the effect of faults of calls, which are in force as long as the cluster runs: it is measured once, before act one."""
        for injection in self.injections:
            if injection.report.fault.kind in CALLS:
                try:
                    network.measure(injection, calls)
                except Unobserved as error:
                    injection.ended(error.outcome, str(error))
                self._show(injection)

    async def run(self, duration_s: float) -> None:
        """Carry out act one. Returns when the last fault was undone."""
        began_s = self._began_s = self.stage.now_s()
        await asyncio.gather(*(self._at(began_s, duration_s, injection) for injection in self.injections))

    async def _at(self, began_s: float, duration_s: float, injection: Injection) -> None:
        fault = injection.report.fault
        if fault.kind in CALLS:
            return
        if fault.kind in self.reasons:
            injection.ended(SKIPPED, self.reasons[fault.kind])
            self._show(injection)
            return
        assert not misplaced(fault, tuple(self._busy)), "a plan is checked before anything is started"
        await asyncio.sleep(max(0.0, began_s + fault.at_s - self.stage.now_s()))
        async with contextlib.AsyncExitStack() as held:
            for host in sorted(self._hit(fault)):
                await held.enter_async_context(self._busy[host])
            if self.stage.now_s() > began_s + max(duration_s, fault.at_s + 1.0):
                injection.ended(MISSED, "the act was over when the host had recovered from its last fault")
                self._show(injection)
                return
            await self._strike(injection)
            self._show(injection)

    def _hit(self, fault: Fault) -> tuple[str, ...]:
        return tuple(self._busy) if fault.kind in EVERY_HOST else fault.where

    async def _strike(self, injection: Injection) -> None:
        fault = injection.report.fault
        try:
            fault = replace(fault, where=tuple([await self.stage.found(host) for host in fault.where]))
        except (EblaError, Failed) as error:
            injection.ended(MISSED, str(error))
            return
        injection.note(fault=fault)
        repaired = await self._await_repair() if MASTER in fault.where else ""
        led = [tablet for host in self._hit(fault) for tablet in await self._served_by(host)]
        injection.note(led=tuple(sorted(self.tablets[tablet] for tablet in led if tablet in self.tablets)))
        try:
            async with timeout(FAULT_S_MAX):
                await KINDS[fault.kind](self.stage, fault, injection)
        except Failed as error:
            injection.ended(error.outcome, str(error))
        except TimeoutError:
            injection.ended(UNOBSERVED, f"it was not over after {FAULT_S_MAX:g} s")
        except psutil.NoSuchProcess as error:
            if not injection.report.effects:
                injection.ended(MISSED, f"process {error.pid} ended by itself")
        except (EblaError, OSError, psutil.Error) as error:
            injection.ended(UNOBSERVED, f"{type(error).__name__}: {error}")
        if repaired and injection.report.effects:
            injection.saw(repaired)

    async def _await_repair(self) -> str:
        """If there are logs, the master is hit while a ledger is repaired, or after some seconds without a repair."""
        if self.stage.ledgers is None:
            return ""
        try:
            worker = await self.stage.ledgers.repairing()
        except EblaError:
            worker = None
        return "no ledger was repaired then" if worker is None else f"{worker} repaired a ledger then"

    async def _served_by(self, host: str) -> Sequence[str]:
        """The tablets that may become unavailable when the host's role fails: PacificA tablets depend on the master."""
        return tuple(self.tablets) if host == MASTER else await self.stage.leads(host)

    def _show(self, injection: Injection) -> None:
        when, report = "", injection.report
        if report.at_s is not None and self._began_s is not None:
            when = f"at {report.at_s - self._began_s:.1f} s: "
        what = report.effects[0] if report.outcome == OBSERVED else f"{report.outcome}: {report.reason}"
        self.show(f"{when}{' '.join((report.fault.kind, *report.fault.where))}: {what}")

    async def heal(self) -> None:
        """Before act two, undo faults that failed half-way."""
        stage = self.stage
        for number in sorted(stage.cluster.state.nodes):
            for process in await stage.processes(number):
                if victims.stopped(process):
                    victims.resume(process)
                if stage.needs.shim is not None:
                    stage.needs.shim.disarm(process.pid)
            if stage.needs.namespaces is not None and number != HEAD:
                stage.needs.namespaces.rejoin(number)
            gone = local_node.slot_of(number) in stage.gone
            if number != HEAD and not gone and not stage.cluster.alive(number):
                await stage.start_node(number)
        if any(each.fault.kind == "stop" and each.undone_s is None for each in self.reports()):
            await stage.relaunch()
