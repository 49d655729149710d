"""The processes of one host and one deployment, which see each other end (`Neighbours` in world.py). It does not use Ray.

A tablet server's process listens at an abstract socket of the kernel, and sends to each process that connects what it shows. It
closes no connection whose other side lives. The kernel closes them when the last thread of the process has left it: not if the
process stands still, and not before a write in progress is over. So the end of a connection proves the end of the process.

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

LOOK_S = 1.0  # between two tries to connect, or to listen
CONNECTIONS_MAX = 16
SHOWN_BYTES_MAX = 4096
CREDENTIALS = struct.Struct("3i")  # pid, user, group


class HostNeighbours:
    """`deployment`: a name that all its roles on one host share, and no others."""

    def __init__(self, clock: Clock, deployment: str) -> None:
        self._clock = clock
        self._path = "\0ebla/" + hashlib.sha256(deployment.encode()).hexdigest()[:32]
        self._shown = b""
        # Those that watch this process, each with a second descriptor of the connection. Python closes sockets when it ends,
        # and numbers it does not: so it is the kernel that closes the connections.
        self._watchers: dict[socket.socket, int] = {}

    # -- being seen ------------------------------------------------------------------------------------------

    def show(self, process: bytes) -> None:
        listens, self._shown = bool(self._shown), process
        for watcher in self._watchers:
            with contextlib.suppress(OSError):
                watcher.send(process)
        if not listens and _is_supported():
            self._listen()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            with contextlib.ExitStack() as undo:
                listener = undo.enter_context(_socket())
                listener.bind(self._path)
                listener.listen(CONNECTIONS_MAX)
                undo.pop_all()
        except OSError as error:
            log.info("no other process of this host sees this one yet: %s", error)
            loop.call_later(LOOK_S, self._listen)
        else:
            loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            watcher, _ = listener.accept()
        except OSError:  # such as: no descriptor is free. The process that connects stays in the queue
            loop.remove_reader(listener)
            loop.call_later(LOOK_S, loop.add_reader, listener, self._accept, listener)
            return
        watcher.setblocking(False)
        try:
            if len(self._watchers) == CONNECTIONS_MAX:
                raise OSError(f"{CONNECTIONS_MAX} processes watch this one already")
            self._watchers[watcher] = os.dup(watcher.fileno())
            loop.add_reader(watcher, self._forget, watcher)
            watcher.send(self._shown)
        except OSError as error:  # without a message, the other side takes this for no end
            log.info("a process of this host cannot watch this one: %s", error)
            self._forget(watcher)

    def _forget(self, watcher: socket.socket) -> None:
        """Close a connection whose other side, which sends nothing, has ended, or has got nothing."""
        asyncio.get_running_loop().remove_reader(watcher)
        second = self._watchers.pop(watcher, None)
        if second is not None:
            os.close(second)
        watcher.close()

    # -- seeing ----------------------------------------------------------------------------------------------

    async def ended(self) -> bytes:
        while True:
            if _is_supported() and (shown := await self._watch()):
                return shown
            await self._clock.sleep(LOOK_S)

    async def _watch(self) -> bytes:
        """What a process has shown last that has ended since; empty if there is none, or nothing is certain."""
        loop = asyncio.get_running_loop()
        shown = b""
        with contextlib.suppress(OSError), _socket() as connection:
            connection.connect(self._path)
            if _user_of(connection) == os.geteuid():
                while message := await loop.sock_recv(connection, SHOWN_BYTES_MAX):
                    shown = message
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
