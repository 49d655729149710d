"""What a client's request must pass before it reaches a replica: is it well-formed, may it run here and now?

    is there room        back-pressure is a typed Throttled with a time to wait; nothing was changed
    is it sound          counts, limits, schema version, and every row's checksum, bound to this tablet
    was it done before   the stored answer, from whichever leader gave it first

Reads need a leader that has a lease and has applied what it committed.
"""

from __future__ import annotations

import asyncio

import msgspec

from ebla.actors import errors
from ebla.actors.messages import RowBatch, TabletKeys, TabletWrite
from ebla.actors.tablet.alterations import require_served
from ebla.actors.tablet.batches import check_batch, check_readable, check_version, decode_batch
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.replica import Replica
from ebla.actors.tablet.rounds import Rounds
from ebla.actors.tablet.tally import DISK_FULL
from ebla.actors.world import World
from ebla.storage import checksum
from ebla.storage.errors import Corruption, DiskFull, EblaError, InvalidArgument
from ebla.storage.results import Answer

READ_BYTES_MAX = 256 << 20  # of one tablet's part of an answer; it is in memory several times on its way
READ_STEP_KEYS = 256  # looked up and verified at a time
RETRY_AFTER_S = 0.05


class Load:
    """How full the server is; kept by the server."""

    def __init__(self) -> None:
        self.memtable_bytes = 0
        self.unapplied_bytes = 0


class Admission:
    def __init__(self, world: World, options: TabletServerOptions, rounds: Rounds, load: Load) -> None:
        self.world = world
        self.options = options
        self.rounds = rounds
        self.load = load

    def write(self, replica: Replica, write: TabletWrite) -> asyncio.Future[Answer] | Answer:
        """The stored answer of an earlier try, or the future one. Raises a typed error if it may not run."""
        replica.require_running()
        if replica.core.role != "leader":
            raise replica.not_leader()
        batch = self._decode(write)
        if replica.rows.dropped is not None and replica.rows.known_answer(batch) is None:
            check_version(replica.rows.schema, batch.schema_version)
            require_served(replica, self.world.clock.monotonic())
        self._check(replica, batch)
        known = replica.rows.known_answer(batch)
        if isinstance(known, EblaError):
            raise known
        if known is not None:
            return known
        self._room(replica, batch)
        future = replica.propose_write(self.world.clock.monotonic(), write.batch, batch)
        self.rounds.touch(replica)
        self.rounds.tally.admitted += 1
        return future

    def _room(self, replica: Replica, batch: RowBatch) -> None:
        options = self.options
        if self.rounds.disk_full:
            self.rounds.tally.refused[DISK_FULL] += 1
            raise DiskFull(
                f"{self.world.address} has no disk space left; free some, then send the write again"
            )
        if self.load.memtable_bytes > 2 * options.memtable_bytes:
            self._throttle("memtable_bytes", "rows arrive faster than they are flushed")
        if self.load.unapplied_bytes > options.unapplied_bytes_max:
            self._throttle("unapplied_bytes_max", "writes arrive faster than they are replicated")
        if replica.store.results.count(batch.client) >= options.results_per_client_max:
            self._throttle(
                "results_per_client_max", "the client never says which answers it has (first_incomplete)"
            )

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


async def read(world: World, replica: Replica, schema_version: int, wanted: TabletKeys) -> list[bytes | None]:
    """Values with their checksums (verified here), as of a moment between call and answer.

    There is no turn of the event loop between the steps, so all of them see that moment.
    """
    replica.require_running()
    check_readable(replica.rows.schema, schema_version)
    require_served(replica, world.clock.monotonic())
    await readable(world, replica)
    values: list[bytes | None] = []
    size = 0
    for start in range(0, len(wanted.keys), READ_STEP_KEYS):
        keys = wanted.keys[start : start + READ_STEP_KEYS]
        found = replica.store.get_many(keys)
        joined = [key + value for key, value in zip(keys, found, strict=True) if value is not None]
        try:
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
    """Wait until a linearizable read may look at the rows; the index that they reflect at least."""
    index = replica.core.read_index(world.clock.monotonic())
    waiting = replica.applied(index)
    if waiting is not None:
        # The lease held when the index was taken, between call and answer: that is the read's moment.
        await waiting
        replica.require_running()
    return index
