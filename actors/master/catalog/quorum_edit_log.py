"""The master's edit log on a quorum of journal nodes: an `EditLog` (actors/master/catalog/edit_log.py).

A transaction is one edit of the journal; its number there is its number here. The markers between segments take
numbers too, and carry nothing. To open is to fence the master that wrote before and to recover what it left; from then
on nobody else can make an edit durable, and a master that was superseded learns it from its next append.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.journal.errors import EditsGone, broken
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.reader import JournalReader, Position
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.checkpoint import Mark
from ebla.actors.world import World
from ebla.storage.errors import Corruption, EblaError


class QuorumEditLog:
    """One object, one epoch: it is opened once."""

    def __init__(self, world: World, options: JournalOptions, holder: Holder | None = None) -> None:
        self.writer = JournalWriter(world, options, holder)
        self._name, self._id = options.journal.name, options.journal.id
        self._reader = JournalReader(world, options)
        self._last = self._history = 0

    @property
    def last_txid(self) -> int:
        return self._last

    def mark(self) -> Mark:
        return Mark(self._id, self._history)

    async def open(self, after: int) -> list[e.Edit]:
        try:
            return await self.recover(self._reader.beginning() if after == 0 else Position(after))
        except EditsGone as error:
            raise self._corruption("edits were purged, but no checkpoint holds them") from error

    async def recover(self, after: Position) -> list[e.Edit]:
        """As `open`, for whoever may find a newer checkpoint elsewhere: raises EditsGone if it needs one."""
        end = await self.writer.open()
        try:
            edits = await self._catch_up(after, end.txid, end.digest)
        except EblaError:
            self.writer.close()
            raise
        await self.writer.begin()
        self._last, self._history = self.writer.end
        return edits

    async def append(self, edits: Sequence[e.Edit]) -> None:
        assert len(edits) > 0, "an empty transaction says nothing"
        self._last = await self.writer.append(e.encode(edits))
        assert self.writer.written.txid == self._last, "nobody else appends, so no edit was written since"
        self._history = self.writer.written.digest

    async def purge(self, upto: int) -> None:
        assert upto <= self._last, (upto, self._last)
        await self.writer.purge(upto + 1)

    async def _catch_up(self, after: Position, last: int, digest: int) -> list[e.Edit]:
        """Up to where the journal was recovered. Whoever stood still since may find more: somebody else has begun, which
        `begin` will tell. What is there up to `last` is decided all the same."""
        if last < after.txid:
            raise self._corruption(f"it ends at transaction {last}, before the checkpoint at {after.txid}")
        page = await self._reader.read_all(after, upto=last)
        known = page.position.digest
        if page.position.txid != last or (known is not None and known != digest):
            raise broken(self._name, f"it was recovered to {last}, and can be read to {page.position.txid}")
        found: list[e.Edit] = []
        for txid, payload in page.edits:
            try:
                found.extend(e.decode(payload))
            except msgspec.MsgspecError as error:
                raise self._corruption(f"transaction {txid} holds no edits: {error}") from error
        return found

    def _corruption(self, what: str) -> Corruption:
        return Corruption(
            f"journal {self._name} is damaged: {what}; restore the master's catalog", path=self._name
        )
