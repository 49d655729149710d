"""`ebla chaos run` without a cluster: refusals, the report, and an interrupted run."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from ebla.actors.errors import NotDelivered
from ebla.chaos.pages import STYLE, VALID, VIOLATION, VOID
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.ray.faults import probes
from ebla.chaos.ray.orders import Judged
from ebla.chaos.ray.report import figures, page, report
from ebla.chaos.ray.report.injection import OBSERVED, FaultReport
from ebla.chaos.ray.run import Request
from ebla.chaos.ray.scenarios import SCENARIOS
from ebla.chaos.ray.stage import stage
from ebla.chaos.scenarios import pacifica
from ebla.cli.chaos import running as command
from ebla.cli.chaos.running import Options, main
from ebla.placement.local import node as local_node
from ebla.placement.local import processes
from ebla.placement.local.cluster import STATE, LocalCluster, LocalState, NodeState
from tests.cli.stage import invoke

LISTS = (("netns", "list"), ("-o", "link"))
HIT = Fault(1.0, "crash", ("host-2",))
REPORT = report.RunReport(
    scenario="crashes",
    seed=7,
    hosts=3,
    groups=4,
    clients=1,
    duration_s=10.0,
    plan=Plan("crashes", 7, (HIT,)),
    verdict=VALID,
    reasons=(),
    faults=(
        FaultReport(number=0, fault=HIT, outcome=OBSERVED, effects=("gone",), reason="late", at_s=3.0),
        FaultReport(number=1, fault=Fault(1.0, "lose"), outcome=OBSERVED, effects=("9 lost",), at_s=0.5),
    ),
    skipped={"rot": "no such tool: [simulated] disks"},
    judged=(Judged("bank-1", "bank-1.jsonl", True, "", (), 1234),),
    acknowledged=4321,
    failed=17,
    unknown=3,
    per_second=tuple(figures.Second(400, 0, 1) for _ in range(12)),
    act_s=(2.0, 12.0),
    healed_s=1.5,
    unavailable={"bank-1": (figures.Window(5.0, 1.75),), "pulse": ()},
    recoveries={},
    histories=(),
    results="results",
    phases={},
)


def test_the_report_page_has_its_style_the_skipped_faults_and_the_command_to_repeat_it() -> None:
    html = page.html(REPORT, b"")
    for said in (
        str(STYLE),
        "<b>17</b>failed",
        "gone; late",
        '<td class="n">1.0 s</td>',
        '<td class="n">all along</td>',
        "the verdict says nothing about them",
        "no such tool: [simulated] disks",
        "at 3.0 s for 1.8 s",
        "--plan results/plan.json --duration 10 --hosts 3 --groups 4 --clients 1",
    ):
        assert said in html, said
    elsewhere = page.html(msgspec.structs.replace(REPORT, results="my results"), b"")
    assert "--plan &#39;my results/plan.json&#39; --duration" in elsewhere
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report.view(REPORT))
    assert "skipped rot: no such tool: [simulated] disks" in console.export_text()


def test_one_ctrl_c_interrupts_a_run_and_everything_is_removed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made: list[Path] = []

    def interrupted(request: Request, *_: object) -> report.RunReport:
        made.append(request.directory)
        (request.directory / "data").mkdir()
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)  # a second Ctrl-C while the run ends
            signal.raise_signal(signal.SIGTERM)
            made.append(request.results)
        raise AssertionError("the interrupt was ignored")

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "run", interrupted)
    assert main(Options()) == 130
    assert len(made) == 2, "the run ended completely"
    assert not made[0].exists()
    assert "interrupted; everything was ended" in capfd.readouterr().err
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (signal.SIGINT, 130, "interrupted; everything was ended"),
        (signal.SIGTERM, 143, "interrupted; everything was ended"),
        (
            NotDelivered("there is no role", address="master/0"),
            2,
            "ended before it was judged: there is no role",
        ),
        (FileNotFoundError(2, "No such file", "/x"), 2, "ended before it was judged: No such file: /x"),
    ],
)
def test_the_results_of_a_run_that_is_not_judged_are_kept_and_named(
    end: signal.Signals | Exception,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    made: list[Path] = []

    def ended(request: Request, *_: object) -> report.RunReport:
        made.append(request.results)
        (request.directory / "data").mkdir()
        request.results.mkdir()
        (request.results / "registers-1.jsonl").write_text("")
        (request.results / "plan.json").write_text("{}")
        if isinstance(end, Exception):
            raise end
        signal.raise_signal(end)
        raise AssertionError("the signal was ignored")

    monkeypatch.setattr(command, "run", ended)
    assert main(Options()) == status
    printed = "".join(capfd.readouterr().err.split("\n"))
    done = invoke("chaos", "run", "--json")
    try:
        assert said in printed and str(made[0]) in printed
        assert (done.status, done.json["error"]["exit_status"]) == (status, status)
        assert str(made[1]) in (done.json.get("results") or done.err)
        assert [path.name for each in made for path in each.parent.iterdir()] == ["results"] * 2
    finally:
        for each in made:
            shutil.rmtree(each.parent)


@pytest.mark.parametrize("verdict", [VALID, VIOLATION, VOID])
def test_a_verdict_is_an_exit_status_and_its_report_is_kept(
    verdict: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def judged(request: Request, *_: object) -> report.RunReport:
        (request.directory / "data").mkdir()
        request.results.mkdir()
        return msgspec.structs.replace(REPORT, verdict=verdict, results=str(request.results))

    monkeypatch.setattr(command, "run", judged)
    assert main(Options(json=True)) == report.STATUS[verdict]
    document = json.loads(capfd.readouterr().out)
    shown = Path(document["page"])
    try:
        assert (document["verdict"], shown.name, shown.is_file()) == (verdict, "report.html", True)
        assert (shown.parents[1] / "data").exists() == (verdict != VALID)
    finally:
        shutil.rmtree(shown.parents[1])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--scenario", "crashs"), "there is no scenario 'crashs'; there are calm, crashes"),
        (("--scenario", "crashs"), "; did you mean 'crashes'?"),
        (("--duration", "0"), "--duration must be above 0 s"),
        (("--duration", "inf"), "--duration must be above 0 s"),
        (("--hosts", "2"), "--hosts must be between 3 and 8, not 2"),
        (("--scenario", "partitions", "--hosts", "3"), "partitions needs 4 hosts, not 3; raise --hosts"),
        (("--plan", "PLAN"), "is not a plan of faults"),
        (("--keep", "PLAN/below"), "Not a directory: "),
        (("--address", "here:1"), "leave out --address and --name"),
    ],
)
def test_a_run_that_cannot_begin_has_its_own_exit_status(
    words: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    (tmp_path / "plan").write_text("{not a plan")
    given = [word.replace("PLAN", str(tmp_path / "plan")) for word in words]
    done = invoke("chaos", "run", "--json", *given)
    assert (done.status, done.json["error"]["exit_status"]) == (2, 2), done.err
    assert why in done.json["error"]["message"]


def test_the_help_names_every_scenario_of_its_own() -> None:
    shown = " ".join(invoke("chaos", "run", "--help").out.replace("│", " ").split())
    named = shown.partition("`ebla chaos scenarios`, and ")[2].partition(";")[0].split(", ")
    variants = [pacifica.PREFIX + name for name in named]
    assert [*named, *variants, "both"] == list(SCENARIOS)
    assert f"each also with PacificA tables ({pacifica.PREFIX}" in shown and "`both`" in shown


# -- after an interrupted run --------------------------------------------------------------------------------


def test_an_interrupted_run_leaves_no_network_namespace(tmp_path: Path) -> None:
    def left() -> list[str]:
        """List the network namespaces and links with this process's pid."""
        if shutil.which("ip") is None:
            return []
        printed = [subprocess.run(["ip", *words], capture_output=True, text=True).stdout for words in LISTS]
        return [
            line for line in "".join(printed).splitlines() if re.search(rf"\b(ebla-chaos-|eb){pid}", line)
        ]

    pid = os.getpid()
    with (
        pytest.raises(KeyboardInterrupt),
        probes.prepared([Fault(0.0, "cut", ("host-2", "host-3"))], 3, tmp_path) as prepared,
    ):
        assert bool(left()) == ("cut" not in prepared.reasons)
        raise KeyboardInterrupt
    assert left() == []


def test_a_cluster_without_a_complete_record_is_ended(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    mark = {**os.environ, processes.MARK: processes.mark_of("feedbeef", 1)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=mark) as orphan:
        launcher = processes.record(psutil.Process(orphan.pid))
        auth = local_node.choose_auth(None, directory, os.environ)
        settings = local_node.NodeSettings(1, 1 << 20, False, auth, {})
        node = NodeState(1, 1, str(tmp_path / "ray"), str(tmp_path / "log"), launcher)
        state = LocalState("feedbeef", settings, str(tmp_path / "ray"), {1: node}, 1)
        (directory / STATE).write_bytes(msgspec.json.encode(state))
        assert processes.find(launcher) is not None
        stage.end_leftovers(directory)
        assert processes.find(launcher) is None
    assert LocalCluster.find(directory) is None
    stage.end_leftovers(directory)
