"""For an operator whose tablet does not work: the evidence of its servers, and for PacificA tablets a forced configuration.

A forced configuration gives up every member but one, which leads in the next ballot and forced epoch. It may lack acknowledged
writes, so it is refused while a voter of the configuration in the catalog may have them:

    voter's lease    its replica, by the report of the process with that lease   then
    ended            -                                      given up, unless heartbeats of the server show a running replica
    alive            runs                                   refused: the voter has every acknowledged write
    alive            lacks entries, not running, or absent  given up; the primary once it has declined an order, too
    alive            not reported yet                       refused: ask again
    other            -                                      refused: the lease may hold still; ask again

Of a tablet in doubt (doubts.py) no replica can be known to have every acknowledged write, and none leads: the operator chooses.

So the former primary's lease is over before the edit. From the decision until the edit is durable no order of the former ballot
leaves (Planner.forcing). The members that were given up become former members: no order names them, and once the tablet is whole
again the master makes tombstones of them, and their data goes into quarantine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ebla.actors import messages as m
from ebla.actors.detector.detector import ENDED
from ebla.actors.errors import ConfigurationMoved, NotFound, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import ConfigurationForced, Edit
from ebla.actors.master.catalog.records import RUNNING, TabletRecord
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.pacifica.appointer import Appointer
from ebla.actors.messages.diagnosis import ForceRequest, HolderEvidence, TabletEvidence
from ebla.actors.replication.appointments import forced
from ebla.actors.replication.configuration import Configuration, Forced, Peer
from ebla.actors.world import World, rpc
from ebla.storage.errors import EblaError, InvalidArgument

log = logging.getLogger(__name__)

FORMER, TOMBSTONE, STRAY = "former", "tombstone", "stray"
BY_MAX = 200  # characters of an operator's name


@dataclass(eq=False)
class Forcing:
    _world: World
    _catalog: Catalog
    _scribe: Scribe
    _views: Views
    _servers: Servers
    _appointer: Appointer

    # -- evidence --------------------------------------------------------------------------------------------

    @rpc
    async def tablet_evidence(self, request: m.TabletRequest) -> TabletEvidence:
        record = self._record(request.tablet)
        table = self._catalog.tables[record.table]
        view = self._views.of(record.tablet)
        return TabletEvidence(
            tablet=record.tablet,
            table=table.name,
            state=record.state,
            replication=table.replication,
            replicas=table.replicas,
            min_members=table.min_members,
            configuration=record.configuration,
            leader=view.leader,
            committed=view.committed,
            holders=tuple(self._holder(record.tablet, *each) for each in self._holders(record)),
            forced=record.forced,
            grace_s=self._appointer.grace_s,
            in_doubt=self._appointer.planner.why_in_doubt(self._world.now(), record.tablet),
        )

    def _record(self, tablet: str) -> TabletRecord:
        record = self._catalog.tablets.get(tablet)
        if record is None or tablet in self._catalog.ended:
            raise NotFound(f"there is no tablet {tablet!r}; see `ebla tablet list`", what=tablet)
        return record

    def _holders(self, record: TabletRecord) -> list[tuple[Peer, str]]:
        """Every server that holds or held the tablet, and its part, each once."""
        members = record.configuration.peers if record.configuration is not None else ()
        found = [(peer, peer.kind) for peer in members]
        found += [(peer, FORMER) for peer in record.former]
        found += [(peer, TOMBSTONE) for peer in record.tombstones]
        known = {peer.uuid for peer, _ in found}
        for uuid in self._views.of(record.tablet).states:
            server = self._servers.get(uuid)
            if uuid not in known and server is not None:
                found.append((Peer(uuid, server.address), STRAY))
        return found

    def _holder(self, tablet: str, peer: Peer, part: str) -> HolderEvidence:
        now, server = self._world.now(), self._servers.get(peer.uuid)
        watched = self._appointer.detector.shown(now, peer.uuid)
        return HolderEvidence(
            uuid=peer.uuid,
            address=peer.address,
            part=part,
            alive=self._servers.answers(peer.uuid, now),
            heartbeat_age_s=None if server is None else now - server.seen_at,
            lease="" if watched is None else watched.state,
            beacon_age_s=None if watched is None else watched.beacon_age_s,
            state=self._views.of(tablet).states.get(peer.uuid),
        )

    # -- a forced configuration ------------------------------------------------------------------------------

    @rpc
    async def force_primary(self, request: ForceRequest) -> m.MembersReply:
        """Give up every member but one, durably in the catalog when this answers; the order to the survivor follows."""
        tablet, forcing = request.tablet, self._appointer.planner.forcing
        self._require_possible(request)

        def decide() -> Sequence[Edit]:
            stored = self._require_possible(request)
            if stored is None:
                return ()
            forcing[tablet] = None
            return [self._edit(request, stored)]

        def conclude() -> m.MembersReply:
            present = self._catalog.tablets[tablet].appointed
            assert present is not None, tablet
            if forcing.pop(tablet, "absent") is None:
                self._views.appointed(tablet, present)
                self._appointer.assigned([tablet])
                log.warning("tablet %s was forced onto %s by %s", tablet, request.survivor, request.by)
            return m.MembersReply(tablet, present)

        try:
            reply = await self._scribe.change("force", decide, conclude)
        except EblaError:
            forcing.pop(tablet, None)
            raise
        self._appointer.orders.send()
        return reply

    def _edit(self, request: ForceRequest, stored: Configuration) -> ConfigurationForced:
        survivor, last = self._survivor(request), self._appointer.planner.followed(request.tablet, stored)
        made = forced(last, survivor)
        members = {peer.uuid: peer for peer in (*last.peers, *stored.peers)}
        record = Forced(
            ballot=made.index,
            survivor=survivor,
            given_up=tuple(peer for uuid, peer in members.items() if uuid != survivor.uuid),
            by=request.by[:BY_MAX],
            at_us=self._world.clock.wall_us(),
            last_index=request.last_index,
            committed=request.committed,
        )
        return ConfigurationForced(request.tablet, made, record)

    def _require_possible(self, request: ForceRequest) -> Configuration | None:
        """The configuration that is given up; None if this request has been carried out already. Raises NotFound,
        InvalidArgument, ConfigurationMoved, Unavailable."""
        record = self._record(request.tablet)
        if record.state != RUNNING:
            raise Unavailable(
                f"tablet {request.tablet} is {record.state}; the master makes its replicas by itself"
            )
        stored = record.appointed
        if stored is None:
            raise InvalidArgument(
                f"tablet {request.tablet} uses Raft; see `ebla tablet unsafe-change-config --help`"
            )
        last = record.forced[-1] if record.forced else None
        again = last is not None and last.survivor.uuid == request.survivor and last.ballot > request.ballot
        if again and stored.unsafe > request.unsafe:
            return None
        if (request.unsafe, request.ballot) != stored.order:
            raise ConfigurationMoved(
                f"tablet {request.tablet} is in ballot {stored.index} now, and the request is about ballot "
                f"{request.ballot}; run `ebla tablet diagnose` again",
                tablet=request.tablet,
                found=stored.index,
            )
        doubts = self._appointer.planner.doubts
        if request.tablet not in doubts:
            for voter in stored.voters():
                self._require_lost(request.tablet, voter, leads=voter.uuid == stored.primary)
        elif self._world.now() < doubts.ends_from:
            raise Unavailable(
                f"not every server has shown its replica of tablet {request.tablet} yet; ask again"
            )
        self._survivor(request)
        return stored

    def _require_lost(self, tablet: str, voter: Peer, *, leads: bool) -> None:
        now, uuid, at = self._world.now(), voter.uuid, voter.address
        watched, stamp = self._appointer.detector.shown(now, uuid), self._appointer.detector.lease(uuid)
        ended = watched is not None and watched.state == ENDED
        whole = self._appointer.planner.voters.is_whole(tablet, uuid)
        server = self._servers.get(uuid)
        if ended and server is not None and self._servers.answers(uuid, now):
            # It cannot write its log, or is not allowed a lease; its data may be read still.
            whole = self._appointer.planner.voters.shows_whole(tablet, server.instance)
        if whole:
            raise InvalidArgument(
                f"{at} has a voter of tablet {tablet} with every acknowledged write, and its server answers: nothing needs to be "
                "given up. Let it serve; or end that server for good, if its data cannot be used"
            )
        if ended:
            return
        if stamp is None:
            left_s = 0.0 if watched is None else watched.left_s
            raise Unavailable(
                f"the lease of {at}, a voter of tablet {tablet}, may hold for up to {left_s:.1f} s more; ask again"
            )
        if whole is None and not self._has_reported(uuid, stamp.start):
            raise Unavailable(
                f"{at}, a voter of tablet {tablet}, has not reported its replicas yet; ask again"
            )
        if leads and not self._appointer.planner.has_declined(tablet):
            raise Unavailable(
                f"{at}, the primary of tablet {tablet}, has not declined to lead yet; ask again"
            )

    def _has_reported(self, uuid: str, start: str) -> bool:
        server = self._servers.get(uuid)
        return server is not None and server.instance.start == start and server.reported_in_full

    def _survivor(self, request: ForceRequest) -> Peer:
        """The survivor, whose server has a lease and a running replica."""
        record, uuid = self._record(request.tablet), request.survivor
        found = [peer for peer, _ in self._holders(record) if peer.uuid == uuid]
        if not found:
            raise InvalidArgument(
                f"server {uuid} has no replica of tablet {request.tablet}; choose one that `ebla tablet diagnose` names"
            )
        if self._appointer.detector.lease(uuid) is None:
            raise Unavailable(
                f"{found[0].address} has no lease now; ask again when its server has run for a while"
            )
        if self._appointer.planner.voters.runs(request.tablet, uuid) is not True:
            raise InvalidArgument(
                f"the replica of tablet {request.tablet} at {found[0].address} does not run, so it cannot become the primary; "
                "choose one that `ebla tablet diagnose` names"
            )
        return found[0]
