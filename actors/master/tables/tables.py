"""Requests of clients about tables: create, alter, drop, recall, look up.

The scribe decides and concludes each change.

A drop with a reserve keeps the table for recall: its name is free at once; its replicas stay, and refuse all
requests after they have applied the drop (an earlier write is carried out, and is there after a recall).
During the reserve `recall_table` brings the table back, under its name or another one.

The reserve is counted by the monotonic clock of the active master, and written to the catalog every
COUNT_US: a step of the wall clock deletes no table. Time without a master, and time that an ended master
had not written, does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ebla.actors import messages as m
from ebla.actors.errors import AlreadyPresent, NotFound, TableDropped
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import (
    Edit,
    ReserveEnded,
    ReservesCounted,
    TableAltered,
    TableRecalled,
    TableSetAside,
)
from ebla.actors.master.catalog.edits import TableDropped as Dropped
from ebla.actors.master.catalog.records import KEPT, RUNNING, TableRecord
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.cluster.levels import Levels
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers, gets_new
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.tables import requests
from ebla.actors.master.tables.answers import Answers
from ebla.actors.world import World, rpc
from ebla.storage.errors import InvalidArgument, did_you_mean
from ebla.storage.rows.altered import altered

COMPARED_MAX = 100  # names of tables to which an unknown one is compared, in 1 to 7 ms of the master
COUNT_US = 60_000_000
LEAP_US_MAX = 2 * COUNT_US  # counted at once; a longer time is a leap of the clock, or a pause of the process


@dataclass(eq=False)
class Tables:
    """`wake` starts the background work now; `altered` notes an altered table."""

    _world: World
    _options: MasterOptions
    _catalog: Catalog
    _scribe: Scribe
    _views: Views
    _servers: Servers
    _answers: Answers
    _levels: Levels
    _wake: Callable[[], None]
    _altered: Callable[[str], None]
    _counted_to: float | None = None  # the catalog has counted the time of reserves up to here

    # -- changes ---------------------------------------------------------------------------------------------

    @rpc
    async def create_table(self, request: m.CreateTableRequest) -> m.TableInfo:
        """Create a table, durably when this answers; poll get_table until its state is running."""
        requests.validate_create(request)

        def decide() -> Sequence[Edit]:
            if requests.earlier_table(self._catalog, request) is not None:
                return ()
            self._require_free(request.name)
            self._levels.require_creation()
            now = self._world.now()
            alive = [each for each in self._servers.alive(now) if gets_new(self._catalog, each.address)]
            hosts = len({each.host for each in alive if each.takes_data})
            full = sorted(each.address for each in alive if not each.takes_data)
            requests.validate_space(request, hosts, full)
            held = len(self._catalog.names) + len(self._catalog.kept), self._catalog.replicas
            requests.validate_room(request, hosts, self._options, *held, settled=self._servers.settled(now))
            return (requests.created(request, self._world.random, self._wall_us()),)

        def conclude() -> m.TableInfo:
            self._wake()
            return self._carried_out(request)

        return await self._scribe.change("create_table", decide, conclude)

    @rpc
    async def alter_table(self, request: m.AlterTableRequest) -> m.TableInfo:
        """Alter the present schema, which the client need not know, durably when this answers.

        `applied_version` of get_table shows when every tablet has applied the alteration.
        """
        requests.validate_alter(request)
        changed: list[str] = []

        def decide() -> Sequence[Edit]:
            if requests.earlier_table(self._catalog, request) is not None:
                return ()
            record = self._find(m.TableName(request.name, request.table))
            name = request.rename or record.name
            if name != record.name:
                self._require_free(name)
            schema = altered(record.schema, request.changes) if request.changes else record.schema
            requests.validate_schema(schema)
            least = requests.altered_min_members(record, request)
            changed.append(record.table)
            digest = requests.digest(request)
            return (TableAltered(request.request_id, digest, record.table, name, schema, least),)

        def conclude() -> m.TableInfo:
            self._changed(changed)
            for table in changed:
                self._altered(table)
            return self._carried_out(request)

        return await self._scribe.change("alter_table", decide, conclude)

    @rpc
    async def drop_table(self, request: m.DropTableRequest) -> m.Empty:
        """Drop a table. Its name is free when this answers.

        The replicas are deleted afterwards, or when the reserve is over.
        """
        requests.validate_drop(request)
        reserve_s = self._options.reserve_s if request.reserve_s is None else request.reserve_s
        changed: list[str] = []

        def decide() -> Sequence[Edit]:
            if requests.earlier(self._catalog, request) is not None:
                return ()
            record = self._to_drop(request.name, reserve_s)
            changed.append(record.table)
            request_id, digest, now_us = request.request_id, requests.digest(request), self._wall_us()
            if reserve_s:
                until_us = now_us + int(reserve_s * 1e6)
                left_us = int(reserve_s * 1e6) + self._uncounted_us()
                return (TableSetAside(request_id, digest, record.table, now_us, until_us, left_us),)
            return (Dropped(request_id, digest, record.table, now_us),)

        def conclude() -> m.Empty:
            self._changed(changed)
            return m.Empty()

        return await self._scribe.change("drop_table", decide, conclude)

    def _to_drop(self, name: str, reserve_s: float) -> TableRecord:
        """Find a table by its name; or without a reserve a kept table by its id."""
        record = self._catalog.named(name)
        if record is not None:
            return record
        kept = self._catalog.tables.get(name)
        if kept is None or kept.state != KEPT:
            raise self._missing(name)
        if reserve_s:
            raise InvalidArgument(
                f"table {kept.name!r} (id {name}) was dropped already; recall it, or drop it with reserve_s=0 to delete it "
                "now"
            )
        return kept

    @rpc
    async def recall_table(self, request: m.RecallTableRequest) -> m.TableInfo:
        """Bring back a table that was dropped and is kept, durably when this answers."""
        requests.validate_recall(request)
        changed: list[str] = []

        def decide() -> Sequence[Edit]:
            if requests.earlier_table(self._catalog, request) is not None:
                return ()
            record = self._to_recall(request.table)
            name = request.name or record.name
            self._require_free(name, "; recall it under another name")
            changed.append(record.table)
            return (TableRecalled(request.request_id, requests.digest(request), record.table, name),)

        def conclude() -> m.TableInfo:
            self._changed(changed)
            return self._carried_out(request)

        return await self._scribe.change("recall_table", decide, conclude)

    def _to_recall(self, name: str) -> TableRecord:
        found = self._catalog.kept_as(name)
        if not found:
            there = "; there is one, which was not dropped" if self._catalog.named(name) else ""
            raise NotFound(
                f"no table {name!r} is kept for recall{there}; see db.tables(deleted=True) or `ebla table list --deleted`",
                what=name,
            )
        if len(found) > 1:
            ids = ", ".join(record.table for record in found)
            raise InvalidArgument(
                f"{len(found)} dropped tables were called {name!r}; name one by its id, the last one first: {ids}"
            )
        return found[0]

    def _carried_out(
        self, request: m.CreateTableRequest | m.AlterTableRequest | m.RecallTableRequest
    ) -> m.TableInfo:
        record = requests.earlier_table(self._catalog, request)
        assert record is not None, "the request was carried out just now, or before"
        return self._answers.table(record, self._world.now())

    def _changed(self, tables: list[str]) -> None:
        self._views.drop_ended(self._catalog)
        for table in tables:
            if self._catalog.tables[table].state in (RUNNING, KEPT):
                self._views.compare(self._catalog, table)
        self._wake()

    # -- in the background -----------------------------------------------------------------------------------

    async def end_reserves(self) -> None:
        """Count the time of kept tables, and end the reserves that are over."""
        if self._options.accepts:
            return  # the accepted catalog is an older copy, which may lack a recall
        if not self._catalog.kept or self._counted_to is None:
            self._counted_to = self._world.now()
        if self._uncounted_us() < COUNT_US and not any(self._over(self._uncounted_us())):
            return

        def decide() -> Sequence[Edit]:
            passed_us, ended_us = self._uncounted_us(), self._wall_us()
            self._counted_to = self._world.now()  # if the edit is lost, this time does not count
            return (
                ReservesCounted(passed_us),
                *(ReserveEnded(each, ended_us) for each in self._over(passed_us)),
            )

        await self._scribe.change("end_reserve", decide, lambda: self._changed([]))

    def _over(self, passed_us: int) -> Iterator[str]:
        """Yield the kept tables whose reserve ends within `passed_us`."""
        return (table for table in self._catalog.kept if self._catalog.tables[table].left_us <= passed_us)

    def _uncounted_us(self) -> int:
        passed_s = 0.0 if self._counted_to is None else self._world.now() - self._counted_to
        return min(int(passed_s * 1e6), LEAP_US_MAX)

    # -- looking up ------------------------------------------------------------------------------------------

    @rpc
    async def get_table(self, request: m.TableName) -> m.TableInfo:
        return self._answers.table(self._find(request), self._world.now())

    @rpc
    async def list_tables(self, request: m.ListTablesRequest) -> m.ListTablesReply:
        tables = self._catalog.running_tables()
        if request.deleted:
            kept = [self._catalog.tables[table] for table in self._catalog.kept]
            tables = sorted(kept, key=lambda table: (table.name, table.dropped_us))
        found = [table for table in tables if table.name.startswith(request.prefix)]
        return m.ListTablesReply(tuple(self._answers.summary(table) for table in found))

    def _find(self, request: m.TableName) -> TableRecord:
        if not request.table:
            record = self._catalog.named(request.name)
        else:
            record = self._catalog.tables.get(request.table)
            if record is not None and record.state == KEPT:
                raise _dropped(record)
            if record is not None and record.state != RUNNING:
                record = None
        if record is None:
            raise self._missing(request.name)
        return record

    def _missing(self, name: str) -> NotFound:
        kept = self._catalog.kept_as(name)
        if kept:
            return _dropped(kept[0])
        hint = did_you_mean(name, itertools.islice(self._catalog.names, COMPARED_MAX))
        if not hint:
            known = bool(self._catalog.names)
            hint = "; see `ebla table list`" if known else "; there are no tables yet: `ebla table create`"
        return NotFound(f"there is no table {name!r}{hint}", what=name)

    def _require_free(self, name: str, remedy: str = "") -> None:
        if self._catalog.named(name) is not None:
            raise AlreadyPresent(f"table {name!r} exists already{remedy}", what=name)

    def _wall_us(self) -> int:
        return self._world.clock.wall_us()


def _dropped(record: TableRecord) -> TableDropped:
    return TableDropped.of(record.table, record.name, record.until_us)
