"""A soak makes its share of runs twice, in every scenario, and tells histories apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import cast

import pytest

from ebla.chaos import soak
from ebla.chaos.plans import Plan
from ebla.chaos.scenarios import SCENARIOS
from ebla.chaos.simulation.runs import Report
from ebla.chaos.soak import PAIRS_EVERY, Soak, Task, paired

SEEDS = 27  # of a scenario, in `make test`
NAMES = (*SCENARIOS, *(f"scenario-{number}" for number in range(2 * PAIRS_EVERY)))


class Worker:
    """Answers at once with a report whose digest is `digest`."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.made: Counter[Plan] = Counter()

    def submit(self, work: Callable[[Task], Report], task: Task) -> Future[Report]:
        self.made[task.plan] += 1
        counts: dict[str, dict[str, int]] = {key: {} for key in ("effects", "fired", "crashed", "reached")}
        numbers = dict.fromkeys(("virtual_s", "steps", "answered", "unknown", "healed_s"), 1)
        future: Future[Report] = Future()
        future.set_result(
            Report(
                scenario=task.plan.scenario,
                seed=task.plan.seed,
                digest=self.digest,
                violation="",
                void=False,
                **numbers,
                **counts,
            )
        )
        return future


def soaked(tasks: list[Task], *workers: Worker) -> Soak:
    told = Soak()
    made = list(soak.runs(tasks, cast(list[ProcessPoolExecutor], workers), told))
    assert Counter(plan for plan, _ in made) == Counter(task.plan for task in tasks)
    return told


def asked(names: tuple[str, ...], seeds: int) -> list[Task]:
    return [Task(Plan(name, seed, ())) for seed in range(seeds) for name in names]


@pytest.mark.parametrize("count", [19, 20, 21, 40])
def test_every_scenario_has_runs_that_are_made_twice_however_many_scenarios_there_are(count: int) -> None:
    names = NAMES[:count]
    workers = Worker("a"), Worker("a")
    told = soaked(asked(names, SEEDS), *workers)
    twice = workers[0].made & workers[1].made
    assert {plan.scenario for plan in twice} == set(names)
    assert told.pairs == len(twice)
    assert told.runs == count * SEEDS
    assert told.voids() == []


def test_about_one_run_in_twenty_is_made_twice_in_each_scenario() -> None:
    for name in NAMES:
        drawn = [seed for seed in range(SEEDS) if paired(Plan(name, seed, ()))]
        assert 1 <= len(drawn) <= 2, name
        assert sum(paired(Plan(name, seed, ())) for seed in range(1000)) == 1000 // PAIRS_EVERY
    first = {min(seed for seed in range(PAIRS_EVERY) if paired(Plan(name, seed, ()))) for name in NAMES}
    assert len(first) > PAIRS_EVERY // 2, "scenarios are drawn at different seeds"


def test_the_first_run_is_made_twice_whatever_is_drawn() -> None:
    seed = next(seed for seed in range(PAIRS_EVERY) if not paired(Plan("calm", seed, ())))
    told = soaked([Task(Plan("calm", seed, ()))], Worker("a"), Worker("a"))
    assert (told.runs, told.pairs, told.different) == (1, 1, [])


def test_two_histories_of_one_seed_are_told() -> None:
    tasks = asked(("calm", "bank"), PAIRS_EVERY)
    told = soaked(tasks, Worker("a"), Worker("b"))
    assert {plan.scenario for plan in told.different} == {"calm", "bank"}
    assert len(told.different) == told.pairs


def test_one_worker_compares_nothing_and_a_soak_without_runs_is_void() -> None:
    alone = soaked(asked(("calm",), SEEDS), Worker("a"))
    assert (alone.workers, alone.runs, alone.pairs, alone.voids()) == (1, SEEDS, 0, [])
    (why,) = soaked([], Worker("a"), Worker("a")).voids()
    assert why.startswith("no run was made; ")
