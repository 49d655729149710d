"""Commands on simulated deployments. Nothing here needs Ray."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

import ebla
from ebla import aio
from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.worker import ReplicationWorker
from ebla.chaos.simulation.loop import run
from ebla.cli.app import app
from ebla.cli.frame import connection as seam
from ebla.cli.frame.ui import Ui
from ebla.operate.cluster import Cluster
from tests.client import real_roles
from tests.client.toy import HOSTS, address
from tests.master.group_stage import GroupStage

SERVERS = tuple(address(host) for host in HOSTS)
SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), False),
        pa.field("flight", pa.int32(), False),
        pa.field("distance", pa.int32()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
ROWS = [
    {"carrier": carrier, "flight": flight, "distance": 100 * flight, "at": None}
    for carrier in ("AA", "UA")
    for flight in range(1, 11)
]


@dataclass
class Outcome:
    status: int
    out: str
    err: str
    seen: Any = None  # what `after` returned

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]

    @property
    def message(self) -> str:
        """stderr as one line."""
        return " ".join(self.err.split())

    @property
    def text(self) -> str:
        """stdout as one line."""
        return " ".join(self.out.split())

    def require(self, status: int, words: str) -> None:
        """The command ended with this status, and said these words on stderr."""
        assert (self.status, words in self.message) == (status, True), self.err or self.out


def invoke(*words: str, typed: str | None = None) -> Outcome:
    result = CliRunner().invoke(app, words, input=typed, catch_exceptions=False)
    return Outcome(result.exit_code, result.stdout, result.stderr)


class Stage(real_roles.Stage):
    async def table(self, name: str = "flights", buckets: int = 2) -> aio.Table:
        table = await self.db.create_table(
            name,
            schema=SCHEMA,
            primary_key=["carrier", "flight"],
            partition_by=ebla.hash("flight", buckets=buckets),
        )
        await table.upsert(ROWS)
        return table


Act = Callable[[Any], Awaitable[object]]


@dataclass
class Cli:
    """Runs commands, each on a new deployment: `start` opens the deployment, `prepare` and `after` run around the command.
    `after` also runs after a failure, and may be a function without `await`; the outcome has its result.

    The command is one string, with further words that have spaces. `typed` is the input of a user at a terminal.
    """

    monkeypatch: pytest.MonkeyPatch
    start: Callable[[], Awaitable[tuple[Any, Cluster]]]
    seed: int = 0
    prepare: Act | None = None  # for commands without another `prepare`

    def __call__(
        self,
        command: str,
        *words: str,
        prepare: Act | None = None,
        after: Callable[[Any], object] | None = None,
        typed: str | None = None,
    ) -> Outcome:
        prepare = prepare or self.prepare
        seen: list[object] = [None]  # without a connection there is nothing to see

        def connected(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, Any]]) -> Any:
            async def main() -> Any:
                stage, cluster = await self.start()
                if prepare is not None:
                    await prepare(stage)
                try:
                    return await work(cluster)
                finally:
                    if after is not None:
                        found = after(stage)
                        seen.append(await found if inspect.isawaitable(found) else found)

            return run(main(), self.seed)

        self.monkeypatch.setattr(seam, "connected", connected)
        if typed is not None:
            self.monkeypatch.setattr(Ui, "interactive", property(lambda self: True))
        outcome = invoke(*command.split(), *words, typed=typed)
        outcome.seen = seen[-1]
        return outcome


async def start() -> tuple[Stage, Cluster]:
    """A real master and three real tablet servers."""
    stage = await real_roles.start(Stage)
    return stage, Cluster(stage.session, SERVERS)


STORES = tuple(f"ledger-store/{host}" for host in (*HOSTS, "host-d"))


class LogStage(Stage):
    """With four ledger stores."""

    def store(self, host: str) -> LedgerStore:
        found: LedgerStore = self.cluster.role(f"ledger-store/{host}")
        return found

    async def log(self, name: str = "events", records: int = 5, **settings: Any) -> aio.Log:
        """A log with these records, and no writer."""
        log = await self.db.create_log(name, **settings)
        async with log.writer() as writer:
            for number in range(records):
                await writer.append(b"record %d" % number)
        return log


async def start_with_logs() -> tuple[LogStage, Cluster]:
    stage = await real_roles.start(LogStage)
    for each in STORES:
        await stage.cluster.start(each, LedgerStore)
    while len(await stage.db._logs.registry.stores()) < len(STORES):
        await asyncio.sleep(0.1)
    return stage, Cluster(stage.session, SERVERS, stores=STORES[:1])


async def repaired(stage: LogStage) -> None:
    """With an auditor and a worker."""
    options = WorkerOptions(grace_s=3.0, backoff_s=2.0, look_s=1.0)
    await stage.cluster.start("replication-worker/host-a", lambda world: ReplicationWorker(world, options))
    auditor = AuditorOptions(delay_s=5.0, settle_s=1.0)
    await stage.cluster.start("auditor/0", lambda world: Auditor(world, auditor))


async def start_group() -> tuple[GroupStage, Cluster]:
    """Two masters, three journal nodes and three tablet servers."""
    stage = GroupStage()
    await stage.open()
    servers = [f"tablet-server/{host}" for host in stage.hosts]
    return stage, Cluster(stage.session, servers, stage.journals)


def terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> io.StringIO:
    """Let commands print to a terminal; the result has the printed text."""
    printed = io.StringIO()
    console = Console(file=printed, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(Ui, "out", property(lambda self: console))
    return printed
