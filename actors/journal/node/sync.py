"""Catching up: a node asks its peers, one after the other, for finalized segments that it lacks.

A finalized segment was decided by a majority, so taking it needs no epoch. A node does not take a segment
that the writer is writing here, nor one beyond the known committed txid, and never a segment in progress.
A segment that was found damaged here counts as lacking.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from ebla.actors.journal import messages as m
from ebla.actors.journal.node.journal import Journal
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.world import World
from ebla.storage.errors import DiskFailed, EblaError

log = logging.getLogger(__name__)

PagesFrom = Callable[[m.JournalId, m.SegmentState, Sequence[str]], AsyncIterator[tuple[bytes, ...]]]


@dataclass(eq=False)
class Sync:
    _world: World
    _journals: dict[str, Journal]
    _pages: PagesFrom
    _options: JournalNodeOptions

    async def run(self) -> None:
        """Ask all peers at a start, then one peer in each turn."""
        turn = 0
        await self.all()
        while True:
            await self._world.clock.sleep(self._options.sync_s)
            for journal in self._now():
                peers = self._peers(journal)
                if peers:
                    await self.ask(journal, peers[turn % len(peers)])
            turn += 1

    async def all(self) -> None:
        for journal in self._now():
            for peer in self._peers(journal):
                await self.ask(journal, peer)

    async def ask(self, journal: Journal, peer: str) -> None:
        """Take the finalized segments of one peer that this node lacks. A later turn asks again."""
        try:
            manifest = await self._world.network.call(
                peer,
                "manifest",
                m.ManifestRequest(journal.form.journal.of_any_version()),
                m.Manifest,
                self._options.rpc_timeout_s,
            )
            for offered in manifest.segments:
                if offered.finalized and offered.end > manifest.purged:
                    await self._take(journal, offered, manifest, peer)
            await journal.peer_has(manifest)
        except DiskFailed:
            raise
        except EblaError as error:
            level = logging.INFO if error.retriable else logging.WARNING
            log.log(level, "%s could not catch up from %s: %s", self._world.address, peer, error)

    async def _take(self, journal: Journal, offered: m.SegmentState, manifest: m.Manifest, peer: str) -> None:
        def pages(segment: m.SegmentState) -> AsyncIterator[tuple[bytes, ...]]:
            return self._pages(journal.form.journal, segment, [peer])

        if await journal.learn(offered, manifest, pages):
            log.info(
                "%s took segment %d of %s from %s", self._world.address, offered.start, journal.form, peer
            )

    def _now(self) -> list[Journal]:
        return [self._journals[name] for name in sorted(self._journals)]

    def _peers(self, journal: Journal) -> list[str]:
        return [node for node in journal.form.nodes if node != self._world.address]
