"""The calls of a tablet server about copies and quarantine: each checks which server is meant."""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.engine.space import Space
from ebla.actors.tablet.lifecycle.verbs import Verbs
from ebla.actors.world import rpc


class CopyVerbs(Verbs):
    copies: Copies
    copy_sources: CopySources
    space: Space

    # -- the target

    @rpc
    async def start_copy(self, request: m.StartCopyRequest) -> m.Empty:
        self._require(request.dest_uuid)
        self.space.require_for_tablet()
        await self.copies.start(request)
        return m.Empty()

    @rpc
    async def list_copies(self, request: m.Empty) -> m.CopyJobs:
        self._require_running()
        return m.CopyJobs(self.copies.statuses(), len(self.copy_sources), tuple(self.copies.ended))

    @rpc
    async def cancel_copy(self, request: m.CancelCopyRequest) -> m.Empty:
        self._require(request.dest_uuid)
        await self.copies.cancel_for_a_while(request.tablet)
        return m.Empty()

    # -- the source

    @rpc
    async def begin_copy_session(self, request: m.BeginCopyRequest) -> m.CopyBegun:
        self._require(request.dest_uuid)
        return await self.copy_sources.begin(self._replica(request.tablet), request)

    @rpc
    async def fetch_chunk(self, request: m.FetchRequest) -> m.Chunk:
        self._require_running()
        return await self.copy_sources.fetch(request)

    @rpc
    async def end_copy_session(self, request: m.EndCopyRequest) -> m.Empty:
        self._require_running()
        self.copy_sources.end(request.session, failed=request.error is not None, damaged=request.damaged)
        return m.Empty()

    # -- quarantine

    @rpc
    async def quarantine_list(self, request: m.Empty) -> m.QuarantineEntries:
        self._require_running()
        entries = []
        for held in self.lifecycle.quarantine.list():
            shown = {name: getattr(held.record, name) for name in m.QuarantineEntry.__struct_fields__[:-1]}
            entries.append(m.QuarantineEntry(**shown, bytes=held.bytes))
        return m.QuarantineEntries(tuple(entries))

    @rpc
    async def quarantine_restore(self, request: m.QuarantineRequest) -> m.Empty:
        """Restore each of `names` into a directory of its name under `directory`."""
        self._require(request.dest_uuid)
        for name in request.names:
            await self.lifecycle.quarantine.restore(name, f"{request.directory}/{name}")
        return m.Empty()

    @rpc
    async def quarantine_purge(self, request: m.QuarantineRequest) -> m.Empty:
        self._require(request.dest_uuid)
        await self.lifecycle.quarantine.purge(request.names)
        return m.Empty()
