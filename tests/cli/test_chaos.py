"""`ebla chaos`, as a user types it. Nothing of it needs a cluster."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from ebla.chaos import plans, soak
from ebla.chaos.defects.planted import DEFECTS
from ebla.chaos.export import read_json_lines
from ebla.chaos.plans import Plan
from ebla.chaos.ray import scenarios as real
from ebla.chaos.scenarios.scenarios import SCENARIOS
from ebla.cli.app import app

FOUND = DEFECTS["apply-twice"]


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["chaos", *words])


def test_the_scenarios_are_listed() -> None:
    listed = json.loads(run("scenarios", "--json").stdout)["scenarios"]
    assert [each["name"] for each in listed] == list(SCENARIOS)
    masters = next(each for each in listed if each["name"] == "masters")
    assert (masters["hosts"], masters["masters"], masters["journals"]) == (3, 2, 3)
    assert (
        masters["workloads"] == ["churn", "registers", "inspections"] and masters["faults"]["isolate"] == 5.0
    )
    shown = run("scenarios").stdout
    assert "zombie" in shown and "2, 3 journal nodes" in shown


def test_seeds_are_simulated_and_a_report_is_left(tmp_path: Path) -> None:
    done = run("simulate", "-s", "chains", "-n", "3", "--workers", "2", "--json", "--keep", str(tmp_path))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    drawn = sum(soak.paired(Plan("chains", seed, ())) for seed in (1, 2))
    assert (told["runs"], told["failed"], told["pairs"]) == (3, [], 1 + drawn)
    assert told["answered"] > 100
    assert json.loads((tmp_path / "soak.json").read_text()) == told
    assert "all held" in (tmp_path / "soak.html").read_text()


def test_a_run_is_made_again_and_told_and_exported(tmp_path: Path) -> None:
    first, again = (
        json.loads(
            run("replay", "-s", "registers", "--seed", "4", "--json", "--export", str(tmp_path)).stdout
        )
        for _ in range(2)
    )
    assert first == again and first["violation"] == ""
    history = read_json_lines((tmp_path / "registers.jsonl").read_text())
    assert sum(event.type == "ok" for event in history.events) == first["answered"]
    assert (tmp_path / "registers.edn").read_text().startswith("{:index 0")
    assert (tmp_path / "registers.elle.edn").read_text().startswith("{:index 0")
    keys = {event.key for event in history.events}
    assert {path.name for path in (tmp_path / "knossos").iterdir()} == {
        f"registers-key-{key}.knossos.edn" for key in keys
    }
    told = run("replay", "-s", "registers", "--seed", "4", "--story", "--whole").stdout
    assert "everything held" in told and "starts" in told


def test_a_violation_is_told_shrunk_and_is_exit_status_one(tmp_path: Path) -> None:
    words = ("replay", "-s", FOUND.scenario, "--seed", str(FOUND.seed), "--defect", FOUND.name)
    done = run(*words, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert "twice" in told["violation"]
    path = tmp_path / "plan.json"
    path.write_bytes(plans.encode(plans.decode(json.dumps(told["plan"]).encode())))
    shrunk = run("replay", "--plan", str(path), "--defect", FOUND.name, "--shrink", "--json")
    assert shrunk.exit_code == 1
    assert len(json.loads(shrunk.stdout)["plan"]["faults"]) < len(told["plan"]["faults"])
    story = run(*words, "--story").stdout
    assert "was applied twice" in story
    (shown,) = re.findall(r"\(events? ([0-9, and]+)\)", told["violation"])[:1]
    for event in re.findall(r"[0-9]+", shown):
        assert re.search(rf"^ *[0-9.]+ +{FOUND.scenario} +{event} client ", story, re.MULTILINE), event
    assert len(story.splitlines()) > len(told["plan"]["faults"]) + 20, "what happened around the violation"


def test_a_run_that_holds_is_not_shrunk_and_says_so() -> None:
    done = run("replay", "-s", "calm", "--seed", "1", "--shrink")
    assert done.exit_code == 0
    assert "there is nothing to shrink: everything held" in done.stderr


def test_faults_that_did_nothing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    twice = [{"at_s": at_s, "kind": "crash", "where": ["host-1"], "for_s": 0.6} for at_s in (0.1, 0.2)]
    gone = [{"at_s": 0.3, "kind": "pause", "where": ["host-1"], "for_s": 0.1}]
    path.write_text(json.dumps({"scenario": "calm", "seed": 1, "faults": twice + gone}))
    done = run("replay", "--plan", str(path))
    assert done.exit_code == 0, done.output
    assert "\nhad no effect: crash (1 of 2), pause\n" in done.stdout
    assert "had no effect" not in run("replay", "-s", "calm", "--seed", "1").stdout


def test_faults_that_a_violation_forestalled_are_not_said_to_be_without_effect() -> None:
    told = json.loads(run("replay", "--defect", "no-lease", "--json").stdout)
    begun, planned = told["begun"], Counter(fault["kind"] for fault in told["plan"]["faults"])
    unbegun = [kind for kind in planned if kind not in begun]
    assert unbegun, "it breaks a promise before its last fault"
    shown = run("replay", "--defect", "no-lease").stdout
    (forestalled,) = re.findall(r"^had not begun when it ended: (.*)$", shown, re.MULTILINE)
    idle = [
        kind for line in shown.splitlines() if "no effect" in line for kind in re.findall(r"[a-z_]+", line)
    ]
    assert set(unbegun) <= set(re.findall(r"[a-z_]+", forestalled)) and not set(unbegun) & set(idle)


class Failing:
    """Stands for what a soak runs: `count` failures, and their shrinking, which is interrupted at the `last`."""

    def __init__(self, count: int, last: int) -> None:
        self.count, self.last, self.shrunk = count, last, 0

    def runs(self, tasks: Iterator[soak.Task], pools: object, told: soak.Soak) -> Iterator[object]:
        for task, _ in zip(tasks, range(self.count), strict=False):
            told.runs += 1
            told.failed.append((task.plan, "Violation: chains: a node is lost"))
        yield from ()

    def shrink(self, task: soak.Task, told: Callable[[int], None]) -> soak.Shrunk:
        told(1)
        self.shrunk += 1
        if self.shrunk == self.last:
            raise KeyboardInterrupt
        return soak.Shrunk(plans.Plan(task.plan.scenario, task.plan.seed, ()), "Violation: chains: shrunk")


@pytest.mark.parametrize(("last", "status", "shrunk"), [(3, 130, 2), (99, 1, 10)])
def test_what_failed_is_reported_before_it_is_shrunk_and_only_the_first_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, status: int, shrunk: int
) -> None:
    failing = Failing(12, last)
    monkeypatch.setattr(soak, "runs", failing.runs)
    monkeypatch.setattr(soak, "shrink", failing.shrink)
    done = run("simulate", "-s", "chains", "-n", "20", "--workers", "1", "--keep", str(tmp_path))
    assert done.exit_code == status, done.output
    assert "Traceback" not in done.output and str(tmp_path / "soak.html") in done.stderr.replace("\n", "")
    failed = json.loads((tmp_path / "soak.json").read_text())["failed"]
    assert len(failed) == 12 and len(list(tmp_path.glob("chains-*.json"))) == 12
    assert [why for _, why in failed].count("Violation: chains: shrunk") == shrunk
    assert ("the first 10 plans are shrunk" in done.stderr) == (status == 1)


@pytest.mark.parametrize("name", [next(name for name, each in DEFECTS.items() if each.faults), FOUND.name])
def test_a_defect_by_itself_is_shown_in_the_run_that_finds_it(name: str) -> None:
    done = run("replay", "--defect", name, "--json")
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert told["violation"]
    assert msgspec.convert(told["plan"], Plan) == DEFECTS[name].plan(DEFECTS[name].seed)


def test_a_planted_defect_is_hunted() -> None:
    done = run("planted", "-d", "vote-for-older-log", "--json")
    assert done.exit_code == 0
    (hunt,) = json.loads(done.stdout)["defects"]
    assert hunt["seed"] is not None and hunt["violation"]
    missed = run("planted", "-d", "lease-from-answer", "-n", "1", "--json")
    assert missed.exit_code == 1


def test_what_cannot_be_is_refused_with_the_remedy(tmp_path: Path) -> None:
    bad = tmp_path / "plan.json"
    bad.write_text("{}")
    for words, remedy in (
        (("simulate", "-s", "nonsense"), "there are calm"),
        (("replay",), "--scenario and --seed"),
        (("replay", "-s", "calm"), "--scenario and --seed"),
        (("replay", "--plan", str(bad)), "not a plan of faults"),
        (("replay", "-s", "calm", "--seed", "1", "--defect", "nonsense"), "no planted defect"),
        (("planted", "-d", "nonsense"), "no planted defect"),
    ):
        done = run(*words)
        assert done.exit_code == 2, words
        assert remedy in done.stderr, (words, done.stderr)


PLAN = {"scenario": "calm", "seed": 1, "faults": [{"at_s": 0.1, "kind": "crash", "where": ["host-9"]}]}


def test_a_plan_that_was_made_for_ray_is_played_in_simulation_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = real.plan_of("losses", 3, ("host-1", "host-2", "host-3"), 30.0)
    path.write_bytes(plans.encode(plan))
    done = run("replay", "--plan", str(path), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["scenario"] == "losses"
    assert told["effects"] == {"node_loss": 1, "stop": 1}
    unknown = plans.Plan("earthquakes", 3, plan.faults)
    path.write_bytes(plans.encode(unknown))
    refused = run("replay", "--plan", str(path))
    assert (refused.exit_code, "there is no scenario 'earthquakes'" in refused.stderr) == (2, True)


def test_a_plan_that_cannot_be_carried_out_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    done = run("replay", "--plan", str(path), "--json")
    assert done.exit_code == 2
    message = json.loads(done.stdout)["error"]["message"]
    assert "there is no host host-9; the hosts are host-1" in message and "$.faults[0].where" in message


def test_a_misspelt_field_of_a_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    fault = {"at_s": 0.1, "kind": "crash", "where": ["host-1"], "fro_s": 3.0}
    path.write_text(json.dumps({"scenario": "calm", "seed": 1, "faults": [fault]}))
    done = run("replay", "--plan", str(path))
    assert (done.exit_code, "fro_s" in done.stderr) == (2, True)


def test_a_run_that_proves_nothing_is_no_pass(tmp_path: Path) -> None:
    down = [{"at_s": 0.0, "kind": "crash", "where": [f"host-{n}"], "for_s": 30.0} for n in (1, 2, 3)]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"scenario": "registers", "seed": 1, "faults": down}))
    done = run("replay", "--plan", str(path))
    assert done.exit_code == 2
    assert "this is not a pass" in done.stdout and "everything held" not in done.stdout


def test_one_worker_compares_nothing_and_says_so() -> None:
    done = run("simulate", "-s", "calm", "-n", "1", "--workers", "1")
    assert done.exit_code == 0, done.output
    assert "not compared: one worker" in done.stdout


@pytest.mark.parametrize("minutes", ["0", "-1"])
def test_a_soak_has_a_least_duration(minutes: str) -> None:
    assert run("simulate", "--minutes", minutes).exit_code == 2


def test_a_scenario_is_asked_for_by_name_or_by_plan_and_results_go_where_they_can(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN | {"faults": []}))
    for words, remedy in (
        (("replay", "--plan", str(path), "--seed", "4"), "give --scenario and --seed, or --plan"),
        (("replay", "--plan", str(path), "-s", "calm"), "give --scenario and --seed, or --plan"),
        (("run", "--plan", str(path), "--seed", "4"), "give --plan, or --scenario and --seed"),
        (("replay", "-s", "register", "--seed", "1"), "did you mean 'registers'?"),
        (("simulate", "-s", "register"), "did you mean 'registers'?"),
        (
            ("replay", "--plan", str(path), "--export", f"{path}/below"),
            "name a directory that can be written",
        ),
        (("simulate", "-s", "calm", "--keep", f"{path}/below"), "name a directory that can be written"),
    ):
        done = run(*words)
        assert done.exit_code == 2, words
        assert remedy in " ".join(done.stderr.split()), (words, done.stderr)
