"""What a client's request must pass before it reaches a replica: is it well-formed, may it run here and now?

    is there room        back-pressure is a typed Throttled with a time to wait; nothing was changed
    is it sound          counts, limits, schema version, and every row's checksum, bound to this tablet
    was it done before   the stored answer, from whichever leader gave it first

What is refused here is unsound by its own bytes, for ever, or may be sent again: no state that may change is a reason to refuse it
for good. That the table is dropped is found when the batch is applied (engine/apply.py), so that the refusal is in the log.

Reads need a leader that has a lease and has applied what it committed.
"""

from __future__ import annotations

import asyncio

import msgspec

from ebla.actors import errors
from ebla.actors.messages import RowBatch, TabletKeys, TabletWrite
from ebla.actors.tablet.engine.batches import check_batch, check_readable, decode_batch
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.space import Space
from ebla.actors.tablet.engine.tally import DISK_FULL
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.serving.alterations import require_served
from ebla.actors.world import World
from ebla.storage.errors import Corruption, DiskFull, EblaError, InvalidArgument
from ebla.storage.rows import checksum
from ebla.storage.tablets.results import Answer

READ_BYTES_MAX = 256 << 20  # of one tablet's part of an answer; it is in memory several times on its way
READ_STEP_KEYS = 256  # looked up and verified at a time
READ_WAIT_S = 5.0  # longer than any client waits for one answer to a get; a slow disk needs less
RETRY_AFTER_S = 0.05


class Load:
    """How full the server is; kept by the server. `memtable_bytes`: of tablets whose disks work; of those on a disk that hangs
    `hung` says what all on that disk hold together."""

    def __init__(self, flushed_at_bytes: int) -> None:
        self.flushed_at_bytes = flushed_at_bytes
        self.memtable_bytes = 0
        self.unapplied_bytes = 0
        self.hung: dict[str, int] = {}

    def is_full_for(self, tablet: str) -> bool:
        """Whether rows that go to the tablet's disk, or to any that works, fill the memory."""
        return self.hung.get(tablet, self.memtable_bytes) > 2 * self.flushed_at_bytes

    def holds_back(self, tablet: str) -> bool:
        """Whether a replica that follows must take no more entries: only its disk is to blame."""
        return tablet in self.hung and self.is_full_for(tablet)


class Admission:
    def __init__(
        self, world: World, options: TabletServerOptions, rounds: Rounds, load: Load, space: Space
    ) -> None:
        self.world = world
        self.options = options
        self.rounds = rounds
        self.load = load
        self.space = space

    def write(self, replica: Replica, write: TabletWrite) -> asyncio.Future[Answer] | Answer:
        """The stored answer of an earlier try, or the future one. Raises a typed error if it may not run."""
        replica.require_running()
        if replica.core.role != "leader":
            raise replica.not_leader()
        batch = self._decode(write)
        self._check(replica, batch)
        known = replica.rows.known_answer(batch)
        if isinstance(known, EblaError):
            raise known
        if known is not None:
            return known
        self._room(replica, batch)
        now = self.world.clock.monotonic()
        future = self.rounds.step(replica, replica.propose_write, now, write.batch, batch)
        self.rounds.tally.admitted += 1
        return future

    def _room(self, replica: Replica, batch: RowBatch) -> None:
        options = self.options
        try:
            self._require_space(replica.tablet)
        except DiskFull as error:
            self.rounds.tally.refused[DISK_FULL] += 1
            if _is_under_way(replica, batch):
                raise errors.OutcomeUnknown(
                    f"{error}. An earlier try of this very write is in the log and may still be applied"
                ) from error
            raise
        if self.load.is_full_for(replica.tablet):
            self._throttle("memtable_bytes", "rows arrive faster than they are flushed")
        if self.load.unapplied_bytes > options.unapplied_bytes_max:
            self._throttle("unapplied_bytes_max", "writes arrive faster than they are replicated")
        if replica.store.results.count(batch.client) >= options.results_per_client_max:
            self._throttle(
                "results_per_client_max", "the client never says which answers it has (first_incomplete)"
            )

    def _require_space(self, tablet: str) -> None:
        if self.rounds.disk_full:
            raise DiskFull(
                f"{self.world.address} has no disk space left, the write was not applied: free some, then send the write again"
            )
        self.space.require_for_write(tablet)

    def _throttle(self, limit: str, why: str) -> None:
        self.rounds.tally.refused[limit] += 1
        raise errors.Throttled(
            f"{self.world.address} is at its limit {limit}: {why}", limit=limit, retry_after_s=RETRY_AFTER_S
        )

    def _decode(self, write: TabletWrite) -> RowBatch:
        try:
            return decode_batch(write.batch)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"malformed batch for tablet {write.tablet}: {error}") from error

    def _check(self, replica: Replica, batch: RowBatch) -> None:
        check_batch(replica.rows.schema, batch)
        if batch.values:
            joined = list(map(b"".join, zip(batch.keys, batch.values, strict=True)))
            try:
                codec, version = replica.rows.codec, batch.schema_version
                layout = codec.layout if version == codec.schema.version else codec.schema.layout_of(version)
                checksum.verified_block(joined, replica.rows.seed, None, layout)
            except Corruption as error:
                raise InvalidArgument(
                    f"a row arrived damaged, or was meant for another tablet: {error}"
                ) from error


def _is_under_way(replica: Replica, batch: RowBatch) -> bool:
    """Whether this very request is on its way through the log."""
    asked = batch.client, batch.sequence
    return any((each.batch.client, each.batch.sequence) == asked for each in replica.waiters.values())


async def read(world: World, replica: Replica, schema_version: int, wanted: TabletKeys) -> list[bytes | None]:
    """Values with their checksums (verified here), as of a moment between call and answer.

    There is no turn of the event loop behind the wait, so the schema that is checked is that of the rows.
    """
    replica.require_running()
    await readable(world, replica)
    check_readable(replica.rows.schema, schema_version)
    require_served(replica, world.clock.monotonic())
    values: list[bytes | None] = []
    size = 0
    for start in range(0, len(wanted.keys), READ_STEP_KEYS):
        keys = wanted.keys[start : start + READ_STEP_KEYS]
        try:
            found = replica.store.get_many(keys)
            joined = [key + value for key, value in zip(keys, found, strict=True) if value is not None]
            checksum.verify(joined, replica.rows.seed, replica.store.environment.path)
        except Corruption as error:
            replica.fail(error)
            replica.require_running()
        values += found
        size += sum(map(len, joined))
        if size > READ_BYTES_MAX:
            raise InvalidArgument(
                f"the rows of {len(wanted.keys)} keys in tablet {replica.tablet} take more than the "
                f"{READ_BYTES_MAX >> 20} MiB of one answer; ask for fewer keys at once"
            )
    return values


async def readable(world: World, replica: Replica) -> int:
    """Wait until a linearizable read may look at the rows; the index that they reflect at least.

    Raises NotLeader when another replica is to lead meanwhile, and Unavailable when the disk here holds up for READ_WAIT_S what
    the others have committed: callers ask again, and those who have gone do not pile up here.
    """
    index = replica.core.read_index(world.clock.monotonic())
    if index <= replica.store.applied.index:
        return index
    try:
        async with world.clock.timeout(READ_WAIT_S):
            # The lease held when the index was taken, between call and answer: that is the read's moment.
            await replica.readers.until(index)
    except TimeoutError:
        raise errors.Unavailable(
            f"tablet {replica.tablet} has applied {replica.store.applied.index} at {world.address}, not yet {index}; the disk "
            "there may hang; try again"
        ) from None
    replica.require_running()
    if replica.store.applied.index < index:
        raise replica.not_leader()
    return index
