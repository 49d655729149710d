"""Looks, in the background, at rows that nobody asks for: see storage/scrub.py.

Every replica once soon after the start, and again every `scrub_s`; one at a time, with as much rest as work, so that it
takes at most half of a core. A replica that is found damaged fails, as if a read had met the damage.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.replica import RUNNING, Replica
from ebla.actors.world import World
from ebla.storage.errors import Corruption, DiskFailed, StorageError

LOOK_S = 1.0
REST_S_MAX = 1.0


class Scrubber:
    def __init__(
        self,
        world: World,
        options: TabletServerOptions,
        replicas: dict[str, Replica],
        changed: Callable[[Replica], None],
    ) -> None:
        self.world = world
        self.options = options
        self.replicas = replicas
        self.changed = changed
        self._walked: dict[Replica, float] = {}  # when, by the monotonic clock
        self._resumed = 0.0

    def start(self) -> None:
        self.world.spawn(self._run(), "scrubber")

    async def _run(self) -> None:
        clock = self.world.clock
        while True:
            await clock.sleep(LOOK_S)
            present = list(self.replicas.values())
            self._walked = {replica: self._walked.get(replica, -math.inf) for replica in present}
            for replica in present:
                if clock.monotonic() - self._walked[replica] >= self.options.scrub_s:
                    self._resumed = clock.monotonic()
                    await self._scrub(replica)
                    self._walked[replica] = clock.monotonic()

    async def _scrub(self, replica: Replica) -> None:
        if replica.state != RUNNING:
            return
        try:
            await replica.store.scrub(self._rest)
        except Corruption as error:
            if replica.state == RUNNING:
                replica.fail(error)
                self.changed(replica)
        except DiskFailed:
            raise
        except StorageError:
            return  # its snapshot expired, or the replica was deleted meanwhile: the next walk is whole again

    async def _rest(self) -> None:
        """As long as the piece before it took."""
        clock = self.world.clock
        await clock.sleep(min(REST_S_MAX, clock.monotonic() - self._resumed))
        self._resumed = clock.monotonic()
