"""A soak makes a share of the runs of every scenario twice, and notices histories that differ."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import cast

import pytest

from ebla.actors.fault_points import ALL_POINTS, GROUP_POINTS, JOURNAL_POINTS, NAMESPACE_POINTS, POINTS
from ebla.chaos import soak
from ebla.chaos.defects.defect import Defect
from ebla.chaos.defects.planted import DEFECTS
from ebla.chaos.pages import VIOLATION, VOID
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import Report
from ebla.chaos.scenarios.scenarios import SCENARIOS
from ebla.chaos.soak import PAIRS_EVERY, Hunt, Soak, Task, paired

COUNTS = ("begun", "effects", "fired", "crashed", "reached", "asked", "carried_out")
NAMES = (*SCENARIOS, *(f"scenario-{number}" for number in range(2 * PAIRS_EVERY)))


class Worker:
    """A pool of one worker that answers at once, with a report of this digest and violation."""

    def __init__(self, digest: str, violation: str = "") -> None:
        self.digest, self.violation = digest, violation
        self.made: Counter[Plan] = Counter()

    def submit(self, work: Callable[[Task], Report], task: Task) -> Future[Report]:
        self.made[task.plan] += 1
        future: Future[Report] = Future()
        future.set_result(report(task.plan, self.violation, self.digest))
        return future


def soaked(tasks: list[Task], *workers: Worker) -> Soak:
    total = Soak()
    made = list(soak.runs(tasks, cast(list[ProcessPoolExecutor], workers), total))
    assert Counter(plan for plan, _ in made) == Counter(task.plan for task in tasks)
    return total


def report(plan: Plan, violation: str = "", digest: str = "a") -> Report:
    counts: dict[str, dict[str, int]] = {key: {} for key in COUNTS}
    numbers = dict.fromkeys(("virtual_s", "steps", "answered", "unknown", "healed_s"), 1)
    return Report(
        scenario=plan.scenario,
        seed=plan.seed,
        digest=digest,
        violation=violation,
        void=False,
        **numbers,
        **counts,
    )


def asked(names: tuple[str, ...], seeds: int) -> list[Task]:
    return [Task(Plan(name, seed, ())) for seed in range(seeds) for name in names]


@pytest.mark.parametrize("count", [19, 20, 21, 40])
def test_every_scenario_has_runs_that_are_made_twice(count: int) -> None:
    names = NAMES[:count]
    workers = Worker("a"), Worker("a")
    total = soaked(asked(names, PAIRS_EVERY), *workers)
    twice = workers[0].made & workers[1].made
    assert {plan.scenario for plan in twice} == set(names)
    assert total.pairs == len(twice)
    assert total.runs == count * PAIRS_EVERY
    assert total.voids() == []


def test_a_fixed_share_of_the_runs_of_each_scenario_is_made_twice() -> None:
    for name in NAMES:
        assert sum(paired(Plan(name, seed, ())) for seed in range(50 * PAIRS_EVERY)) == 50
    first = {min(seed for seed in range(PAIRS_EVERY) if paired(Plan(name, seed, ()))) for name in NAMES}
    assert len(first) > PAIRS_EVERY // 2, "scenarios are drawn at different seeds"


def test_the_first_run_is_always_made_twice() -> None:
    seed = next(seed for seed in range(PAIRS_EVERY) if not paired(Plan("calm", seed, ())))
    total = soaked([Task(Plan("calm", seed, ()))], Worker("a"), Worker("a"))
    assert (total.runs, total.pairs, total.different) == (1, 1, [])


def test_two_histories_of_one_seed_are_reported() -> None:
    tasks = asked(("calm", "bank"), PAIRS_EVERY)
    total = soaked(tasks, Worker("a"), Worker("b"))
    assert {plan.scenario for plan in total.different} == {"calm", "bank"}
    assert len(total.different) == total.pairs


def test_a_violation_in_the_second_of_two_runs_only_is_a_failure_and_a_difference() -> None:
    plans, total = [Plan("calm", seed, ()) for seed in range(16)], Soak()
    workers = cast(list[ProcessPoolExecutor], [Worker("a"), Worker("a", "Violation: lost")])
    made = soak.runs(map(Task, plans), workers, total, twice=lambda _: True)
    for plan, (first, second) in zip(plans, zip(made, made, strict=True), strict=True):
        assert first[0] == second[0] == plan
        assert (first[1].violation, second[1].violation) == ("", "Violation: lost")
    assert (total.failed, total.different) == ([(plan, "Violation: lost") for plan in plans], plans)
    assert (total.runs, total.verdict) == (16, VIOLATION)


def test_the_end_of_a_worker_ends_the_soak_which_is_then_no_pass() -> None:
    total = Soak(asked=12)
    with soak.workers(1) as (pool,):
        process = pool.submit(os.getpid).result()
        under_way = pool.submit(time.sleep, 30)
        os.kill(process, signal.SIGKILL)
        assert isinstance(under_way.exception(), BrokenProcessPool)
        assert list(soak.runs(asked(("calm",), 12), [pool], total)) == []
    assert (
        "a worker process ended by itself" in total.interrupted and "after 0 of 12 runs" in total.voids()[0]
    )


class Dying(Worker):
    """It ends in the middle of its second run, and with it those that wait."""

    def submit(self, work: Callable[[Task], Report], task: Task) -> Future[Report]:
        future = super().submit(work, task)
        if self.made.total() > 1:
            future = Future()
            future.set_exception(BrokenProcessPool())
        return future


def test_the_run_in_which_a_worker_ended_is_named_and_the_others_count() -> None:
    total = Soak(asked=12)
    made = list(soak.runs(asked(("calm",), 12), cast(list[ProcessPoolExecutor], [Dying("a")]), total))
    assert (len(made), total.runs, total.verdict) == (total.runs, total.runs, VOID)
    assert "ended by itself during calm seed 1, perhaps" in total.voids()[0]


def test_one_worker_compares_nothing() -> None:
    alone = soaked(asked(("calm",), PAIRS_EVERY), Worker("a"))
    assert (alone.workers, alone.runs, alone.pairs, alone.voids()) == (1, PAIRS_EVERY, 0, [])


FAULTS = tuple(Fault(float(at), "crash", ("host-1",), 1.0) for at in range(8))
LOST = "Violation: registers: key 3: write 3 17 by process {} (events {} and 9) was acknowledged, and no replica has it"
TWICE = "Violation: tokens: 4 was applied twice"


def test_a_plan_shrinks_to_the_faults_that_break_the_same_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {FAULTS[2], FAULTS[5]}

    def carried_out(task: Task) -> Report:
        faults = task.plan.faults
        if needed <= set(faults):
            return report(task.plan, LOST.format(len(faults), 2 * len(faults)))
        return report(task.plan, TWICE if FAULTS[2] in faults else "")

    monkeypatch.setattr(soak, "carry_out", carried_out)
    total: list[int] = []
    shrunk = soak.shrink(Task(Plan("registers", 1, FAULTS)), total.append)
    assert set(shrunk.plan.faults) == needed, "one of them alone also fails, in another way"
    assert shrunk.why == LOST.format(2, 4)
    assert total == list(range(1, len(total) + 1))


def test_a_plan_that_holds_is_run_once_and_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "carry_out", lambda task: report(task.plan))
    total: list[int] = []
    plan = Plan("leases", 17, FAULTS)
    assert soak.shrink(Task(plan), total.append) == soak.Shrunk(plan, "")
    assert total == [1]


def test_the_kind_of_a_violation_ignores_numbers_and_names() -> None:
    assert soak.kind_of(LOST.format(1, 2)) == soak.kind_of(LOST.format(30, 41))
    assert soak.kind_of(LOST) != soak.kind_of(TWICE)
    assert soak.kind_of(TWICE) == ("Violation:", "tokens:", "was", "applied", "twice")
    two = "AssertionError: two masters serve at once: ['master-0', 'master-1']"
    assert soak.kind_of(two) != soak.kind_of(two.replace("two masters", "nobody")), two


@pytest.mark.parametrize(
    ("names", "points"),
    [
        (("chains", "registers"), POINTS),
        (("chains", "masters"), POINTS + GROUP_POINTS + JOURNAL_POINTS),
        (("locks",), POINTS + GROUP_POINTS + JOURNAL_POINTS + NAMESPACE_POINTS),
        ((), ALL_POINTS),
    ],
)
def test_fault_points_are_expected_only_of_scenarios_that_have_the_role(
    names: tuple[str, ...], points: tuple[str, ...]
) -> None:
    total = soaked(asked(names, 2), Worker("a"), Worker("a"))
    assert set(total.points()) == set(points)
    assert set(points) < set(total.never())


def test_workers_ignore_interrupts_from_their_start_on() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with soak.workers(1) as (pool,):
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_an_exception_ends_workers_in_the_middle_of_their_runs() -> None:
    with pytest.raises(SystemExit), soak.workers(1) as (pool,):
        process = pool.submit(os.getpid).result()
        handler = pool.submit(signal.getsignal, signal.SIGTERM).result()
        under_way = pool.submit(time.sleep, 30)
        raise SystemExit(128 + signal.SIGTERM)
    assert handler == signal.SIG_IGN, (
        "a signal to the whole group must leave the end of the workers to the parent"
    )
    ended = under_way.cancelled() or isinstance(under_way.exception(), BrokenProcessPool)
    assert ended, "the run was waited for"
    assert not Path("/proc", str(process)).exists()


def test_a_hunt_tries_the_given_number_of_seeds_or_first_the_one_that_found_the_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def misses(wanted: Defect, seeds: Iterable[int]) -> Hunt:
        tried.extend(seeds)
        return Hunt(wanted.name, wanted.scenario, None, len(tried), 0.0, "")

    class Here:
        def submit(self, work: Callable[..., Hunt], *given: object) -> Future[Hunt]:
            future: Future[Hunt] = Future()
            future.set_result(work(*given))
            return future

    monkeypatch.setattr(soak, "hunt", misses)
    wanted = DEFECTS["apply-twice"]
    for seeds, expected in ((3, [0, 1, 2]), (None, [wanted.seed, *range(wanted.seeds_max)])):
        tried.clear()
        list(soak.hunts([wanted], [cast(ProcessPoolExecutor, Here())], seeds))
        assert tried == expected


def test_a_hunt_whose_worker_ends_finds_nothing_and_says_so() -> None:
    class Dead:
        def submit(self, *given: object) -> Future[Hunt]:
            future: Future[Hunt] = Future()
            future.set_exception(BrokenProcessPool("killed"))
            return future

    wanted = DEFECTS["apply-twice"]
    (lost,) = soak.hunts([wanted], [cast(ProcessPoolExecutor, Dead())])
    assert (lost.defect, lost.seed) == ("apply-twice", None) and "ended by itself" in lost.violation


def test_a_defect_that_no_longer_fits_the_code_is_not_found() -> None:
    def broken(*_: object, **__: object) -> None:
        raise AttributeError("no_such_attribute")

    (where, what, _), *_ = DEFECTS["no-lease"].swaps()
    DEFECTS["renamed"] = Defect("renamed", "", "registers", 9, lambda: [(where, what, broken)])
    try:
        hunt = soak.hunt(DEFECTS["renamed"], range(9))
    finally:
        del DEFECTS["renamed"]
    assert hunt.seed is None and "AttributeError" in hunt.violation


def test_a_kind_of_fault_that_never_had_an_effect_is_named() -> None:
    total = soaked(asked(("leases",), 3), Worker("a"))
    assert "an effect of pause" in total.never()
    total.effects["pause"] = 1
    assert "an effect of pause" not in total.never()
    assert "an effect of rot" not in total.never()  # no plan has one


def test_calls_that_no_run_of_all_scenarios_made_are_named() -> None:
    total = soak.Soak()
    total.per_scenario.update(dict.fromkeys(SCENARIOS, 1))
    total.verbs.update(write=1, drain=1)
    missed = {"a call of unsafe_change", "a call of forget_server", "a call of journal_writer"}
    assert missed < set(total.never())
    assert not {"a call of write", "a call of drain"} & set(total.never())
    del total.per_scenario["disasters"]
    assert "a call of unsafe_change" not in total.never()
