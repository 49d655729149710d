"""The source of tablet copies: sessions, each one snapshot of a replica, sent in numbered chunks.

    one state    rows, answers and position as of the flushed position; then the log from there up to its last entry at the
                 begin, synced here or not: whatever the server that copies may have acknowledged is among them, since only a
                 leader serves, and it had those entries before
    anchored     the log keeps what follows the snapshot for as long as the session lives
    sound        rows are verified before they leave: damage fails this replica, it is never copied
    bounded      so many sessions, so many chunks kept for a repeat; a session ends when it is told so, when nobody asked for
                 `copy_idle_s`, when its replica ends or stops leading, and when its log would grow without bound

LMDB's snapshot pins pages, and does not outlive a growing map: the map is made large before. If it expires all the same, so
does the session, and the copy begins anew.

Source: seed 000; Kudu's tablet copy service (kudu.md A3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import chain

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.replica import Replica
from ebla.actors.world import World, new_id
from ebla.storage import checksum, private_log, transfer
from ebla.storage.entries import Position
from ebla.storage.environment import Environment, Item, Snapshot
from ebla.storage.errors import Corruption, Damaged, SnapshotExpired
from ebla.storage.neighbours import require_ascending
from ebla.storage.results import RESULTS
from ebla.storage.tablet_store import META, ROWS, position_of

LOG = "log"
DATABASES = (ROWS, RESULTS, META)  # in the order in which they are sent; then the log
CHUNK_BYTES = 2_000_000  # Ray likes messages above 1 MB
PIECE_ITEMS = 4096  # read at a time: a few milliseconds
WINDOW = 4  # chunks that one copy may have asked for at once
KEPT = 2 * WINDOW
ROOM_BYTES = 1 << 34  # address space made ready, so that the map need not grow while it is read
LOOK_S = 1.0


@dataclass(eq=False)
class Session:
    """`database` and `after`: what comes next, DATABASES[database] behind the key `after`; then the log behind `index`."""

    id: str
    requestor: str
    replica: Replica
    snapshot: Snapshot
    flushed: Position
    last: Position
    used_at: float
    index: int
    database: int = 0
    after: bytes = b""
    found: int = 0
    number: int = 0
    ended: bool = False
    kept: dict[int, m.Chunk] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    reading: bool = False

    @property
    def anchor(self) -> int:
        """The log keeps everything behind it."""
        return min(self.index, self.last.index)


class Sessions:
    def __init__(
        self,
        world: World,
        options: TabletServerOptions,
        flush: Callable[[Replica], Awaitable[object]],
        on_failed: Callable[[Replica], None],
    ) -> None:
        self.world = world
        self.options = options
        self.flush = flush
        self.on_failed = on_failed
        self.sent_bytes = 0
        self._sessions: dict[str, Session] = {}
        self._free_at = 0.0  # when the bandwidth allows the next chunk

    def start(self) -> None:
        self.world.spawn(self._expire(), "copy sessions")

    def __len__(self) -> int:
        return len(self._sessions)

    def anchor(self, tablet: str) -> int | None:
        """The least index that a session still holds the log of this tablet at."""
        return min((s.anchor for s in self._sessions.values() if s.replica.tablet == tablet), default=None)

    # -- begin

    async def begin(self, replica: Replica, request: m.BeginSessionRequest) -> m.SessionBegun:
        """Flushes first, so that there is little log to send. Nothing here outlives this process."""
        self._require_leading(replica, request.term)
        for session in list(self._sessions.values()):
            if session.requestor == request.requestor and session.replica is replica:
                self._end(session)
        if len(self._sessions) >= self.options.copy_sessions_max:
            raise errors.Throttled(
                f"{len(self._sessions)} copy sessions are open on this server",
                limit="copy_sessions_max",
                retry_after_s=1.0,
            )
        await self.flush(replica)
        async with replica.upkeep:
            replica.require_running()
            environment = replica.store.environment
            await environment.reserve(ROOM_BYTES)
            self._require_leading(replica, request.term)
            snapshot = environment.snapshot()
        return self._begun(replica, request.requestor, environment, snapshot)

    def _begun(
        self, replica: Replica, requestor: str, environment: Environment, snapshot: Snapshot
    ) -> m.SessionBegun:
        flushed = position_of(snapshot, environment.path)
        superblock, core = replica.superblock, replica.core
        session = Session(
            id=new_id(self.world.random),
            requestor=requestor,
            replica=replica,
            snapshot=snapshot,
            flushed=flushed,
            last=replica.log.last,
            used_at=self.world.clock.monotonic(),
            index=flushed.index,
        )
        self._sessions[session.id] = session
        return m.SessionBegun(
            session=session.id,
            idle_s=self.options.copy_idle_s,
            table=superblock.table,
            table_name=superblock.table_name,
            schema=superblock.schema,
            bucket=superblock.bucket,
            flushed=flushed,
            last=session.last,
            term=core.term,
            configuration=core.committed_configuration,
            data_bytes=environment.size_bytes(),
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

    # -- fetch

    async def fetch(self, request: m.FetchRequest) -> m.Chunk:
        session = self._session(request.session)
        async with session.turn:
            while request.number not in session.kept:
                self._require(session)
                if session.ended and request.number >= session.number:
                    return _chunk(session, request.number, LOG, transfer.pack([]))  # asked for ahead
                if session.ended or not session.number <= request.number < session.number + WINDOW:
                    raise errors.InvalidArgument(
                        f"chunk {request.number} was asked for, {session.number} is next in session {session.id}"
                    )
                chunk = await self._next(session)
                self._require(session)
                session.number += 1
                session.kept[chunk.number] = chunk
                session.kept.pop(chunk.number - KEPT, None)
            self._require(session)
            chunk = session.kept[request.number]
        await self._within_bandwidth(len(chunk.items))
        self.sent_bytes += len(chunk.items)
        return chunk

    async def _next(self, session: Session) -> m.Chunk:
        session.reading = True
        try:
            database, items = await self._read(session)
        except SnapshotExpired:
            self._end(session)
            raise self._gone(session.id) from None
        except (Corruption, Damaged) as error:
            session.replica.fail(error)
            self._end(session)
            self.on_failed(session.replica)
            raise
        finally:
            session.reading = False
            if session.id not in self._sessions:
                session.snapshot.close()
        return _chunk(session, session.number, database, items)

    async def _read(self, session: Session) -> tuple[str, bytes]:
        environment, tablet = session.replica.store.environment, session.replica.tablet
        while session.database < len(DATABASES):
            database = DATABASES[session.database]
            seed = checksum.seed(tablet) if database == ROWS else None
            found: list[Item] = []
            size = 0
            while size < CHUNK_BYTES:
                items = await environment.run(
                    _piece, session.snapshot, database, session.after, seed, environment.path
                )
                if not items:
                    break
                size += sum(map(len, chain.from_iterable(items)))
                session.after = items[-1][0]
                found += items
            session.found += len(found)
            if size < CHUNK_BYTES:
                self._require_all(session, database)
                session.database, session.after, session.found = session.database + 1, b"", 0
            if found:
                return database, await environment.run(transfer.pack, found)
        return LOG, transfer.pack(self._log_items(session))

    def _require_all(self, session: Session, database: str) -> None:
        expected, path = session.snapshot.count(database), session.replica.store.environment.path
        if session.found != expected:
            raise Corruption(f"{path} has {expected} of {database}, {session.found} are found", path=path)

    def _log_items(self, session: Session) -> list[Item]:
        """The next entries. Raises NoSession if a new leader has replaced some of them since."""
        log, last = session.replica.log, session.last.index
        replaced = log.last_index < last or log.dropped.index > session.index
        if replaced or log.position(last) != session.last:
            self._end(session)
            raise self._gone(session.id)
        items: list[Item] = []
        size = 0
        while session.index < last and size < CHUNK_BYTES:
            (entry,) = log.load(session.index + 1, session.index + 1)
            items.append(private_log.item_of(entry, log.position(session.index)))
            session.index += 1
            size += len(entry.payload)
        session.ended = session.index == last
        return items

    async def _within_bandwidth(self, size: int) -> None:
        """What all copies from here may take together."""
        rate = self.options.copy_bytes_per_s
        if rate:
            now = self.world.clock.monotonic()
            self._free_at = max(now, self._free_at) + size / rate
            await self.world.clock.sleep(self._free_at - now)

    # -- end

    def end(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._end(session)

    def close_tablet(self, tablet: str) -> None:
        for session in list(self._sessions.values()):
            if session.replica.tablet == tablet:
                self._end(session)

    def _end(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None and not session.reading:
            session.snapshot.close()

    async def _expire(self) -> None:
        while True:
            await self.world.clock.sleep(LOOK_S)
            now = self.world.clock.monotonic()
            for session in list(self._sessions.values()):
                idle = now - session.used_at > self.options.copy_idle_s and not session.turn.locked()
                if idle or session.replica.state != m.RUNNING or self._outgrown(session.replica):
                    self.world.faults.reached("tablet.copy.session_ended")
                    self._end(session)

    def _outgrown(self, replica: Replica) -> bool:
        """A copy that takes so long holds a log that grows without bound."""
        options, log = self.options, replica.log
        return (
            log.last_index - log.dropped.index > 2 * options.log_retained_entries_max
            or log.size_bytes > 2 * options.log_retained_bytes_max
        )

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise self._gone(session_id)
        session.used_at = self.world.clock.monotonic()
        return session

    def _require(self, session: Session) -> None:
        """Asked after every wait."""
        if session.id not in self._sessions:
            raise self._gone(session.id)

    def _gone(self, session_id: str) -> errors.NoSession:
        return errors.NoSession(f"copy session {session_id} has ended; begin a new one", session=session_id)


def _chunk(session: Session, number: int, database: str, items: bytes) -> m.Chunk:
    digest = transfer.digest(session.id, number, database, items, end=session.ended)
    return m.Chunk(session.id, number, database, items, digest, session.ended)


def _piece(snapshot: Snapshot, database: str, after: bytes, seed: int | None, path: str) -> list[Item]:
    """The items behind the key `after`, up to a piece; rows verified."""
    start = after + b"\0" if after else b""
    items = snapshot.items(database, start, limit=PIECE_ITEMS, bytes_max=CHUNK_BYTES)
    require_ascending([after, *(key for key, _ in items)], path)
    if seed is not None:
        checksum.verify([key + value for key, value in items], seed, path)
    return items
