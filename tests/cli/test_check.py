"""`ebla check` and `ebla nodes`: health, disks, and checksums; tablets that cannot be compared are named, in time."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import AlreadyInProgress, Throttled, to_triple
from ebla.actors.tablet.engine.space import Space
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.medium import SPACE_BYTES
from ebla.health import survey
from ebla.health.digests import digests
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
    """A server that begins `begin_max` checkpoints with one call, and computes the digests of a tablet for `seconds`, of two tablets
    at a time."""

    def __init__(self, seconds: float, begin_max: int) -> None:
        self.seconds = seconds
        self.begin_max = begin_max
        self.ready_at: dict[str, float] = {}
        self.calls: list[tuple[str, str, int]] = []

    async def call(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
        now = asyncio.get_running_loop().time()
        if method == "checksum_start":
            begun = message.tablets[: self.begin_max]
            self.calls.append((address, method, len(begun)))
            for at, tablet in enumerate(begun):
                self.ready_at[tablet] = now + self.seconds * (1 + at // 2)
            later = len(message.tablets) - len(begun)
            busy = to_triple(Throttled("no room"))
            return m.ChecksumStarted(
                (*[7] * len(begun), *[None] * later), (*[None] * len(begun), *[busy] * later)
            )
        self.calls.append((address, method, len(message.checkpoints)))
        await asyncio.sleep(
            min(message.timeout_s, max(self.ready_at[t] for t, _ in message.checkpoints) - now)
        )
        now = asyncio.get_running_loop().time()
        late = to_triple(AlreadyInProgress("it still reads"))
        is_ready = [now >= self.ready_at[tablet] for tablet, _ in message.checkpoints]
        return m.ChecksumReply(
            tuple(m.Digest("", 7, 100, "x") if ready else None for ready in is_ready),
            tuple(None if ready else late for ready in is_ready),
        )


def table_of(*tablets: str, servers: Sequence[str] = SERVERS[:1]) -> m.TableInfo:
    """Each tablet has a replica on every server, and the servers lead in turn."""
    here = tuple(m.ReplicaLocation(address, address, "voter", True) for address in servers)
    places = [
        m.TabletLocation(name, at, "running", servers[at % len(servers)], 1, here)
        for at, name in enumerate(tablets)
    ]
    return m.TableInfo("id", "t", "running", TableSchema((), ()), 1, "raft", 0, tuple(places), {})


def test_slow_replicas_are_asked_again_until_the_common_deadline() -> None:
    tablets = [f"t{number:03}" for number in range(110)]

    async def main() -> tuple[dict[str, Digests], float]:
        found = await digests(Reading(60.0, begin_max=200), [table_of(*tablets)], timeout_s=150.0)
        return found, asyncio.get_running_loop().time()

    found, seconds = run(main())
    digested = [name for name in tablets if isinstance(found[name].replicas.get(SERVERS[0]), m.Digest)]
    assert digested == [*tablets[:4], *tablets[100:102]], "two at a time, twice, and two that got their room"
    assert seconds <= 150.0 + survey.SERVER_S
    late = found["t004"].replicas[SERVERS[0]]
    assert isinstance(late, Unanswered) and late.kind == "AlreadyInProgress"
    last = found["t109"].error
    assert last is not None and last.kind == "TimedOut", "the others have the room of the server"


class Stuck(Reading):
    """One replica never has its digest."""

    def __init__(self, tablet: str, address: str) -> None:
        super().__init__(0.0, begin_max=1000)
        self.stuck = tablet, address

    async def call(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
        if method == "checksum" and any((tablet, address) == self.stuck for tablet, _ in message.checkpoints):
            await asyncio.sleep(message.timeout_s)
            late = to_triple(AlreadyInProgress("it still reads"))
            is_late = [tablet == self.stuck[0] for tablet, _ in message.checkpoints]
            found = tuple(None if each else m.Digest("", 7, 100, "x") for each in is_late)
            return m.ChecksumReply(found, tuple(late if each else None for each in is_late))
        return await super().call(address, method, message, reply, timeout_s)


def test_one_slow_replica_holds_up_no_other_tablet() -> None:
    tablets = [f"t{number:03}" for number in range(1000)]
    network = Stuck(tablets[0], SERVERS[1])
    found = run(digests(network, [table_of(*tablets, servers=SERVERS[:3])], timeout_s=60.0))
    whole = [name for name in tablets if all(isinstance(d, m.Digest) for d in found[name].replicas.values())]
    assert whole == tablets[1:] and found["t000"].error is None


def test_one_call_to_a_server_begins_many_checkpoints_and_one_brings_many_digests() -> None:
    tablets = [f"t{number:03}" for number in range(250)]
    reading, shown = Reading(0.0, begin_max=100), []

    async def main() -> dict[str, Digests]:
        table = table_of(*tablets, servers=SERVERS[:3])
        return await digests(reading, [table], lambda done, total: shown.append((done, total)))

    found = run(main())
    assert all(isinstance(each.replicas[SERVERS[0]], m.Digest) for each in found.values())
    assert sorted(found) == tablets
    assert shown == [(0, 250), (100, 250), (200, 250), (250, 250)], (
        "no server has more than 100 replicas under way"
    )
    assert len(reading.calls) == 3 * (3 + 3), "in each wave one call to each leader, and one to each server"


def test_tablets_for_which_a_server_has_no_room_are_begun_in_a_later_wave() -> None:
    tablets = [f"t{number}" for number in range(7)]
    reading = Reading(0.0, begin_max=3)
    found = run(digests(reading, [table_of(*tablets)]))
    assert sorted(found) == tablets and all(each.index == 7 for each in found.values())
    assert [count for _, method, count in reading.calls if method == "checksum_start"] == [3, 3, 1]


def test_a_hung_server_holds_up_no_tablet_of_others() -> None:
    class Hung(Reading):
        async def call(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
            if address == "hung" and method == "checksum":
                await asyncio.sleep(message.timeout_s)
                late = to_triple(AlreadyInProgress("it still reads"))
                return m.ChecksumReply((None,) * len(message.checkpoints), (late,) * len(message.checkpoints))
            return await super().call(address, method, message, reply, timeout_s)

    there = [f"h{number:03}" for number in range(150)]
    here = [f"t{number:03}" for number in range(500)]
    tables = [table_of(*there, servers=["hung"]), table_of(*here, servers=SERVERS[:3])]
    found = run(digests(Hung(0.0, begin_max=1000), tables, timeout_s=60.0))
    assert all(isinstance(each, m.Digest) for name in here for each in found[name].replicas.values()) and all(
        len(found[name].replicas) == 3 for name in here
    )
    assert not any(isinstance(each, m.Digest) for name in there for each in found[name].replicas.values())


def test_an_error_of_the_comparison_itself_ends_it_at_once() -> None:
    class Broken(Reading):
        async def call(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
            if method == "checksum":
                await asyncio.sleep(4.0)
                raise RuntimeError("a defect")
            return await super().call(address, method, message, reply, timeout_s)

    async def main() -> float:
        with pytest.raises(RuntimeError, match="a defect"):
            await digests(Broken(0.0, begin_max=10), [table_of("t1")])
        return asyncio.get_running_loop().time()

    assert run(main()) < 5.0


def test_ctrl_c_ends_a_comparison_without_a_traceback() -> None:
    code = (
        "import asyncio\n"
        "from ebla.cli.frame import quiet\n"
        "from ebla.health.digests import digests\n"
        "from tests.cli.test_check import table_of\n"
        "class Silent:\n"
        "    async def call(self, *arguments):\n"
        "        print('waiting', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "try: quiet.run(digests(Silent(), [table_of('t1')]))\n"
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
