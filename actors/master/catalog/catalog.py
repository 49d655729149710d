"""The catalog: the tables and tablets that exist, with their states and servers.

The catalog is a state machine over edits (edits.py); nothing else changes it. Records are frozen and
replaced as a whole, so a reader that runs between two awaits always sees one committed state. Three maps,
as in Kudu's catalog manager:

    tables   table id  -> TableRecord      running -> removed -> forgotten
                                           running <-> kept -> removed
    names    name      -> table id         running tables only: a dropped table's name is free at once
    tablets  tablet id -> TabletRecord     preparing -> creating -> running -> deleted -> forgotten
                                                        creating -> replaced -> forgotten

The catalog also has the namespace for coordination (actors/coordination/), which has its own edits.

An edit that is not legal in the present state is a defect, or damage that no checksum caught: it fails an
assertion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ebla.actors.coordination import edits as coordination
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.lineage import Lineage
from ebla.actors.master.catalog.members import Members
from ebla.actors.master.catalog.records import (
    CREATING,
    DELETED,
    KEPT,
    LIVE,
    PREPARING,
    REMOVED,
    REPLACED,
    REQUESTS_MAX,
    RUNNING,
    STEADY,
    CatalogImage,
    Remembered,
    TableRecord,
    TabletRecord,
)
from ebla.actors.messages import RecordedInstance
from ebla.actors.replication.configuration import VOTER, Configuration, Peer
from ebla.storage.rows.alteration import Alteration, Dropped

Edit = e.Edit
replace = msgspec.structs.replace


class Catalog:
    def __init__(self) -> None:
        self.tables: dict[str, TableRecord] = {}
        self.names: dict[str, str] = {}
        self.tablets: dict[str, TabletRecord] = {}
        self.requests: dict[str, Remembered] = {}
        self.namespace = Namespace()
        self.lineage = Lineage()
        self.members = Members()  # derived
        # Derived: ids of tablets that need an action (dicts, for their order).
        self.preparing: dict[str, None] = {}
        self.creating: dict[str, None] = {}
        self.unseen: dict[str, None] = {}
        self.formers: dict[str, None] = {}
        self.ended: dict[str, None] = {}
        self.kept: dict[str, None] = {}  # table ids
        self.draining: dict[str, None] = {}  # addresses of servers
        self.maintained: dict[str, None] = {}  # addresses of servers
        self.suspended: dict[str, None] = {}  # addresses of servers that get no lease
        self.allowed: dict[str, None] = {}  # if there are any: addresses of the servers that may get leases
        self.forgotten: dict[str, str] = {}  # uuid -> address of servers that are gone for good
        self.incarnations: dict[str, RecordedInstance] = {}  # the last of each server with a lease
        self.doubted: dict[str, None] = {}  # PacificA tablets whose last configuration may be missing here
        self.level, self.level_us = STEADY, 0  # set by an operator, at this wall time
        self.replicas = 0  # wanted by all tables that are not removed
        self._of_table: dict[str, dict[str, None]] = {}

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of records that a checkpoint would have."""
        marks = sum(map(len, (self.draining, self.maintained, self.suspended, self.allowed)))
        marks += len(self.forgotten) + len(self.incarnations) + len(self.doubted)
        return len(self.tables) + len(self.tablets) + len(self.requests) + marks + len(self.namespace)

    def named(self, name: str) -> TableRecord | None:
        table = self.names.get(name)
        return None if table is None else self.tables[table]

    def running_tables(self) -> list[TableRecord]:
        """List the running tables by name."""
        return [self.tables[self.names[name]] for name in sorted(self.names)]

    def alteration(self, table: str) -> Alteration:
        """Return the present state of the table that every tablet must get to know."""
        record = self.tables[table]
        kept = Dropped(table, record.name, record.until_us) if record.state == KEPT else None
        return Alteration(record.schema, kept)

    def kept_as(self, word: str) -> list[TableRecord]:
        """List the kept table with this id, or those that had this name, the last dropped one first."""
        if word in self.kept:
            return [self.tables[word]]
        found = [self.tables[table] for table in self.kept if self.tables[table].name == word]
        return sorted(found, key=lambda record: -record.dropped_us)

    def image(self) -> CatalogImage:
        return CatalogImage(
            tuple(self.tables.values()),
            tuple(self.tablets.values()),
            tuple(self.requests.items()),
            self.namespace.image(),
            tuple(self.draining),
            dict(self.forgotten),
            tuple(self.maintained),
            self.lineage.image(),
            tuple(self.incarnations.values()),
            self.level,
            self.level_us,
            tuple(self.suspended),
            tuple(self.doubted),
            tuple(self.allowed),
        )

    # -- changing --------------------------------------------------------------------------------------------

    def load(self, image: CatalogImage) -> None:
        """Load an image into this catalog, which must be empty."""
        assert len(self) == 0
        for table in image.tables:
            self.tables[table.table] = table
            if table.state == RUNNING:
                self.names[table.name] = table.table
            elif table.state == KEPT:
                self.kept[table.table] = None
            if table.state in (RUNNING, KEPT):
                self.replicas += table.replicas * len(table.tablets)
        for record in image.tablets:
            self._add(record)
        self.requests = dict(image.requests)
        marks = image.draining, image.maintained, image.suspended, image.allowed
        self.draining, self.maintained, self.suspended, self.allowed = map(dict.fromkeys, marks)
        self.forgotten = dict(image.forgotten)
        if image.namespace is not None:
            self.namespace.load(image.namespace)
        self.lineage.load(image.lineage)
        self.incarnations = {each.uuid: each for each in image.incarnations}
        self.level, self.level_us = image.level, image.level_us
        self.doubted = dict.fromkeys(image.doubted)

    def apply(self, edits: Iterable[Edit]) -> None:
        """Apply edits, which must be durable. Replaying the same edits gives an equal catalog."""
        for edit in edits:
            _APPLY[type(edit)](self, edit)
            # A catalog that is made of its copy in the journal has not applied the edits with the copy, and must have the same count.
            self.lineage.changes += type(edit) is not e.CatalogWritten

    def _table_created(self, edit: e.TableCreated) -> None:
        assert edit.table not in self.tables and edit.name not in self.names, edit.table
        assert len(edit.tablets) == edit.schema.partitioning.tablets, edit.table
        self.tables[edit.table] = TableRecord(
            edit.table,
            edit.name,
            RUNNING,
            edit.schema,
            edit.replicas,
            edit.replication,
            edit.properties,
            edit.created_us,
            edit.tablets,
            min_members=edit.min_members,
        )
        self.names[edit.name] = edit.table
        self.replicas += edit.replicas * len(edit.tablets)
        for bucket, tablet in enumerate(edit.tablets):
            self._add(TabletRecord(tablet, edit.table, bucket, PREPARING))
        self._remember(edit.request, Remembered("create", edit.digest, edit.table))

    def _tablet_assigned(self, edit: e.TabletAssigned) -> None:
        record = self._expect(edit.tablet, PREPARING)
        uuids = tuple(peer.uuid for peer in edit.configuration.peers)
        assert 0 < len(set(uuids)) == len(uuids), edit
        start = self._start_of(edit.configuration.primary)
        made = replace(record, state=CREATING, configuration=edit.configuration, unseen=uuids)
        self._put(replace(made, primary_start=start))

    def _tablet_replaced(self, edit: e.TabletReplaced) -> None:
        record = self._expect(edit.tablet, CREATING)
        table = self.tables[record.table]
        self._put(replace(record, state=REPLACED, unseen=(), ended_us=edit.replaced_us))
        self._add(TabletRecord(edit.successor, record.table, record.bucket, PREPARING))
        tablets = list(table.tablets)
        assert tablets[record.bucket] == edit.tablet, edit
        tablets[record.bucket] = edit.successor
        self.tables[record.table] = replace(table, tablets=tuple(tablets))

    def _configuration_changed(self, edit: e.ConfigurationChanged) -> None:
        assert edit.configuration.primary is None, ("a replica decides no PacificA configuration", edit)
        self._reconfigure(edit.tablet, edit.configuration)

    def _configurations_appointed(self, edit: e.ConfigurationsAppointed) -> None:
        for each in edit.incarnations:
            self._record_instance(each)
        for tablet, configuration in edit.configurations.items():
            before = self.tablets[tablet].appointed
            assert before is not None and configuration.index > before.index, (tablet, before, configuration)
            own = configuration.peer(configuration.primary or "")
            assert own is not None and own.member == VOTER, ("a primary is a voter", tablet, configuration)
            self._reconfigure(tablet, configuration)
            self.doubted.pop(tablet, None)

    def _record_instance(self, instance: RecordedInstance) -> None:
        """Record a server's process. Its first one is the process of the ballots that the server was given before."""
        first = instance.uuid not in self.incarnations
        self.incarnations[instance.uuid] = instance
        for tablet in list(self.members.of(instance.uuid)) if first else ():
            record = self.tablets[tablet]
            if record.appointed is not None and record.appointed.primary == instance.uuid:
                self._put(replace(record, primary_start=instance.start))

    def _start_of(self, primary: str | None) -> str:
        recorded = self.incarnations.get(primary or "")
        return "" if recorded is None else recorded.start

    def _configuration_forced(self, edit: e.ConfigurationForced) -> None:
        record, made = self._expect(edit.tablet, RUNNING), edit.configuration
        before = record.appointed
        assert before is not None and made.unsafe > before.unsafe and made.index > before.index, edit
        assert [peer.uuid for peer in made.voters()] == [made.primary], ("a survivor leads alone", edit)
        self._reconfigure(edit.tablet, made)
        record = self.tablets[edit.tablet]
        self._put(replace(record, forced=(*record.forced, edit.record)))
        self.doubted.pop(edit.tablet, None)

    def _reconfigure(self, tablet: str, configuration: Configuration) -> None:
        record = self._expect(tablet, CREATING, RUNNING)
        assert record.configuration is not None and configuration.order > record.configuration.order, (
            tablet,
            configuration,
        )
        stays = configuration.peer
        before = record.configuration.peers + record.former
        former = self._remembered_peers(peer for peer in before if stays(peer.uuid) is None)
        tombstones = tuple(peer for peer in record.tombstones if stays(peer.uuid) is None)
        # Members of the first configuration that never reported a replica are still created. Before, they
        # cannot vote, and the group may need their votes to elect the leader that would copy the tablet to
        # them.
        unseen = tuple(uuid for uuid in record.unseen if stays(uuid) is not None)
        start = self._start_of(configuration.primary)
        changed = replace(record, configuration=configuration, former=former, tombstones=tombstones)
        self._put(replace(changed, unseen=unseen, primary_start=start))

    def _replicas_seen(self, edit: e.ReplicasSeen) -> None:
        for tablet in edit.tablets:
            record = self._expect(tablet, CREATING, RUNNING)
            assert edit.uuid in record.unseen, (edit.uuid, tablet)
            self._put(replace(record, unseen=tuple(uuid for uuid in record.unseen if uuid != edit.uuid)))

    def _former_members_gone(self, edit: e.FormerMembersGone) -> None:
        for tablet in edit.tablets:
            record = self._expect(tablet, CREATING, RUNNING)
            gone = next((peer for peer in record.former if peer.uuid == edit.uuid), None)
            assert gone is not None, (edit.uuid, tablet)
            former = tuple(peer for peer in record.former if peer is not gone)
            # Another server at the address means that the old one has lost its directory, and its tombstones.
            tombstones = tuple(peer for peer in record.tombstones if peer.address != gone.address)
            if edit.tombstone:
                tombstones += (gone,)
            self._put(replace(record, former=former, tombstones=tombstones))

    def _server_forgotten(self, edit: e.ServerForgotten) -> None:
        for marked in (self.draining, self.maintained, self.suspended):
            marked.pop(edit.address, None)
        self.forgotten.update(dict.fromkeys(edit.uuids, edit.address))
        for uuid in edit.uuids:
            self.incarnations.pop(uuid, None)
        for record in list(self.tablets.values()):
            known = record.configuration
            if record.state in LIVE:
                assert known is None or all(known.peer(uuid) is None for uuid in edit.uuids), edit
            elif known is not None:
                known = replace(known, peers=self._remembered_peers(known.peers))
            former, tombstones = map(self._remembered_peers, (record.former, record.tombstones))
            changed = replace(record, configuration=known, former=former, tombstones=tombstones)
            if changed != record:
                self._put(changed)

    def _remembered_peers(self, peers: Iterable[Peer]) -> tuple[Peer, ...]:
        return tuple(peer for peer in peers if peer.uuid not in self.forgotten)

    def _level_set(self, edit: e.LevelSet) -> None:
        assert edit.level != self.level, edit
        self.level, self.level_us = edit.level, edit.since_us

    def _table_dropped(self, edit: e.TableDropped) -> None:
        table = self.tables[edit.table]
        assert table.state in (RUNNING, KEPT), edit.table
        self._remove(table, edit.dropped_us)
        self._remember(edit.request, Remembered("drop", edit.digest, edit.table))

    def _remove(self, table: TableRecord, ended_us: int) -> None:
        if table.state == RUNNING:
            del self.names[table.name]
        else:
            del self.kept[table.table]
        self.replicas -= table.replicas * len(table.tablets)
        self.tables[table.table] = replace(table, state=REMOVED)
        for record in [self._expect(tablet, *LIVE) for tablet in table.tablets]:
            self._put(replace(record, state=DELETED, unseen=(), ended_us=ended_us))

    def _table_altered(self, edit: e.TableAltered) -> None:
        table = self.tables[edit.table]
        assert table.state == RUNNING, edit.table
        if edit.name != table.name:
            assert edit.name not in self.names, edit.name
            del self.names[table.name]
            self.names[edit.name] = edit.table
        renamed = replace(table, name=edit.name, min_members=edit.min_members or table.min_members)
        if edit.schema.version != table.schema.version:
            renamed = renamed.altered(edit.schema)
        self.tables[edit.table] = renamed
        self._remember(edit.request, Remembered("alter", edit.digest, edit.table))

    def _table_set_aside(self, edit: e.TableSetAside) -> None:
        table = self.tables[edit.table]
        assert table.state == RUNNING, edit.table
        del self.names[table.name]
        self.kept[edit.table] = None
        kept = replace(table.altered(), state=KEPT, dropped_us=edit.dropped_us, until_us=edit.until_us)
        self.tables[edit.table] = replace(kept, left_us=edit.left_us)
        self._remember(edit.request, Remembered("drop", edit.digest, edit.table))

    def _table_recalled(self, edit: e.TableRecalled) -> None:
        table = self.tables[edit.table]
        assert table.state == KEPT and edit.name not in self.names, edit
        del self.kept[edit.table]
        self.names[edit.name] = edit.table
        back = replace(table, state=RUNNING, name=edit.name, dropped_us=0, until_us=0, left_us=0)
        self.tables[edit.table] = back.altered()
        self._remember(edit.request, Remembered("recall", edit.digest, edit.table))

    def _reserves_counted(self, edit: e.ReservesCounted) -> None:
        for record in [self.tables[table] for table in self.kept]:
            self.tables[record.table] = replace(record, left_us=max(0, record.left_us - edit.passed_us))

    def _reserve_ended(self, edit: e.ReserveEnded) -> None:
        table = self.tables[edit.table]
        assert table.state == KEPT, edit.table
        self._remove(table, edit.ended_us)

    def _tablets_forgotten(self, edit: e.TabletsForgotten) -> None:
        for tablet in edit.tablets:
            record = self._expect(tablet, DELETED, REPLACED)
            del self.tablets[tablet], self.ended[tablet]
            siblings = self._of_table[record.table]
            del siblings[tablet]
            if not siblings:
                assert self.tables[record.table].state == REMOVED, record.table
                del self.tables[record.table], self._of_table[record.table]

    def _master_began(self, edit: e.MasterBegan) -> None:
        self.lineage.begin(edit)
        if edit.accepted:
            appointed = self.members.appointed  # whose order is not that of a checkpoint
            self.doubted = {tablet: None for tablet in self.tablets if tablet in appointed}

    # -- helpers ---------------------------------------------------------------------------------------------

    def _expect(self, tablet: str, *states: str) -> TabletRecord:
        record = self.tablets[tablet]
        assert record.state in states, f"tablet {tablet} is {record.state}, not {' or '.join(states)}"
        return record

    def _add(self, record: TabletRecord) -> None:
        assert record.tablet not in self.tablets, record.tablet
        self._of_table.setdefault(record.table, {})[record.tablet] = None
        self._put(record)

    def _put(self, record: TabletRecord) -> None:
        before = self.tablets.get(record.tablet)
        was = before if before is not None and before.state in LIVE else None
        self.members.replace(was, record if record.state in LIVE else None)
        self.tablets[record.tablet] = record
        if record.state not in LIVE:
            self.doubted.pop(record.tablet, None)
        for index, belongs in (
            (self.preparing, record.state == PREPARING),
            (self.creating, record.state == CREATING),
            (self.unseen, len(record.unseen) > 0),
            (self.formers, len(record.former) > 0 and record.state in LIVE),
            (self.ended, record.state not in LIVE),
        ):
            if belongs:
                index[record.tablet] = None
            else:
                index.pop(record.tablet, None)

    def _remember(self, request: str, remembered: Remembered) -> None:
        assert request not in self.requests, request
        self.requests[request] = remembered
        if len(self.requests) > REQUESTS_MAX:
            del self.requests[next(iter(self.requests))]


def _mark(marked: dict[str, None], edit: e.Mark) -> None:
    assert edit.on != (edit.address in marked), edit
    if edit.on:
        marked[edit.address] = None
    else:
        del marked[edit.address]


_APPLY: dict[type[Any], Callable[[Catalog, Any], None]] = {
    e.TableCreated: Catalog._table_created,
    e.TabletAssigned: Catalog._tablet_assigned,
    e.TabletReplaced: Catalog._tablet_replaced,
    e.TabletRunning: lambda c, edit: c._put(replace(c._expect(edit.tablet, CREATING), state=RUNNING)),
    e.ConfigurationChanged: Catalog._configuration_changed,
    e.ConfigurationsAppointed: Catalog._configurations_appointed,
    e.ConfigurationForced: Catalog._configuration_forced,
    e.ReplicasSeen: Catalog._replicas_seen,
    e.FormerMembersGone: Catalog._former_members_gone,
    e.ServerDraining: lambda catalog, edit: _mark(catalog.draining, edit),
    e.ServerMaintained: lambda catalog, edit: _mark(catalog.maintained, edit),
    e.ServerSuspended: lambda catalog, edit: _mark(catalog.suspended, edit),
    e.ServerAllowed: lambda catalog, edit: _mark(catalog.allowed, edit),
    e.ServerForgotten: Catalog._server_forgotten,
    e.LevelSet: Catalog._level_set,
    e.TableDropped: Catalog._table_dropped,
    e.TableAltered: Catalog._table_altered,
    e.TableSetAside: Catalog._table_set_aside,
    e.TableRecalled: Catalog._table_recalled,
    e.ReservesCounted: Catalog._reserves_counted,
    e.ReserveEnded: Catalog._reserve_ended,
    e.TabletsForgotten: Catalog._tablets_forgotten,
    **{kind: lambda catalog, edit: catalog.namespace.apply(edit) for kind in coordination.KINDS},
    e.MasterBegan: Catalog._master_began,
    e.CatalogWritten: lambda catalog, edit: None,
}
