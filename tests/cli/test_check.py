"""`ebla check` and `ebla nodes`: health, disks, and checksums; tablets that cannot be compared are named, in time."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import AlreadyInProgress
from ebla.actors.tablet.engine.space import Space
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.medium import SPACE_BYTES
from ebla.health import survey
from ebla.health.verdicts import Digests, Unanswered
from ebla.show import progress
from ebla.storage.schema import TableSchema
from tests.cli.stage import HOSTS, ROWS, SERVERS, Cli, Stage
from tests.source import ROOT


async def one_server_down(stage: Stage) -> None:
    await stage.table()
    stage.cluster.crash("tablet-server/host-c")


def test_a_check_of_a_healthy_deployment_has_status_0(loaded: Cli) -> None:
    outcome = loaded("check")
    assert (outcome.status, outcome.lines[-1]) == (0, "HEALTHY: 1 table, 2 tablets, 3 of 3 servers up")
    document = loaded("check --json").json
    assert (document["status"], document["healthy"], document["reasons"]) == ("HEALTHY", True, [])


def test_a_check_names_missing_servers_and_has_status_1(ebla: Cli) -> None:
    outcome = ebla("check", prepare=one_server_down)
    assert outcome.status == 1
    assert "UNDER_REPLICATED: 1 table, 2 tablets, 2 of 3 servers up" in outcome.lines
    assert outcome.text.count("UNDER_REPLICATED") == 4, (
        "each tablet, its table and the deployment say it once"
    )
    assert all(len(line) <= 100 for line in outcome.lines)
    whole = "is UNREACHABLE; no other host that is up can take it: bring it back, or add one"
    assert f"tablet-server/host-c {whole}" in outcome.text, "the remedy is not cut off"
    document = ebla("check --json", prepare=one_server_down).json
    assert document["healthy"] is False
    unreachable = [s["address"] for s in document["servers"] if s["status"] == "UNREACHABLE"]
    assert unreachable == ["tablet-server/host-c"]


def test_a_check_waits_for_health_on_request(ebla: Cli) -> None:
    async def restarting(stage: Stage) -> None:
        await one_server_down(stage)

        async def back() -> None:
            await stage.db._client.world.clock.sleep(5.0)
            await stage.cluster.restart("tablet-server/host-c")

        stage.db._client.world.spawn(back(), "back")

    assert ebla("check --wait 60", prepare=restarting).status == 0


def test_checksums_compare_every_replica(loaded: Cli) -> None:
    outcome = loaded("check --checksum")
    assert outcome.status == 0
    assert f"checksums: 2 of 2 tablets agree, 6 replicas compared, {len(ROWS)} rows" in outcome.lines
    document = loaded("check --checksum --json").json
    for tablet in document["tablets"]:
        assert len({replica["digest"] for replica in tablet["replicas"]}) == 1
        assert tablet["checksum_index"] > 0


def test_a_check_of_one_table_covers_no_other_table(ebla: Cli) -> None:
    async def two(stage: Stage) -> None:
        await stage.table("one")
        await stage.table("two")

    assert [t["name"] for t in ebla("check one --json", prepare=two).json["tables"]] == ["one"]
    assert ebla("check three", prepare=two).status == 1


def test_nodes_shows_the_replicas_of_each_host(loaded: Cli) -> None:
    outcome = loaded("nodes -d")
    assert [line.split()[0] for line in outcome.lines[1:4]] == list(HOSTS)
    document = loaded("nodes -d --json").json
    assert [len(node["replica_list"]) for node in document["nodes"]] == [2, 2, 2]
    assert {replica["table"] for node in document["nodes"] for replica in node["replica_list"]} == {"flights"}


# -- disks ---------------------------------------------------------------------------------------------------


async def until(stage: Stage, holds: Callable[[Space], bool]) -> None:
    while not holds(stage.cluster.role(SERVERS[0]).space):
        await asyncio.sleep(0.1)


async def full(stage: Stage) -> None:
    stage.cluster.state(SERVERS[0]).fill()
    await until(stage, lambda space: space.full)


async def nearly_full(stage: Stage) -> None:
    stage.cluster.state(SERVERS[0]).free_bytes = 200 << 20
    await until(stage, lambda space: space.disks[0].free_bytes < SPACE_BYTES)


def test_a_deployment_that_refuses_writes_for_lack_of_space_is_not_healthy(ebla: Cli) -> None:
    checked = ebla("check", prepare=full)
    assert checked.status == 1
    assert "DISK_FULL: 0 tables, 0 tablets, 3 of 3 servers up" in checked.out
    refused = "DISK_FULL: writes are refused until space is freed: 0 B of 1.0 TiB left under /"
    assert f"tablet-server/host-a is {refused}" in checked.text
    document = ebla("check --json", prepare=full).json
    assert (document["status"], document["healthy"]) == ("DISK_FULL", False)
    assert [server["status"] for server in document["servers"]] == ["DISK_FULL", "HEALTHY", "HEALTHY"]


def test_a_nearly_full_disk_gives_a_warning(ebla: Cli) -> None:
    checked = ebla("check", prepare=nearly_full)
    assert checked.status == 0
    left = "free space before writes are refused: 200 MiB of 1.0 TiB left under /"
    assert f"warning: tablet-server/host-a: {left}" in checked.text
    assert "warning" not in ebla("check").out


async def larger_reserve(stage: Stage) -> None:
    stage.cluster.role(SERVERS[0]).space.reserve_bytes = SPACE_BYTES // 2
    stage.cluster.state(SERVERS[0]).free_bytes = SPACE_BYTES // 2 + (40 << 30)  # 4 % above the reserve
    await until(stage, lambda space: space.disks[0].free_bytes < SPACE_BYTES)


@pytest.mark.parametrize("command", ["check", "nodes"])
def test_the_warning_comes_before_a_larger_reserve_is_reached(ebla: Cli, command: str) -> None:
    shown = ebla(command, prepare=larger_reserve)
    left = "free space before writes are refused: 552 GiB of 1.0 TiB left under /"
    assert shown.status == 0 and f"warning: tablet-server/host-a: {left}" in shown.text


def test_the_documented_output_of_nodes_has_the_columns_that_it_prints(loaded: Cli) -> None:
    printed = [*loaded("nodes").lines[0].split(), "REMARK"]  # it is left out while no host has one
    shown = [page.read_text().split("$ ebla nodes\n")[1:] for page in sorted((ROOT / "docs").glob("*.md"))]
    documented = [after.splitlines()[0].split() for parts in shown for after in parts]
    assert documented and all(columns == printed for columns in documented)


def test_nodes_shows_free_disk_space(ebla: Cli) -> None:
    listed = ebla("nodes", prepare=nearly_full)
    assert "FREE" in listed.lines[0] and "200 MiB" in listed.out and "1.0 TiB" in listed.out
    document = ebla("nodes --json", prepare=nearly_full).json
    assert [node["free_bytes"] for node in document["nodes"]] == [200 << 20, SPACE_BYTES, SPACE_BYTES]


# -- checksums -----------------------------------------------------------------------------------------------


def majority_lost(stage: Stage) -> None:
    for server in SERVERS[1:]:
        stage.cluster.crash(server)


def servers_cut(stage: Stage) -> None:
    for one, other in itertools.combinations(SERVERS, 2):
        stage.cluster.network.cut(one, other)


def server_paused(stage: Stage) -> None:
    stage.cluster.pause(SERVERS[0])


@pytest.mark.parametrize(
    ("fault", "seconds_max", "err", "out"),
    [
        (
            majority_lost,
            10.0,
            "not compared, for they take no writes: flights ",
            ["; not compared: 2 tablets"],
        ),
        (servers_cut, 40.0, "", ["was applied nowhere within 10 s", "2 tablets UNWRITABLE"]),
        (server_paused, 60.0, "", ["UNREACHABLE"]),
    ],
)
def test_a_check_of_tablets_that_cannot_be_compared_names_them_and_ends_in_time(
    ebla: Cli, fault: Callable[[Stage], None], seconds_max: float, err: str, out: list[str]
) -> None:
    began: list[tuple[asyncio.AbstractEventLoop, float]] = []

    async def prepare(stage: Stage) -> None:
        await stage.table()
        fault(stage)  # immediately before the command
        loop = asyncio.get_running_loop()
        began.append((loop, loop.time()))

    outcome = ebla("check --checksum", prepare=prepare)
    ((loop, began_s),) = began
    assert (outcome.status, loop.time() - began_s < seconds_max) == (1, True)
    assert outcome.err.startswith(err) and all(words in outcome.text for words in out), outcome
    assert fault is not majority_lost or "no checksum" not in outcome.out


class Reading:
    """Replicas that begin a checkpoint at once, and compute the digest for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began: dict[str, float] = {}

    async def call(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
        now = asyncio.get_running_loop().time()
        if method == "checksum_start":
            return m.ChecksumStarted(message.tablet, 7)
        left_s = self.began.setdefault(message.tablet, now) + self.seconds - now
        await asyncio.sleep(min(left_s, message.timeout_s))
        if left_s > message.timeout_s:
            raise AlreadyInProgress("it still reads", tablet=message.tablet)
        return m.ChecksumReply(message.tablet, 7, 100, "x")


def table_of(*tablets: str) -> m.TableInfo:
    here = (m.ReplicaLocation("u1", SERVERS[0], "leader", True),)
    places = [m.TabletLocation(name, at, "running", SERVERS[0], 1, here) for at, name in enumerate(tablets)]
    return m.TableInfo("id", "t", "running", TableSchema((), ()), 1, "raft", 0, tuple(places), {})


def test_a_slow_replica_is_asked_again_until_the_common_deadline() -> None:
    tablets = [f"t{number}" for number in range(10)]

    async def main() -> tuple[dict[str, Digests], float]:
        found = await survey.digests(Reading(60.0), [table_of(*tablets)], timeout_s=150.0)
        return found, asyncio.get_running_loop().time()

    found, seconds = run(main())
    digested = [name for name in tablets if isinstance(found[name].replicas.get("u1"), m.ChecksumReply)]
    assert digested == tablets[:8], "four at a time, twice within the deadline"
    assert seconds <= 150.0 + survey.SERVER_S
    late = found["t8"].replicas["u1"]
    assert isinstance(late, Unanswered) and late.kind == "AlreadyInProgress"


def test_ctrl_c_ends_a_comparison_without_a_traceback() -> None:
    code = (
        "import asyncio\n"
        "from ebla.cli.frame import quiet\n"
        "from ebla.health import survey\n"
        "from tests.cli.test_check import table_of\n"
        "class Silent:\n"
        "    async def call(self, *arguments):\n"
        "        print('waiting', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "try: quiet.run(survey.digests(Silent(), [table_of('t1')]))\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)


def test_progress_is_shown_unless_it_is_switched_off(loaded: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    assert "asking every server" in loaded("check").err
    assert [loaded(words).err for words in ("check -q", "-q check", "check --json")] == ["", "", ""]
