"""`ebla chaos` without a Ray cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import pytest

from ebla.chaos import plans, soak
from ebla.chaos.defects.planted import DEFECTS
from ebla.chaos.export import read_json_lines
from ebla.chaos.plans import Plan
from ebla.chaos.ray import scenarios as real
from ebla.chaos.scenarios.scenarios import SCENARIOS
from tests.cli.stage import Outcome, invoke

FOUND = DEFECTS["apply-twice"]


def run(command: str, *words: str, status: int = 0) -> Outcome:
    done = invoke("chaos", *command.split(), *words)
    assert done.status == status, done.err or done.out
    return done


def test_the_scenarios_are_listed() -> None:
    listed = run("scenarios --json").json["scenarios"]
    assert [each["name"] for each in listed] == list(SCENARIOS)
    masters = next(each for each in listed if each["name"] == "masters")
    assert (masters["hosts"], masters["masters"], masters["journals"]) == (3, 2, 3)
    assert (
        masters["workloads"] == ["churn", "registers", "inspections"] and masters["faults"]["isolate"] == 5.0
    )
    shown = run("scenarios").out
    assert "zombie" in shown and "2, 3 journal nodes" in shown


def test_seeds_are_simulated_and_a_report_is_kept(tmp_path: Path) -> None:
    document = run("simulate -s chains -n 3 --workers 2 --json --keep", str(tmp_path)).json
    drawn = sum(soak.paired(Plan("chains", seed, ())) for seed in (1, 2))
    assert (document["runs"], document["failed"], document["pairs"]) == (3, [], 1 + drawn)
    assert document["answered"] > 100
    assert json.loads((tmp_path / "soak.json").read_text()) == document
    assert "all held" in (tmp_path / "soak.html").read_text()


def test_a_run_is_repeated_explained_and_exported(tmp_path: Path) -> None:
    first, again = (run("replay -s registers --seed 4 --json --export", str(tmp_path)).json for _ in range(2))
    assert first == again and first["violation"] == ""
    history = read_json_lines((tmp_path / "registers.jsonl").read_text())
    assert sum(event.type == "ok" for event in history.events) == first["answered"]
    assert (tmp_path / "registers.edn").read_text().startswith("{:index 0")
    assert (tmp_path / "registers.elle.edn").read_text().startswith("{:index 0")
    keys = {event.key for event in history.events}
    assert {path.name for path in (tmp_path / "knossos").iterdir()} == {
        f"registers-key-{key}.knossos.edn" for key in keys
    }
    story = run("replay -s registers --seed 4 --story --whole").out
    assert "everything held" in story and "starts" in story


def test_a_violation_is_explained_and_shrunk_and_has_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "SHRINK_RUNS_MAX", 12)
    words = f"replay -s {FOUND.scenario} --seed {FOUND.seed} --defect {FOUND.name}"
    document = run(words, "--json", status=1).json
    assert "twice" in document["violation"]
    path = tmp_path / "plan.json"
    path.write_bytes(plans.encode(plans.decode(json.dumps(document["plan"]).encode())))
    shrunk = run("replay --plan", str(path), "--defect", FOUND.name, "--shrink", "--json", status=1).json
    assert len(shrunk["plan"]["faults"]) < len(document["plan"]["faults"])
    story = run(words, "--story", status=1).out
    assert "was applied twice" in story
    (shown,) = re.findall(r"\(events? ([0-9, and]+)\)", document["violation"])[:1]
    for event in re.findall(r"[0-9]+", shown):
        assert re.search(rf"^ *[0-9.]+ +{FOUND.scenario} +{event} client ", story, re.MULTILINE), event
    assert len(story.splitlines()) > len(document["plan"]["faults"]) + 20, (
        "the story has the events around the violation"
    )


def test_a_run_without_a_violation_is_not_shrunk() -> None:
    assert "there is nothing to shrink: everything held" in run("replay -s calm --seed 1 --shrink").err


def test_faults_without_effect_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    twice = [{"at_s": at_s, "kind": "crash", "where": ["host-1"], "for_s": 0.6} for at_s in (0.1, 0.2)]
    gone = [{"at_s": 0.3, "kind": "pause", "where": ["host-1"], "for_s": 0.1}]
    path.write_text(json.dumps({"scenario": "calm", "seed": 1, "faults": twice + gone}))
    assert "\nhad no effect: crash (1 of 2), pause\n" in run("replay --plan", str(path)).out
    assert "had no effect" not in run("replay -s calm --seed 1").out


def test_faults_after_a_violation_are_not_reported_as_without_effect(tmp_path: Path) -> None:
    document = run("replay --defect follower-counts-twice --json", status=1).json
    kinds = {fault["kind"] for fault in document["plan"]["faults"]}
    other = next(kind for kind in ("hang_disk", "pause", "crash") if kind not in kinds)
    late = {"at_s": plans.AT_S_MAX, "kind": other, "where": ["host-1"], "for_s": 0.1}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**document["plan"], "faults": [*document["plan"]["faults"], late]}))
    shown = run("replay --plan", str(path), "--defect", "follower-counts-twice", status=1).out
    (forestalled,) = re.findall(r"^had not begun when it ended: (.*)$", shown, re.MULTILINE)
    idle = [
        kind for line in shown.splitlines() if "no effect" in line for kind in re.findall(r"[a-z_]+", line)
    ]
    assert other in re.findall(r"[a-z_]+", forestalled) and other not in idle


class Failing:
    """A soak without processes and with `count` failures, whose shrinking is interrupted at failure number `last`."""

    def __init__(self, count: int, last: int) -> None:
        self.count, self.last, self.shrunk = count, last, 0

    def workers(self, count: int) -> AbstractContextManager[list[object]]:
        return nullcontext([])

    def runs(self, tasks: Iterator[soak.Task], pools: object, report: soak.Soak) -> Iterator[object]:
        for task, _ in zip(tasks, range(self.count), strict=False):
            report.runs += 1
            report.failed.append((task.plan, "Violation: chains: a node is lost"))
        yield from ()

    def shrink(self, task: soak.Task, progress: Callable[[int], None]) -> soak.Shrunk:
        progress(1)
        self.shrunk += 1
        if self.shrunk == self.last:
            raise KeyboardInterrupt
        return soak.Shrunk(plans.Plan(task.plan.scenario, task.plan.seed, ()), "Violation: chains: shrunk")


@pytest.mark.parametrize(("last", "status", "shrunk"), [(3, 130, 2), (99, 1, 10)])
def test_failures_are_reported_before_the_first_of_them_are_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, status: int, shrunk: int
) -> None:
    failing = Failing(12, last)
    for replaced in ("workers", "runs", "shrink"):
        monkeypatch.setattr(soak, replaced, getattr(failing, replaced))
    done = run("simulate -s chains -n 20 --workers 1 --keep", str(tmp_path), status=status)
    assert "Traceback" not in done.out + done.err
    assert str(tmp_path / "soak.html") in done.err.replace("\n", "")
    failed = json.loads((tmp_path / "soak.json").read_text())["failed"]
    assert len(failed) == 12 and len(list(tmp_path.glob("chains-*.json"))) == 12
    assert [why for _, why in failed].count("Violation: chains: shrunk") == shrunk
    assert ("the first 10 plans are shrunk" in done.err) == (status == 1)


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_ctrl_c_and_sigterm_keep_the_report_of_the_runs_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, status: int
) -> None:
    def runs(tasks: Iterator[soak.Task], pools: object, report: soak.Soak) -> Iterator[object]:
        report.runs += 1
        raise end
        yield

    monkeypatch.setattr(soak, "workers", lambda count: nullcontext([]))
    monkeypatch.setattr(soak, "runs", runs)
    done = run("simulate -s chains -n 20 --workers 1 --keep", str(tmp_path), status=status)
    document = json.loads((tmp_path / "soak.json").read_text())
    told = [document[name] for name in ("runs", "asked", "verdict", "interrupted")]
    assert told == [1, 20, "void", "it was interrupted"]
    page = (tmp_path / "soak.html").read_text()
    assert "it was interrupted, after 1 of 20 runs" in page and "all held" not in page
    assert str(tmp_path / "soak.html") in done.err.replace("\n", "")


def test_a_defect_of_the_tool_keeps_the_report_of_the_runs_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(tasks: Iterator[soak.Task], pools: object, report: soak.Soak) -> Iterator[object]:
        report.runs += 1
        yield from ()
        raise ValueError("a defect")

    monkeypatch.setattr(soak, "workers", lambda count: nullcontext([]))
    monkeypatch.setattr(soak, "runs", runs)
    with pytest.raises(ValueError, match="a defect"):
        run("simulate -s chains -n 20 --workers 1 --keep", str(tmp_path))
    assert json.loads((tmp_path / "soak.json").read_text())["interrupted"] == "it ended in ValueError"


def test_the_seed_with_two_histories_is_named_and_its_plan_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(tasks: Iterator[soak.Task], pools: object, report: soak.Soak) -> Iterator[object]:
        report.runs += 1
        report.different.append(next(iter(tasks)).plan)
        yield from ()

    monkeypatch.setattr(soak, "workers", lambda count: nullcontext([]))
    monkeypatch.setattr(soak, "runs", runs)
    done = run("simulate -s chains -n 1 --first 7 --workers 1 --keep", str(tmp_path), status=1)
    assert "chains seed 7 had two histories" in done.err
    assert (tmp_path / "chains-7.json").exists()


@pytest.mark.parametrize("name", [next(name for name, each in DEFECTS.items() if each.faults), FOUND.name])
def test_a_defect_alone_selects_the_run_that_finds_it(name: str) -> None:
    document = run(f"replay --defect {name} --json", status=1).json
    assert document["violation"]
    assert msgspec.convert(document["plan"], Plan) == DEFECTS[name].plan(DEFECTS[name].seed)


def test_a_planted_defect_is_searched_for() -> None:
    (hunt,) = run("planted -d no-lease --workers 1 --json").json["defects"]
    assert hunt["seed"] is not None and hunt["violation"]
    late = max(DEFECTS.values(), key=lambda each: each.seed)
    run(f"planted -d {late.name} -n 1 --workers 1 --json", status=1)


PLAN = {"scenario": "calm", "seed": 1, "faults": [{"at_s": 0.1, "kind": "crash", "where": ["host-9"]}]}


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("simulate -s nonsense", "there are calm"),
        ("replay", "--scenario and --seed"),
        ("replay -s calm", "--scenario and --seed"),
        ("replay --plan BAD", "not a plan of faults"),
        ("replay -s calm --seed 1 --defect nonsense", "no planted defect"),
        ("planted -d nonsense", "no planted defect"),
        ("replay --plan PLAN --seed 4", "give --scenario and --seed, or --plan"),
        ("replay --plan PLAN -s calm", "give --scenario and --seed, or --plan"),
        ("run --plan PLAN --seed 4", "give --plan, or --scenario and --seed"),
        ("replay -s register --seed 1", "did you mean 'registers'?"),
        ("simulate -s register", "did you mean 'registers'?"),
        ("replay --plan PLAN --export PLAN/below", "name a directory that can be written"),
        ("simulate -s calm --keep PLAN/below", "name a directory that can be written"),
        ("replay --plan TYPO", "fro_s"),
        ("replay --plan GONE", "there is no host host-9; the hosts are host-1"),
        ("replay --plan GONE", "$.faults[0].where"),
        ("simulate --minutes 0", ""),
        ("simulate --minutes -1", ""),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(tmp_path: Path, words: str, remedy: str) -> None:
    typo = {"at_s": 0.1, "kind": "crash", "where": ["host-1"], "fro_s": 3.0}
    files = {"BAD": {}, "PLAN": PLAN | {"faults": []}, "TYPO": PLAN | {"faults": [typo]}, "GONE": PLAN}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    run(re.sub(r"\b(BAD|PLAN|TYPO|GONE)\b", rf"{tmp_path}/\1", words), status=2).require(2, remedy)


def test_a_plan_for_ray_runs_in_the_simulation(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = real.plan_of("losses", 3, ("host-1", "host-2", "host-3"), 30.0)
    path.write_bytes(plans.encode(plan))
    document = run("replay --plan", str(path), "--json").json
    assert document["scenario"] == "losses"
    assert document["effects"] == {"node_loss": 1, "stop": 1}
    unknown = plans.Plan("earthquakes", 3, plan.faults)
    path.write_bytes(plans.encode(unknown))
    run("replay --plan", str(path), status=2).require(2, "there is no scenario 'earthquakes'")


def test_a_plan_that_was_drawn_for_ray_from_a_simulated_scenario_runs_in_the_simulation(
    tmp_path: Path,
) -> None:
    """A crash at a fault point is drawn for Ray without a point, and skipped there."""
    path = tmp_path / "plan.json"
    hosts = tuple(f"host-{number}" for number in range(1, 1 + real.scenario("churn").hosts))
    drawn = real.plan_of("churn", 0, hosts, 60.0)
    points = tuple(fault for fault in drawn.faults if fault.kind == "crash_point")[:1]
    path.write_bytes(plans.encode(msgspec.structs.replace(drawn, faults=points)))
    assert run("replay --plan", str(path), "--json").json["begun"] == {"crash_point": 1}


def test_a_run_without_operations_is_not_a_pass(tmp_path: Path) -> None:
    down = [{"at_s": 0.0, "kind": "crash", "where": [f"host-{n}"], "for_s": 30.0} for n in (1, 2, 3)]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"scenario": "registers", "seed": 1, "faults": down}))
    done = run("replay --plan", str(path), status=2)
    assert "this is not a pass" in done.out and "everything held" not in done.out


def test_one_worker_compares_no_digests_and_says_so() -> None:
    assert "not compared: one worker" in run("simulate -s calm -n 1 --workers 1").out
