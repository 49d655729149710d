"""Defects of alterations and recalls of tables."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.master.catalog.edits import ReserveEnded
from ebla.actors.master.tables.tables import Tables
from ebla.actors.tablet.engine.replica import Replica
from ebla.chaos.defects.defect import defect
from ebla.storage.logs.entries import Entry
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column
from ebla.storage.tablets.tablet_store import TabletStore


# The codec is not cached: a cached one would outlive the defect.
@defect("alters", 100, RowCodec, "of_layout", seed=7)
def old_cells_return(self: RowCodec, layout: int, path: str | None) -> RowCodec:
    """A column that is added under a dropped column's name shows the old values."""
    if layout == self.layout:
        return self
    made = self.schema.in_layout(layout)
    names = {column.id: column.name for column in self.schema.former}
    taken = dict.fromkeys(column.name for column in made.columns)
    named: list[Column] = []
    for column in made.columns:
        name = names.get(column.id, column.name)
        named.append(column if name in taken else replace(column, name=name))
        taken[name] = None
    return RowCodec(replace(made, columns=tuple(named)), None, layout)


@defect("alters", 20, Replica, "_alter")
def altered_where_it_leads(original: Any, self: Replica, entry: Entry) -> None:
    """An alteration is carried out by the leader alone, and a new leader has the older schema."""
    if self.leads:
        original(self, entry)


@defect("alters", 20, TabletStore, "alter", seed=4)
def flushed_without_schema(self: TabletStore, alteration: bytes) -> None:
    """A flush stores rows without the alteration under which they were written."""


@defect("takeovers", 40, Tables, "end_reserves", seed=6)
async def reserve_by_the_wall(self: Tables) -> None:
    """A wall clock deletes a dropped table for good."""

    def decide() -> list[Any]:
        now_us = self._wall_us()
        kept = [self._catalog.tables[table] for table in self._catalog.kept]
        return [ReserveEnded(each.table, now_us) for each in kept if each.until_us <= now_us]

    if decide():
        await self._scribe.change("end_reserve", decide, lambda: self._changed([]))


@defect("alters", 20, Tables, "end_reserves")
async def reserve_without_end(self: Tables) -> None:
    """A dropped table can be recalled after its reserve time."""
