"""The edits that follow from a tablet server's report, and the state that is kept in memory only.

Await-free, and in three steps, each a function of the committed catalog:

    durable_changes(...)   the edits of a report, which are made durable first
    Views.merge(...)       leaders, terms and replica states: never logged, because servers report them again
                           after a restart
    Merged                 replicas of dropped or replaced tablets that are, or are no longer, on the server

The health of members is kept only from the leader of the newest known term, and dropped when another leads.

Rules, after Kudu's tablet report processing:

- A tablet that the catalog does not know is left alone: data is deleted only on explicit evidence.
- A replica's configuration counts if it is newer than the known one. A forced configuration is newer than
  all before it, for all indexes and terms.
- A replica is a stray, a copy that came late, if its server is not a member of the known configuration nor
  of a newer one.
- A leader counts only if it is a member of the committed configuration, and only in a newer term, or if no
  leader is known in this term. A leader that reports itself also counts in an older term after which no
  leader is known: a candidate of a newer term may have reached only this master, or be gone.
- A PacificA tablet's configuration is the catalog's, never a replica's. Its leader is the primary that the catalog
  names, once it reports that it leads in the ballot of the catalog. The tablet runs, and clients get to know its replicas, once a
  replica reports a committed entry: a Raft leader has a majority, but a primary may lead alone, and what never
  committed anything is replaced without a loss.
- A follower that knows no leader does not erase the leader of the others.
- Two leaders in one term are never accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import (
    ConfigurationChanged,
    Edit,
    FormerMembersGone,
    ReplicasSeen,
    TabletRunning,
)
from ebla.actors.master.catalog.records import CREATING, PREPARING, RUNNING, TabletRecord
from ebla.actors.master.rules import healing
from ebla.actors.messages import ReplicaReport, TabletReport
from ebla.actors.replication.configuration import VOTER, Configuration, Order
from ebla.actors.replication.health import DELETED, FAILED
from ebla.actors.replication.health import RUNNING as REPLICA_RUNNING

log = logging.getLogger(__name__)

UNKNOWN_MAX = 10_000  # unknown tablets that status counts


# -- durable -------------------------------------------------------------------------------------------------


def durable_changes(catalog: Catalog, uuid: str, report: TabletReport) -> list[Edit]:
    """The edits of a report of server `uuid`; most reports have none."""
    edits: list[Edit] = []
    reported = {replica.tablet: replica for replica in report.updated}
    seen = tuple(
        tablet for tablet in reported if tablet in catalog.unseen and uuid in catalog.tablets[tablet].unseen
    )
    if seen:
        edits.append(ReplicasSeen(uuid, seen))
    for replica in reported.values():
        edits.extend(_replica_changes(catalog, uuid, replica))
    gone = _former_gone(catalog, uuid, report, reported)
    if gone:
        edits.append(FormerMembersGone(uuid, gone))
    tombstones = tuple(
        tablet
        for tablet, replica in reported.items()
        if replica.state == DELETED and _is_former(catalog, uuid, tablet)
    )
    if tombstones:
        edits.append(FormerMembersGone(uuid, tombstones, tombstone=True))
    return edits


def _replica_changes(catalog: Catalog, uuid: str, replica: ReplicaReport) -> list[Edit]:
    record = catalog.tablets.get(replica.tablet)
    if record is None or record.state not in (CREATING, RUNNING) or not _healthy(replica):
        return []
    known = record.configuration
    assert known is not None, replica.tablet
    edits: list[Edit] = []
    committed = known
    if known.primary is None and replica.configuration.order > known.order and _acceptable(replica):
        committed = replica.configuration
        edits.append(ConfigurationChanged(replica.tablet, committed))
    member = committed.peer(uuid) is not None
    led = replica.leader is not None and committed.peer(replica.leader) is not None
    begun = record.appointed is None or replica.commit_index > 0
    if record.state == CREATING and replica.state == "running" and member and led and begun:
        edits.append(TabletRunning(replica.tablet))
    return edits


def ballot_of(replica: ReplicaReport) -> int:
    """The highest ballot that a PacificA replica shows."""
    pending = 0 if replica.pending is None else replica.pending.index
    return max(replica.term, replica.configuration.index, pending)


def _former_gone(
    catalog: Catalog, uuid: str, report: TabletReport, reported: dict[str, ReplicaReport]
) -> tuple[str, ...]:
    """List the tablets whose configuration this server has left, and of which it no longer has data."""
    absent = report.removed if report.incremental else tuple(catalog.formers)
    return tuple(
        tablet
        for tablet in dict.fromkeys(absent)
        if tablet not in reported and _is_former(catalog, uuid, tablet)
    )


def _is_former(catalog: Catalog, uuid: str, tablet: str) -> bool:
    return tablet in catalog.formers and any(peer.uuid == uuid for peer in catalog.tablets[tablet].former)


def _healthy(replica: ReplicaReport) -> bool:
    return replica.error is None and replica.state not in (FAILED, DELETED)


def _acceptable(replica: ReplicaReport) -> bool:
    peers = replica.configuration.peers
    if any(peer.member == VOTER for peer in peers) and len({peer.uuid for peer in peers}) == len(peers):
        return True
    log.error("tablet %s reports a configuration that cannot be: %s", replica.tablet, replica.configuration)
    return False


# -- in memory -----------------------------------------------------------------------------------------------


class LeaderReport(NamedTuple):
    """The health of the members, reported by the `leader` of `term`. `as_of`: its committed configuration.
    `coming`: the uuids of the pending configuration, if there is one."""

    leader: str
    term: int
    as_of: Order
    health: dict[str, str]
    coming: tuple[str, ...] = ()


@dataclass(slots=True)
class View:
    """One tablet as last reported by its servers.

    `states`: of each replica. `version`: the highest schema version that a replica has applied, which is
    therefore committed. `committed`: the highest log index that a replica has reported as committed. `unsafe`: the
    forced epoch to which `term`, `version` and `committed` belong; the survivors of a forced configuration may have
    less of each than the lost members.
    """

    unsafe: int = 0
    term: int = 0
    leader: str | None = None
    rows_bytes: int = 0
    version: int = 0
    committed: int = 0
    states: dict[str, str] = field(default_factory=dict)
    leader_report: LeaderReport | None = None


class Merged(NamedTuple):
    """`stragglers`: tablets that were dropped or replaced and have a replica on the server. `absent`: tablets
    that the server does not have; after a full report, all ended tablets that it did not list."""

    stragglers: list[str]
    absent: list[str]


class Views:
    def __init__(self) -> None:
        self.tablets: dict[str, View] = {}
        self.servers: dict[str, None] = {}  # those that have reported to this master
        self.unknown: dict[tuple[str, str], None] = {}
        self.behind: dict[str, None] = {}  # tablets that have not applied the newest version of their table
        self.unsettled: dict[str, None] = {}  # tablets whose members need a change
        self.news: dict[str, None] = {}  # unsettled tablets that were not checked since that was last noted
        self.strays: dict[tuple[str, str], None] = {}  # (server, tablet) of replicas on nonmembers
        self.remains: dict[str, tuple[str, ...]] = {}  # ended tablet: other servers that have a replica
        self.leader_conflicts = 0

    def of(self, tablet: str) -> View:
        return self.tablets.get(tablet) or View()

    def merge(self, catalog: Catalog, uuid: str, report: TabletReport) -> Merged:
        """Merge a report whose durable changes are already in the catalog."""
        reported = {replica.tablet: replica for replica in report.updated}
        stragglers: list[str] = []
        unknown: list[str] = []
        for tablet, replica in reported.items():
            record = catalog.tablets.get(tablet)
            if record is None or record.state == PREPARING:
                unknown.append(tablet)
            elif tablet in catalog.ended:
                stragglers.append(tablet)
            else:
                before = self._leading(tablet)
                self._take(record, uuid, replica)
                self._compare(catalog, tablet)
                if tablet in self.unsettled or self._leading(tablet) != before:
                    self.settle(catalog, tablet)
        self._note_unknown(uuid, unknown)
        if report.incremental:
            absent = [tablet for tablet in report.removed if tablet not in reported]
        else:
            absent = [tablet for tablet in catalog.ended if tablet not in reported]
            if uuid in self.servers:
                held = (tablet for tablet, view in self.tablets.items() if uuid in view.states)
                absent.extend(tablet for tablet in held if tablet not in reported)
        self.servers[uuid] = None
        self._clear(uuid, absent)
        return Merged(stragglers, absent)

    def _leading(self, tablet: str) -> tuple[object, ...] | None:
        """What decides whether a tablet is settled, besides the catalog: the leader, and its last report."""
        view = self.tablets.get(tablet)
        return None if view is None else (view.leader, view.term, view.leader_report)

    def drop_ended(self, catalog: Catalog) -> None:
        """Drop the state of ended tablets."""
        for tablet in catalog.ended:
            view = self.tablets.pop(tablet, None)
            if view is not None:
                holders = [peer.uuid for peer in catalog.tablets[tablet].holders()]
                self.remains[tablet] = tuple(uuid for uuid in view.states if uuid not in holders)
            self.behind.pop(tablet, None)
            self.unsettled.pop(tablet, None)
            self.news.pop(tablet, None)
        for replica in [replica for replica in self.strays if replica[1] in catalog.ended]:
            del self.strays[replica]

    def situation(self, catalog: Catalog, tablet: str) -> healing.Situation | None:
        """Return the input of decisions; None until the present leader has reported on the configuration
        in the catalog."""
        report, record = self._leader_report(catalog, tablet), catalog.tablets.get(tablet)
        if report is None or record is None or record.state != RUNNING:
            return None
        known = record.configuration
        assert known is not None, tablet
        replicas = catalog.tables[record.table].replicas
        marks = catalog.draining, catalog.maintained
        return healing.Situation(known, replicas, report.leader, report.health, *marks)

    def _leader_report(self, catalog: Catalog, tablet: str) -> LeaderReport | None:
        """Return the report of the present leader on the configuration in the catalog."""
        record, view = catalog.tablets.get(tablet), self.tablets.get(tablet)
        if record is None or record.configuration is None or view is None or view.leader_report is None:
            return None
        report = view.leader_report
        present = view.leader, view.term, record.configuration.order
        return report if (report.leader, report.term, report.as_of) == present else None

    def excluded_in(self, catalog: Catalog, tablet: str, uuid: str) -> int | None:
        """Return the term of the present leader if it is not adding this nonmember; None if it is.

        0 if no leader has reported on the configuration in the catalog.
        """
        report = self._leader_report(catalog, tablet)
        if report is None:
            return 0
        return None if uuid in report.coming else report.term

    def appointed(self, tablet: str, configuration: Configuration) -> None:
        """Note a PacificA tablet's new configuration: until the primary reports, no leader is known."""
        view = self.tablets.get(tablet)
        if view is not None:
            view.term, view.leader, view.leader_report = configuration.index, None, None
        self.unsettled.pop(tablet, None)
        self.news.pop(tablet, None)

    def settle(self, catalog: Catalog, tablet: str) -> None:
        """Note whether the members may need a change; without a situation, the leader's next report does."""
        situation = self.situation(catalog, tablet)
        if situation is None or healing.settled(situation):
            self.unsettled.pop(tablet, None)
            self.news.pop(tablet, None)
        else:
            self.unsettled[tablet] = self.news[tablet] = None

    def settle_held(self, catalog: Catalog, addresses: Sequence[str]) -> None:
        """Check the tablets with members at `addresses`, after an operator set or removed a mark."""
        for tablet in dict.fromkeys(each for address in addresses for each in catalog.members.at(address)):
            if tablet in self.tablets:
                self.settle(catalog, tablet)

    def compare(self, catalog: Catalog, table: str) -> None:
        """Compare the reported versions of an altered table's tablets.

        Tablets without a report are compared at their first one.
        """
        for tablet in catalog.tables[table].tablets:
            if tablet in self.tablets:
                self._compare(catalog, tablet)

    def _compare(self, catalog: Catalog, tablet: str) -> None:
        if self.tablets[tablet].version < catalog.tables[catalog.tablets[tablet].table].schema.version:
            self.behind[tablet] = None
        else:
            self.behind.pop(tablet, None)

    def _take(self, record: TabletRecord, uuid: str, replica: ReplicaReport) -> None:
        view = self.tablets.setdefault(record.tablet, View())
        view.states[uuid] = replica.state
        self._note_stray(record, uuid, replica)
        if not _healthy(replica):
            return
        committed = record.configuration
        assert committed is not None, record.tablet
        if committed.unsafe > view.unsafe:
            view.unsafe, view.term, view.leader, view.version = committed.unsafe, 0, None, 0
            view.committed = 0
        if view.leader is not None and committed.peer(view.leader) is None:
            view.leader = None
        present = replica.configuration
        if committed.primary is not None and replica.pending is not None:
            present = replica.pending  # in force, and durable in the catalog
        if present.unsafe < committed.unsafe:
            return
        if committed.primary is not None:
            _take_primary(view, committed, uuid, replica)
        else:
            self._take_leader(view, committed, uuid, replica)
        if uuid == view.leader and replica.leads and replica.term == view.term:
            coming = () if replica.pending is None else tuple(peer.uuid for peer in replica.pending.peers)
            view.leader_report = LeaderReport(uuid, replica.term, present.order, replica.health, coming)
        view.version = max(view.version, replica.schema_version)
        view.committed = max(view.committed, replica.commit_index)
        if uuid == view.leader or view.leader is None:
            view.rows_bytes = replica.rows_bytes

    def _take_leader(self, view: View, committed: Configuration, uuid: str, replica: ReplicaReport) -> None:
        named = replica.leader
        if named is not None and committed.peer(named) is None:
            named = None
        if replica.term > view.term and (named is not None or view.leader in (None, uuid)):
            view.term, view.leader = replica.term, named
        elif replica.term < view.term and view.leader is None and replica.leads and named == uuid:
            # No leader of the newer term is known: its candidate may be gone for good.
            view.term, view.leader = replica.term, named
        elif replica.term == view.term:
            if named is None:
                view.leader = None if view.leader == uuid else view.leader
            elif view.leader is None:
                view.leader = named
            elif view.leader != named:
                self.leader_conflicts += 1
                log.error(
                    "tablet %s has two leaders in term %d: %s, and %s reports %s",
                    replica.tablet,
                    view.term,
                    view.leader,
                    uuid,
                    named,
                )

    def _note_stray(self, record: TabletRecord, uuid: str, replica: ReplicaReport) -> None:
        known = record.configuration
        assert known is not None, record.tablet
        holds = replica.state in (REPLICA_RUNNING, FAILED)
        if holds and known.peer(uuid) is None and replica.configuration.order <= known.order:
            self.strays[uuid, record.tablet] = None
        else:
            self.strays.pop((uuid, record.tablet), None)

    def _note_unknown(self, uuid: str, tablets: list[str]) -> None:
        fresh = [tablet for tablet in tablets if (uuid, tablet) not in self.unknown]
        for tablet in fresh[: UNKNOWN_MAX - len(self.unknown)]:
            self.unknown[uuid, tablet] = None
        if fresh:
            log.warning(
                "server %s holds %d tablets that the catalog does not know (%s%s); they are left alone",
                uuid,
                len(fresh),
                ", ".join(fresh[:3]),
                ", ..." if len(fresh) > 3 else "",
            )

    def forget(self, uuid: str) -> None:
        self._clear(uuid, [*self.tablets, *(tablet for known, tablet in self.unknown if known == uuid)])

    def _clear(self, uuid: str, absent: list[str]) -> None:
        for tablet in absent:
            self.unknown.pop((uuid, tablet), None)
            self.strays.pop((uuid, tablet), None)
            view = self.tablets.get(tablet)
            if view is not None:
                view.states.pop(uuid, None)
                if view.leader == uuid:
                    view.leader = None


def _take_primary(view: View, committed: Configuration, uuid: str, replica: ReplicaReport) -> None:
    """Take the leader of a PacificA tablet: the catalog's primary, if it leads in the catalog's ballot."""
    if view.term != committed.index:
        view.term, view.leader = committed.index, None
    if uuid == committed.primary and replica.term == committed.index:
        view.leader = uuid if replica.leads else None
