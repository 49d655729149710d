"""Groups of PacificA replicas on tablet servers, with a real master, which appoints their primaries and repairs nothing."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.detector.detector import Detector
from ebla.actors.master.catalog.edits import TableCreated, TabletAssigned
from ebla.actors.master.cluster.levels import FREEZED
from ebla.actors.master.messages import LevelRequest
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.pacifica.appointer import Appointer
from ebla.actors.master.server import ActiveMaster
from ebla.actors.messages.appointments import Appointed, Appointments
from ebla.actors.replication.configuration import PACIFICA, Configuration
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.chaos.simulation.masters import alone, start_alone
from tests.tablet.copies import until
from tests.tablet.harness import OTHER, SCHEMA, TABLET, Group, address, is_readable, simulated

MASTER = "master/0"
OPTIONS = MasterOptions(bg_s=0.1)
LIMITS = OPTIONS.detector


@dataclass
class PacificaGroup(Group):
    async def boot(self) -> None:
        await start_alone(self.cluster, alone(MASTER, OPTIONS))
        await self.master.levels.level(LevelRequest(FREEZED))
        self.watching = asyncio.ensure_future(self._watch())
        await super().boot()

    async def create(self, tablet: str) -> None:
        """A table of one tablet with a known name, on all hosts; the first one is the primary."""
        table = TableCreated(
            tablet, 0, f"table of {tablet}", tablet, SCHEMA, 3, PACIFICA, {}, 0, (tablet,), 2
        )
        assigned = TabletAssigned(tablet, self.creation(self.hosts[0], tablet).configuration)
        edits, master = [table, assigned], self.master
        await master.scribe.change("create", lambda: edits, lambda: master.appointer.assigned([tablet]))
        servers = [self.server(host) for host in self.hosts]
        await until(self, lambda: all(tablet in server.replicas for server in servers), "it is created")
        self.tablets.append(tablet)

    def creation(self, host: str, tablet: str = OTHER) -> m.CreateTabletRequest:
        made = super().creation(host, tablet)
        primary = self.uuid(self.hosts[0])
        first = Configuration(made.configuration.peers, 1, primary=primary, min_members=2)
        return replace(made, configuration=first)

    # -- the master

    async def start_master(self) -> None:
        await self.cluster.restart(MASTER)

    def stop_master(self) -> None:
        self.cluster.crash(MASTER)

    @property
    def master(self) -> ActiveMaster:
        """The one that serves, or did last."""
        active_term = self.cluster.role(MASTER).active_term if self.cluster.alive(MASTER) else None
        if active_term is not None:
            self._served: ActiveMaster = active_term.master
        return self._served

    @property
    def appointer(self) -> Appointer:
        return self.master.appointer

    @property
    def detector(self) -> Detector:
        return self.appointer.detector

    @property
    def stored(self) -> Configuration:
        known = self.master.catalog.tablets[TABLET].configuration
        assert known is not None
        return known

    def kinds(self) -> dict[str, str]:
        """By host: the kind of each member, as the catalog has it."""
        return {peer.address.rpartition("/")[2]: peer.kind for peer in self.stored.peers}

    def order(self, host: str, made: Configuration, tablet: str = TABLET) -> Appointments:
        """The master's order of a configuration to the host."""
        server = self.server(host)
        appointed = (Appointed(tablet, made),)
        return Appointments(server.instance.start, server.leasing.lease.number, appointed)

    # -- replicas

    def core(self, host: str, tablet: str = TABLET) -> PacificaCore:
        core = self.replica(host, tablet).core
        assert isinstance(core, PacificaCore)
        return core

    async def _watch(self) -> None:
        """At any time at most one server serves reads of the tablet, for as long as the test runs."""
        while True:
            await asyncio.sleep(0.01)
            known = [host for host in (*self.hosts, "host-d") if self.cluster.known(address(host))]
            serving = [host for host in known if self._serves(host)]
            if len(serving) > 1:
                self.cluster.loop.abort(AssertionError(f"two replicas serve: {serving}"))

    def _serves(self, host: str) -> bool:
        if not self.alive(host) or not self.server(host).running:
            return False
        replica = self.server(host).replicas.get(TABLET)
        return replica is not None and replica.leads and is_readable(self.server(host), replica)


pacifica = functools.partial(simulated, kind=PacificaGroup)


async def voting(group: PacificaGroup, *hosts: str) -> None:
    """Wait until exactly these hosts vote."""
    wanted = sorted(hosts)
    what = f"{wanted} vote"
    await until(group, lambda: sorted(h for h, k in group.kinds().items() if k == "voter") == wanted, what)
