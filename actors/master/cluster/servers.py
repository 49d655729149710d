"""The tablet servers that have sent a heartbeat since this master started: identity, liveness, load.

No state here is durable: an unknown server must register and report everything, so after one heartbeat the
master knows as much as before. Heartbeats of old incarnations are refused before (actors/incarnations.py).
Rules for heartbeats (Kudu's TSManager):

    unknown uuid, no registration        must register
    the same incarnation again           accepted: a retry
    a later incarnation                  accepted once it registers: it restarted, and must report in full
    a known uuid at another address      refused: a directory belongs to its host
    another uuid at a known address      the old server is gone from there: the host lost its disk
"""

from __future__ import annotations

from collections.abc import Collection, Container
from math import inf
from typing import Any, NamedTuple

import msgspec

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.messages import HeartbeatRequest, Registration, ServerInstance, ServerStatus, TabletReport
from ebla.storage.errors import InvalidArgument


class Server:
    """One incarnation of a tablet server. `has_ended`: its process has ended for certain, which was reported to the other servers."""

    def __init__(self, instance: ServerInstance, registration: Registration, now: float) -> None:
        self.instance = instance
        self.registration = registration
        self.seen_at = now
        self.reported_in_full = False
        self.sequence = -1
        self.report_under_way = self.has_ended = False
        self.load = HeartbeatRequest(instance)

    @property
    def uuid(self) -> str:
        return self.instance.uuid

    @property
    def address(self) -> str:
        return self.registration.address

    @property
    def host(self) -> str:
        return self.registration.host

    @property
    def takes_data(self) -> bool:
        return self.load.takes_data

    def expects(self, report: TabletReport) -> bool:
        """Whether to take the report: not if it is older than the last one, nor if it is incremental after a
        restart of either side. A repeated report is harmless."""
        return report.sequence >= self.sequence and (self.reported_in_full or not report.incremental)

    def took(self, report: TabletReport) -> None:
        self.sequence = report.sequence
        self.reported_in_full = True


class Marks(NamedTuple):
    """The marks of operators, by address. `drained`: draining servers without members. `unlisted`: known, and not on the allow list;
    they are `suspended`, too."""

    draining: Collection[str] = ()
    drained: Collection[str] = ()
    maintained: Collection[str] = ()
    suspended: Collection[str] = ()
    unlisted: Collection[str] = ()

    def addresses(self) -> dict[str, None]:
        return dict.fromkeys([*self.draining, *self.maintained, *self.suspended])

    def of(self, address: str) -> dict[str, Any]:
        return {name: address in marked for name, marked in self._asdict().items()}


UNMARKED = Marks()


def gets_new(catalog: Catalog, address: str) -> bool:
    """Whether no operator's mark keeps new replicas from the address."""
    return gets_leases(catalog, address) and not (
        address in catalog.draining or address in catalog.maintained
    )


def gets_leases(catalog: Catalog, address: str) -> bool:
    """Whether no operator has suspended the server at the address, and it is on the allow list if there is one."""
    return address not in catalog.suspended and not is_unlisted(catalog, address)


def is_unlisted(catalog: Catalog, address: str) -> bool:
    return bool(catalog.allowed) and address not in catalog.allowed


class Servers:
    """Until `presumed_until` a server without a heartbeat counts as alive, but gets no replicas. `settled_from`: when every live server
    should have sent a heartbeat."""

    def __init__(self, unresponsive_s: float, presumed_until: float = -inf) -> None:
        self._unresponsive_s = unresponsive_s
        self.presumed_until = presumed_until
        self.settled_from = inf
        self._servers: dict[str, Server] = {}  # by uuid
        self._at_address: dict[str, str] = {}

    def heartbeat(self, request: HeartbeatRequest, now: float) -> Server | None:
        """Note a heartbeat of a server; None if it must register first. Raises if it must not be served."""
        known = self._servers.get(request.instance.uuid)
        if request.registration is not None:
            known = self._register(request.instance, request.registration, known, now)
        if known is None or known.instance.start != request.instance.start:
            return None
        known.seen_at = now
        known.instance = max(known.instance, request.instance, key=lambda shown: shown.seqno)
        known.load = msgspec.structs.replace(request, registration=None, report=None)
        return known

    def _register(
        self, instance: ServerInstance, registration: Registration, known: Server | None, now: float
    ) -> Server:
        if known is not None and known.address != registration.address:
            raise InvalidArgument(
                f"server {instance.uuid} is registered at {known.address} and cannot move to "
                f"{registration.address}: a server's directory stays on its host"
            )
        if known is not None and known.instance.start == instance.start:
            known.registration = registration
            return known
        before = self._at_address.get(registration.address)
        if before is not None and before != instance.uuid:
            del self._servers[before]
        self._at_address[registration.address] = instance.uuid
        server = self._servers[instance.uuid] = Server(instance, registration, now)
        self._servers = dict(sorted(self._servers.items()))
        return server

    def settled(self, now: float) -> bool:
        """Whether the servers that are known are all that live."""
        return now >= max(self.settled_from, self.presumed_until)

    def get(self, uuid: str) -> Server | None:
        return self._servers.get(uuid)

    def current(self, server: Server) -> bool:
        """Whether this is still the known incarnation, to check after every wait."""
        return self._servers.get(server.uuid) is server

    def is_alive(self, uuid: str, now: float) -> bool:
        server = self._servers.get(uuid)
        if server is None:
            return now < self.presumed_until
        return now - server.seen_at <= self._unresponsive_s

    def answers(self, uuid: str, now: float) -> bool:
        """Whether the server has sent this master a heartbeat, and not too long ago.

        A master on an older copy of its catalog ends at a server's first heartbeat, so a call to a server
        that is only presumed to be alive could carry out an outdated decision.
        """
        return uuid in self._servers and self.is_alive(uuid, now)

    def answers_at(self, address: str, now: float) -> bool:
        """Whether any server at the address answers."""
        return self.answers(self._at_address.get(address, ""), now)

    def forget(self, uuids: Container[str]) -> None:
        for server in [server for server in self._servers.values() if server.uuid in uuids]:
            del self._servers[server.uuid]
            if self._at_address.get(server.address) == server.uuid:
                del self._at_address[server.address]

    def alive(self, now: float) -> list[Server]:
        """The live servers, by uuid."""
        return [server for uuid, server in self._servers.items() if self.is_alive(uuid, now)]

    def known(self) -> list[Server]:
        """All servers, by address."""
        return sorted(self._servers.values(), key=lambda server: server.address)

    def statuses(self, now: float, marks: Marks = UNMARKED, begun: float = 0.0) -> tuple[ServerStatus, ...]:
        """List the statuses by address, including marked servers without a heartbeat since `begun`."""
        found = [
            ServerStatus(
                uuid=server.uuid,
                seqno=server.instance.seqno,
                address=server.address,
                host=server.host,
                alive=self.is_alive(server.uuid, now),
                heartbeat_age_s=now - server.seen_at,
                replicas=server.load.replicas,
                leaders=server.load.leaders,
                disk_bytes=server.load.disk_bytes,
                memory_bytes=server.load.memory_bytes,
                version=server.registration.version,
                disks=server.load.disks,
                **marks.of(server.address),
            )
            for server in self._servers.values()
        ]
        for address in marks.addresses():
            if address not in self._at_address:
                host, marked = address.rpartition("/")[2], marks.of(address)
                found.append(ServerStatus("", 0, address, host, False, now - begun, 0, 0, 0, 0, "", **marked))
        return tuple(sorted(found, key=lambda status: status.address))
