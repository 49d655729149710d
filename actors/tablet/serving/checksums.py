"""Digests of replicas at one log index, so that replicas can be compared under full load.

The leader appends a checkpoint entry to the log. Every replica that applies this entry pins a snapshot and digests it
beside the event loop. A comparison then requests the digest at that index from each replica.

    wide       one call begins the checkpoints of many tablets, and one call waits for many digests
    bounded    of each disk, tablets with BEGIN_BYTES of rows are under way, whose snapshots wait for their turn, and DIGESTS_MAX
               digests are made at the same time, so that a disk that hangs delays no other; KEPT_MAX are kept or wait
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors.messages import ChecksumQuery, ChecksumReply, ChecksumStart, ChecksumStarted, Digest
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.serving.scans import digest
from ebla.actors.world import World, settle
from ebla.storage.errors import Corruption, DiskFailed, EblaError, InvalidArgument, StorageError
from ebla.storage.tablets.tablet_store import TabletSnapshot

KEPT_MAX = 400  # digests of a server; the oldest are dropped
DIGESTS_MAX = 2  # of a disk, made at the same time: each reads a whole tablet
BEGIN_BYTES = 64_000_000  # of rows of a disk whose digests wait or are made; a larger tablet is begun alone


@dataclass(frozen=True, eq=False)
class Wanted:
    """A digest that waits for its turn, or is made."""

    replica: Replica
    index: int
    snapshot: TabletSnapshot
    future: asyncio.Future[Digest]
    size: int


class Checksums:
    def __init__(self, world: World) -> None:
        self.world = world
        self._digests: dict[tuple[str, int], asyncio.Future[Digest]] = {}
        self._waiting: dict[str, dict[tuple[str, int], Wanted]] = {}  # by disk
        self._made: Counter[str] = Counter()  # by disk: those that are made now
        self._sizes: Counter[str] = Counter()  # by disk: bytes of rows of those that wait, or are made

    def begin(
        self,
        request: ChecksumStart,
        leading: Callable[[str], Replica],
        checkpoint: Callable[[Replica], int],
    ) -> ChecksumStarted:
        """Begin the checkpoints of tablets whose disks have room. `checkpoint` appends the entry of one."""
        indexes: list[int | None] = []
        failed: list[errors.Triple | None] = []
        sizes = self._sizes.copy()  # with those that begin now, and are applied soon
        for tablet in request.tablets:
            try:
                replica = leading(tablet)
                place = self._place(replica)
                if sizes[place] >= BEGIN_BYTES:
                    why = (
                        f"other tablets are read for their digests, on the disk of tablet {tablet}; ask again"
                    )
                    raise errors.Throttled(why, limit="digests")
                indexes.append(checkpoint(replica))
                failed.append(None)
                sizes[place] += replica.size_bytes
            except EblaError as error:
                indexes.append(None)
                failed.append(errors.to_triple(error))
        return ChecksumStarted(tuple(indexes), tuple(failed))

    def _place(self, replica: Replica) -> str:
        return self.world.disk.place_of(replica.store.environment.path)

    def applied(self, replica: Replica, snapshot: TabletSnapshot) -> None:
        """Begin the digest of a checkpoint that was just applied; `snapshot` is its state."""
        while len(self._digests) >= KEPT_MAX:
            self._drop(next(iter(self._digests)))
        key = replica.tablet, snapshot.position.index
        if key in self._digests:  # the replica was copied again, and applies its log again
            self._drop(key)
        future = self._digests[key] = asyncio.get_running_loop().create_future()
        place, size = self._place(replica), replica.size_bytes
        self._waiting.setdefault(place, {})[key] = Wanted(replica, key[1], snapshot, future, size)
        self._sizes[place] += size
        self._go_on(place)

    def _drop(self, key: tuple[str, int]) -> None:
        settle(self._digests.pop(key), _dropped(key[1]))
        for place, waiting in self._waiting.items():
            if key in waiting:
                self._end(place, waiting.pop(key))

    def _end(self, place: str, wanted: Wanted) -> None:
        wanted.snapshot.close()
        self._sizes[place] -= wanted.size

    def _go_on(self, place: str) -> None:
        """Make the next digests of a disk."""
        waiting = self._waiting[place]
        while waiting and self._made[place] < DIGESTS_MAX:
            wanted = waiting.pop(next(iter(waiting)))
            self._made[place] += 1
            self.world.spawn(self._digest(place, wanted), f"digest of {wanted.replica.tablet}")

    async def answer(self, query: ChecksumQuery, replica_of: Callable[[str], Replica]) -> ChecksumReply:
        """Wait for all digests, or until the timeout, and answer with those that are ready."""
        until = self.world.now() + query.timeout_s
        digests: list[Digest | None] = []
        failed: list[errors.Triple | None] = []
        for tablet, index in query.checkpoints:
            try:
                digests.append(await self._wait(replica_of(tablet), index, until))
                failed.append(None)
            except EblaError as error:
                digests.append(None)
                failed.append(errors.to_triple(error))
        return ChecksumReply(tuple(digests), tuple(failed))

    async def _wait(self, replica: Replica, index: int, until: float) -> Digest:
        """The digest at this checkpoint. After `until` raise Unavailable if the replica has not applied it, AlreadyInProgress if
        the digest is not ready."""
        try:
            async with self.world.clock.timeout(max(0.0, until - self.world.now())):
                waiting = replica.applied(index)
                if waiting is not None:
                    await waiting
                replica.require_running()
                future = self._digests.get((replica.tablet, index))
                if future is None:
                    raise _dropped(index)
                return await asyncio.shield(future)
        except TimeoutError:
            applied = replica.store.applied.index
            if applied >= index:
                raise errors.AlreadyInProgress(
                    f"the rows of tablet {replica.tablet} are still being read here; try again",
                    tablet=replica.tablet,
                ) from None
            raise errors.Unavailable(
                f"tablet {replica.tablet} has applied {applied} here, not yet {index}"
            ) from None

    async def _digest(self, place: str, wanted: Wanted) -> None:
        replica, future = wanted.replica, wanted.future
        try:
            rows, value = await replica.store.environment.run(digest, wanted.snapshot, future.done)
        except Corruption as error:
            replica.fail(error)
            settle(future, errors.ReplicaFailed(str(error), tablet=replica.tablet, reason=str(error)))
        except DiskFailed:
            raise  # the server ends
        except (StorageError, InvalidArgument) as error:
            # The snapshot expired, or the tablet was deleted meanwhile; or a row is too large with columns that were added.
            settle(future, error)  # no caller may ever request it
        else:
            settle(future, Digest(replica.tablet, wanted.index, rows, value))
        finally:
            self._end(place, wanted)
            self._made[place] -= 1
        self._go_on(place)


def _dropped(index: int) -> InvalidArgument:
    return InvalidArgument(
        f"there is no checkpoint at index {index}, or its digest was dropped; make a new one"
    )
