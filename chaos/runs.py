"""One run: a scenario, a plan of faults, two acts, and a verdict.

    act one   clients work, the nemesis carries out its plan, invariants are checked all along
    act two   all faults end; every request must be answered, groups must become quiescent, replicas must agree, clients make their last reads

A run depends on its scenario and plan only: its digest is the same in any process.
"""

from __future__ import annotations

import asyncio
import collections
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ebla.chaos.checkers.refusals import excused_by, tally
from ebla.chaos.checkers.sides import Seen
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.growing import Growing
from ebla.chaos.history import INFO, OK, History, is_data
from ebla.chaos.invariants.applied import AppliedLog
from ebla.chaos.invariants.invariants import Watch
from ebla.chaos.plans import Plan, generate
from ebla.chaos.repaired import Repaired
from ebla.chaos.scenarios.columns import small_runs
from ebla.chaos.scenarios.scenarios import Scenario
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.deployment import ClientProcess, Deployment
from ebla.chaos.simulation.local_scans import LocalScans
from ebla.chaos.simulation.medium import DurableState
from ebla.chaos.simulation.nemesis import Nemesis
from ebla.chaos.simulation.points import Points
from ebla.chaos.workloads.base import Client, NoAnswer, Stage, Workload, judged
from ebla.chaos.workloads.operators import known_digests
from ebla.chaos.workloads.registers import Registers
from ebla.chaos.workloads.salvage import Salvage
from ebla.health.digests import digests
from ebla.health.survey import table_infos
from ebla.storage.errors import EblaError

ANSWER_S_MAX = 60.0  # after healing, until every request is answered
REST_S_MAX = 60.0  # then until all groups are quiescent
AGREE_S_MAX = 60.0  # and until all replicas of all tablets agree
REPAIR_S_MAX = 90.0  # and until all ledgers are whole
SKEW_S_MAX = 3600.0  # of the wall clock of a workload's client, in each direction
STEPS_MAX = 600_000  # ten times the steps of the longest runs
STEPS_PER_S_MAX = 10_000  # for each second of act one
ITSELF_FAILED = "the simulation itself failed"


class Violation(AssertionError):
    """A broken promise; the message names it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. `violation`: empty if every promise was kept. `void`: too little happened to judge, or a checker
    gave up. `begun` and `effects`: faults by kind. `asked` and `carried_out`: counts by `<workload>.<operation>`. `verbs`:
    successful calls of roles, by method."""

    scenario: str
    seed: int
    digest: str
    violation: str
    void: bool
    virtual_s: float
    steps: int
    answered: int
    unknown: int
    healed_s: float
    begun: dict[str, int]
    effects: dict[str, int]
    fired: dict[str, int]
    crashed: dict[str, int]
    reached: dict[str, int]
    asked: dict[str, int]
    carried_out: dict[str, int]
    verbs: dict[str, int] = {}


@dataclass
class Run:
    """A run under way; afterwards, the material of its story."""

    scenario: Scenario
    plan: Plan
    points: Points = field(default_factory=Points)
    histories: dict[str, History] = field(default_factory=dict)
    violation: str = ""
    judged: Verdict | None = None  # of the history that breaks its promise, if a history does
    undecided: bool = False  # a checker gave up
    healed_s: float = 0.0
    loop: Any = None
    nemesis: Nemesis | None = None
    deployment: Deployment | None = None
    local: LocalScans | None = None
    growing: Growing | None = None
    applied: AppliedLog = field(init=False)
    whole_story: bool = False  # keep every line of the story

    def __post_init__(self) -> None:
        self.applied = AppliedLog((Registers.name, *self.scenario.shape.forced))

    def go(self) -> Report:
        """Run to the end. A violation is part of the report and is not raised."""
        try:
            act_s = max([self.scenario.duration_s, *(fault.at_s + fault.for_s for fault in self.plan.faults)])
            steps_max = STEPS_MAX + int(STEPS_PER_S_MAX * act_s)
            with small_runs():
                loop.run(self._acts(), self.plan.seed, steps_max=steps_max)
        except (AssertionError, loop.Deadlock, loop.Livelock) as error:
            self.violation = f"{type(error).__name__}: {error}"
        except (NoAnswer, EblaError) as error:  # before act one, or after all faults ended
            why = error.__cause__ or error
            self.violation = (
                f"Violation: a request failed in a deployment without faults: {type(why).__name__}: {why}"
            )
        except Exception as error:
            self.violation = f"{ITSELF_FAILED}: {type(error).__name__}: {error}"
        return self._report()

    async def _acts(self) -> None:
        self.loop = asyncio.get_running_loop()
        if self.whole_story:
            self.loop.story = collections.deque(self.loop.story)
        deployment = Deployment(self.scenario.shape, self.points.of, self._tolerates)
        self.deployment = deployment
        self.nemesis = nemesis = Nemesis(deployment, self.plan, self.points)
        await deployment.boot()
        watch = Watch(deployment, self.applied)
        watching = asyncio.ensure_future(self._watch(watch))
        workloads = self.scenario.workloads()
        self.local = LocalScans(deployment)
        stage = Stage(
            replicas=self.scenario.replicas,
            replication=self.scenario.replication,
            storage=self.scenario.storage,
            pause_s=self.scenario.pause_s,
            deadlines_s=self.scenario.deadlines_s,
            local_scan=self.local.read,
            is_down=deployment.is_down,
            gone=deployment.gone,
            read_file=lambda address, path: deployment.cluster.state(address).outside.get(path),
            servers=deployment.servers,
            journals=deployment.journals,
            repaired=partial(self._repaired, deployment),
        )
        await self._start_clients(deployment, workloads, stage)
        growing = asyncio.ensure_future(self._grow_journal(deployment))
        await asyncio.gather(nemesis.run(self.scenario.duration_s), asyncio.sleep(self.scenario.duration_s))
        stage.stopping = True
        await nemesis.heal()
        began = self.loop.time()
        await self._all_grown(growing)
        await self._all_answered(deployment)
        await self._rest(watch)
        await self._agree(deployment)
        self.healed_s = self.loop.time() - began
        await self._conclude(deployment, workloads, stage)
        watch.check()
        watching.cancel()
        self._judge(workloads)
        deployment.close()

    def _tolerates(self, address: str, error: BaseException, directory: DurableState) -> bool:
        return self.nemesis is not None and self.nemesis.tolerates(address, error, directory)

    async def _watch(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(self.scenario.check_s)
            try:
                watch.check()
            except Exception as error:  # a failed check proves nothing, so the run must not pass
                self.loop.abort(error)
                return

    async def _start_clients(self, deployment: Deployment, workloads: list[Workload], stage: Stage) -> None:
        for workload in workloads:
            self.histories[workload.name] = History()
            await workload.prepare(self._client(deployment, workload, stage, "setup")[0])
        for number in range(1, deployment.shape.clients + 1):
            for workload in workloads:
                self._start_client(deployment, workload, stage, f"c{number}")

    def _start_client(self, deployment: Deployment, workload: Workload, stage: Stage, name: str) -> None:
        client, world = self._client(deployment, workload, stage, name)
        task = world.spawn(workload.run(client), f"{workload.name} {name}")
        successor = partial(self._start_client, deployment, workload, stage, f"{name}x")
        deployment.clients[world.address] = ClientProcess(task, successor)

    def _client(
        self, deployment: Deployment, workload: Workload, stage: Stage, name: str
    ) -> tuple[Client, Any]:
        db, world = deployment.connect(f"{workload.name}-{name}")
        chance = self.loop.derive("client", workload.name, name)
        skew_s = self.loop.derive("wall clock", workload.name, name).uniform(-SKEW_S_MAX, SKEW_S_MAX)
        deployment.cluster.clock(world.address).wall_offset_us = int(skew_s * 1e6)
        client = Client(
            db, world.clock, world.network, chance, self.histories[workload.name], self.loop.time, stage
        )
        return client, world

    async def _grow_journal(self, deployment: Deployment) -> None:
        if deployment.shape.grows:
            self.growing = Growing(deployment)
            await self.growing.run()

    async def _all_grown(self, growing: asyncio.Future[None]) -> None:
        await asyncio.wait([growing], timeout=ANSWER_S_MAX)
        if not growing.done():
            raise Violation(f"{ANSWER_S_MAX:g} s after everything was healed the journal has not grown")
        growing.result()

    async def _all_answered(self, deployment: Deployment) -> None:
        alive = {a: c for a, c in deployment.clients.items() if deployment.cluster.alive(a)}
        _, pending = await asyncio.wait([client.task for client in alive.values()], timeout=ANSWER_S_MAX)
        left = [address for address, client in alive.items() if client.task in pending]
        if left:
            raise Violation(f"{ANSWER_S_MAX:g} s after everything was healed {left} still wait for answers")

    async def _rest(self, watch: Watch) -> None:
        """Wait until all groups are quiescent, with all their members. Nobody asks them for anything meanwhile."""
        until = self.loop.time() + REST_S_MAX
        while problem := watch.awake():
            if self.loop.time() > until:
                raise Violation(f"{REST_S_MAX:g} s after everything was healed and answered: {problem}")
            await asyncio.sleep(1.0)

    async def _agree(self, deployment: Deployment) -> None:
        """Wait until all replicas of each tablet give the same digest, every journal node counts again, and all masters have
        the same catalog."""
        _, world = deployment.connect("auditor")
        until = self.loop.time() + AGREE_S_MAX
        while True:
            problem = await self._disagreement(deployment, world)
            if not problem:
                return
            if self.loop.time() > until:
                raise Violation(f"{AGREE_S_MAX:g} s after everything was healed: {problem}")
            await asyncio.sleep(1.0)

    async def _disagreement(self, deployment: Deployment, world: Any) -> str:
        if rejoining := deployment.rejoining():
            return f"{', '.join(rejoining)} lost their journals, and do not count again"
        if apart := deployment.apart():
            return f"{', '.join(apart)} have another catalog than {deployment.master_address()}"
        try:
            infos = await table_infos(world.network, deployment.master_address())
        except EblaError as error:
            return str(error)
        found = await digests(world.network, infos, timeout_s=5.0)
        for info in infos:
            for tablet in info.tablets:
                result = found.get(tablet.tablet)
                if result is None or result.error is not None:
                    return f"tablet {tablet.tablet} of {info.name} gives no digest: {result and result.error}"
                known = known_digests(result)
                silent = [replica.address for replica in tablet.replicas if replica.uuid not in known]
                voters = sum(replica.role != "learner" for replica in tablet.replicas)
                unsettled = voters != info.replicas or deployment.on_the_way(tablet.tablet)
                if silent or len(known) <= info.replicas // 2 or unsettled:
                    return f"tablet {tablet.tablet} of {info.name} has {len(known)} replicas; silent are {silent}"
                if len(set(known.values())) > 1:
                    raise Violation(
                        f"replicas of tablet {tablet.tablet} of {info.name} differ at index {result.index}: {known}"
                    )
        return ""

    async def _repaired(self, deployment: Deployment) -> None:
        """Wait until all ledgers are whole, if there are workers."""
        until = self.loop.time() + REPAIR_S_MAX
        while deployment.shape.auditors and (problem := Repaired(deployment).problem()):
            if self.loop.time() > until:
                raise Violation(f"{REPAIR_S_MAX:g} s after all faults: {problem}")
            await asyncio.sleep(1.0)

    async def _conclude(self, deployment: Deployment, workloads: list[Workload], stage: Stage) -> None:
        for workload in workloads:
            client, _ = self._client(deployment, workload, stage, "last")
            await workload.conclude(client)

    def _judge(self, workloads: list[Workload]) -> None:
        disturbed = (
            self.plan.faults or self.scenario.shape.grows or any(workload.disturbs for workload in workloads)
        )
        excused = excused_by(self.plan.faults, self.scenario.excused) if disturbed else ()
        for workload in workloads:
            history = self.histories[workload.name]
            verdict = judged(workload, history, *self._known_of(workload), excused=excused)
            self.undecided |= verdict.valid is None and len(history) > 0
            if verdict.valid is False:
                self.judged = verdict
                raise Violation(f"{workload.name}: {verdict.problem}")

    def _known_of(self, workload: Workload) -> tuple[Any, ...]:
        """The simulation's own knowledge of the workload's table, beyond its clients' history."""
        if isinstance(workload, Registers):
            return (self.applied.of(workload.name),)
        if isinstance(workload, Salvage) and self.deployment is not None:
            answers = self.deployment.answers
            return (Seen(self.applied.sides(workload.name), answers.tablets, answers.written, answers.read),)
        return ()

    def _report(self) -> Report:
        events = [
            event.type
            for history in self.histories.values()
            for event in history.events
            if is_data(event.operation)
        ]
        answered, operations = events.count(OK), tally(self.histories)
        if self.local is not None and self.local.tried:
            operations.add({"stage.local-scan": self.local.tried}, {"stage.local-scan": self.local.read_here})
        return Report(
            scenario=self.scenario.name,
            seed=self.plan.seed,
            digest=self.loop.digest() if self.loop else "",
            violation=self.violation,
            void=answered < self.scenario.operations_min or self.undecided,
            virtual_s=self.loop.time() if self.loop else 0.0,
            steps=self.loop.steps if self.loop else 0,
            answered=answered,
            unknown=events.count(INFO),
            healed_s=self.healed_s,
            begun=dict(self.nemesis.begun) if self.nemesis else {},
            effects=dict(self.nemesis.effects_so_far()) if self.nemesis else {},
            fired=dict(self.points.fired),
            crashed=dict(self.points.crashed),
            reached=dict(self.points.reached),
            asked=dict(operations.asked),
            carried_out=dict(operations.carried_out),
            verbs=dict(self.deployment.cluster.network.carried_out) if self.deployment else {},
        )


def plan_of(scenario: Scenario, seed: int) -> Plan:
    return generate(
        scenario.name,
        seed,
        scenario.mix,
        scenario.host_names(),
        scenario.points,
        scenario.duration_s,
        scenario.hold_s,
        scenario.holds_s,
        scenario.amounts,
        scenario.destroyed,
    )
