"""The processes of one host and one deployment, which see each other end (`Neighbours` in world.py). It does not use Ray.

A tablet server's process listens at an abstract socket of the kernel, sends to whoever connects what it shows, and never closes a
connection. The kernel closes them when the last thread of the process has left it: not if the process stands still, and not before
a write in progress is over. So the end of a connection proves the end of the process.

Only Linux has such sockets; elsewhere nothing is seen. They belong to a network namespace: containers do not see each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import struct
import sys

from ebla.actors.world import Clock

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two tries to connect
CONNECTIONS_MAX = 16
SHOWN_BYTES_MAX = 4096
CREDENTIALS = struct.Struct("3i")  # pid, user, group


class HostNeighbours:
    """`deployment`: a name that all its roles on one host share, and no others."""

    def __init__(self, clock: Clock, deployment: str) -> None:
        self._clock = clock
        self._path = "\0ebla/" + hashlib.sha256(deployment.encode()).hexdigest()[:32]
        self._shown = b""
        self._listener: socket.socket | None = None
        self._watched_by: set[socket.socket] = set()

    # -- being seen ------------------------------------------------------------------------------------------

    def show(self, process: bytes) -> None:
        self._shown = process
        if self._listener is not None or not _is_supported():
            return
        listener = _socket()
        try:
            listener.bind(self._path)
        except OSError as error:
            listener.close()
            log.warning("no other process of this host will see this one end: %s", error)
            return
        listener.listen(CONNECTIONS_MAX)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            watcher, _ = listener.accept()
            watcher.setblocking(False)
            if len(self._watched_by) == CONNECTIONS_MAX or watcher.send(self._shown) != len(self._shown):
                watcher.close()  # it has seen nothing, so it takes this for no end
                return
            self._watched_by.add(watcher)
            asyncio.get_running_loop().add_reader(watcher, self._forget, watcher)

    def _forget(self, watcher: socket.socket) -> None:
        """The other side, which sends nothing, has ended."""
        asyncio.get_running_loop().remove_reader(watcher)
        self._watched_by.discard(watcher)
        watcher.close()

    # -- seeing ----------------------------------------------------------------------------------------------

    async def ended(self) -> bytes:
        while True:
            if _is_supported() and (shown := await self._watch()):
                return shown
            await self._clock.sleep(LOOK_S)

    async def _watch(self) -> bytes:
        """What a process has shown that has ended since; empty if there is none, or nothing is certain."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError), _socket() as connection:
            connection.connect(self._path)
            if _user_of(connection) != os.getuid():
                return b""
            shown = await loop.sock_recv(connection, SHOWN_BYTES_MAX)
            if shown and await loop.sock_recv(connection, 1) == b"":
                return shown
        return b""


def _is_supported() -> bool:
    return sys.platform == "linux"


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _user_of(connection: socket.socket) -> int:
    """The user whose process listens at the other side."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(found)[1]
    return user
