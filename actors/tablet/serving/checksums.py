"""Digests of a replica at one log index, so that replicas can be compared under full load.

The leader appends a checkpoint entry to the log. Every replica that applies this entry pins a snapshot and digests it
beside the event loop. A comparison then requests the digest at that index from each replica.
"""

from __future__ import annotations

import asyncio

from ebla.actors import errors
from ebla.actors.messages import ChecksumQuery, ChecksumReply
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.serving.scans import digest
from ebla.actors.world import World, settle
from ebla.storage.errors import Corruption, DiskFailed, InvalidArgument, StorageError
from ebla.storage.tablets.tablet_store import TabletSnapshot

KEPT_MAX = 64  # digests per server; the oldest are dropped


class Checksums:
    def __init__(self, world: World) -> None:
        self.world = world
        self._digests: dict[tuple[str, int], asyncio.Future[ChecksumReply]] = {}

    def applied(self, replica: Replica, snapshot: TabletSnapshot) -> None:
        """Begin the digest of a checkpoint that was just applied; `snapshot` is its state."""
        index = snapshot.position.index
        while len(self._digests) >= KEPT_MAX:
            oldest = next(iter(self._digests))
            future = self._digests.pop(oldest)
            future.cancel()
        future = self._digests[replica.tablet, index] = asyncio.get_running_loop().create_future()
        self.world.spawn(self._digest(replica, index, snapshot, future), f"digest of {replica.tablet}")

    async def answer(self, replica: Replica, query: ChecksumQuery) -> ChecksumReply:
        """Wait for the digest at the checkpoint `index`. After the timeout raise Unavailable if the replica has not applied
        it, AlreadyInProgress if the digest is not ready."""
        try:
            async with self.world.clock.timeout(query.timeout_s):
                waiting = replica.applied(query.index)
                if waiting is not None:
                    await waiting
                replica.require_running()
                future = self._digests.get((query.tablet, query.index))
                if future is None:
                    raise InvalidArgument(
                        f"there is no checkpoint at index {query.index}, or its digest was dropped; make a new one"
                    )
                return await asyncio.shield(future)
        except TimeoutError:
            applied = replica.store.applied.index
            if applied >= query.index:
                raise errors.AlreadyInProgress(
                    f"the rows of tablet {query.tablet} are still being read here; try again",
                    tablet=query.tablet,
                ) from None
            raise errors.Unavailable(
                f"tablet {query.tablet} has applied {applied} here, not yet {query.index}"
            ) from None

    async def _digest(
        self, replica: Replica, index: int, snapshot: TabletSnapshot, future: asyncio.Future[ChecksumReply]
    ) -> None:
        environment = replica.store.environment
        try:
            rows, value = await environment.run(digest, snapshot, future.cancelled)
        except Corruption as error:
            replica.fail(error)
            settle(future, errors.ReplicaFailed(str(error), tablet=replica.tablet, reason=str(error)))
        except DiskFailed:
            raise  # the server ends
        except (StorageError, InvalidArgument) as error:
            # The snapshot expired, or the tablet was deleted meanwhile; or a row is too large with columns that were added.
            settle(future, error)  # no caller may ever request it
        else:
            settle(future, ChecksumReply(replica.tablet, index, rows, value))
        finally:
            snapshot.close()
