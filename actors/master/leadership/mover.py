"""Moves the catalog of a deployment's only master into the journal, once, before the first master that shares it starts.

It runs in the directory of that master, whose lock keeps everybody else out of it, and goes on from wherever an earlier
one ended:

    1  read the local catalog: checkpoint and edits, every byte checked
    2  fence and recover the journal; if it has the catalog already, go on with 5
    3  mark the directory: no master that keeps its own catalog begins here any more
    4  append the whole catalog to the journal as its first edit
    5  empty the local log and its checkpoint, in one commit

The commit point is 4: until a majority of the journal nodes has synced that edit the catalog is the local one, from then
on it is the journal's. There are never two that count: whoever starts masters has remembered before 1 that there is a
journal, so no single master is started any more, which the mark tells one that is started all the same, and starts those
that share the journal after 5. A directory without
any catalog is refused, not taken for an empty one.
"""

from __future__ import annotations

import logging

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import NotRunning
from ebla.actors.journal.options import JournalOptions
from ebla.actors.master.catalog import checkpoint, edit_log
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.directory import Directory, mark_moved, open_existing
from ebla.actors.master.catalog.edits import CatalogMoved, Edit
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.catalog.records import encode_image
from ebla.actors.world import Role, World, rpc
from ebla.storage.environment import DeleteRange
from ebla.storage.errors import EblaError, InvalidArgument

log = logging.getLogger(__name__)


class Moved(msgspec.Struct, frozen=True):
    """What is in the journal now. `again`: it was there before."""

    tables: int
    tablets: int
    again: bool


class CatalogMover(Role):
    directory: Directory

    def __init__(self, world: World, options: JournalOptions) -> None:
        self.world = world
        self.options = options
        options.validate()
        self._running = False

    async def start(self) -> None:
        """Nothing is made where there is no catalog, so that a later incarnation does not take it for one."""
        found = await open_existing(self.world)
        if found is None:
            raise InvalidArgument(
                "there is no catalog to move: the directory of the deployment's master is empty; bring its disk back, or "
                "set up a new deployment in another data_dir"
            )
        self.directory = found
        self._running = True

    async def stop(self) -> None:
        self._running = False

    @rpc
    async def move(self, request: m.Empty) -> Moved:
        """Safe to repeat after any error, also by another incarnation; one at a time, or both fail."""
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")
        local = await self._local()
        journal = QuorumEditLog(self.world, self.options)
        try:
            there = await journal.open(0)
            moved = self._moved_before(there, local)
            if moved is None:
                moved = self._whole(local)
                await mark_moved(self.world)
                await self.world.faults.here("master.move.before_edit")
                await journal.append([moved])
                await self.world.faults.here("master.move.after_edit")
        except EblaError:
            journal.writer.close()
            raise
        journal.writer.close()
        await self._clear()
        catalog = Catalog()
        catalog.apply([moved])
        return Moved(len(catalog.names), len(catalog.tablets) - len(catalog.ended), bool(there))

    async def _local(self) -> tuple[int, Catalog]:
        """The catalog that lies here, and its last transaction; 0 and nothing if it was moved, or never had any. Raises
        Corruption."""
        catalog, txid = Catalog(), 0
        saved = self.directory.checkpoints.load()
        if saved is not None:
            txid = saved.txid
            catalog.load(saved.image)
        own = edit_log.LocalEditLog(self.directory.environment)
        catalog.apply(await own.open(txid))
        catalog.check()
        return own.last_txid, catalog

    def _moved_before(self, there: list[Edit], local: tuple[int, Catalog]) -> CatalogMoved | None:
        if not there:
            return None
        first, name = there[0], self.options.journal.name
        if not isinstance(first, CatalogMoved):
            raise InvalidArgument(
                f"journal {name} has a catalog of its own already, another than {self.world.address} should move into it; "
                "give this deployment a data_dir of its own"
            )
        if local[0] and (first.uuid, first.txid) != (self.directory.instance.uuid, local[0]):
            raise InvalidArgument(
                f"journal {name} has the catalog of another master, or of another moment, than this directory; restore the "
                "directory whose catalog was moved, or give this deployment a data_dir of its own"
            )
        return first

    def _whole(self, local: tuple[int, Catalog]) -> CatalogMoved:
        txid, catalog = local
        return CatalogMoved(self.directory.instance.uuid, txid, encode_image(catalog.image()))

    async def _clear(self) -> None:
        """From now on the directory is like that of any master that shares the journal."""
        everything = [DeleteRange(name, b"", None) for name in (edit_log.DATABASE, checkpoint.DATABASE)]
        await self.directory.environment.commit(everything)
        await self.world.faults.here("master.move.after_clear")
