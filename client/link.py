"""Live connections of code that does not await: a thread with an event loop, and the awaited API on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

from ebla import aio
from ebla.transport.bridge import Bridge


class Link(NamedTuple):
    """A live connection: the thread, and the awaited API on its loop."""

    bridge: Bridge
    awaited: aio.Database

    @property
    def closed(self) -> bool:
        """By its owner, or by a defect of a background task."""
        return self.bridge.closed or self.awaited.closed


def shared(name: str, address: str | None) -> Link:
    """The one connection of all unpickled handles in this process. No handle closes it: closing a handle ends that handle
    only. A connection that a defect has closed is replaced."""
    from ebla.deployment import reach

    with _shared_gate:
        key = (os.getpid(), name, address)
        known = _shared.get(key)
        if known is None or known.closed:
            made = make_link(name, roles=reach(name, address).roles)
            if known is not None:
                known.bridge.close()
            known = _shared[key] = made
        return known


_shared: dict[tuple[int, str, str | None], Link] = {}
_shared_gate = threading.Lock()


def _in_child() -> None:
    """A thread of the parent may hold the gate, and connections do not survive a fork."""
    global _shared_gate
    _shared_gate = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_in_child)


def make_link(name: str, progress: bool = False, roles: Sequence[str] | None = None) -> Link:
    from ebla.deployment import make_client

    bridge = Bridge(name)

    async def start() -> aio.Database:
        return aio.Database(make_client(name, progress, roles))

    return Link(bridge, bridge.run(start()))
