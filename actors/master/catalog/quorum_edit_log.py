"""The catalog's edit log, on a quorum of journal nodes. There may be one node, in the master's own process.

A transaction is one edit of the journal: its edits are replayed together or not at all. It has the same
number in the journal and here. The markers between segments also have numbers, and no content. Recovering
the log fences the last master that wrote and recovers its edits; from then on no other can make an edit
durable, and the next append of a superseded master fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors.journal.errors import broken
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.reader import JournalReader, Position
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.checkpoint import Mark
from ebla.actors.world import World
from ebla.storage.errors import EblaError


class QuorumEditLog:
    """The edit log of one active term."""

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
        """Fence the last writer; return the edits of all transactions after `after`, in order.

        Raises EditsGone if they were purged: a newer checkpoint has them.
        """
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
        """Append one transaction, durably when this returns.

        After an error it is unknown whether the transaction is durable, and the active term ends. The
        exception is DiskFull: the transaction is not durable, and the next one may be appended.
        """
        assert len(edits) > 0, "an empty transaction says nothing"
        self._last = await self.writer.append(e.encode(edits))
        assert self.writer.written.txid == self._last, "no other task appends, so no edit was written since"
        self._history = self.writer.written.digest

    async def purge(self, upto: int) -> None:
        assert upto <= self._last, (upto, self._last)
        await self.writer.purge(upto + 1)

    async def _catch_up(self, after: Position, last: int, digest: int) -> list[e.Edit]:
        """Read the edits after `after` up to `last`, where the journal was recovered.

        After a pause of this master there may be more edits, because another master has begun; `begin` then
        fails. The edits up to `last` are decided all the same.
        """
        if last < after.txid:
            raise e.damaged(
                self._name,
                f"it ends at transaction {last}, before the checkpoint at {after.txid}; the directory of a journal node is an older "
                "copy than the master's: bring back copies that were made together",
            )
        page = await self._reader.read_all(after, upto=last)
        known = page.position.digest
        if page.position.txid != last or (known is not None and known != digest):
            raise broken(self._name, f"it was recovered to {last}, and can be read to {page.position.txid}")
        return [edit for edits in e.decoded(self._name, page.edits) for edit in edits]
