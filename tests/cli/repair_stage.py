"""The command line on a real master and toy tablet servers that tell of scripted copies and quarantines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from ebla.actors import messages as m
from ebla.actors.world import World, rpc
from ebla.chaos.simulation.loop import run
from ebla.cli.app import app
from ebla.cli.frame import connection as seam
from ebla.cli.frame.ui import Ui
from ebla.operate.cluster import Cluster
from ebla.options import ClientWorld
from ebla.transport.client import DeploymentClient
from tests.cli.stage import Outcome
from tests.master.healed import OPTIONS, opened
from tests.master.stage import MASTER, Stage
from tests.master.toy_tablet_server import Script, ToyTabletServer

SEED = 9  # with which b holds a replica of the first tablet only

Prepare = Callable[["RepairStage"], Awaitable[object]]


@dataclass
class Told:
    """What one server says of copies, look after look (the last one stays), of further replicas, and of its quarantine; and what
    it was asked."""

    copies: list[tuple[m.CopyJob, ...]] = field(default_factory=lambda: [()])
    ended: list[m.CopyJob] = field(default_factory=list)
    replicas: list[m.ReplicaReport] = field(default_factory=list)
    quarantine: list[m.QuarantineEntry] = field(default_factory=list)
    asked: list[msgspec.Struct] = field(default_factory=list)


class TellingServer(ToyTabletServer):
    told: dict[str, Told]

    def __init__(self, world: World, script: Script) -> None:
        super().__init__(world, script)
        self.own = self.told.setdefault(script.host, Told())

    @rpc
    async def status(self, request: m.Empty) -> m.ServerState:
        replicas = (*(self._describe(replica) for replica in self.replicas.values()), *self.own.replicas)
        return m.ServerState(self.instance, self.world.address, self.script.host, replicas, 0, 0, 0)

    @rpc
    async def list_copies(self, request: m.Empty) -> m.CopyJobs:
        now = self.own.copies.pop(0) if len(self.own.copies) > 1 else self.own.copies[0]
        return m.CopyJobs(now, 0, tuple(self.own.ended))

    @rpc
    async def cancel_copy(self, request: m.CancelCopyRequest) -> m.Empty:
        self._check(request.dest_uuid)
        self.own.asked.append(request)
        return m.Empty()

    @rpc
    async def quarantine_list(self, request: m.Empty) -> m.QuarantineEntries:
        return m.QuarantineEntries(tuple(self.own.quarantine))

    @rpc
    async def quarantine_restore(self, request: m.QuarantineRequest) -> m.Empty:
        self._check(request.dest_uuid)
        self.own.asked.append(request)
        return m.Empty()

    @rpc
    async def quarantine_purge(self, request: m.QuarantineRequest) -> m.Empty:
        self._check(request.dest_uuid)
        self.own.asked.append(request)
        return m.Empty()

    @rpc
    async def unsafe_change(self, request: m.UnsafeChangeRequest) -> m.MembersReply:
        self._check(request.dest_uuid)
        self.own.asked.append(request)
        before = self.replicas[request.tablet].request.configuration
        kept = tuple(peer for peer in before.peers if peer.uuid in request.keep)
        forced = msgspec.structs.replace(before, peers=kept, index=before.index + 1, unsafe=before.unsafe + 1)
        return m.MembersReply(request.tablet, forced)


class RepairStage(Stage):
    """`tablets`: of the one table, `flights`."""

    def __init__(self) -> None:
        super().__init__(OPTIONS)
        self.told: dict[str, Told] = {}
        self.server_class = type("Telling", (TellingServer,), {"told": self.told})
        self.tablets: list[str] = []

    async def start(self, hosts: str) -> DeploymentClient:
        self.tablets = await opened(self, hosts, buckets=2)
        world = self.cluster.client_world("operator")
        return DeploymentClient(
            ClientWorld(world.clock, world.network, world.random, world.spawn), "toys", (MASTER,)
        )

    def of(self, host: str) -> Told:
        return self.told[host]


@dataclass
class Repairing:
    """A command on a deployment of its own; `looked` is done with it afterwards."""

    monkeypatch: pytest.MonkeyPatch
    hosts: str = "abcd"

    def __call__(
        self,
        *words: str,
        prepare: Prepare | None = None,
        looked: Prepare | None = None,
        typed: str | None = None,
    ) -> Outcome:
        def connected(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, Any]]) -> Any:
            async def main() -> Any:
                stage = RepairStage()
                session = await stage.start(self.hosts)
                if prepare is not None:
                    await prepare(stage)
                answer = await work(Cluster(session, [f"tablet-server/{host}" for host in self.hosts]))
                if looked is not None:
                    await looked(stage)
                return answer

            return run(main(), SEED)

        self.monkeypatch.setattr(seam, "connected", connected)
        if typed is not None:
            self.monkeypatch.setattr(Ui, "interactive", property(lambda self: True))
        result = CliRunner().invoke(app, list(words), input=typed, catch_exceptions=False)
        return Outcome(result.exit_code, result.stdout, result.stderr)


def first_tablet(hosts: str = "abcd") -> str:
    """Its id is the same in every run of the same seed."""
    found: list[str] = []

    async def main() -> None:
        stage = RepairStage()
        await stage.start(hosts)
        found.extend(stage.tablets)

    run(main(), SEED)
    return found[0]
