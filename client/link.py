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


def shared(name: str, address: str | None) -> Link:
    """The one connection of all unpickled handles in this process. It is never closed: closing a handle ends that handle
    only."""
    from ebla.deployment import reach

    with _shared_gate:
        key = (os.getpid(), name, address)
        known = _shared.get(key)
        if known is None or known.bridge.closed:
            known = _shared[key] = make_link(name, roles=reach(name, address).roles)
        return known


_shared: dict[tuple[int, str, str | None], Link] = {}
_shared_gate = threading.Lock()


def make_link(name: str, progress: bool = False, roles: Sequence[str] | None = None) -> Link:
    from ebla.deployment import make_client

    bridge = Bridge(name)

    async def start() -> aio.Database:
        return aio.Database(make_client(name, progress, roles))

    return Link(bridge, bridge.run(start()))
