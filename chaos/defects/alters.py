"""What planted defects swap where tables are altered and set aside; chaos/defects/planted.py names them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.master.catalog.edits import ReserveEnded
from ebla.actors.master.tables.tables import Tables
from ebla.actors.tablet.engine.replica import Replica
from ebla.chaos.defects.replication import Swap
from ebla.storage.logs.entries import Entry
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column
from ebla.storage.tablets.tablet_store import TabletStore


def old_cells_come_back_under_their_name() -> list[Swap]:
    def of(self: RowCodec, layout: int, path: str | None) -> RowCodec:
        """Made anew each time: what is cached must not outlive the defect."""
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

    return [(RowCodec, "_of", of)]


def only_the_leader_is_altered() -> list[Swap]:
    honest = Replica._alter

    def alter(self: Replica, entry: Entry) -> None:
        if self.leads:
            honest(self, entry)

    return [(Replica, "_alter", alter)]


def rows_are_flushed_without_their_schema() -> list[Swap]:
    def alter(self: TabletStore, alteration: bytes) -> None:
        self.alteration = alteration

    return [(TabletStore, "alter", alter)]


def reserves_end_by_the_wall_clock() -> list[Swap]:
    async def end(self: Tables) -> None:
        def decide() -> list[Any]:
            now_us = self._wall_us()
            kept = [self._catalog.tables[table] for table in self._catalog.kept]
            return [ReserveEnded(each.table, now_us) for each in kept if each.until_us <= now_us]

        if decide():
            await self.scribe.change("end_reserve", decide, lambda: self._changed([]))

    return [(Tables, "end_reserves", end)]


def a_reserve_never_ends() -> list[Swap]:
    async def nothing(self: Tables) -> None:
        return None

    return [(Tables, "end_reserves", nothing)]
