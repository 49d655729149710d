"""Whole deployments under faults: every scenario holds, and every seed gives one history.

`make sweep` makes the runs that find the planted defects, without the defects; `make soak` runs all other seeds.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ebla.chaos import soak
from ebla.chaos.defects.planted import DEFECTS, planted
from ebla.chaos.history import History
from ebla.chaos.plans import NODES, Fault, Plan
from ebla.chaos.runs import Run, plan_of
from ebla.chaos.scenarios import columns, pacifica
from ebla.chaos.scenarios.scenarios import SCENARIOS as ALL_SCENARIOS
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.story import replicas, story
from ebla.chaos.workloads.registers import Applied, Registers
from tests.sweeps import FACTOR

pytestmark = pytest.mark.timeout(3600)  # a busy machine is no defect

# Seeds that reach what no other run does: a data disk hangs, a stale directory returns, a failed replica that holds back the log is
# given up, a majority is lost and forced, an old catalog returns, or is accepted, a node learns a lease of its peers, a copy is cancelled, a
# worker deletes what has moved, a flush and a compaction meet a full disk, a client asks for a replica that is not loaded. After a change,
# other seeds may do so instead.
SEEDS: dict[str, tuple[int, ...]] = {
    "hung-data": (6,),
    "disks": (2, 3),
    "disasters": (1,),
    "restores": (46,),
    "pacifica-accepts": (1,),
    "locks": (5,),
    "mending": (6,),
    "repairs": (12,),
    "columns-full-disks": (2, 27),
    "crowds": (1,),
    # These have more kinds of faults than seed 0, and need half its time.
    "alters": (4,),
    "columns-chains": (5,),
    "columns-mending": (3,),
    "growing": (4,),
}
# No writer opens the log again after the host of a store is lost, so that a worker must end the last ledger.
WRITERS_GONE = Plan(
    "repairs",
    0,
    (
        Fault(3.0, "client_crash", (), 12.0),
        Fault(3.5, "client_crash", (), 12.0),
        Fault(3.6, "lose_host", ("store-1",)),
    ),
)
# Every role, both protocols and both layouts of rows. `make soak` makes a share of all its runs twice.
TWICE = (
    "everything",
    "pacifica-everything",
    "columns-alters",
    "masters",
    "repairs",
    "events",
    "copies",
    "alters",
)
FURTHER_MAX = 6  # seeds of each of these, until every fault point, mark, effect and call was reached


FIRST = {pacifica.PREFIX: pacifica.FIRST, columns.PREFIX: columns.FIRST}
SCENARIOS = [
    each
    for each in ALL_SCENARIOS
    if all(
        not each.startswith(prefix) or each.removeprefix(prefix) in first for prefix, first in FIRST.items()
    )
]


def of_every_commit() -> list[Plan]:
    """A plan of each scenario, and those that reach what no other one does."""
    seeds = [(name, seed) for name in SCENARIOS for seed in SEEDS.get(name, (0,))]
    return list(dict.fromkeys([WRITERS_GONE, *(plan_of(scenario(name), seed) for name, seed in seeds)]))


def first_plans() -> list[Plan]:
    """Those of every commit. `make sweep`: also the plans that find the planted defects, without the defects."""
    hunted = [each.plan(each.seed) for each in DEFECTS.values()] if FACTOR > 1 else []
    return list(dict.fromkeys([*of_every_commit(), *hunted]))


def made_twice(plans: list[Plan]) -> list[Plan]:
    """The first plan of each scenario in TWICE. `make sweep`: of every scenario."""
    firsts = {plan.scenario: plan for plan in reversed(plans)}
    return [plan for name, plan in firsts.items() if name in TWICE or FACTOR > 1]


def test_all_scenarios_hold_reach_every_fault_point_and_seeds_that_are_run_twice_give_one_history() -> None:
    total, plans = soak.Soak(), first_plans()
    twice = made_twice(plans)
    further = (list(soak.tasks(list(SEEDS), [seed])) for seed in range(FURTHER_MAX))
    made = 0
    with soak.workers(2) as pools:
        for tasks in ([soak.Task(plan) for plan in plans], *further):
            for _ in soak.runs(tasks, pools, total, twice.__contains__):
                pass
            made += len(tasks)
            if not total.never():
                break
            warnings.warn(f"SEEDS reach no {', no '.join(total.never())}; more runs are made", stacklevel=1)
    assert total.failed == []
    assert total.different == []
    assert total.never() == [], "no run reached these fault points, marks, effects and calls"
    assert total.runs == made
    assert total.pairs >= len(twice)
    assert total.voids() == []


def test_every_scenario_has_a_run_and_the_docs_say_how_many_there_are() -> None:
    plans = of_every_commit()
    scenarios = {plan.scenario for plan in plans}
    assert scenarios >= {*SCENARIOS, *TWICE}
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    words = f"the seeds of `make test`: {len(plans)} runs of {len(scenarios)} scenarios, {len(TWICE)} of them made twice"
    assert words in page, f"write into the table of figures in docs/testing.md: {words}"


def test_a_standby_with_a_different_catalog_is_found_even_if_it_never_takes_over() -> None:
    plan = Plan("locks", 0, ())
    with planted("follows-without-sets"):
        report = Run(scenario("locks"), plan).go()
    assert "have another catalog than master/" in report.violation


def test_every_kind_of_fault_has_an_effect_and_is_undone() -> None:
    """Each fault alone, long before the end; the deployment must be healthy afterwards. Here those of nodes, which no scenario
    draws; `make sweep`: every kind."""
    effects: Counter[str] = Counter()
    drawn = [kind for each in ALL_SCENARIOS.values() for kind in each.mix] if FACTOR > 1 else []
    kinds = dict.fromkeys([*NODES, *drawn])
    for number, kind in enumerate(kinds):
        hosts = ("host-1", "host-2") if kind.startswith("cut") or kind == "away" else ("host-1",)
        point = "tablet.log.before_commit" if kind == "crash_point" else ""
        amount = {"clock_rate": 1.05, "crash_midway": 9.0}.get(
            kind, 0.2 if number % 2 else 7.0 if kind != "lose" else 0.2
        )
        # With an old copy, other roles must first get a later number.
        held_s = 4.0 if kind in ("old_copy", "old_catalog") else 1.0
        faults = [Fault(2.0, kind, hosts, held_s, amount, point)]
        calm = replace(scenario("chains"), duration_s=3.5)
        if kind == "lose_hosts":  # three hosts are left, and an operator forces tablets without a majority
            calm = scenario("disasters")
        if kind == "lose_host":  # of a ledger store, whose copies workers make again
            calm = scenario("repairs")
            faults = [msgspec.structs.replace(faults[0], where=("store-1",))]
        if kind == "grow_map":  # needs a reader, on any host
            calm = replace(scenario("scans"), duration_s=5.0)
            faults = [msgspec.structs.replace(faults[0], where=(f"host-{host}",)) for host in (1, 2, 3)]
        if kind == "hang_data":  # needs a data disk that has rows of some tablets only
            calm = replace(scenario("hung-data"), duration_s=5.0)
            faults = [msgspec.structs.replace(faults[0], at_s=3.0)]
        if kind == "old_catalog":  # needs tables that come and go, so that a copy is soon outdated
            calm = replace(scenario("restores"), duration_s=8.0)
            faults = [Fault(4.0, kind, (), held_s)]
        if kind == "accept_catalog":  # needs ballots that the copy lacks
            calm = replace(scenario("pacifica-accepts"), duration_s=8.0)
            faults = [Fault(2.0, kind, (), 4.5), Fault(2.5, "crash", ("host-1",), 4.0)]
        run = Run(calm, Plan(calm.name, number, tuple(faults)))
        report = run.go()
        assert report.violation == "", kind
        effects.update(report.effects)
    assert [kind for kind in kinds if not effects[kind]] == []


def test_the_story_of_a_run_has_its_faults_messages_and_operations() -> None:
    plan = plan_of(scenario("elections"), 5)
    run = Run(scenario("elections"), plan, whole_story=True)
    report = soak.quiet(run.go)
    lines = story(run, messages=True, around_s=None)
    assert [line.at_s for line in lines] == sorted(line.at_s for line in lines)
    kinds = Counter(line.kind for line in lines)
    assert kinds["fault"] == len(plan.faults)
    assert kinds["message"] > 1000
    assert kinds["registers"] == len(run.histories["registers"])
    assert len(list(replicas(run))) >= 3
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


def test_an_acknowledged_write_that_the_replicated_log_does_not_have_is_a_violation() -> None:
    registers = Registers()
    run = Run(scenario("registers"), plan_of(scenario("registers"), 4))
    assert soak.quiet(run.go).violation == ""
    history, applied = run.histories["registers"], run.applied.of("registers")
    assert applied.complete
    assert registers.judge(history, applied).valid is True
    written = next(each for each in history.operations("write") if each.known)
    without = {value: index for value, index in applied.indexes.items() if value != written.argument}
    verdict = registers.judge(history, Applied(without, complete=True))
    assert verdict.valid is False
    assert "the log shows that it was never applied" in verdict.problem


def test_a_run_in_which_too_little_happened_is_void() -> None:
    quiet = msgspec.structs.replace(plan_of(scenario("registers"), 1), faults=())
    down = [Fault(0.0, "crash", (host,), 30.0) for host in ("host-1", "host-2", "host-3")]
    report = soak.quiet(Run(scenario("registers"), msgspec.structs.replace(quiet, faults=tuple(down))).go)
    assert report.violation == ""
    assert report.void


def test_a_wrong_history_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = scenario("registers")
    run = Run(calm, Plan("registers", 0, ()))
    honest = History.note

    def lying(self: History, time_s, process, type, operation, key=None, value=None, error=None):
        if type == "ok" and operation == "read" and value is not None:
            value = value + 1_000_000
        return honest(self, time_s, process, type, operation, key, value, error)

    monkeypatch.setattr(History, "note", lying)
    report = soak.quiet(run.go)
    assert report.violation.startswith("Violation: registers")
