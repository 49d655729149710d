"""The catalog of a standby: follows the edits of the active master, as far as they are certain to stay.

The standby reads the journal page by page, also the segment in progress up to the edit that its writer
called committed; a recovery never removes such an edit. From time to time it saves a checkpoint in its own
directory, so that a start reads little and old edits can be purged. If it was away so long that its next
edits are gone, it takes another master's checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import EditsGone, ForeignJournal, NodesMoved, QuorumFailed
from ebla.actors.journal.writer.reader import JournalReader, Page, Position
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.checkpoint import Checkpoints, Mark, image_of
from ebla.actors.master.catalog.invariants import loaded
from ebla.actors.master.catalog.records import decode_image
from ebla.actors.master.messages import CheckpointChunk, CheckpointRequest
from ebla.actors.master.options import GroupOptions
from ebla.actors.world import World
from ebla.storage.errors import DiskFull, EblaError

log = logging.getLogger(__name__)


class Standby:
    """`txid`: the last edit that the catalog reflects. `caught_up`: since it last tried to take over, the
    standby has reached the end of the readable edits. `read_error`: why the last reading did not reach the
    end; empty if it did."""

    def __init__(self, world: World, options: GroupOptions, checkpoints: Checkpoints) -> None:
        self.catalog = Catalog()
        self.checkpointed = 0
        self.caught_up = False
        self.read_error = ""
        self._tried = 0  # the transaction of the last checkpoint that was tried
        self._world = world
        self._options = options
        self._checkpoints = checkpoints
        self._reader = JournalReader(world, options.journal)
        self.position = self._reader.beginning()
        self._load()

    @property
    def txid(self) -> int:
        return self.position.txid

    def _load(self) -> None:
        """Load this master's checkpoint. Raises Corruption, or ForeignJournal if it is of another journal."""
        saved = self._checkpoints.load()
        if saved is not None:
            wanted = self._options.journal.journal
            if saved.mark.journal not in ("", wanted.id):
                raise ForeignJournal(
                    f"the directory of {self._world.address} is another deployment's: its catalog is of the journal with the "
                    f"id {saved.mark.journal}, not of {wanted.id}; bring back the one that belongs here, or an empty one",
                    journal=wanted.name,
                    wanted=wanted.id,
                    found=saved.mark.journal,
                )
            self.checkpointed = saved.txid
            self.catalog = loaded(saved.image)
            self.position = Position(saved.txid, saved.mark.history or None)

    async def follow(self) -> None:
        """Follow the journal until cancelled.

        Edits that cannot be read now are read later. Damage, or contradicting edits, end the role.
        """
        while True:
            try:
                await self._read_on()
                self.read_error = ""
            except EditsGone as error:
                self.read_error = str(error)
                if not await self._take_checkpoint():
                    await self._begin_with_written()
            except (QuorumFailed, Unavailable, NodesMoved) as error:
                self.read_error = str(error)
                log.info("%s cannot follow the journal now: %s", self._world.address, error)
            await self._world.clock.sleep(self._options.tail_s)

    async def _read_on(self) -> None:
        while True:
            page = await self._reader.read(self.position, in_progress=True)
            if page.position == self.position:
                self.caught_up = True
                return
            self._apply(page)
            await self._checkpoint()

    def _apply(self, page: Page) -> None:
        for edits in e.decoded(self._options.journal.journal.name, page.edits):
            self.catalog.apply(edits)
        self.position = page.position

    async def _checkpoint(self) -> None:
        since = self.txid - max(self.checkpointed, self._tried)
        if since >= max(self._options.master.checkpoint_edits, len(self.catalog)):
            await self._save(self.txid)

    async def _save(self, txid: int) -> None:
        """Save a checkpoint. If the disk is full, continue, and try again after as many further edits."""
        self._tried = txid
        mark = Mark(self._options.journal.journal.id, self.position.digest or 0)
        await self._world.faults.here("master.standby.before_save")
        try:
            await self._checkpoints.save(txid, self.catalog.image(), mark)
        except DiskFull as error:
            log.warning(
                "%s made no checkpoint and continues to follow the journal: %s", self._world.address, error
            )
            return
        await self._world.faults.here("master.standby.after_save")
        self.checkpointed = txid

    # -- another master's checkpoint -------------------------------------------------------------------------

    async def _take_checkpoint(self) -> bool:
        """Take the checkpoint of the first other master that has a newer one.

        There is one, since edits are purged only when two masters have them in a checkpoint.
        """
        for master in self._options.masters:
            if master == self._world.address:
                continue
            try:
                chunks = await self._fetch(master)
            except EblaError as error:
                log.info("%s could not fetch a checkpoint from %s: %s", self._world.address, master, error)
                continue
            image = image_of(chunks)
            ours = chunks[0].journal == self._options.journal.journal.id
            if image is not None and ours and chunks[0].txid > self.txid:
                self.catalog = loaded(image)
                self.position = Position(chunks[0].txid, chunks[0].history or None)
                await self._save(chunks[0].txid)
                return True
        return False

    async def _begin_with_written(self) -> None:
        """Begin with the catalog's copy in the journal, from when the journal grew to several nodes."""
        try:
            purged = max(each.purged for each in (await self._reader.manifests()).values())
            pages = await self._reader.read_all(Position(purged), in_progress=True)
        except (QuorumFailed, Unavailable, NodesMoved, EditsGone) as error:
            log.info("%s cannot read the journal now: %s", self._world.address, error)
            return
        catalog = written_catalog(e.decoded(self._options.journal.journal.name, pages.edits))
        if catalog is None:
            log.warning("%s lacks edits after %d, and no master has them", self._world.address, self.txid)
            return
        self.catalog, self.position = catalog, pages.position
        await self._save(self.txid)

    async def _fetch(self, master: str) -> list[CheckpointChunk]:
        chunks = [await self._chunk(master, 0)]
        while len(chunks) < chunks[0].chunks:
            chunks.append(await self._chunk(master, len(chunks)))
        return chunks

    async def _chunk(self, master: str, number: int) -> CheckpointChunk:
        request, timeout_s = CheckpointRequest(number), self._options.rpc_timeout_s
        return await self._world.network.call(master, "read_checkpoint", request, CheckpointChunk, timeout_s)


def written_catalog(transactions: Iterable[Sequence[e.Edit]]) -> Catalog | None:
    """Build the catalog from its first complete copy among the edits, and the edits after it."""
    catalog: Catalog | None = None
    chunks: list[bytes] = []
    for edits in transactions:
        if catalog is not None:
            catalog.apply(edits)
            continue
        first = edits[0]
        if not isinstance(first, e.CatalogWritten) or first.number == 0:
            chunks = []  # a copy that ended before its last chunk is of no use
        if isinstance(first, e.CatalogWritten) and first.number == len(chunks):
            chunks.append(first.chunk)
            if len(chunks) == first.chunks:
                catalog = loaded(decode_image(b"".join(chunks)))
    return catalog
