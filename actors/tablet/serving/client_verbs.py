"""The calls of clients, each about the rows of some tablets: writes, reads and scans.

A tablet that is not loaded yet refuses its part of a call, and is loaded next: see lifecycle/starting.py.
"""

from __future__ import annotations

import asyncio
import contextlib

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.batches import check_readable, check_version
from ebla.actors.tablet.lifecycle.verbs import Verbs
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.serving.admission import Admission, read, readable, require_readable
from ebla.actors.tablet.serving.alterations import require_served
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.world import rpc
from ebla.storage.errors import EblaError
from ebla.storage.tablets.results import Answer as Stored

WRITE_TIMEOUT_S_MAX = 30.0


class ClientVerbs(Verbs):
    options: TabletServerOptions
    admission: Admission
    scans: Scans

    @rpc
    async def write(self, request: m.WriteRequest) -> m.WriteReply:
        self._require_serving()
        outcomes: list[asyncio.Future[Stored] | Stored | EblaError] = []
        for write in request.writes:
            try:
                outcomes.append(self.admission.write(self._replica(write.tablet), write))
            except EblaError as error:
                outcomes.append(error)
        waiting = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Future)]
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with self.world.clock.timeout(min(request.timeout_s, WRITE_TIMEOUT_S_MAX)):
                    await asyncio.wait(waiting)
        settled = [_settle(outcome) for outcome in outcomes]
        return m.WriteReply(
            tuple(m.WriteResult(s.index, s.rejected) if isinstance(s, Stored) else None for s in settled),
            tuple(errors.to_triple(s) if isinstance(s, EblaError) else None for s in settled),
        )

    @rpc
    async def read(self, request: m.ReadRequest) -> m.ReadReply:
        self._require_serving()
        values: list[list[bytes | None] | None] = []
        failures: list[errors.Triple | None] = []
        for wanted in request.reads:
            try:
                values.append(
                    await read(self.world, self._replica(wanted.tablet), request.schema_version, wanted)
                )
                failures.append(None)
            except EblaError as error:
                values.append(None)
                failures.append(errors.to_triple(error))
        return m.ReadReply(tuple(values), tuple(failures))

    @rpc
    async def scan(self, request: m.ScanRequest) -> m.ScanBlock:
        self._require_serving()
        return await self.scans.begin(request, self._scan)

    async def _scan(self, tablet: str, request: m.ScanRequest) -> m.ScanBlock:
        replica = self._running(tablet)
        if request.at_leader and tablet == request.tablet:
            await readable(self.world, replica)
        elif request.at_leader:
            require_readable(self.world, replica)
        # The table may have been altered during the wait; the snapshot follows these checks at once.
        check_readable(replica.rows.schema, request.schema_version)
        require_served(replica, self.world.now())
        return await self.scans.open(replica, request)

    @rpc
    async def scan_more(self, request: m.ScanContinue) -> m.ScanBlock:
        self._require_serving()
        return await self.scans.more(request)

    @rpc
    async def scan_close(self, request: m.ScanClose) -> m.Empty:
        self._require_serving()
        self.scans.close(request.scanner)
        return m.Empty()

    @rpc
    async def read_index(self, request: m.TabletRequest) -> m.ReadIndexReply:
        """The log index that another replica must have applied for a linearizable read."""
        replica = self._running(request.tablet)
        index = await readable(self.world, replica)
        check_version(replica.rows.schema, request.schema_version)
        require_served(replica, self.world.now())
        return m.ReadIndexReply(request.tablet, index)


def _settle(outcome: asyncio.Future[Stored] | Stored | EblaError) -> Stored | EblaError:
    if not isinstance(outcome, asyncio.Future):
        return outcome
    if not outcome.done():
        return errors.OutcomeUnknown("the write is still under way; send it again with the same request id")
    error = outcome.exception()
    if error is None:
        return outcome.result()
    assert isinstance(error, EblaError), error
    return error
