"""Hosts that are lost, for good or for a while: reasons for operators to force configurations and to forget servers.

    away        two hosts at once; they return with all their data, whatever operators did meanwhile
    lose_hosts  two hosts for good. Some tablets lose their majority, but only tablets of the tables in Shape.forced, and each of
                them keeps a running voter; all other tablets keep a majority
    lose_host   one host, for good
    lose_data   the rows of a server's tablets; each tablet keeps a voter that has its rows

A PacificA tablet needs one voter in place of a majority. Voters that are silent just then may lose their votes before the loss is
noticed, and `min_members` stay: so fewer than that are lost. One that loses all voters keeps another running replica.

A server that was forgotten while it was down gives up its directory when it returns, and starts as a new server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ebla.actors.master.leadership.group import Master
from ebla.actors.master.messages import ForgetRequest
from ebla.actors.replication.configuration import VOTER, Configuration
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.plans import Fault
from ebla.chaos.simulation.deployment import Deployment, address_of
from ebla.chaos.simulation.network_faults import NetworkFaults
from ebla.storage.errors import Corruption, OldCopy
from ebla.storage.tablets.tablet_store import path_of


@dataclass
class Known:
    """A tablet as all servers know it, including those that are down: replicas by address, and all configurations that may be
    in force. `appointed`: the configuration in the catalog, of a PacificA tablet."""

    table: str
    appointed: Configuration | None = None
    replicas: dict[str, Replica] = field(default_factory=dict)

    def configurations(self) -> Iterator[Configuration]:
        cores = [replica.core for replica in self.replicas.values()]
        committed = max((core.committed_configuration for core in cores), key=lambda each: each.order)
        yield committed
        yield from (core.configuration for core in cores if core.configuration.order > committed.order)
        yield from (core.asked for core in cores if core.asked is not None)
        if self.appointed is not None:
            yield self.appointed

    def sound(self, configuration: Configuration) -> list[str]:
        """The addresses of its voters whose replicas run, or ran, and know that they may vote."""
        return [
            peer.address
            for peer in configuration.voters()
            if (replica := self.replicas.get(peer.address)) is not None
            and replica.state == RUNNING
            and (own := replica.core.committed_configuration.peer(peer.uuid)) is not None
            and own.member == VOTER
        ]

    def running(self) -> list[str]:
        """The addresses of its replicas that run, or ran."""
        return [address for address, replica in self.replicas.items() if replica.state == RUNNING]


class HostLosses(NetworkFaults):
    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment)
        self._data_lost: dict[str, None] = {}  # addresses of servers whose data disks failed
        self.network.tap("forget_server", ForgetRequest, self._note_forget)

    def lost_data(self, address: str, error: BaseException) -> bool:
        return isinstance(error, Corruption) and address in self._data_lost

    def gives_up(self, address: str, error: BaseException) -> bool:
        return isinstance(error, OldCopy) and address in self.deployment.forgotten

    def _note_forget(self, request: ForgetRequest) -> None:
        address = request.server
        if address in self.deployment.servers and not self.deployment.cluster.alive(address):
            self.deployment.forgotten[address] = None

    async def _away(self, fault: Fault) -> None:
        self.effects[fault.kind] += any(map(self.deployment.cluster.alive, map(address_of, fault.where)))
        with self.deployment.down(*fault.where):
            await asyncio.sleep(fault.for_s)

    async def _lose_hosts(self, fault: Fault) -> None:
        for host in self._tolerable_pair(fault.where[0]):
            self.effects[fault.kind] += 1
            self.deployment.lose(host)

    async def _lose_host(self, fault: Fault) -> None:
        (host,) = fault.where
        if self.deployment.tolerates_loss_of(host):
            self.effects[fault.kind] += 1
            self.deployment.lose(host)

    async def _lose_data(self, fault: Fault) -> None:
        """Lose the data disk: its replicas fail and are copied again, and no other replica is affected."""
        address = address_of(fault.where[0])
        state = self.deployment.cluster.state(address)
        lost = [path for path in state.environments if path.startswith(path_of(""))]
        tolerable = self._hit_by(fault.where, self._known()) is not None
        if lost and tolerable and self.deployment.cluster.alive(address):
            self.effects[fault.kind] += 1
            self._data_lost[address] = None
            state.lose_data(*lost)

    def _tolerable_pair(self, host: str) -> tuple[str, ...]:
        """The host, and the one with which most tablets lose their majority; empty if no loss is tolerable."""
        known = self._known()
        found: dict[tuple[str, ...], int] = {}
        for other in self.deployment.hosts:
            hit = self._hit_by((host, other), known)
            if other != host and hit is not None:
                found[host, other] = hit
        return () if self.deployment.gone or not found else max(found, key=lambda pair: found[pair])

    def _hit_by(self, pair: tuple[str, ...], known: dict[str, Known]) -> int | None:
        """How many tablets would lose their majority; None if one would that must not, or that would lose all its data."""
        lost, hit = [address_of(host) for host in pair], 0
        for tablet in known.values():
            for configuration in tablet.configurations():
                appoints = configuration.primary is not None
                if appoints and tablet.appointed is None:
                    return None  # no master knows its voters
                left = self._left(tablet.sound(configuration), lost)
                if appoints and left and len(configuration.voters()) - len(left) < configuration.min_members:
                    continue
                if not appoints and len(left) >= configuration.majority:
                    continue
                if tablet.table not in self.deployment.shape.forced:
                    return None
                survivors = self._left(tablet.running(), lost) if appoints else left
                if not any(map(self.deployment.cluster.alive, survivors)):
                    return None
                hit += 1
        return hit

    def _left(self, addresses: Sequence[str], lost: Sequence[str]) -> list[str]:
        return [each for each in addresses if each not in lost and each not in self.deployment.gone]

    def _known(self) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for address in self.deployment.servers:
            server = self.deployment.cluster.role(address)
            for tablet, replica in server.replicas.items() if isinstance(server, TabletServer) else ():
                made = Known(replica.superblock.table_name, self._appointed(tablet))
                known = found.setdefault(tablet, made)
                known.replicas[address] = replica
        return found

    def _appointed(self, tablet: str) -> Configuration | None:
        master = self.deployment.cluster.role(self.deployment.master_address())
        term = master.active_term if isinstance(master, Master) else None
        record = None if term is None else term.master.catalog.tablets.get(tablet)
        return None if record is None else record.appointed
