"""One run on real Ray: a scenario, a plan of faults, two acts, and a verdict. Its form is that of chaos/runs.py.

    act one   clients work in processes of their own, the nemesis carries out its plan
    act two   all faults end; every request must be answered, all replicas of each tablet must hold equal rows (`ebla check
              --checksum`), clients make their last reads, and every history is judged

A run is void, and proves nothing, if too few operations were acknowledged, if the effect of a fault was not seen, if fewer than
half of the plan's faults had their effect (without skipped ones), if one kind of operation was requested often and never
carried out, or if an operation had no answer although nothing disturbed the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from ebla.actors import deadlines
from ebla.actors import messages as m
from ebla.actors.fault_points import POINTS
from ebla.chaos import plans
from ebla.chaos.checkers.refusals import NOTHING, check_refusals, excused_by, tally
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.export import LINES, read_json_lines, to_json_lines, write
from ebla.chaos.history import History
from ebla.chaos.pages import VALID, VIOLATION, VOID
from ebla.chaos.plans import Plan
from ebla.chaos.ray import health, logs, shared
from ebla.chaos.ray.faults import probes
from ebla.chaos.ray.faults.nemesis import Nemesis
from ebla.chaos.ray.groups import ClientGroups, ClientsFailed
from ebla.chaos.ray.orders import Judged, Order, Reply
from ebla.chaos.ray.pulse import Pulse
from ebla.chaos.ray.report import figures
from ebla.chaos.ray.report.injection import SKIPPED, UNOBSERVED, VIOLATED, FaultReport
from ebla.chaos.ray.report.report import JSON, PLAN, RunReport, observed
from ebla.chaos.ray.scenarios import NO_POINTS, RayScenario, plan_of, scenario
from ebla.chaos.ray.stage.ledgers import RayLedgers
from ebla.chaos.ray.stage.stage import NAME, RayStage, address_of, host_names, staged, victim_names
from ebla.chaos.workloads.base import judged
from ebla.options import MASTER
from ebla.show.steps import Show, Steps
from ebla.storage.errors import InvalidArgument

GROUPS = 2  # processes of clients
CLIENTS = 2  # in each process, each with a connection of its own
PREPARE_S_MAX = 300.0
CALM_S = 3.0  # after the last fault, so that its recovery is seen
ANSWER_S_MAX = 60.0  # after healing, until every request is answered
CONCLUDE_S_MAX = 180.0  # for a process's last reads, which have ANSWER_S_MAX, and its verdicts
SLACK_S = 10.0
SHARE_MIN = 0.6  # of the operations must be acknowledged
OBSERVED_MIN = 0.5  # of the faults that were not skipped must have their effect
LOG_BYTES_MAX = 1 << 20  # of each log that is kept


@dataclass(frozen=True)
class Request:
    """`plan`: None for a plan drawn from the seed. `directory`: for the cluster and its data. `results`: for histories, logs and the
    report, which are kept. `pauses`: how many times longer clients pause between two operations than by default."""

    scenario: str
    directory: Path
    results: Path
    duration_s: float = 60.0
    seed: int = 0
    hosts: int | None = None
    plan: Plan | None = None
    groups: int = GROUPS
    clients: int = CLIENTS
    pauses: float = 1.0


@dataclass
class Seen:
    """The observations of a run, after its cluster has ended."""

    faults: list[FaultReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    act_s: tuple[float, float] = (0.0, 0.0)
    healed_s: float | None = None
    killed_s: dict[int, float] = field(default_factory=dict)  # groups of clients


def run(request: Request, steps: Steps, show: Show = lambda text: None) -> RunReport:
    """Make a run; all its processes have ended when this returns or raises. `show` gets a line for each fault after its end."""
    wanted = scenario(request.scenario)
    hosts = request.hosts or wanted.hosts
    if request.plan is not None:
        plans.check(request.plan, victim_names(hosts, wanted.logs), NO_POINTS + POINTS)
    plan = request.plan or plan_of(request.scenario, request.seed, host_names(hosts), request.duration_s)
    request.results.mkdir(parents=True, exist_ok=True)
    if any(request.results.glob(f"*{LINES}")):
        raise InvalidArgument(f"{request.results} holds the histories of another run; name another directory")
    (request.results / PLAN).write_bytes(plans.encode(plan))
    with contextlib.ExitStack() as ending:
        with steps.step("checking which faults this machine can carry out"):
            prepared = ending.enter_context(probes.prepared(plan.faults, hosts, request.directory))
        with steps.step(f"starting a Ray cluster of {hosts} nodes with a deployment on it") as line:
            making = staged(hosts, request.directory, prepared.needs, line, logs=wanted.logs)
            stage = ending.enter_context(making)
        ending.callback(_keep_logs, stage, request.results)
        seen = deadlines.run(_Run(request, plan, stage, prepared.reasons, steps, show).acts())
        with steps.step("ending everything"):
            ending.close()
    with steps.step("reading the histories"):
        return _report(request, wanted, hosts, plan, seen, steps)


@dataclass
class _Run:
    request: Request
    plan: Plan
    stage: RayStage
    reasons: Mapping[str, str]
    steps: Steps
    show: Show
    seen: Seen = field(default_factory=Seen)

    async def acts(self) -> Seen:
        stage, steps = self.stage, self.steps
        async with ClientGroups(stage.needs.environment) as groups, _ledgers(stage):
            stage.clients = groups
            with steps.step(f"{self.request.groups} processes of clients make their tables"):
                for group in range(1, self.request.groups + 1):
                    await groups.start(self._order(group))
                prepared = await groups.await_prepared(PREPARE_S_MAX)
            nemesis = Nemesis(stage, self.plan, self.reasons, await self._tablets(), self.show)
            nemesis.measured([call for reply in prepared for call in reply.calls])
            try:
                await self._act_one(groups, nemesis)
                await self._act_two(groups)
            except ClientsFailed as error:
                self.seen.problems.append(str(error))
            self.seen.faults = nemesis.reports()
            self.seen.killed_s = groups.killed_s
        return self.seen

    def _order(self, group: int) -> Order:
        stage = self.stage
        addresses = tuple(address_of(host) for host in stage.hosts)
        calls = any(fault.kind in probes.CALLS for fault in self.plan.faults)
        return Order(
            scenario=self.request.scenario,
            seed=self.plan.seed,
            group=group,
            clients=self.request.clients,
            pauses=self.request.pauses,
            deployment=NAME,
            address=stage.cluster.address,
            cluster=str(stage.cluster.directory),
            results=str(self.request.results),
            epoch_s=stage.epoch,
            answer_s_max=ANSWER_S_MAX,
            excused=excused_by(self.plan.faults),
            sample=addresses if calls and group == 1 else (),
        )

    async def _tablets(self) -> dict[str, int]:
        table = m.TableName(Pulse.name)
        info = await self.stage.network.call(MASTER, "get_table", table, m.TableInfo, SLACK_S)
        return {tablet.tablet: tablet.bucket for tablet in info.tablets}

    async def _act_one(self, groups: ClientGroups, nemesis: Nemesis) -> None:
        stage = self.stage
        with self.steps.step(f"act one: {len(self.plan.faults)} faults in {self.request.duration_s:g} s"):
            await groups.run()
            began_s = stage.now_s()
            duration_s = self.request.duration_s
            await asyncio.gather(nemesis.run(duration_s), asyncio.sleep(duration_s))
            await nemesis.heal()
            await asyncio.sleep(CALM_S)
            self.seen.act_s = began_s, stage.now_s()

    async def _act_two(self, groups: ClientGroups) -> None:
        stage, seen = self.stage, self.seen
        with self.steps.step("act two: every request is answered"):
            stopped = await groups.stop(ANSWER_S_MAX + SLACK_S)
            seen.problems += _problems(stopped)
        with self.steps.step("all replicas hold equal rows") as line:
            problem = await health.until_whole(stage, line)
            if problem:
                seen.problems.append(problem)
            else:
                seen.healed_s = stage.now_s() - seen.act_s[1]
        with self.steps.step("the last reads, and the verdicts"):
            concluded = await groups.conclude(CONCLUDE_S_MAX)
            seen.problems += _problems(concluded)
            seen.judged = [verdict for reply in concluded for verdict in reply.verdicts]
            excused = excused_by(self.plan.faults)
            seen.judged.extend(await asyncio.to_thread(judge_shared, self.request.results, excused))


@contextlib.asynccontextmanager
async def _ledgers(stage: RayStage) -> AsyncIterator[None]:
    """Give the stage a view of its ledgers, if there are logs."""
    if not stage.config.logs:
        yield
        return
    stage.ledgers = RayLedgers(NAME)
    try:
        yield
    finally:
        await stage.ledgers.close()


def judge_shared(results: Path, excused: Collection[str]) -> list[Judged]:
    """Judge the shared table and the shared log, each by one history, merged from those of all processes of clients, which it
    replaces."""
    found = [_judge_merged(results, shared.NAME, partial(shared.judge, excused=excused))]
    if any(results.glob(f"{logs.NAME}-*{LINES}")):
        judge = partial(judged, logs.SharedLog(), excused=excused)
        found.append(_judge_merged(results, logs.NAME, judge))
    return found


def _judge_merged(results: Path, name: str, judge: Callable[[History], Verdict]) -> Judged:
    parts = sorted(results.glob(f"{name}-*{LINES}"))
    history = shared.merged([read_history(path) for path in parts])
    path = results / f"{name}{LINES}"
    path.write_bytes(to_json_lines(history).encode())
    for part in parts:
        part.unlink()
    found = judge(history)
    return Judged(name, str(path), found.valid, found.problem, found.events, found.judged)


def _problems(replies: Sequence[Reply]) -> list[str]:
    return [problem for each in replies for problem in each.problems]


# -- the report ----------------------------------------------------------------------------------------------


def _report(
    request: Request, wanted: RayScenario, hosts: int, plan: Plan, seen: Seen, steps: Steps
) -> RunReport:
    histories = dict(read_histories(request.results))
    files = [request.results / f"{name}{LINES}" for name in histories]
    for name, history in histories.items():
        files += write(history, name, request.results)
    pulse = figures.acknowledged_by_key(histories.get(Pulse.name, History()))
    times = {name: figures.acknowledged(history) for name, history in histories.items()}
    injection = sorted(
        seen.faults, key=lambda each: seen.act_s[0] + each.fault.at_s if each.at_s is None else each.at_s
    )
    faults = figures.with_figures(injection, pulse, times)
    seconds = figures.per_second(histories.values(), seen.act_s[1])
    in_act_one = seconds[math.floor(seen.act_s[0]) :]
    acknowledged, failed, unknown = (
        sum(getattr(second, name) for second in in_act_one) for name in ("acknowledged", "failed", "unknown")
    )
    broken = list(violations(seen))
    never = [*tally(histories).never(), *unexplained(wanted, plan, histories)]
    empty = list(voids(request, wanted, seen.judged, faults, acknowledged, failed + unknown, never))
    report = RunReport(
        scenario=request.scenario,
        seed=plan.seed,
        hosts=hosts,
        groups=request.groups,
        clients=request.clients,
        duration_s=request.duration_s,
        plan=plan,
        verdict=VIOLATION if broken else VOID if empty else VALID,
        reasons=(*broken, *empty),
        faults=faults,
        skipped={each.fault.kind: each.reason for each in faults if each.outcome == SKIPPED},
        judged=tuple(seen.judged),
        acknowledged=acknowledged,
        failed=failed,
        unknown=unknown,
        per_second=seconds,
        act_s=seen.act_s,
        healed_s=seen.healed_s,
        unavailable={name: _windows(seen, name, each) for name, each in times.items()},
        recoveries=figures.recoveries(faults),
        histories=tuple(map(str, files)),
        results=str(request.results),
        phases=dict(steps.seconds),
    )
    (request.results / JSON).write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return report


def read_histories(results: Path) -> Iterator[tuple[str, History]]:
    """The histories of the clients, by table. A killed process may have left half a line at the end."""
    for path in sorted(results.glob(f"*{LINES}")):
        yield path.stem, read_history(path)


def read_history(path: Path) -> History:
    whole, _, _ = path.read_text().rpartition("\n")
    return read_json_lines(whole)


def _windows(seen: Seen, name: str, times: Sequence[float]) -> tuple[figures.Window, ...]:
    """The windows without writes, while the clients of the table were alive."""
    began_s, ended_s = seen.act_s
    for group, killed_s in seen.killed_s.items():
        if name.endswith(f"-{group}"):
            ended_s = min(ended_s, killed_s)
    return figures.windows(times, began_s, ended_s)


def violations(seen: Seen) -> Iterator[str]:
    yield from seen.problems
    for fault in seen.faults:
        if fault.outcome == VIOLATED:
            yield f"{fault.fault}: {fault.reason}"
    for each in seen.judged:
        if each.valid is False:
            yield f"{each.workload}: {each.problem}"


def unexplained(wanted: RayScenario, plan: Plan, histories: Mapping[str, History]) -> Iterator[str]:
    """Errors of a run that nothing disturbed. A machine that stands still for a second causes them as well, so they prove no
    violation."""
    workloads = wanted.workloads()
    if plan.faults or any(workload.disturbs for workload in workloads):
        return
    explained = {workload.name: workload.explained for workload in workloads}
    for name, history in histories.items():
        found = check_refusals(history, explained.get(name.rstrip("-0123456789"), NOTHING), ())
        if not found.valid:
            yield f"{name}: {found.problem}; repeat the run on a machine that does nothing else"


def voids(
    request: Request,
    wanted: RayScenario,
    judged: Sequence[Judged],
    faults: tuple[FaultReport, ...],
    acknowledged: int,
    others: int,
    never: Sequence[str] = (),
) -> Iterator[str]:
    """The reasons why a run is void. `never`: kinds of operations that were requested and never carried out, and errors of a run
    without faults."""
    least = wanted.operations_min * request.duration_s
    if acknowledged < least:
        yield f"void: {acknowledged} operations were acknowledged, of at least {least:.0f}"
    if acknowledged < SHARE_MIN * (acknowledged + others):
        yield f"void: {acknowledged} of {acknowledged + others} operations were acknowledged, fewer than 60 %"
    for each in faults:
        if each.outcome == UNOBSERVED:
            yield f"void: {each.fault}: its effect was not seen: {each.reason}"
    yield from (f"void: {each}" for each in never)
    seen, asked = observed(faults), sum(each.outcome != SKIPPED for each in faults)
    if faults and not seen:
        yield "void: no fault of the plan was carried out"
    elif seen < OBSERVED_MIN * asked:
        yield (
            f"void: {seen} of {asked} faults had their effect, fewer than half: the machine was too slow for the others, or the "
            "plan has too many; give a longer --duration, or a plan with fewer faults"
        )
    if not judged:
        yield "void: nothing was judged"
    for verdict in judged:
        if verdict.valid is None:
            yield f"void: {verdict.workload}: {verdict.problem}"


def _keep_logs(stage: RayStage, results: Path) -> None:
    """Keep the end of each role's standard error, which is removed with the cluster."""
    for path in sorted(Path(stage.cluster.state.temporary).glob("*/session_2*/logs/worker-*.err")):
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            if not size:
                continue
            kept = results / "logs" / path.parents[2].name / path.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "rb") as source, open(kept, "wb") as target:
                source.seek(max(0, size - LOG_BYTES_MAX), os.SEEK_SET)
                shutil.copyfileobj(source, target)
