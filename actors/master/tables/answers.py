"""Answers to clients, from the committed catalog and the last reports of servers. Await-free.

A tablet shows its replicas only when it is running: before, its servers may be replaced by others, and a
client would write into a tablet that will be deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import KEPT, RUNNING, TableRecord, TabletRecord
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.messages import ReplicaLocation, TableInfo, TableSummary, TabletLocation
from ebla.actors.replication.configuration import VOTER

DROPPED = "dropped"  # the state of a kept table, for clients


@dataclass(eq=False)
class Answers:
    _catalog: Catalog
    _views: Views
    _servers: Servers
    _why_in_doubt: Callable[[str], str]

    def table(self, record: TableRecord, now: float) -> TableInfo:
        tablets = self._catalog.tablets
        return TableInfo(
            table=record.table,
            name=record.name,
            state=self._state(record),
            schema=record.schema,
            replicas=record.replicas,
            replication=record.replication,
            created_us=record.created_us,
            tablets=tuple(self.tablet(tablets[tablet], now) for tablet in record.tablets),
            properties=record.properties,
            applied_version=self._applied_version(record),
            min_members=record.min_members or None,
        )

    def _applied_version(self, record: TableRecord) -> int:
        if record.schema.version == 0:
            return 0
        return min(self._views.of(tablet).version for tablet in record.tablets)

    def summary(self, record: TableRecord) -> TableSummary:
        return TableSummary(
            table=record.table,
            name=record.name,
            state=self._state(record),
            tablets=len(record.tablets),
            replicas=record.replicas,
            rows_bytes=sum(self._views.of(tablet).rows_bytes for tablet in record.tablets),
            dropped_us=record.dropped_us,
            until_us=record.until_us,
            replication=record.replication,
            min_members=record.min_members or None,
        )

    def tablet(self, record: TabletRecord, now: float) -> TabletLocation:
        """Return the servers of a tablet.

        After a restart of the master, `leader` is unknown until a replica reports; clients then ask the
        replicas.
        """
        configuration = record.configuration
        if record.state != RUNNING or configuration is None:
            return TabletLocation(record.tablet, record.bucket, record.state, None, 0, ())
        view = self._views.of(record.tablet)
        leader = configuration.peer(view.leader) if view.leader is not None else None
        replicas = tuple(
            ReplicaLocation(
                uuid=peer.uuid,
                address=peer.address,
                role="leader" if peer is leader else "follower" if peer.member == VOTER else "learner",
                alive=self._servers.is_alive(peer.uuid, now),
            )
            for peer in configuration.peers
        )
        return TabletLocation(
            tablet=record.tablet,
            bucket=record.bucket,
            state=record.state,
            leader=leader.address if leader is not None else None,
            term=view.term,
            replicas=replicas,
            forced=record.forced,
            in_doubt=self._why_in_doubt(record.tablet),
        )

    def _state(self, record: TableRecord) -> str:
        """`preparing` until every tablet has had a leader; a restart of the master does not change that."""
        if record.state == KEPT:
            return DROPPED
        tablets = self._catalog.tablets
        return RUNNING if all(tablets[tablet].state == RUNNING for tablet in record.tablets) else "preparing"
