"""Many runs on all cores: which seeds fail, what of the code they never came to, and whether a seed is one history.

    with soak.workers(2) as pools:
        for plan, report in soak.runs(soak.tasks(["chains"], range(100)), pools, soak.Soak()): ...

Every worker is a process with a hash seed of its own. A share of the runs is made twice, in two workers, and their digests
are compared: what depends on the order of a set, on an address or on real time shows there. A single worker has none to
compare with, and whoever shows the figures says so.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from time import monotonic
from typing import TypeVar
from zlib import crc32

import msgspec

from ebla.actors.fault_points import ALL_POINTS, GROUP_POINTS, JOURNAL_POINTS, MARKS, POINTS
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.master.leadership.group import GroupMaster
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import methods
from ebla.chaos import plans
from ebla.chaos.checkers.refusals import Tally
from ebla.chaos.defects.defect import Defect
from ebla.chaos.defects.planted import defect, planted
from ebla.chaos.plans import Plan
from ebla.chaos.ray.scenarios import scenario_of
from ebla.chaos.runs import Report, Run, plan_of
from ebla.chaos.scenarios.scenarios import (
    SCENARIOS,
    Scenario,
    scenario,
)

T = TypeVar("T")

PAIRS_EVERY = 18  # one run of so many is made twice
VOID_SHARE_MAX = 0.02  # of the runs; with more of them the others were lucky
AHEAD_MAX = 4  # runs handed to a worker before it has finished one
SHRINK_RUNS_MAX = 60
KIND_WORDS = 6  # of a violation, beside numbers and names
IS_A_WORD = re.compile(r"[A-Za-z][A-Za-z-]*:?")


class Task(msgspec.Struct, frozen=True):
    """One run to make: a plan, and the planted defect to make it with ("" for none)."""

    plan: Plan
    defect: str = ""


@dataclass
class Soak:
    """What all runs so far came to, made by so many workers."""

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
        self.fired.update(report.fired)
        self.crashed.update(report.crashed)
        self.reached.update(report.reached)
        self.effects.update(report.effects)
        self.verbs.update(report.verbs)
        self.operations.add(report.asked, report.carried_out)
        if report.violation:
            self.failed.append((plan, report.violation))

    def never(self) -> list[str]:
        """Fault points that no run passed, marks that none reached, kinds of faults that had no effect in any, of those the runs
        could have come to; and, of all scenarios, what roles can be called for and never did."""
        kinds = dict.fromkeys(kind for name in self.per_scenario for kind in scenario(name).mix)
        return [
            *(point for point in self.points() if not self.fired[point]),
            *(mark for mark in MARKS if not self.reached[mark]),
            *(f"an effect of {kind}" for kind in kinds if not self.effects[kind]),
            *(f"a call of {verb}" for verb in self._verbs() if not self.verbs[verb]),
        ]

    def _verbs(self) -> list[str]:
        whole = set(self.per_scenario) >= set(SCENARIOS)
        roles = (TabletServer, GroupMaster, JournalNode) if whole else ()
        return list(dict.fromkeys(verb for role in roles for verb in methods(role)))

    def points(self) -> list[str]:
        """The fault points that the scenarios of the runs could come to: where there is one master, nobody keeps a
        journal or takes over. All of them as long as nothing was run."""
        could = {point for name in self.per_scenario for point in could_pass(scenario(name))}
        return [point for point in ALL_POINTS if point in could or not self.per_scenario]

    def voids(self) -> list[str]:
        """Why it proves nothing, though nothing failed."""
        found = []
        if not self.runs:
            found.append("no run was made; give it more time, or seeds")
        if self.void > VOID_SHARE_MAX * self.runs:
            found.append(
                f"{self.void} of {self.runs} runs were void, more than {100 * VOID_SHARE_MAX:g} %; let their scenarios last longer"
            )
        if self.runs and self.workers > 1 and not self.pairs:
            found.append(
                "no run was made twice, so nobody knows whether a seed is one history; make more runs"
            )
        found += [f"{each}; see why with `ebla chaos replay --story`" for each in self.operations.never()]
        return found


def could_pass(wanted: Scenario) -> tuple[str, ...]:
    several = GROUP_POINTS + JOURNAL_POINTS if wanted.shape.journal_hosts() else ()
    return POINTS + several + wanted.points


def carry_out(task: Task) -> Report:
    """One run, in this process."""
    with planted(task.defect):
        report = quiet(Run(scenario_of(task.plan), task.plan).go)
    if not gc.isenabled():
        gc.collect()
    return report


def quiet(work: Callable[[], T]) -> T:
    """Without what roles write into their logs: the story tells it."""
    log = logging.getLogger("ebla")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        return work()
    finally:
        log.setLevel(before)


def tasks(names: Sequence[str], seeds: Iterable[int]) -> Iterator[Task]:
    """Every seed in every scenario, the scenarios in turn."""
    chosen = [scenario(name) for name in names or SCENARIOS]
    for seed in seeds:
        for each in chosen:
            yield Task(plan_of(each, seed))


def paired(plan: Plan) -> bool:
    """Whether the run is made twice: one in PAIRS_EVERY seeds of every scenario, from a seed on that its name draws.
    What a run is decides, not its place among the others, so that no scenario goes without."""
    return (crc32(plan.scenario.encode()) + plan.seed) % PAIRS_EVERY == 0


def _begin_worker() -> None:
    """Ctrl-C reaches every process of a terminal; who hands out the runs hears it, and a run under way ends quietly. What is
    there before the first run stays, and what a run leaves is collected after it: all at once, and nothing else is looked
    through."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.disable()


@contextmanager
def workers(count: int) -> Iterator[list[ProcessPoolExecutor]]:
    """Processes, each with another order of its sets. Ctrl-C waits while they start: one that heard it before it knows
    that it should not would end in a traceback."""
    before = os.environ.get("PYTHONHASHSEED")
    resource_tracker.ensure_running()  # it would let signals in again, were it started with the first process
    with ExitStack() as stack:
        found = []
        let_in = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            for number in range(count):
                os.environ["PYTHONHASHSEED"] = str(number + 1)
                pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin_worker)
                pool.submit(os.getpid).result()  # started under this hash seed
                stack.callback(pool.shutdown, cancel_futures=True)
                found.append(pool)
        finally:
            if before is None:
                os.environ.pop("PYTHONHASHSEED", None)
            else:
                os.environ["PYTHONHASHSEED"] = before
            signal.pthread_sigmask(signal.SIG_SETMASK, let_in)
        yield found


def runs(
    asked: Iterable[Task], pools: Sequence[ProcessPoolExecutor], soak: Soak
) -> Iterator[tuple[Plan, Report]]:
    """Make the runs, add them to `soak`, and give each out as it ends. The first one is always made twice, so that there
    is no soak of several workers without a comparison."""
    soak.workers = len(pools)
    source = enumerate(asked)
    under_way: dict[Future[Report], tuple[int, Plan]] = {}
    load = Counter(dict.fromkeys(range(len(pools)), 0))
    firsts: dict[Plan, str] = {}

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
            if len(pools) > 1 and (at == 0 or paired(task.plan)):
                hand_out((number + 1) % len(pools), task)
                firsts[task.plan] = ""

    fill()
    while under_way:
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in done:
            number, plan = under_way.pop(future)
            load[number] -= 1
            report = future.result()
            if firsts.get(plan):
                soak.pairs += 1
                if firsts.pop(plan) != report.digest:
                    soak.different.append(plan)
                continue
            if plan in firsts:
                firsts[plan] = report.digest
            soak.add(plan, report)
            yield plan, report
        fill()


class Shrunk(msgspec.Struct, frozen=True):
    """What is left of a plan, and how it fails; `why` is empty where nothing failed, and the plan is as it was."""

    plan: Plan
    why: str


def shrink(task: Task, told: Callable[[int], None] = lambda runs: None) -> Shrunk:
    """The failing plan without the faults that the failure does not need: what is left breaks the same promise. The plan
    itself is tried first. `told`: how many runs were made, after each of them."""
    runs = 0

    def why(plan: Plan) -> str:
        nonlocal runs
        violation = carry_out(msgspec.structs.replace(task, plan=plan)).violation
        runs += 1
        told(runs)
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
    """What was violated, whoever did it and when: the first words of the sentence that are no numbers or names."""
    words = [word for word in violation.partition("\n")[0].split() if IS_A_WORD.fullmatch(word)]
    return tuple(words[:KIND_WORDS])


class Hunt(msgspec.Struct, frozen=True):
    """Whether the simulation found a planted defect: by which seed, after how many, and how it showed."""

    defect: str
    scenario: str
    seed: int | None
    tried: int
    seconds: float
    violation: str


def hunt(wanted: Defect, seeds: Iterable[int]) -> Hunt:
    """Seed after seed of the defect's scenario, until one ends in a violation."""
    began, tried = monotonic(), 0
    for tried, seed in enumerate(seeds, 1):
        report = carry_out(Task(wanted.plan(seed), wanted.name))
        if report.violation:
            return Hunt(wanted.name, wanted.scenario, seed, tried, monotonic() - began, report.violation)
    return Hunt(wanted.name, wanted.scenario, None, tried, monotonic() - began, "")


def hunts(
    defects: Sequence[Defect], pools: Sequence[ProcessPoolExecutor], seeds: int | None = None
) -> Iterator[Hunt]:
    """Every hunt as it ends. At most `seeds` of each; without a number, its own limit."""
    asked = [
        pools[number % len(pools)].submit(_hunt, each.name, seeds or each.seeds_max)
        for number, each in enumerate(defects)
    ]
    yield from (future.result() for future in as_completed(asked))


def _hunt(name: str, seeds: int) -> Hunt:
    return hunt(defect(name), range(seeds))
