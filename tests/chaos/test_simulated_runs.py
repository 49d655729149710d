"""Whole deployments under faults: hundreds of seeds hold, and every seed is one history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from ebla.chaos import soak
from ebla.chaos.defects.planted import planted
from ebla.chaos.history import History
from ebla.chaos.plans import NODES, Fault, Plan
from ebla.chaos.runs import Run, plan_of
from ebla.chaos.scenarios.scenarios import SCENARIOS, scenario
from ebla.chaos.story import replicas, story
from ebla.chaos.workloads.registers import Applied, Registers

SEEDS = max(
    soak.PAIRS_EVERY, -(-500 // len(SCENARIOS))
)  # of each scenario: every one has a run that is made twice


@pytest.mark.timeout(1800)
def test_hundreds_of_runs_hold_and_each_seed_is_one_history() -> None:
    told = soak.Soak()
    with soak.workers(2) as pools:
        for _ in soak.runs(soak.tasks((), range(SEEDS)), pools, told):
            pass
    assert told.failed == []
    assert told.different == []
    assert told.runs == SEEDS * len(SCENARIOS) >= 500
    assert told.pairs >= len(SCENARIOS)
    assert told.voids() == []
    assert told.void <= told.runs // 50
    assert told.never() == [], "fault points and marks that no run came to"


def test_every_scenario_has_a_run_that_is_made_twice_and_the_docs_say_how_many_there_are() -> None:
    drawn = {
        name for name in SCENARIOS for seed in range(SEEDS) if soak.paired(plan_of(scenario(name), seed))
    }
    assert drawn == set(SCENARIOS)
    told = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    words = f"the seeds of `make test`: {SEEDS} of each of {len(SCENARIOS)} scenarios"
    assert words in told, f"write into the table of figures in docs/testing.md: {words}"


def test_a_standby_with_another_catalog_is_found_though_it_never_takes_over() -> None:
    plan = Plan("locks", 0, ())
    with planted("follows-without-sets"):
        report = Run(scenario("locks"), plan).go()
    assert "have another catalog than master/" in report.violation


def test_every_kind_of_fault_has_an_effect_and_is_undone() -> None:
    """Each on its own, long before the end; the deployment must be whole afterwards."""
    effects: Counter[str] = Counter()
    kinds = dict.fromkeys([*(kind for each in SCENARIOS.values() for kind in each.mix), *NODES])
    for number, kind in enumerate(kinds):
        hosts = ("host-1", "host-2") if kind.startswith("cut") or kind == "away" else ("host-1",)
        point = "tablet.log.before_commit" if kind == "crash_point" else ""
        amount = {"clock_rate": 1.05, "crash_midway": 9.0}.get(
            kind, 0.2 if number % 2 else 7.0 if kind != "lose" else 0.2
        )
        held_s = (
            4.0 if kind in ("old_copy", "old_catalog") else 1.0
        )  # the others have to hear of a later number
        faults = [Fault(2.0, kind, hosts, held_s, amount, point)]
        calm = scenario("chains")
        if kind == "lose_hosts":  # where three are left, and somebody forces what has lost its majority
            calm = scenario("disasters")
        if kind == "grow_map":  # somebody has to be reading, wherever that is
            calm = scenario("scans")
            faults = [msgspec.structs.replace(faults[0], where=(f"host-{host}",)) for host in (1, 2, 3)]
        if kind == "old_catalog":  # tables come and go, so that a copy of the catalog is soon an older one
            calm = scenario("restores")
            faults = [Fault(at_s, kind, (), held_s) for at_s in (4.0, 9.0)]
        run = Run(calm, Plan(calm.name, number, tuple(faults)))
        report = run.go()
        assert report.violation == "", kind
        effects.update(report.effects)
    assert [kind for kind in kinds if not effects[kind]] == []


def test_a_run_tells_its_story() -> None:
    plan = plan_of(scenario("elections"), 5)
    run = Run(scenario("elections"), plan, whole_story=True)
    report = soak.quiet(run.go)
    lines = story(run, messages=True, around_s=None)
    assert [line.at_s for line in lines] == sorted(line.at_s for line in lines)
    said = Counter(line.kind for line in lines)
    assert said["fault"] == len(plan.faults)
    assert said["message"] > 1000
    assert said["registers"] == len(run.histories["registers"])
    assert len(list(replicas(run))) >= 3
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


def test_the_replicated_log_bears_witness_against_an_acknowledged_write_that_it_does_not_have() -> None:
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


def test_a_violation_in_a_history_is_the_verdict_of_the_run() -> None:
    """The judgement is not decoration: a history that is wrong fails the run."""
    calm = scenario("registers")
    run = Run(calm, Plan("registers", 0, ()))
    honest = History.note

    def lying(self: History, time_s, process, type, operation, key=None, value=None, error=None):
        if type == "ok" and operation == "read" and value is not None:
            value = value + 1_000_000
        return honest(self, time_s, process, type, operation, key, value, error)

    History.note = lying
    try:
        report = soak.quiet(run.go)
    finally:
        History.note = honest
    assert report.violation.startswith("Violation: registers")
