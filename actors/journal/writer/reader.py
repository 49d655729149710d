"""The reader of a journal: reads from any nodes that have the edits, without disturbing the writer.

It reads only edits that are certain to stay: those of finalized segments, and with `in_progress` those of
the newest segment that its writer called committed. The running digest checks every edit against the
edits before. If a node's copy does not continue the edits that were read before, the reader takes another
node's; if no copy continues them, the journal is broken.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from ebla.actors.errors import Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import EditsGone, broken
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.quorum import call_nodes
from ebla.actors.journal.records import digest_after, first_digest
from ebla.actors.journal.writer.writer import MARKER
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

ATTEMPTS = 3


class Position(NamedTuple):
    """The last edit that was read. `digest` None: unknown, so the next edit's is accepted unchecked."""

    txid: int
    digest: int | None = None


class Page(NamedTuple):
    """Edits with their txids, without markers, and the next position; unchanged: no more edits."""

    edits: list[tuple[int, bytes]]
    position: Position


class JournalReader:
    def __init__(self, world: World, options: JournalOptions) -> None:
        options.validate()
        self._world = world
        self._options = options

    def beginning(self) -> Position:
        return Position(0, first_digest(self._options.journal))

    async def read(self, after: Position, *, in_progress: bool = False) -> Page:
        """Read the next edits, all of one segment.

        Raises QuorumFailed if no majority answers, EditsGone if the edits were purged, Unavailable if they
        exist and no node sends them, JournalBroken if they do not continue the edits that were read before.
        """
        page, _ = await self._read(after, in_progress)
        return page

    async def read_all(self, after: Position, *, in_progress: bool = False, upto: int | None = None) -> Page:
        """Read all edits after `after` that there are now, or the pages that begin at `upto` or before.

        The reader asks for the nodes' manifests only when the last ones are used up, not for each page:
        there may be thousands of segments.
        """
        found: list[tuple[int, bytes]] = []
        known: Mapping[str, m.Manifest] | None = None
        while True:
            if upto is not None and after.txid >= upto:
                return Page(found, after)
            page, known = await self._read(after, in_progress, known)
            if page.position == after:
                return Page(found, after)
            found += page.edits
            after = page.position

    async def _read(
        self, after: Position, in_progress: bool, known: Mapping[str, m.Manifest] | None = None
    ) -> tuple[Page, Mapping[str, m.Manifest]]:
        """Read a page; also return the nodes' manifests. `known`: manifests from a while ago."""
        name = self._options.journal.name
        strangers: list[str] = []
        for attempt in range(ATTEMPTS + (known is not None)):
            manifests = known if known is not None and attempt == 0 else await self.manifests()
            holding = holders(manifests, after.txid, in_progress)
            if not holding and not is_later(manifests, after.txid):
                if manifests is known:
                    continue
                return Page([], after), manifests
            silent = [node for node in self._options.nodes if node not in manifests]
            for node in (*holding, *silent):
                page = await self._read_from(node, after, in_progress, strangers)
                if page is not None:
                    return page, manifests
            if purged(manifests, after.txid):
                raise EditsGone(
                    f"the edits after {after.txid} of journal {name} were purged; load a newer checkpoint",
                    journal=name,
                    after=after.txid,
                )
            # The manifests are from different moments, and the writer continues: read them again.
        if strangers:
            raise broken(
                name,
                f"what was read up to edit {after.txid} is not what {strangers[0]} has before the next one",
            )
        raise Unavailable(
            f"none of the nodes of journal {name} that answer could send edit {after.txid + 1}, and "
            f"{', '.join(manifests)} have it or later ones; wait for the other nodes"
        )

    async def manifests(self) -> dict[str, m.Manifest]:
        """Return the manifests of a majority: at least one of its nodes has each decided edit."""
        world, options = self._world, self._options
        request, timeout_s = m.ManifestRequest(options.journal), options.read_timeout_s
        return await call_nodes(world, options, "list segments", "manifest", request, m.Manifest, timeout_s)

    async def _read_from(
        self, node: str, after: Position, in_progress: bool, strangers: list[str]
    ) -> Page | None:
        """Read a page from one node; None if that fails.

        A node whose edits do not continue the edits that were read before is added to `strangers`.
        """
        options = self._options
        request = m.ReadRequest(options.journal, after.txid, options.read_bytes, in_progress)
        try:
            found = await self._world.network.call(node, "read", request, m.Edits, options.read_timeout_s)
        except EblaError as error:
            log.warning("could not read journal %s from %s: %s", options.journal.name, node, error)
            return None
        if not found.edits:
            return None
        if after.digest is not None and found.before != after.digest:
            log.error("%s does not continue journal %s after %d", node, options.journal.name, after.txid)
            strangers.append(node)
            return None
        digest, edits = found.before, []
        for txid, edit in enumerate(found.edits, found.first):
            digest = digest_after(digest, txid, edit)
            if edit != MARKER:
                edits.append((txid, edit))
        return Page(edits, Position(after.txid + len(found.edits), digest))


def holders(manifests: Mapping[str, m.Manifest], after: int, in_progress: bool) -> list[str]:
    """List the nodes with the next edit: first those that have it finalized, then those with most edits."""
    found: list[tuple[bool, int, str]] = []
    for node, manifest in manifests.items():
        best: tuple[bool, int] | None = None
        for segment in manifest.segments:
            if segment.start <= after + 1 <= segment.end and (segment.finalized or in_progress):
                this = segment.finalized, segment.end
                best = this if best is None else max(best, this)
        if best is not None:
            found.append((*best, node))
    found.sort(key=lambda each: (not each[0], -each[1]))
    return [node for *_, node in found]


def is_later(manifests: Mapping[str, m.Manifest], after: int) -> bool:
    """Whether there are edits beyond the next one, so that a next one exists or was purged."""
    return purged(manifests, after) or any(
        segment.start > after + 1 for manifest in manifests.values() for segment in manifest.segments
    )


def purged(manifests: Mapping[str, m.Manifest], after: int) -> bool:
    return any(manifest.purged > after for manifest in manifests.values())
