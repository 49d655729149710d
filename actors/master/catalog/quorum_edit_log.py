"""The catalog's edit log, on a quorum of journal nodes. There may be one node, in the master's own process.

A transaction is one edit of the journal: its edits are replayed together or not at all. Its number there is its number here. The markers between segments take
numbers too, and carry nothing. To open is to fence the master that wrote before and to recover what it left; from then
on nobody else can make an edit durable, and a master that was superseded learns it from its next append.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.journal.errors import broken
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.reader import JournalReader, Position
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.checkpoint import Mark
from ebla.actors.world import World
from ebla.storage.errors import Corruption, EblaError


class QuorumEditLog:
    """One object, one active term."""

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

    async def recover(self, after: Position) -> list[e.Edit]:
        """The edits of every transaction after `after`, in order. Raises EditsGone if they were purged: a newer checkpoint has
        them."""
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
        """One transaction, durable when it returns. If it raises, whether it is durable is unknown, and the active term ends; but
        after DiskFull it is not durable, and the next one may be appended."""
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
            raise self._corruption(
                f"it ends at transaction {last}, before the checkpoint at {after.txid}; the directory of a journal node is an older "
                "copy than the master's: bring back copies that were made together"
            )
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
