"""Watches nodes for a role: `changed` is called after each change, and after each failure that may have hidden one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ebla.actors.coordination.sessions.nodes import Nodes, Watch
from ebla.actors.errors import TimedOut
from ebla.actors.ledger.shared.records import DEADLINE_S
from ebla.actors.world import CallerWorld, Task
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

RETRY_S = 1.0
QUIET_S = 60.0  # of one wait


class Watched:
    """One node, or with `children` the list of its children, until it is stopped."""

    def __init__(
        self, world: CallerWorld, nodes: Nodes, path: str, children: bool, changed: Callable[[], None]
    ) -> None:
        self._world = world
        self._nodes = nodes
        self._path = path
        self._children = children
        self._changed = changed
        self._task: Task = world.spawn(self._run(), f"watch {path}")

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        watch: Watch | None = None
        while True:
            try:
                if watch is None:
                    watch = await self._nodes.watch(
                        self._path, children=self._children, deadline_s=DEADLINE_S
                    )
                else:
                    await watch.change(QUIET_S)
            except TimedOut:
                continue
            except EblaError as error:
                log.info("%s is not watched now: %s", self._path, error)
                watch = None
                await self._world.clock.sleep(RETRY_S)
                continue
            self._changed()
