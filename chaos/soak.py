"""Many runs on all cores: which seeds fail, which fault points they never reached, and whether each seed has one history.

    with soak.workers(2) as pools:
        for plan, report in soak.runs(soak.tasks(["chains"], range(100)), pools, soak.Soak()): ...

Every worker is a process with a hash seed of its own. A share of the runs is made twice, in two workers, and their digests
are compared. They differ if a run depends on the order of a set, on a memory address or on real time. A single worker
compares nothing, and the figures say so.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from time import monotonic
from typing import TypeVar
from zlib import crc32

import msgspec

from ebla.actors.fault_points import ALL_POINTS, GROUP_POINTS, JOURNAL_POINTS, MARKS, POINTS
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.master.leadership.group import Master
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import methods
from ebla.chaos import plans
from ebla.chaos.checkers.refusals import Tally
from ebla.chaos.defects.defect import Defect
from ebla.chaos.defects.planted import defect, planted
from ebla.chaos.pages import VALID, VIOLATION, VOID
from ebla.chaos.plans import Plan
from ebla.chaos.ray.scenarios import scenario_of
from ebla.chaos.runs import ITSELF_FAILED, Report, Run, plan_of
from ebla.chaos.scenarios.scenarios import SCENARIOS, Scenario, scenario

T = TypeVar("T")

PAIRS_EVERY = 18  # one run in this number is made twice
VOID_SHARE_MAX = 0.02  # of the runs
COVERAGE_RUNS = 1000  # of all scenarios; in so many runs a fault point that none of them passed is a failure
AHEAD_MAX = 4  # runs queued for a worker
SHRINK_RUNS_MAX = 60
KIND_WORDS = 6  # of a violation, beside numbers and names
# A planted defect that no longer fits the class it replaces a part of ends in one of these, and proves nothing.
OWN_ERRORS = ("TypeError(", "NameError(", "AttributeError(", ITSELF_FAILED)
IS_A_WORD = re.compile(r"[A-Za-z][A-Za-z-]*:?")


class Task(msgspec.Struct, frozen=True):
    """One run to make: a plan, and the planted defect to make it with ("" for none)."""

    plan: Plan
    defect: str = ""


# Calls that never leave a process, so no network counts them. Their fault points must be reached.
NEAR_CALLS = ("grow",)
WORKER_ENDED, NO_MEMORY = (
    "a worker process ended by itself",
    ", perhaps because the system had no memory left",
)


@dataclass
class Soak:
    """The sums over all runs so far, made by `workers` processes in `seconds`. `everything`: all scenarios were requested.
    `asked`: how many runs were requested, None if a time was. `interrupted`: what ended the soak before all were made."""

    everything: bool = False
    asked: int | None = None
    interrupted: str = ""
    seconds: float = 0.0
    workers: int = 0
    runs: int = 0
    void: int = 0
    answered: int = 0
    unknown: int = 0
    virtual_s: float = 0.0
    pairs: int = 0
    different: list[Plan] = field(default_factory=list)  # plans with two digests
    failed: list[tuple[Plan, str]] = field(default_factory=list)
    per_scenario: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    verbs: Counter[str] = field(default_factory=Counter)
    operations: Tally = field(default_factory=Tally)

    def add(self, plan: Plan, report: Report) -> None:
        self.runs += 1
        self.per_scenario[report.scenario] += 1
        self.void += report.void and not report.violation
        self.answered += report.answered
        self.unknown += report.unknown
        self.virtual_s += report.virtual_s
        for counts in ("fired", "crashed", "reached", "effects", "verbs"):
            getattr(self, counts).update(getattr(report, counts))
        self.operations.add(report.asked, report.carried_out)
        if report.violation:
            self.failed.append((plan, report.violation))

    def compare(self, plan: Plan, first: Report, second: Report) -> bool:
        """Compare two runs of a plan, whose first one is counted. Whether only the second one found a violation."""
        self.pairs += 1
        judged = [(each.digest, bool(each.violation), each.void) for each in (first, second)]
        if judged[0] != judged[1]:
            self.different.append(plan)
        found = bool(second.violation) and not first.violation
        if found:
            self.failed.append((plan, second.violation))
        return found

    @property
    def thorough(self) -> bool:
        """Whether it is a failure if no run reached a fault point, mark or call."""
        return self.everything and self.runs >= COVERAGE_RUNS

    @property
    def verdict(self) -> str:
        if self.failed or self.different or (self.thorough and self.never()):
            return VIOLATION
        return VOID if self.voids() else VALID

    @property
    def compared(self) -> str:
        """How many of the runs that were made twice had equal digests."""
        if self.workers < 2:
            return "not compared: one worker"
        return f"{self.pairs - len(self.different)} of {self.pairs}"

    def never(self) -> list[str]:
        """Fault points, marks and kinds of faults that the runs could have reached and never did; after runs of all
        scenarios, also verbs of roles that were never carried out."""
        kinds = dict.fromkeys(kind for name in self.per_scenario for kind in scenario(name).mix)
        return [
            *(point for point in self.points() if not self.fired[point]),
            *(mark for mark in MARKS if not self.reached[mark]),
            *(f"an effect of {kind}" for kind in kinds if not self.effects[kind]),
            *(f"a call of {verb}" for verb in self._verbs() if not self.verbs[verb]),
        ]

    def _verbs(self) -> list[str]:
        whole = set(self.per_scenario) >= set(SCENARIOS)
        roles = (TabletServer, Master, JournalNode) if whole else ()
        calls = dict.fromkeys(verb for role in roles for verb in methods(role))
        return [each for each in calls if each not in NEAR_CALLS]

    def points(self) -> list[str]:
        """The fault points that the scenarios of the runs could pass: with a single master there is no journal and no
        take-over. All fault points before the first run."""
        could = {point for name in self.per_scenario for point in could_pass(scenario(name))}
        return [point for point in ALL_POINTS if point in could or not self.per_scenario]

    def voids(self) -> list[str]:
        """Reasons why the soak proves nothing, although no run failed."""
        found = []
        if self.interrupted:
            of_all = "" if self.asked is None else f" of {self.asked:,}"
            found.append(f"{self.interrupted}, after {self.runs:,}{of_all} runs")
        if not self.runs:
            found.append("no run was made; give it more time, or seeds")
        if self.void > VOID_SHARE_MAX * self.runs:
            found.append(
                f"{self.void} of {self.runs} runs were void, more than {100 * VOID_SHARE_MAX:g} %; let their scenarios last longer"
            )
        if self.runs and self.workers > 1 and not self.pairs:
            found.append(
                "no run was made twice, so it is unknown whether each seed has one history; make more runs"
            )
        found += [f"{each}; see why with `ebla chaos replay --story`" for each in self.operations.never()]
        never = self.never() if self.everything and not self.thorough else ()
        if never:
            found.append(
                f"{len(never)} fault points or marks were never reached in so few runs; make {COVERAGE_RUNS:,} or more"
            )
        return found


def could_pass(wanted: Scenario) -> tuple[str, ...]:
    several = GROUP_POINTS + JOURNAL_POINTS if wanted.shape.journal_hosts() else ()
    return POINTS + several + wanted.points


def carry_out(task: Task) -> Report:
    with planted(task.defect):
        report = quiet(Run(scenario_of(task.plan), task.plan).go)
    if not gc.isenabled():
        gc.collect()
    return report


def quiet(work: Callable[[], T]) -> T:
    """Suppress the logs of roles; the story has their content."""
    log = logging.getLogger("ebla")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        return work()
    finally:
        log.setLevel(before)


def tasks(names: Sequence[str], seeds: Iterable[int]) -> Iterator[Task]:
    """Every seed in every scenario; the scenarios take turns."""
    chosen = [scenario(name) for name in names or SCENARIOS]
    for seed in seeds:
        for each in chosen:
            yield Task(plan_of(each, seed))


def paired(plan: Plan) -> bool:
    """Whether the run is made twice: one in PAIRS_EVERY seeds of each scenario. The scenario's name and the seed decide, not
    the order of the runs, so that no scenario is left out."""
    return (crc32(plan.scenario.encode()) + plan.seed) % PAIRS_EVERY == 0


HANDLED = (signal.SIGINT, signal.SIGTERM)  # by the parent process, which ends the workers


def _begin_worker() -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal, and SIGTERM, which may reach every process of a group. Freeze the
    objects that exist before the first run, and collect the garbage of each run after it."""
    for each in HANDLED:
        signal.signal(each, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.disable()


@contextmanager
def workers(count: int) -> Iterator[list[ProcessPoolExecutor]]:
    """Processes with different hash seeds; an exception kills them in the middle of their runs. Ctrl-C is blocked while they
    start: a process that does not ignore it yet would end in a traceback."""
    before = os.environ.get("PYTHONHASHSEED")
    resource_tracker.ensure_running()  # started with the first process, it would unblock signals
    with ExitStack() as stack:
        found = []
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            for number in range(count):
                os.environ["PYTHONHASHSEED"] = str(number + 1)
                pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin_worker)
                process = pool.submit(os.getpid).result()  # started under this hash seed
                stack.push(partial(_end_worker, pool, process))
                found.append(pool)
        finally:
            if before is None:
                os.environ.pop("PYTHONHASHSEED", None)
            else:
                os.environ["PYTHONHASHSEED"] = before
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        yield found


def _end_worker(
    pool: ProcessPoolExecutor, process: int, kind: type[BaseException] | None, *_: object
) -> None:
    """End a worker: at once if an exception of this kind ends the soak, else after its runs."""
    if kind is not None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    pool.shutdown(cancel_futures=True)


def runs(
    asked: Iterable[Task],
    pools: Sequence[ProcessPoolExecutor],
    soak: Soak,
    twice: Callable[[Plan], bool] = paired,
) -> Iterator[tuple[Plan, Report]]:
    """Make the runs, add them to `soak`, and yield each as it ends; of those made twice, the second one only if it alone found a
    violation. `twice` says which runs are made twice. The first one always is, so that every soak of several workers has a
    comparison. The end of a worker, for lack of memory for instance, ends the soak."""
    soak.workers = len(pools)
    source = enumerate(asked)
    under_way: dict[Future[Report], tuple[int, Plan]] = {}
    load = Counter(dict.fromkeys(range(len(pools)), 0))
    firsts: dict[Plan, Report | None] = {}

    def hand_out(number: int, task: Task) -> None:
        load[number] += 1
        under_way[pools[number].submit(carry_out, task)] = number, task.plan

    def fill() -> None:
        while min(load.values()) < AHEAD_MAX:
            at, task = next(source, (0, None))
            if task is None:
                return
            number = min(load, key=lambda each: load[each])
            hand_out(number, task)
            if len(pools) > 1 and (at == 0 or twice(task.plan)):
                hand_out((number + 1) % len(pools), task)
                firsts[task.plan] = None

    try:
        fill()
        while under_way:
            wait(under_way, return_when=FIRST_COMPLETED)
            for future in [each for each in under_way if each.done()]:  # in the order of their start
                report = future.result()
                number, plan = under_way.pop(future)
                load[number] -= 1
                first = firsts.get(plan)
                if first is not None:
                    del firsts[plan]
                    if soak.compare(plan, first, report):
                        yield plan, report
                    continue
                if plan in firsts:
                    firsts[plan] = report
                soak.add(plan, report)
                yield plan, report
            fill()
    except BrokenProcessPool:
        soak.interrupted = _end_of_worker(under_way)


def _end_of_worker(under_way: dict[Future[Report], tuple[int, Plan]]) -> str:
    lost = [plan for future, (_, plan) in under_way.items() if future.done() and future.exception()]
    made = (
        f" during {lost[0].scenario} seed {lost[0].seed}" if lost else ""
    )  # it makes one run after the other
    return WORKER_ENDED + made + NO_MEMORY


class Shrunk(msgspec.Struct, frozen=True):
    """A plan without needless faults, and its violation; `why` is empty if the whole plan does not fail."""

    plan: Plan
    why: str


def shrink(task: Task, on_run: Callable[[int], None] = lambda runs: None) -> Shrunk:
    """Drop the faults that the failure does not need: the rest breaks the same promise. The plan itself is tried first.
    `on_run` gets the number of runs after each run."""
    runs = 0

    def why(plan: Plan) -> str:
        nonlocal runs
        violation = carry_out(msgspec.structs.replace(task, plan=plan)).violation
        runs += 1
        on_run(runs)
        return violation

    found = Shrunk(task.plan, why(task.plan))
    if not found.why:
        return found
    wanted = kind_of(found.why)

    def fails(plan: Plan) -> bool:
        nonlocal found
        tried = Shrunk(plan, why(plan))
        if not tried.why or kind_of(tried.why) != wanted:
            return False
        found = tried
        return True

    plans.shrink(task.plan, fails, SHRINK_RUNS_MAX)
    return found


def kind_of(violation: str) -> tuple[str, ...]:
    """The kind of a violation: the first words of its sentence, without numbers and names."""
    words = [word for word in violation.partition("\n")[0].split() if IS_A_WORD.fullmatch(word)]
    return tuple(words[:KIND_WORDS])


class Hunt(msgspec.Struct, frozen=True):
    """The search for a planted defect: the seed that found it (None: none did), the number of tries, the violation. With no seed,
    a violation is that of a defect that no longer fits the code."""

    defect: str
    scenario: str
    seed: int | None
    tried: int
    seconds: float
    violation: str


def hunt(wanted: Defect, seeds: Iterable[int]) -> Hunt:
    """Try seeds of the defect's scenario until a run ends in a violation."""
    began, tried = monotonic(), 0
    for tried, seed in enumerate(seeds, 1):
        report = carry_out(Task(wanted.plan(seed), wanted.name))
        if report.violation:
            found = None if any(error in report.violation for error in OWN_ERRORS) else seed
            return Hunt(wanted.name, wanted.scenario, found, tried, monotonic() - began, report.violation)
    return Hunt(wanted.name, wanted.scenario, None, tried, monotonic() - began, "")


def hunts(
    defects: Sequence[Defect], pools: Sequence[ProcessPoolExecutor], seeds: int | None = None
) -> Iterator[Hunt]:
    """Every hunt as it ends, with the first `seeds` seeds; by default with the seed that found the defect last, and then with as
    many as the defect allows."""
    asked = {
        pools[number % len(pools)].submit(_hunt, each.name, seeds): each
        for number, each in enumerate(defects)
    }
    for future in as_completed(asked):
        try:
            yield future.result()
        except BrokenProcessPool:
            lost = asked[future]
            yield Hunt(lost.name, lost.scenario, None, 0, 0.0, WORKER_ENDED + NO_MEMORY)


def _hunt(name: str, seeds: int | None) -> Hunt:
    wanted = defect(name)
    return hunt(wanted, range(seeds) if seeds else [wanted.seed, *range(wanted.seeds_max)])
