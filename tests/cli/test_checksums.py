"""`ebla check --checksum` with tablets that cannot be compared: the command names them, and ends in time."""

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
from ebla.chaos.simulation.loop import run
from ebla.health import survey
from ebla.health.verdicts import Digests, Unanswered
from ebla.storage.schema import TableSchema
from tests.cli.stage import SERVERS, Cli, Stage


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
            "not compared, for they are UNAVAILABLE: flights ",
            ["; not compared: 2 tablets"],
        ),
        (servers_cut, 40.0, "", ["was applied nowhere within 10 s", "2 tablets UNAVAILABLE"]),
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
        "from tests.cli.test_checksums import table_of\n"
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
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
