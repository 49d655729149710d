"""The active master: keeps the tables, places their tablets on servers, and gets heartbeats of all servers.

Four promises:

    durable first   a change is in the journal before memory shows it and before any server is asked for it
    exactly once    a repeated create or drop gets the first answer
    completion      a created table gets its replicas, a dropped one loses them, across restarts of any role
    evidence        a replica is deleted because its table was dropped or its tablet replaced, never because
                    it is unknown: a master that lost its catalog deletes nothing

Changes go through the scribe, one after the other; reads answer from memory. The requests to servers
follow from the committed catalog (errands/errands.py). A background task sends them; events wake the task,
and it also runs every `bg_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NoReturn

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.catalog_versions import CatalogVersion, older_ballot, older_catalog
from ebla.actors.coordination.service import Coordination
from ebla.actors.errors import NotFound, NotRunning, Throttled
from ebla.actors.incarnations import forgotten
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.directory import Directory, mark_old
from ebla.actors.master.catalog.edits import Edit, FormerMembersGone, TabletAssigned, TabletsForgotten
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.cluster import reports as tablet_reports
from ebla.actors.master.cluster.assignment import Assignment, Candidate
from ebla.actors.master.cluster.levels import Levels
from ebla.actors.master.cluster.servers import Marks, Server, Servers, gets_new, is_unlisted
from ebla.actors.master.errands.errands import Errands
from ebla.actors.master.errands.messenger import Messenger
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.pacifica.appointer import Appointer
from ebla.actors.master.pacifica.forcing import Forcing
from ebla.actors.master.repair.hosts import Hosts
from ebla.actors.master.repair.members import Members
from ebla.actors.master.repair.repairs import Repairs, held_at
from ebla.actors.master.tables.answers import Answers
from ebla.actors.master.tables.tables import Tables
from ebla.actors.messages.appointments import ProcessEnded
from ebla.actors.replication.configuration import PACIFICA, Peer
from ebla.actors.world import World, methods, rpc
from ebla.storage.errors import DiskFull, OldCopy

__all__ = ["ActiveMaster", "MasterOptions"]

log = logging.getLogger(__name__)


class ActiveMaster:
    """The work of one active term (leadership/active_term.py), from `begin` on.

    The standby has kept `catalog` up to date until then. For `grace_s`, servers without a heartbeat count
    as alive.
    """

    parts = (Coordination, Tables, Members, Hosts, Appointer, Levels, Forcing)

    def __init__(
        self,
        world: World,
        options: MasterOptions,
        catalog: Catalog,
        directory: Directory,
        log: QuorumEditLog,
        scribe: Scribe,
        serves: Callable[[], bool],
        grace_s: float,
        is_only_copy: bool,
    ) -> None:
        """`serves`: whether requests may be answered at this instant. `is_only_copy`: the whole journal is in this master's
        directory."""
        self.world = world
        self._is_only_copy = is_only_copy
        self.options = options
        self.options.validate()
        self.catalog = catalog
        self.log, self.scribe = log, scribe
        self.instance, self.incarnations = directory.instance, directory.incarnations
        self.servers = Servers(self.options.unresponsive_s, self.world.now() + grace_s if grace_s else -inf)
        self.views = tablet_reports.Views()
        self.answers = Answers(self.catalog, self.views, self.servers, self._why_in_doubt)
        late_s = inf if self.options.accepts else self.options.assignment_timeout_s
        self.assignment = Assignment(late_s, world.random)
        self._wake = asyncio.Event()
        self.levels = Levels(world, options, catalog, scribe, self.servers, self._wake.set)
        self.repairs = Repairs(self.options, world.random, self.views, self.levels.cures)
        self.errands = Errands(self.options, world.random, self.views, self.repairs)
        self.messenger = Messenger(
            world, self.options, self.catalog, self.servers, self.errands, self.repairs
        )
        self.coordination = Coordination(world, catalog.namespace, scribe, serves, options.coordination)
        self._running = False
        self._unplaced = 0
        self._placing_from = 0.0
        self._forgetting_from = 0.0
        known = self.views, self.servers
        self.tables = Tables(
            world, options, catalog, scribe, *known, self.answers, self.levels, self._wake.set, self._altered
        )
        self.hosts = Hosts(world, catalog, scribe, *known, self.repairs, self.levels, self._wake.set)
        self.members = Members(world, options, catalog, *known, self.repairs, self.hosts, self._wake.set)
        self.appointer = Appointer(
            world,
            options,
            catalog,
            scribe,
            *known,
            self.incarnations,
            self._require_newest,
            self._require_ballots,
        )
        self.forcing = Forcing(world, catalog, scribe, *known, self.appointer)

    # -- life ------------------------------------------------------------------------------------------------

    def begin(self, settle_s: float) -> None:
        """Serve from the catalog, which has all durable changes. No tablet is placed for `settle_s`."""
        self._begun = self.world.now()
        self._placing_from = self.repairs.begins_at = self.servers.settled_from = self._begun + settle_s
        self.coordination.begin()
        self.appointer.begin(self._placing_from)
        self._running = True
        self.world.spawn(self.scribe.run(), "scribe")
        self.world.spawn(self._background(), "background")
        self.world.spawn(self._tick(), "tick")

    def _why_in_doubt(self, tablet: str) -> str:
        return self.appointer.planner.why_in_doubt(self.world.now(), tablet)

    def _altered(self, table: str) -> None:
        self.appointer.altered(self.catalog.tables[table].tablets)

    def _require_running(self) -> None:
        if not self._running:
            raise NotRunning(f"{self.world.address} serves no catalog now", state="starting")

    # -- calls -----------------------------------------------------------------------------------------------

    async def perform(self, method: str, request: Any) -> Any:
        """Carry out a call of this class or of one of its parts."""
        self._require_running()
        owner = getattr(self, _PART_OF[method]) if method in _PART_OF else self
        answer = await getattr(owner, method)(request)
        self._require_running()
        return answer

    @rpc
    async def get_tablet(self, request: m.TabletRequest) -> m.TabletLocation:
        record = self.catalog.tablets.get(request.tablet)
        if record is None:
            raise NotFound(f"there is no tablet {request.tablet!r}", what=request.tablet)
        return self.answers.tablet(record, self.world.now())

    # -- servers ---------------------------------------------------------------------------------------------

    @rpc
    async def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        """Take a heartbeat. The answer acknowledges the report: all edits that follow from it are durable."""
        if request.instance.uuid in self.catalog.forgotten:
            raise forgotten(request.instance.uuid)
        self._require_newest(request.instance.uuid, request.seen)
        if request.report is not None:
            self._require_ballots(request.instance.uuid, self._ballots(request.report))
        others = self.incarnations.all() if self.incarnations.meet(request.instance) else ()
        server = self.servers.heartbeat(request, self.world.now())
        if server is None:
            return m.HeartbeatReply(self.instance, True, True, others, self.catalog.lineage.version)
        if request.registration is not None:
            self._wake.set()
        if request.report is not None:
            await self._take_report(server, request.report)
        return m.HeartbeatReply(
            self.instance,
            needs_register=not self.servers.current(server),
            needs_full_report=not server.reported_in_full,
            others=others,
            catalog=self.catalog.lineage.version,
        )

    @rpc
    async def process_ended(self, request: ProcessEnded) -> m.Empty:
        """Note that a tablet server's process has ended for certain, and report it to the other servers: others take the place of its leaders."""
        self.appointer.process_ended(request.process)
        self.messenger.report_end(request)
        return m.Empty()

    def _require_newest(self, uuid: str, seen: CatalogVersion | None) -> None:
        """Refuse a server that has seen changes which this catalog lacks, and stop serving.

        So no request that follows from the older catalog is sent, to this server or any other, and none has a lease by it.
        """
        lineage = self.catalog.lineage
        if seen is None or lineage.has(seen):
            return
        self._refuse_to_serve(older_catalog(seen, lineage.version, uuid))

    def _require_ballots(self, uuid: str, ballots: dict[str, int]) -> None:
        """Refuse a server that knows a later ballot of a PacificA tablet than the catalog, and stop serving.

        Every ballot was durable in the catalog before a server knew it, so the catalog went back, and would give the same
        ballots again. If an operator has accepted that, the tablet is in doubt instead (pacifica/doubts.py).
        """
        catalog = self.catalog
        for tablet, ballot in ballots.items():
            record = catalog.tablets.get(tablet)
            if record is None or tablet in catalog.doubted:
                continue
            if record.configuration is None and catalog.lineage.accepted:
                continue  # no servers were chosen when the copy was made; the token of a refusal would not put it in doubt
            if catalog.tables[record.table].replication != PACIFICA:
                continue
            known = 0 if record.configuration is None else record.configuration.index
            if ballot > known:
                self._refuse_to_serve(older_ballot(tablet, ballot, known, uuid, self.catalog.lineage.version))

    def _ballots(self, report: m.TabletReport) -> dict[str, int]:
        return {replica.tablet: tablet_reports.ballot_of(replica) for replica in report.updated}

    def _refuse_to_serve(self, error: OldCopy) -> NoReturn:
        self._running = False
        self.world.spawn(self._end(error), "end of an older catalog")
        raise error

    async def _end(self, error: OldCopy) -> None:
        if self._is_only_copy:
            with suppress(DiskFull):  # without the mark, the next start ends for the same reason
                await mark_old(self.world, error.message)
        self.world.fail(error)

    async def _take_report(self, server: Server, report: m.TabletReport) -> None:
        """Take a report. Most reports change nothing durable and cost no write; the others cost one."""

        def decide() -> Sequence[Edit]:
            if not self._expected(server, report):
                return ()
            return tablet_reports.durable_changes(self.catalog, server.uuid, report)

        if not decide():
            self._merge(server, report)
            return
        if server.report_under_way:
            raise Throttled(
                f"the report before this one, of {server.address}, is still being made durable",
                limit="one report under way per server",
                retry_after_s=self.options.bg_s,
            )
        server.report_under_way = True
        try:
            await self.scribe.change("report", decide, lambda: self._merge(server, report))
        finally:
            server.report_under_way = False

    def _expected(self, server: Server, report: m.TabletReport) -> bool:
        return self.servers.current(server) and server.expects(report)

    def _merge(self, server: Server, report: m.TabletReport) -> None:
        if not self._expected(server, report):
            return
        server.took(report)
        merged = self.views.merge(self.catalog, server.uuid, report)
        self.appointer.take(server.instance, report)
        for tablet in merged.absent:
            if tablet in self.catalog.ended:
                self.errands.absent(tablet, server.uuid)
        for tablet in merged.stragglers:
            self.errands.straggler(tablet, Peer(server.uuid, server.address))
        if merged.stragglers or self.views.behind or not report.incremental:
            self._wake.set()

    @rpc
    async def list_servers(self, request: m.Empty) -> m.ListServersReply:
        catalog = self.catalog
        drained = [each for each in catalog.draining if not any(True for _ in held_at(catalog, each))]
        known = (server.address for server in self.servers.known())
        unlisted = [address for address in known if is_unlisted(catalog, address)]
        suspended = [*catalog.suspended, *unlisted]
        marks = Marks(catalog.draining, drained, catalog.maintained, suspended, unlisted)
        found = self.servers.statuses(self.world.now(), marks, self._begun)
        return m.ListServersReply(tuple(self._with_lease(status) for status in found))

    def _with_lease(self, status: m.ServerStatus) -> m.ServerStatus:
        shown = self.appointer.detector.shown(self.world.now(), status.uuid)
        if shown is None:
            return status
        return replace(status, lease=shown.state, lease_number=shown.number, beacon_age_s=shown.beacon_age_s)

    @rpc
    async def status(self, request: m.Empty) -> m.MasterStatus:
        return status_of(
            self.catalog,
            instance=self.instance,
            address=self.world.address,
            edits=self.log.last_txid,
            tablets_unknown=len(self.views.unknown),
            leader_conflicts=self.views.leader_conflicts,
            sessions=len(self.catalog.namespace.sessions),
            sessions_overdue=self.coordination.overdue(),
            frozen=self.levels.why_frozen(),
        )

    # -- in the background -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await self.world.clock.sleep(self.options.bg_s)
            self._wake.set()

    async def _background(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._assign()
                await self._forget()
            except (Throttled, DiskFull) as error:
                log.warning("%s: %s; trying again", self.world.address, error)
            if self._running:
                self.messenger.send()

    async def _assign(self) -> None:
        now = self.world.now()
        if now < self._placing_from:
            return
        if not self.assignment.work(self.catalog, now):
            self._unplaced = 0
            return

        def decide() -> Sequence[Edit]:
            now = self.world.now()
            alive = self.servers.alive(now)
            candidates = [
                Candidate(server.uuid, server.address, server.host)
                for server in alive
                if server.takes_data and gets_new(self.catalog, server.address)
            ]
            plan = self.assignment.plan(self.catalog, candidates, now, self.world.clock.wall_us())
            if plan.unplaced and not self._unplaced:
                log.warning(
                    "%d tablets wait for servers: %d are live, too few hosts for their replicas",
                    plan.unplaced,
                    len(candidates),
                )
            self._unplaced = plan.unplaced
            if plan.more:
                self._wake.set()
            placed.extend(edit.tablet for edit in plan.edits if isinstance(edit, TabletAssigned))
            return plan.edits

        def conclude() -> None:
            self.views.drop_ended(self.catalog)
            self.appointer.assigned(placed)

        placed: list[str] = []
        await self.scribe.change("assign", decide, conclude)

    async def _forget(self) -> None:
        """Forget ended tablets and end reserves, at most every `bg_s`, since this reads all ended tablets."""
        if self.world.now() < self._forgetting_from:
            return
        self._forgetting_from = self.world.now() + self.options.bg_s

        def decide() -> Sequence[Edit]:
            gone = self.errands.former_gone(self.catalog)
            edits: list[Edit] = [
                FormerMembersGone(uuid, tablets, tombstone) for (uuid, tombstone), tablets in gone.items()
            ]
            tablets = self.errands.forgettable(self.catalog, self.world.now(), self.world.clock.wall_us())
            return [*edits, TabletsForgotten(tablets)] if tablets else edits

        if decide():
            await self.scribe.change("forget", decide, self.errands.departed.clear)
        await self.tables.end_reserves()


def status_of(catalog: Catalog, **more: Any) -> m.MasterStatus:
    """Make a master's status from its catalog and the remaining fields."""
    return m.MasterStatus(
        tables=len(catalog.names),
        tablets=len(catalog.tablets) - len(catalog.ended),
        tablets_not_running=len(catalog.preparing) + len(catalog.creating),
        tablets_ending=len(catalog.ended),
        tables_kept=len(catalog.kept),
        **more,
    )


_PARTS = {
    "coordination": Coordination,
    "tables": Tables,
    "members": Members,
    "appointer": Appointer,
    "hosts": Hosts,
    "levels": Levels,
    "forcing": Forcing,
}
_PART_OF = {method: part for part, kind in _PARTS.items() for method in methods(kind)}
