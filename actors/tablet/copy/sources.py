"""The source of tablet copies: each session sends one snapshot of a replica in numbered chunks.

    one state    rows, answers and position as of the flushed position; then the log from there up to its last
                 entry when the session began, synced here or not. These include every entry that the target
                 may have acknowledged, since only a leader serves, and it had those entries before
    anchored     the log keeps the entries after the snapshot while the session is open, and the entries after
                 the copy until its replica has caught up (log_retention.py)
    as it is     the data environment is sent as bytes (storage/environment.py, Stream) and not read here. The
                 target verifies all of it before the copy counts; if it finds damage, this replica is
                 scrubbed, and fails if the damage is its own
    bounded      the number of sessions is limited, those that are beginning included, with one for each
                 tablet and target; so are the chunks kept for repeated requests. A session ends on request,
                 after `copy_idle_s` without a fetch, with its replica, and when its log outgrows its limits
                 (log_retention.py)

The snapshot is taken while the replica's upkeep lock is held: only flushes and compactions commit to the data, and
none begins before the snapshot is taken, so its position is that of the stream. The target compares
them. Pages of the stream are not reused meanwhile, so the file may grow: the map is enlarged
before, since a map that grows later would expire scans.

Source: seed 000; Kudu's tablet copy service (kudu.md A3).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import VOTER
from ebla.actors.tablet.copy.bandwidth import Bandwidth
from ebla.actors.tablet.copy.log_retention import (
    CATCHING_UP,
    SENDING,
    CopySource,
    LogRetention,
    Retained,
    outgrown,
)
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.waits import Bell, within
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import World, new_id
from ebla.storage.environment import Item, Stream
from ebla.storage.errors import Corruption, Damaged, DiskFailed, StorageError
from ebla.storage.logs import private_log
from ebla.storage.logs.entries import Position
from ebla.storage.tablets import transfer
from ebla.storage.tablets.positions import position_of

log = logging.getLogger(__name__)

DATA, LOG = "data", "log"  # in the order in which they are sent
# Large, since Ray's cost is per message; below INLINE_BYTES of actors/ray_world.py.
CHUNK_BYTES = 1_800_000  # even with its frame a small allocation (storage/lmdb/pages.py)
CHUNK_BYTES_MIN = 64 << 10
WINDOW = 3  # chunks that one copy may request at once
KEPT = WINDOW  # a repeated request comes before any later window
ROOM_BYTES = 1 << 34  # address space, see above
EXPIRY_CHECK_S = 1.0
DURABLE_S = 1.0  # a copy waits so long for the record of the term that it is made in


@dataclass(eq=False)
class CopySources:
    world: World
    options: TabletServerOptions
    retention: LogRetention
    flush: Callable[[Replica], Awaitable[object]]
    on_failed: Callable[[Replica], None]
    on_doubt: Callable[[Replica], None]  # called when the replica's data may be damaged

    def __post_init__(self) -> None:
        self.bandwidth = Bandwidth(self.world.clock, self.options.copy_bytes_per_s)
        self.sent_bytes = 0
        self._beginning: dict[tuple[str, str], None] = {}  # tablet, requestor
        self._session_begun = Bell()

    def start(self) -> None:
        self.world.spawn(self._expire(), "copy sessions")

    def __len__(self) -> int:
        return len(self.retention.sources)

    def all(self) -> list[CopySource]:
        return list(self.retention.sources.values())

    # -- begin

    async def begin(self, replica: Replica, request: m.BeginCopyRequest) -> m.CopyBegun:
        """Begin a session. Flushes first, so that there is little log to send. No session outlives
        this process."""
        self._require_leading(replica, request.term)
        self._require_member(replica, request.requestor)
        for source in list(self.retention.sources.values()):
            if source.requestor == request.requestor and source.replica is replica:
                self._end(source)
        key = replica.tablet, request.requestor
        self._require_room(*key)
        self._beginning[key] = None
        try:
            return await self._begin(replica, request)
        finally:
            del self._beginning[key]

    def _require_room(self, tablet: str, requestor: str) -> None:
        if (tablet, requestor) in self._beginning:
            why = f"a copy session of tablet {tablet} is just beginning for server {requestor}"
        elif (count := len(self.retention.sources) + len(self._beginning)) >= self.options.copy_sessions_max:
            why = f"{count} copy sessions are open on this server"
        else:
            return
        raise errors.Throttled(f"{why}; try again later", limit="copy_sessions_max", retry_after_s=1.0)

    async def _begin(self, replica: Replica, request: m.BeginCopyRequest) -> m.CopyBegun:
        # A primary whose disk is full may forget that it led this ballot, and lead it again: its entries may go nowhere.
        late = errors.Unavailable(
            f"term {request.term} of tablet {replica.tablet} is not on the disk yet; try again"
        )
        await within(self.world.clock, replica.hard_state_durable(), DURABLE_S, late)
        await self.flush(replica)
        async with replica.upkeep:
            replica.require_running()
            environment = replica.store.environment
            await environment.reserve(ROOM_BYTES)
            stream, flushed = await self._stream(replica)
        try:
            self._require_leading(replica, request.term)
            if request.forgetful:
                self._require_newcomer(replica, request.requestor)
        except BaseException:
            stream.close()
            raise
        return self._begun(replica, request.requestor, stream, flushed)

    async def _stream(self, replica: Replica) -> tuple[Stream, Position]:
        """A stream, and the position that its data reflects."""
        environment = replica.store.environment
        try:
            flushed = position_of(environment, environment.path)
            return await environment.stream(), flushed
        except (Corruption, Damaged) as error:
            replica.fail(error)
            self.on_failed(replica)
            raise
        except DiskFailed:
            raise
        except StorageError as error:
            if replica.state == m.RUNNING:
                self.on_doubt(replica)
            raise errors.Unavailable(f"no copy can be made of tablet {replica.tablet}: {error}") from error

    def _begun(self, replica: Replica, requestor: str, stream: Stream, flushed: Position) -> m.CopyBegun:
        superblock, core = replica.superblock, replica.core
        last = replica.log.last
        assert flushed.index <= last.index, ("only entries of the log are flushed", flushed, last)
        source = CopySource(
            id=new_id(self.world.random),
            requestor=requestor,
            replica=replica,
            stream=stream,
            flushed=flushed,
            last=last,
            used_at=self.world.now(),
            index=flushed.index,
        )
        self.retention.sources[source.id] = source
        self._session_begun.ring()
        return m.CopyBegun(
            session=source.id,
            idle_s=self.options.copy_idle_s,
            table=superblock.table,
            table_name=superblock.table_name,
            schema=superblock.schema,
            bucket=superblock.bucket,
            flushed=flushed,
            last=source.last,
            term=core.term,
            configuration=core.committed_configuration,
            data_bytes=stream.size_bytes,
        )

    def _require_leading(self, replica: Replica, term: int) -> None:
        replica.require_running()
        if not replica.leads:
            raise replica.not_leader()
        if replica.core.term != term:
            raise errors.OldTerm(
                f"term {replica.core.term} has begun since term {term}",
                tablet=replica.tablet,
                term=replica.core.term,
            )

    def _require_member(self, replica: Replica, requestor: str) -> None:
        """Refuse a requestor that is no member: the leader's request may have been delayed for long."""
        if replica.core.configuration.peer(requestor) is None:
            raise errors.IllegalState(
                f"server {requestor} is no member of tablet {replica.tablet}; members are copied to, so add it first",
                tablet=replica.tablet,
                state=replica.state,
            )

    def _require_newcomer(self, replica: Replica, uuid: str) -> None:
        """Refuse a forgetful requestor that may be a voter: a superseded leader may not know that
        it is one."""
        core = replica.core
        core.read_index(self.world.now())
        for configuration in (core.configuration, core.committed_configuration):
            peer = configuration.peer(uuid)
            if peer is not None and peer.member == VOTER:
                raise errors.IllegalState(
                    f"{peer.address} has forgotten its votes and is a voter of tablet {replica.tablet}; it comes back once it is "
                    "removed from the configuration and added again",
                    tablet=replica.tablet,
                    state=m.FAILED,
                )

    # -- fetch

    async def fetch(self, request: m.FetchRequest) -> m.Chunk:
        source = self._source(request.session)
        async with source.turn:
            while request.number not in source.kept:
                self._require(source)
                if source.ended and request.number >= source.number:
                    return _chunk(source, request.number, LOG, transfer.pack([]))  # requested ahead
                if source.ended or not source.number <= request.number < source.number + WINDOW:
                    raise errors.InvalidArgument(
                        f"chunk {request.number} was asked for, {source.number} is next in session {source.id}"
                    )
                chunk = await self._next(source)
                self._require(source)
                source.number += 1
                source.kept[chunk.number] = chunk
                source.due[chunk.number] = self.bandwidth.take(len(chunk.data))
                source.kept.pop(chunk.number - KEPT, None)
                source.due.pop(chunk.number - KEPT, None)
                assert len(source.kept) <= KEPT, ("few chunks are kept", source.id, len(source.kept))
            self._require(source)
            chunk, due_at = source.kept[request.number], source.due[request.number]
        await self.bandwidth.until(due_at, self.options.copy_idle_s / 3)
        self.sent_bytes += len(chunk.data)
        return chunk

    async def _next(self, source: CopySource) -> m.Chunk:
        try:
            part, data = await self._read(source)
        except (Corruption, Damaged) as error:
            source.replica.fail(error)
            self._end(source)
            self.on_failed(source.replica)
            raise
        except DiskFailed:
            raise
        except StorageError as error:
            self._require(source)  # the session may have been closed
            self._end(source)
            self.on_doubt(source.replica)
            raise self._gone(source.id, str(error)) from error
        return _chunk(source, source.number, part, data)

    async def _read(self, source: CopySource) -> tuple[str, bytes]:
        if source.stream is not None:
            data = await source.stream.read(self._chunk_bytes())
            if data:
                return DATA, data
            self._require(source)
            source.stream.close()
            source.stream = None
        return LOG, transfer.pack(self._log_items(source))

    def _chunk_bytes(self) -> int:
        """The size of a chunk: about one second of a limited bandwidth, so that progress is visible."""
        limit = self.options.copy_bytes_per_s
        return min(CHUNK_BYTES, max(limit, CHUNK_BYTES_MIN)) if limit else CHUNK_BYTES

    def _log_items(self, source: CopySource) -> list[Item]:
        """The next entries of the log. Raises CopyExpired if a new leader has replaced some of them since."""
        entries, last = source.replica.log, source.last.index
        replaced = entries.last_index < last or entries.dropped.index > source.index
        if replaced or entries.position(last) != source.last:
            self._end(source)
            raise self._gone(source.id)
        items: list[Item] = []
        size = 0
        while source.index < last and size < CHUNK_BYTES:
            (entry,) = entries.load(source.index + 1, source.index + 1)
            items.append(private_log.item_of(entry, entries.position(source.index)))
            source.index += 1
            size += len(entry.payload)
        assert source.index <= last, ("a copy ends where it was said to", source.id, source.index, last)
        source.ended = source.index == last
        if source.ended:
            now = self.world.now()
            self.retention.add(Retained(source.id, source.replica, source.requestor, last, now))
        return items

    # -- end

    def end(self, session_id: str, *, failed: bool = False, damaged: bool = False) -> None:
        """End a session. `failed`: the copy did not become a replica; `damaged`: because its data
        failed the checks."""
        if failed:
            self.retention.release(session_id)
        source = self.retention.sources.get(session_id)
        if source is not None:
            self._end(source)
            if damaged:
                self.on_doubt(source.replica)

    def close_tablet(self, tablet: str) -> None:
        self.retention.close_tablet(tablet)
        for source in list(self.retention.sources.values()):
            if source.replica.tablet == tablet:
                self._end(source)

    def _end(self, source: CopySource) -> None:
        if self.retention.sources.pop(source.id, None) is None:
            return
        assert source.due.keys() == source.kept.keys(), ("each chunk is due at a time", source.id)
        for number, due_at in source.due.items():
            self.bandwidth.give_back(len(source.kept[number].data), due_at)
        if source.stream is not None:
            source.stream.close()

    async def _expire(self) -> None:
        while True:
            if not self.retention.sources and not len(self.retention):
                await self._session_begun.wait()
            await self.world.clock.sleep(EXPIRY_CHECK_S)
            now = self.world.now()
            for source in list(self.retention.sources.values()):
                idle = now - source.used_at > self.options.copy_idle_s and not source.turn.locked()
                if idle or source.replica.state != m.RUNNING or self._outgrown(source):
                    self.world.faults.reached("tablet.copy.session_ended")
                    self._end(source)
            self.retention.end_over(now)

    def _outgrown(self, source: CopySource) -> bool:
        """Whether the log has outgrown its limits: a copy that takes too long must not retain it
        without bound."""
        tablet = source.replica.tablet
        granted = self.retention.granted(tablet, source.requestor)
        times = granted * (CATCHING_UP if source.ended else SENDING)
        if not outgrown(source.replica.log, self.options, times):
            return False
        if not source.ended:
            self.retention.grant_more(tablet, source.requestor)
        log.warning(
            "a copy of tablet %s ends: its log has grown beyond %d times its limits meanwhile; raise copy_bytes_per_s "
            "if it is limited, or log_retained_entries_max and log_retained_bytes_max",
            tablet,
            times,
        )
        return True

    def _source(self, session_id: str) -> CopySource:
        source = self.retention.sources.get(session_id)
        if source is None:
            raise self._gone(session_id)
        source.used_at = self.world.now()
        return source

    def _require(self, source: CopySource) -> None:
        """Raise if the session has ended. Called after every wait."""
        if source.id not in self.retention.sources:
            raise self._gone(source.id)

    def _gone(self, session_id: str, why: str = "") -> errors.CopyExpired:
        reason = f" ({why})" if why else ""
        return errors.CopyExpired(
            f"copy session {session_id} has ended{reason}; begin a new one", session=session_id
        )


def _chunk(source: CopySource, number: int, part: str, data: bytes) -> m.Chunk:
    digest = transfer.digest(source.id, number, part, data, end=source.ended)
    return m.Chunk(source.id, number, part, data, digest, source.ended)
