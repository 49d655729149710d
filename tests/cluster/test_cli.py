"""`ebla` as a user types it: from no cluster to a deployment with rows, and again after the death of every process.

The tests run in this order on one deployment, whose data directory outlives two Ray clusters.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebla.chaos.ray.stage.victims import gone
from ebla.placement.local.cluster import LocalCluster
from tests.cli.stage import Outcome
from tests.cluster.conftest import eventually

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
NODES = 3
ROWS = 500
CREATE = (
    "table create flights -c carrier:string -c flight:int32 -c distance:int32:null -c at:timestamp[us,UTC]:null "
    "-k carrier,flight --hash flight:2"
)


@dataclass
class Terminal:
    """A shell with its own home directory. `exports` are the variables that `ebla up` prints for Ray's own commands."""

    home: Path
    exports: dict[str, str] = field(default_factory=dict)
    data_dir: str = ""

    @property
    def local(self) -> Path:
        return self.home / ".ebla" / "local"

    def environment(self, **more: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**inherited, "HOME": str(self.home), "PATH": path, **more}

    def run(self, words: Sequence[str], **more: str) -> Outcome:
        done = subprocess.run(
            [str(BIN / words[0]), *words[1:]],
            env=self.environment(**more),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def ebla(self, command: str, *more: str) -> Outcome:
        return self.run(["ebla", *command.split(), *more])

    def interrupted(self, command: str, until: str) -> tuple[int, str]:
        """Run a command on a terminal and press Ctrl-C when `until` is shown. Returns the exit status and what was shown."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        process = subprocess.Popen(
            [str(BIN / "ebla"), *command.split()],
            env=self.environment(TERM="xterm"),
            cwd=self.home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown, pressed = "", False
        with suppress(OSError):  # the end of a terminal on Linux
            while chunk := os.read(ours, 65536).decode(errors="replace"):
                shown += chunk
                if until in shown and not pressed:
                    pressed = True
                    process.send_signal(signal.SIGINT)
        os.close(ours)
        return process.wait(600), shown

    def up(self, options: str) -> Any:
        outcome = self.ebla(f"up --local {NODES} {options} --json")
        assert outcome.status == 0, outcome
        document = outcome.json
        exposed = [warning for warning in document["warnings"] if "asks for no token" in warning]
        assert (document["ready"], document["warnings"]) == (True, exposed)
        assert "token" not in options or exposed == []
        self.exports, self.data_dir = document["local"]["environment"], document["data_dir"]
        return document

    def job(self, command: str) -> Outcome:
        """Run a command by `ray job submit`, which prints the output of the job."""
        return self.run(["ray", "job", "submit", "--", *command.split()], **self.exports)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    opened = Terminal(tmp_path_factory.mktemp("home"))
    try:
        yield opened
    finally:
        found = LocalCluster.find(opened.local)
        if found is not None:
            found.kill_everything()


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if not gone(process)]


def require_every_row(terminal: Terminal) -> None:
    """The deployment is healthy, and three equal replicas of each tablet have all rows."""
    checked = terminal.ebla("check --wait 30 --checksum --json")
    assert (checked.status, checked.json["healthy"]) == (0, True), checked
    digests = [{replica["digest"] for replica in tablet["replicas"]} for tablet in checked.json["tablets"]]
    assert [len(found) for found in digests] == [1, 1]
    assert sum(tablet["replicas"][0]["rows"] for tablet in checked.json["tablets"]) == ROWS


def test_without_a_cluster_commands_say_how_to_start_one(terminal: Terminal) -> None:
    outcome = terminal.ebla("table list --json")
    assert (outcome.status, outcome.json["error"]["kind"]) == (1, "NoCluster")
    assert "`ebla up --local 4`" in outcome.out
    unknown = terminal.ebla("-a 127.0.0.1:1 status")
    assert (unknown.status, "no Ray cluster answers at 127.0.0.1:1" in unknown.err) == (1, True)
    assert terminal.ebla("down -y --json").json["changed"] is False


def test_up_starts_a_cluster_and_a_second_up_changes_nothing(terminal: Terminal) -> None:
    first = terminal.up("--auth token")
    assert first["changed"] is True
    assert len(first["launched"]) == 1 + NODES
    again = terminal.up("--auth token")
    assert (again["changed"], again["launched"], again["local"]["started"]) == (False, [], [])
    assert {role["pid"] for role in again["roles"]} == {role["pid"] for role in first["roles"]}
    assert "not of 2" in terminal.ebla("up --local 2").err


def test_status_shows_roles_and_health(terminal: Terminal) -> None:
    document = terminal.ebla("status --json").json
    assert [role["state"] for role in document["roles"]] == ["running"] * (1 + NODES)
    assert document["health"]["status"] == "HEALTHY"
    shown = terminal.ebla("status")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines()[-1] == f"HEALTHY: 0 tables, 0 tablets, {NODES} of {NODES} servers up"


def test_a_submitted_job_feeds_a_table_with_token_authentication(terminal: Terminal) -> None:
    made = terminal.ebla(CREATE)
    assert (made.status, made.out) == (0, "created table flights: 4 columns, 2 tablets x 3 replicas, raft\n")
    source = terminal.home / "flights.csv"
    rows = (f"{'AA' if n % 2 else 'UA'},{n},{n * 10},2013-07-04T12:00:00Z" for n in range(ROWS))
    source.write_text("\n".join(["carrier,flight,distance,at", *rows]) + "\n")
    assert terminal.exports["RAY_AUTH_MODE"] == "token"
    fed = terminal.job(f"env EBLA_LOCAL_DIR=/nowhere ebla feed {source} flights")
    assert fed.status == 0, fed
    assert f"{ROWS} in " in fed.out


@pytest.mark.parametrize(
    "shown", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}]
)
def test_a_process_without_the_token_is_refused_with_the_remedy(
    terminal: Terminal, tmp_path: Path, shown: dict[str, str]
) -> None:
    address = terminal.exports["RAY_ADDRESS"]
    refused = terminal.run(["ebla", "status", "--address", address], HOME=str(tmp_path), **shown)
    assert (refused.status, refused.err.count("\n")) == (1, 1), refused
    assert "refuses this process: set RAY_AUTH_MODE=token" in refused.err


def test_rows_are_scanned_to_stdout_and_into_a_file(terminal: Terminal) -> None:
    found = terminal.ebla("table scan flights --json -w", "carrier == 'AA' and 20 < distance <= 90").json
    assert sorted(row["flight"] for row in found["rows"]) == [3, 5, 7, 9]
    assert found["rows"][0]["at"] == "2013-07-04T12:00:00Z"
    assert terminal.ebla("table export flights rows.parquet").status == 0
    assert (terminal.home / "rows.parquet").stat().st_size > 0


def test_nodes_and_checksums_are_shown(terminal: Terminal) -> None:
    nodes = terminal.ebla("nodes -d --json").json["nodes"]
    assert [len(node["replica_list"]) for node in nodes] == [2] * NODES
    require_every_row(terminal)


def cluster_processes(terminal: Terminal) -> list[psutil.Process]:
    cluster = LocalCluster.attach(terminal.local)
    return [process for number in range(1, NODES + 1) for process in cluster.processes(number)]


def test_after_the_death_of_every_process_up_brings_every_row_back_without_authentication(
    terminal: Terminal,
) -> None:
    processes = cluster_processes(terminal)
    before = terminal.data_dir
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # some end by themselves after the others
            process.kill()
    eventually(lambda: not running(processes), "every process has ended")
    back = terminal.up("--auth disabled --no-dashboard")
    assert (back["changed"], back["data_dir"]) == (True, before)
    require_every_row(terminal)


def test_a_table_is_dropped_and_down_ends_every_process_after_an_interrupted_one(terminal: Terminal) -> None:
    assert terminal.ebla("table drop flights -y").out == "dropped table flights\n"
    assert terminal.ebla("table list --json").json == {"tables": []}
    roles = {role["address"]: role["pid"] for role in terminal.ebla("status --json").json["roles"]}
    held = psutil.Process(roles["tablet-server/host-2"])
    held.suspend()  # down waits for this role
    status, shown = terminal.interrupted("down -y", f"1 of {1 + NODES} roles are stopping")
    held.resume()
    assert status == 130, shown
    assert "ebla: interrupted" in shown and "`ebla down` stops the others" in shown
    assert "Traceback" not in shown
    processes = cluster_processes(terminal)
    assert processes
    ended = terminal.ebla("down -y --json")
    assert (ended.json["local_cluster_ended"], ended.json["killed"]) == (True, []), ended
    assert running(processes) == []
