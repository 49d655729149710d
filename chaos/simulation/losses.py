"""Hosts that are lost, for good or for a while: reasons for operators to force configurations and to forget servers.

    away        two hosts at once; they return with all their data, whatever operators did meanwhile
    lose_hosts  two hosts for good. Some tablets lose their majority, but only tablets of the tables in Shape.forced, and each of
                them keeps a running voter; all other tablets keep a majority
    lose_data   the rows of a server's tablets; each tablet keeps a voter that has its rows

A server that was forgotten while it was down gives up its directory when it returns, and starts as a new server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ebla.actors.master.messages import ForgetRequest
from ebla.actors.replication.configuration import VOTER, Configuration
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.plans import Fault
from ebla.chaos.simulation.deployment import Deployment, address_of
from ebla.chaos.simulation.network_faults import NetworkFaults
from ebla.storage.errors import Corruption, OldCopy
from ebla.storage.tablets.tablet_store import path_of

_forget_request = msgspec.msgpack.Decoder(ForgetRequest).decode


@dataclass
class Known:
    """A tablet as all servers know it, including those that are down: replicas by address, and all configurations that may be
    in force."""

    table: str
    replicas: dict[str, Replica] = field(default_factory=dict)

    def configurations(self) -> Iterator[Configuration]:
        cores = [replica.core for replica in self.replicas.values()]
        committed = max((core.committed_configuration for core in cores), key=lambda each: each.order)
        yield committed
        yield from (core.configuration for core in cores if core.configuration.order > committed.order)

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


class HostLosses(NetworkFaults):
    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment)
        self._data_lost: dict[str, None] = {}  # addresses of servers whose data disks failed
        self.network.tap("forget_server", self._note_forget)

    def lost_data(self, address: str, error: BaseException) -> bool:
        return isinstance(error, Corruption) and address in self._data_lost

    def gives_up(self, address: str, error: BaseException) -> bool:
        return isinstance(error, OldCopy) and address in self.deployment.forgotten

    def _note_forget(self, data: bytes) -> None:
        address = _forget_request(data).server
        if address in self.deployment.servers and not self.deployment.cluster.alive(address):
            self.deployment.forgotten[address] = None

    async def _away(self, fault: Fault) -> None:
        self.effects[fault.kind] += any(map(self.deployment.cluster.alive, map(address_of, fault.where)))
        for host in fault.where:
            self.deployment.hold_down(host)
        await asyncio.sleep(fault.for_s)
        for host in fault.where:
            self.deployment.release(host)

    async def _lose_hosts(self, fault: Fault) -> None:
        for host in self._tolerable_pair(fault.where[0]):
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
                sound = tablet.sound(configuration)
                left = [each for each in sound if each not in lost and each not in self.deployment.gone]
                if len(left) >= configuration.majority:
                    continue
                if tablet.table not in self.deployment.shape.forced:
                    return None
                if not any(map(self.deployment.cluster.alive, left)):
                    return None
                hit += 1
        return hit

    def _known(self) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for address in self.deployment.servers:
            server = self.deployment.cluster.role(address)
            for tablet, replica in server.replicas.items() if isinstance(server, TabletServer) else ():
                known = found.setdefault(tablet, Known(replica.superblock.table_name))
                known.replicas[address] = replica
        return found
