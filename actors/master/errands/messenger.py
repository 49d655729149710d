"""The messenger: carries out the errands of errands.py, each as one call to a tablet server; and reports the end of a server to the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import TabletNotFound, WrongServer
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import TabletRecord
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.errands import errands as kinds
from ebla.actors.master.errands.errands import Errand, Errands
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.repair.repairs import Repair, Repairs
from ebla.actors.master.rules.healing import Action, Add, Evict, HandOver, Stay
from ebla.actors.messages.appointments import ProcessEnded
from ebla.actors.messages.repair import ADD, MODIFY, REMOVE
from ebla.actors.world import World
from ebla.storage.errors import DiskFull, EblaError

log = logging.getLogger(__name__)

LEFT = "it left the tablet's configuration"

Call = tuple[str, msgspec.Struct, type[Any]]  # method, message, type of the answer


@dataclass(eq=False)
class Messenger:
    """`repaired`: counts of the repairs that leaders carried out, by kind."""

    _world: World
    _options: MasterOptions
    _catalog: Catalog
    _servers: Servers
    _errands: Errands
    _repairs: Repairs

    def __post_init__(self) -> None:
        self.repaired: dict[type[Action], int] = dict.fromkeys((Add, Evict, HandOver, Stay), 0)

    def send(self) -> None:
        """Send all errands that are due, each in its own task."""
        for errand in self._errands.begin(self._catalog, self._servers, self._world.now()):
            self._world.spawn(self._run(errand), f"{errand.kind} {errand.tablet} at {errand.address}")

    def report_end(self, news: ProcessEnded) -> None:
        """Report to the other servers, once, that a server's process has ended."""
        ended = self._servers.get(news.process.uuid)
        if ended is None or ended.instance.start != news.process.start or ended.has_ended:
            return
        ended.has_ended = True
        for server in self._servers.alive(self._world.now()):
            if server is not ended:
                self._world.spawn(
                    self._report_end(server.address, news), f"end of {ended.address} to {server.address}"
                )

    async def _report_end(self, address: str, news: ProcessEnded) -> None:
        try:
            await self._world.network.call(
                address, "process_ended", news, m.Empty, self._options.rpc_timeout_s
            )
        except EblaError as error:
            log.info("%s did not get the report of an end, and waits for silence: %s", address, error)

    async def _run(self, errand: Errand) -> None:
        """Make one attempt."""
        await self._world.faults.here(f"master.{errand.kind}_tablet.before_rpc")
        repair = self._repair(errand)
        if not self._errands.still_wanted(errand, self._catalog) or (
            errand.kind == kinds.REPAIR and repair is None
        ):
            self._errands.abandoned(errand)
            return
        method, message, reply = self._call(errand, repair)
        try:
            await self._world.network.call(
                errand.address, method, message, reply, self._options.rpc_timeout_s
            )
        except EblaError as error:
            self._failed(errand, error)
        else:
            self._succeeded(errand, repair)
        self.send()

    def _failed(self, errand: Errand, error: EblaError) -> None:
        if errand.kind in (kinds.TOMBSTONE, kinds.DELETE) and isinstance(error, TabletNotFound | WrongServer):
            self._errands.gone(errand)
            return
        server = self._servers.get(errand.uuid)
        if isinstance(error, DiskFull) and server is not None:  # as its next heartbeat will report
            server.load = msgspec.structs.replace(server.load, takes_data=False)
        failures = self._errands.failed(errand, self._world.now())
        level = logging.WARNING if failures == 1 else logging.DEBUG
        log.log(level, "could not %s %s at %s: %r", errand.kind, errand.tablet, errand.address, error)

    def _succeeded(self, errand: Errand, repair: Repair | None) -> None:
        self._errands.succeeded(errand, self._world.now())
        if repair is not None:
            self.repaired[type(repair.action)] += 1
            log.info("tablet %s: %s", errand.tablet, _described(repair))

    def _repair(self, errand: Errand) -> Repair | None:
        """Return the present step, if the configuration is still that of the errand."""
        if errand.kind != kinds.REPAIR:
            return None
        repair = self._repairs.decide(self._catalog, self._servers, errand.tablet, self._world.now())
        return None if repair is None or repair.as_of != errand.as_of else repair

    def _call(self, errand: Errand, repair: Repair | None) -> Call:
        if repair is not None:
            return self._change(errand, repair)
        record = self._catalog.tablets[errand.tablet]
        if errand.kind == kinds.DELETE:
            return self._deletion(errand, record)
        if errand.kind == kinds.ALTER:
            alteration = self._catalog.alteration(record.table)
            return "alter_tablet", m.AlterTabletRequest(errand.uuid, errand.tablet, alteration), m.Empty
        assert record.configuration is not None
        if errand.kind == kinds.TOMBSTONE:
            unsafe, index = record.configuration.order
            request = m.DeleteTabletRequest(
                errand.uuid, errand.tablet, LEFT, True, index, unsafe, errand.term
            )
            return "delete_tablet", request, m.Empty
        table = self._catalog.tables[record.table]
        created = m.CreateTabletRequest(
            dest_uuid=errand.uuid,
            tablet=record.tablet,
            table=record.table,
            table_name=table.name,
            schema=table.created_schema,
            bucket=record.bucket,
            configuration=record.configuration,
        )
        return "create_tablet", created, m.Empty

    def _deletion(self, errand: Errand, record: TabletRecord) -> Call:
        name = self._catalog.tables[record.table].name
        reason = f"table {name} was dropped" if record.state == "deleted" else "the tablet was replaced"
        return "delete_tablet", m.DeleteTabletRequest(errand.uuid, errand.tablet, reason), m.Empty

    def _change(self, errand: Errand, repair: Repair) -> Call:
        """Make the message of a repair.

        The leader gets half of the time for the commit, so that the call ends before a retry.
        """
        timeout_s = self._options.rpc_timeout_s / 2
        match repair.action:
            case HandOver():
                return "step_down", m.StepDownRequest(errand.tablet, None, timeout_s), m.StepDownReply
            case Add(peer):
                change = m.MemberChange(ADD, peer)
            case Evict(peer, _):
                change = m.MemberChange(REMOVE, peer)
            case Stay(peer):
                change = m.MemberChange(MODIFY, peer)
        unsafe, index = repair.as_of
        request = m.ChangeMembersRequest(errand.uuid, errand.tablet, (change,), index, timeout_s, unsafe)
        return "change_members", request, m.MembersReply


def _described(repair: Repair) -> str:
    match repair.action:
        case Add(peer):
            return f"{peer.address} gets a replica"
        case Evict(peer, why):
            return f"{peer.address} was evicted: {why}"
        case HandOver():
            return f"{repair.leader.address} handed over"
        case Stay(peer):
            return f"{peer.address} stays: no other server can take its replica"
