"""The checks of a client's request before it reaches a replica: whether it is well-formed and may run here and now.

    room      back-pressure is a typed Throttled with a time to wait; nothing was changed
    form      counts, limits, schema version, and every row's checksum, bound to this tablet
    repeat    a repeated request gets the stored answer of its first execution

A refusal here is either final because of the request's own bytes, or the request may be sent again: a state that may
change never refuses for good. A dropped table is found when the batch is applied (engine/apply.py), so that the refusal
is in the log.

Reads need a leader that has a lease and has applied what it committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from ebla.actors import errors
from ebla.actors.messages import RowBatch, TabletKeys, TabletWrite
from ebla.actors.tablet.engine.batches import check_batch, check_readable, columnar, decode_batch
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

READ_BYTES_MAX = 256 << 20  # of one tablet's part of an answer, of which memory has several copies
READ_STEP_KEYS = 256  # read and verified at a time
READ_WAIT_S = 5.0  # longer than clients wait for the answer to a get; a slow disk needs less
RETRY_AFTER_S = 0.05


class Load:
    """How full the server is, updated by upkeep. `memtable_bytes`: of tablets on working disks. `hung`: for each tablet on a
    disk that hangs, the bytes of all tablets on that disk."""

    def __init__(self, flushed_at_bytes: int) -> None:
        self.flushed_at_bytes = flushed_at_bytes
        self.memtable_bytes = 0
        self.unapplied_bytes = 0
        self.hung: dict[str, int] = {}

    def is_full_for(self, tablet: str) -> bool:
        """Whether unflushed rows for the tablet's disk, or for all working disks, fill the memory."""
        return self.hung.get(tablet, self.memtable_bytes) > 2 * self.flushed_at_bytes

    def holds_back(self, tablet: str) -> bool:
        """Whether a follower must take no more entries, because its disk hangs."""
        return tablet in self.hung and self.is_full_for(tablet)


@dataclass(eq=False)
class Admission:
    world: World
    options: TabletServerOptions
    rounds: Rounds
    load: Load
    space: Space

    def write(self, replica: Replica, write: TabletWrite) -> asyncio.Future[Answer] | Answer:
        """The stored answer of an earlier try, or a future answer. Raises a typed error if the write may not run."""
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
        now = self.world.now()
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
                    f"{error}. An earlier try of this write is in the log and may still be applied"
                ) from error
            raise
        if self.load.is_full_for(replica.tablet):
            self._throttle("memtable_bytes", "rows arrive faster than they are flushed")
        if self.load.unapplied_bytes > options.unapplied_bytes_max:
            self._throttle("unapplied_bytes_max", "writes arrive faster than they are replicated")
        if replica.store.results.count(batch.client) >= options.results_per_client_max:
            self._throttle(
                "results_per_client_max",
                "the client does not report the answers that it has (first_incomplete)",
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
        codec, seed = replica.rows.codec, replica.rows.seed
        try:
            if batch.columnar:
                columnar(codec, batch, seed).check()
            elif batch.values:
                joined = list(map(b"".join, zip(batch.keys, batch.values, strict=True)))
                checksum.verified_block(joined, seed, None, codec.layout_in(batch.schema_version))
        except Corruption as error:
            raise InvalidArgument(f"a row arrived damaged, or belongs to another tablet: {error}") from error


def _is_under_way(replica: Replica, batch: RowBatch) -> bool:
    """Whether an earlier try of the request is in the log."""
    request = batch.client, batch.sequence
    return any((each.batch.client, each.batch.sequence) == request for each in replica.waiters.values())


async def read(world: World, replica: Replica, schema_version: int, wanted: TabletKeys) -> list[bytes | None]:
    """Values with their checksums (verified here), as of a moment between call and answer. After `readable` nothing awaits,
    so the checked schema is that of the rows."""
    replica.require_running()
    await readable(world, replica)
    check_readable(replica.rows.schema, schema_version)
    require_served(replica, world.now())
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
                f"{READ_BYTES_MAX >> 20} MiB of one answer; get fewer keys at once"
            )
    return values


def require_readable(world: World, replica: Replica) -> None:
    """Raise NotLeader or Unavailable unless a linearizable read may use the rows now."""
    index = replica.core.read_index(world.now())
    if index > replica.store.applied.index:
        raise errors.Unavailable(
            f"tablet {replica.tablet} has not applied {index} at {world.address}; try again"
        )


async def readable(world: World, replica: Replica) -> int:
    """Wait until a linearizable read may use the rows. Return an index that they reflect.

    Raises NotLeader when another replica leads meanwhile, and Unavailable when the disk here delays committed entries for
    READ_WAIT_S: callers try again, and calls without a caller do not accumulate.
    """
    index = replica.core.read_index(world.now())
    if index <= replica.store.applied.index:
        return index
    try:
        async with world.clock.timeout(READ_WAIT_S):
            # The lease was valid when the index was taken, between call and answer: that is the moment of the read.
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
