"""One writer's requests to single nodes, sent by hand, for states that a real writer leaves only when it fails."""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors.journal import messages as m
from ebla.actors.journal.records import digest_of, first_digest
from tests.journal.stage import JOURNAL, Stage

FIRST = first_digest(JOURNAL)


def edits_of(epoch: int, first: int, last: int) -> tuple[bytes, ...]:
    """The edits of the writer of this epoch."""
    return tuple(f"{epoch}:{txid}".encode() for txid in range(first, last + 1))


def digest(epoch: int, first: int, last: int, before: int = FIRST) -> int:
    return digest_of(before, first, edits_of(epoch, first, last))


class Raw:
    def __init__(self, stage: Stage, epoch: int) -> None:
        self.stage = stage
        self.epoch = epoch
        self.committed = 0
        self._serials = dict.fromkeys(stage.nodes, 0)

    def stamp(self, node: str) -> m.Stamp:
        self._serials[node] += 1
        return m.Stamp(JOURNAL, self.epoch, self._serials[node], self.committed)

    async def promise(self, *nodes: str) -> dict[str, m.NewEpochReply]:
        request = m.NewEpochRequest(JOURNAL, self.epoch)
        return {node: await self.stage.ask(node, "new_epoch", request, m.NewEpochReply) for node in nodes}

    async def start(self, nodes: Sequence[str], start: int = 1, before: int = FIRST) -> None:
        for node in nodes:
            await self.stage.ask(
                node, "start_segment", m.StartSegment(self.stamp(node), start, before), m.Done
            )

    async def edits(
        self, node: str, last: int, *, first: int = 1, segment: int = 1, before: int = FIRST
    ) -> None:
        """Edits first .. last in one batch; `before` is the digest before `first`."""
        batch = edits_of(self.epoch, first, last)
        request = m.JournalRequest(self.stamp(node), segment, first, batch, digest_of(before, first, batch))
        await self.stage.ask(node, "journal", request, m.Done)

    async def finalize(self, node: str, start: int, end: int, after: int) -> None:
        await self.stage.ask(node, "finalize", m.FinalizeRequest(self.stamp(node), start, end, after), m.Done)

    async def prepare(self, node: str, start: int = 1) -> m.Prepared:
        request = m.PrepareRequest(self.stamp(node), start)
        found: m.Prepared = await self.stage.ask(node, "prepare_recovery", request, m.Prepared)
        return found

    async def accept(self, node: str, segment: m.SegmentState, *sources: str) -> None:
        await self.stage.ask(
            node, "accept_recovery", m.AcceptRequest(self.stamp(node), segment, sources), m.Done
        )

    async def heartbeat(self, node: str) -> None:
        await self.stage.ask(node, "journal_heartbeat", m.Heartbeat(self.stamp(node)), m.Done)

    async def purge(self, node: str, before: int) -> None:
        await self.stage.ask(node, "purge", m.PurgeRequest(self.stamp(node), before), m.Done)

    async def leave(self, lengths: Sequence[int]) -> None:
        """A segment of this writer with this length on each node (-1: not started)."""
        for node, length in zip(self.stage.nodes, lengths, strict=True):
            await self.promise(node)
            if length >= 0:
                await self.start([node])
            if length > 0:
                await self.edits(node, length)
