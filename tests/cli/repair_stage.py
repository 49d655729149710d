"""Commands on a real master and toy tablet servers with scripted copies and quarantines."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import msgspec
import pytest

from ebla.actors import messages as m
from ebla.actors.world import World, rpc
from ebla.chaos.simulation.loop import run
from ebla.operate.cluster import Cluster
from ebla.transport.client import DeploymentClient
from tests.cli.stage import Cli
from tests.master.healed import OPTIONS, follower, hosts_of, leader, opened
from tests.master.stage import MASTER, Stage
from tests.master.toy_tablet_server import Script, ToyTabletServer

SEED = 9  # with which b holds a replica of the first tablet only


@dataclass
class Reported:
    """What one server reports, and the requests that it got. Each answer about copies is used once, the last one for good."""

    copies: list[tuple[m.CopyJob, ...]] = field(default_factory=lambda: [()])
    ended: list[m.CopyJob] = field(default_factory=list)
    replicas: list[m.ReplicaReport] = field(default_factory=list)
    quarantine: list[m.QuarantineEntry] = field(default_factory=list)
    requests: list[msgspec.Struct] = field(default_factory=list)
    looks: int = 0  # requests for its status


class ReportingServer(ToyTabletServer):
    reported: dict[str, Reported]

    def __init__(self, world: World, script: Script) -> None:
        super().__init__(world, script)
        self.own = self.reported.setdefault(script.host, Reported())

    @rpc
    async def status(self, request: m.Empty) -> m.ServerState:
        self.own.looks += 1
        replicas = (*(self._describe(replica) for replica in self.replicas.values()), *self.own.replicas)
        return m.ServerState(self.instance, self.world.address, self.script.host, replicas, 0, 0, 0)

    @rpc
    async def list_copies(self, request: m.Empty) -> m.CopyJobs:
        now = self.own.copies.pop(0) if len(self.own.copies) > 1 else self.own.copies[0]
        return m.CopyJobs(now, 0, tuple(self.own.ended))

    async def _accept(self, request: m.CancelCopyRequest | m.QuarantineRequest) -> m.Empty:
        self._check(request.dest_uuid)
        self.own.requests.append(request)
        return m.Empty()

    @rpc
    async def cancel_copy(self, request: m.CancelCopyRequest) -> m.Empty:
        return await self._accept(request)

    @rpc
    async def quarantine_list(self, request: m.Empty) -> m.QuarantineEntries:
        return m.QuarantineEntries(tuple(self.own.quarantine))

    @rpc
    async def quarantine_restore(self, request: m.QuarantineRequest) -> m.Empty:
        return await self._accept(request)

    @rpc
    async def quarantine_purge(self, request: m.QuarantineRequest) -> m.Empty:
        return await self._accept(request)

    @rpc
    async def unsafe_change(self, request: m.UnsafeChangeRequest) -> m.MembersReply:
        self._check(request.dest_uuid)
        self.own.requests.append(request)
        before = self.replicas[request.tablet].request.configuration
        kept = tuple(peer for peer in before.peers if peer.uuid in request.keep)
        forced = msgspec.structs.replace(before, peers=kept, index=before.index + 1, unsafe=before.unsafe + 1)
        return m.MembersReply(request.tablet, forced)


class RepairStage(Stage):
    """`tablets` are those of the one table, `flights`."""

    def __init__(self) -> None:
        super().__init__(OPTIONS)
        self.reported: dict[str, Reported] = {}
        self.server_class = type("Reporting", (ReportingServer,), {"reported": self.reported})
        self.tablets: list[str] = []

    async def start(self, hosts: str) -> DeploymentClient:
        self.tablets = await opened(self, hosts, buckets=2)
        return DeploymentClient(self.cluster.client_world("operator"), "toys", (MASTER,))

    def of(self, host: str) -> Reported:
        return self.reported[host]


@dataclass
class Toys(Cli):
    """Commands on these hosts, and the places of the first tablet's replicas, which are the same in every run."""

    hosts: str = "abcd"

    def __post_init__(self) -> None:
        self.tablet, self.held, self.leader, self.follower = places(self.hosts)
        self.spare = next((host for host in self.hosts if host not in self.held), "")


def on_toys(monkeypatch: pytest.MonkeyPatch, hosts: str = "abcd") -> Toys:
    async def start() -> tuple[RepairStage, Cluster]:
        stage = RepairStage()
        session = await stage.start(hosts)
        return stage, Cluster(session, [f"tablet-server/{host}" for host in hosts])

    return Toys(monkeypatch, start, SEED, hosts=hosts)


@cache
def places(hosts: str) -> tuple[str, list[str], str, str]:
    """The first tablet, the hosts of its replicas, its leader and a follower."""

    async def main() -> tuple[str, list[str], str, str]:
        stage = RepairStage()
        await stage.start(hosts)
        tablet = stage.tablets[0]
        return tablet, hosts_of(stage, tablet), leader(stage, tablet), follower(stage, tablet)

    return run(main(), SEED)
