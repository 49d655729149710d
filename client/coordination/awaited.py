"""Sessions and nodes for coordination, awaited. docs/coordination.md states their promises.

    async with db.session(timeout_s=10.0) as session:
        await session.create("/workers/w-", b"host-1", ephemeral=True, sequential=True, parents=True)
        node = await session.get("/config")
        await session.set("/config", b"new", version=node.version)   # VersionMismatch if it was changed meanwhile
        async with session.lock("/locks/nightly") as lock:
            ...                                                       # lock.token fences the writes made here

A session sends heartbeats by itself, several within its timeout. When a master has received none for the timeout, the session
expires: its ephemeral nodes are deleted, and every later call of it raises SessionExpired.
"""

from __future__ import annotations

import os
from typing import Any

from typing_extensions import Self

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.coordination.messages import (
    Check,
    Create,
    Delete,
    Operation,
    Result,
    SessionInfo,
    SessionReply,
    Set,
)
from ebla.actors.coordination.sessions import changes, locks, nodes
from ebla.actors.coordination.sessions.nodes import Node
from ebla.arguments import check_deadline, check_int, check_text
from ebla.show.handles import Listing
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.python_values import shown
from ebla.transport.opening import Opening

__all__ = ["Check", "Coordination", "Create", "Delete", "Node", "Result", "Session", "Set", "Watch"]

SESSION_S = 10.0


class Nodes(nodes.Nodes):
    """Reads the nodes with which processes agree. docs/coordination.md states what is promised.

    A path is like `/locks/nightly`. Reads are linearizable; `deadline_s` is the longest wait in seconds, after which methods
    raise TimedOut.
    """

    async def get(self, path: str, *, deadline_s: float | None = None) -> Node | None:
        """Get a node, or None. The read sees every change that was acknowledged before the call."""
        return await super().get(check_text("path", path), deadline_s=check_deadline(deadline_s))

    async def exists(self, path: str, *, deadline_s: float | None = None) -> bool:
        """Whether there is a node. The read sees every change that was acknowledged before the call."""
        return await super().exists(check_text("path", path), deadline_s=check_deadline(deadline_s))

    async def children(self, path: str, *, deadline_s: float | None = None) -> list[str]:
        """List the names of a node's children, sorted. Raises NotFound if there is no node."""
        return await super().children(check_text("path", path), deadline_s=check_deadline(deadline_s))

    async def watch(self, path: str, *, children: bool = False, deadline_s: float | None = None) -> Watch:
        """Read the node and watch its changes; with `children`, the changes of its list of children."""
        reply = await self._read(check_text("path", path), children, check_deadline(deadline_s))
        return Watch(self, path, children, reply)

    async def sessions(self, *, deadline_s: float | None = None) -> list[SessionInfo]:
        """List the sessions of all processes."""
        return Listing(await super().sessions(deadline_s=check_deadline(deadline_s)))


class Watch(nodes.Watch):
    """The last known state of a node: `node` (None: it does not exist) and, if watched, its `children`. No change is missed:
    the next `change` returns at once if the node changed meanwhile, also during a failover of masters."""

    async def change(self, timeout_s: float | None = None) -> Node | None:
        """Wait for the next change of the node, and return the node after it; None if the node was deleted.

        Changes in quick succession may count as one. Raises TimedOut after `timeout_s` seconds (None: wait for ever).
        """
        return await super().change(_checked_timeout(timeout_s))

    def __repr__(self) -> str:
        return f"<ebla.aio.Watch {self.path!r}>"


class Coordination(Nodes):
    """Reads nodes, and opens sessions."""

    def __repr__(self) -> str:
        return "<ebla.aio.Coordination>"

    def session(
        self, timeout_s: float = SESSION_S, *, name: str = "", deadline_s: float | None = None
    ) -> Opening[Session]:
        """Open a session. `ebla coord sessions` shows its `name`."""
        expires_s = check_deadline(timeout_s, "timeout_s")
        check_int("timeout_s", int(expires_s * 1000), 1)
        text, limit_s = check_text("name", name), check_deadline(deadline_s)
        return Opening(changes.open_session(Session, self._master, expires_s, name=text, deadline_s=limit_s))


class Session(Nodes, changes.Session):
    """A session, from `Database.session`. A context manager: at its end the session is closed, and its ephemeral nodes are
    deleted.

    Each change is made once, also if its answer is lost. When the session has ended, every method raises SessionExpired.
    """

    def __init__(self, master: MasterClient, opened: SessionReply, asked_at: float) -> None:
        self._pid = os.getpid()
        super().__init__(master, opened, asked_at)

    @property
    def is_sure(self) -> bool:
        """Whether the session cannot have expired yet, by this process's clock. In a forked child it is not: the session is its
        parent's."""
        return self._pid == os.getpid() and super().is_sure

    async def keep(self, *, deadline_s: float | None = None) -> None:
        """Send a heartbeat now, besides those that the session sends by itself. Raises SessionExpired."""
        await super().keep(deadline_s=check_deadline(deadline_s))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
        deadline_s: float | None = None,
    ) -> Result:
        """Create a node; returns its path and version. `ephemeral`: the end of this session deletes it. `sequential`: its name
        gets a number that is greater than all numbers before. `parents`: missing nodes above it are created.

        Raises AlreadyPresent, NotFound (a node above it is missing), LimitReached.
        """
        return await super().create(
            path,
            _checked_data(data),
            ephemeral=bool(ephemeral),
            sequential=bool(sequential),
            parents=bool(parents),
            deadline_s=check_deadline(deadline_s),
        )

    async def set(
        self, path: str, data: bytes, *, version: int | None = None, deadline_s: float | None = None
    ) -> int:
        """Set a node's data, and return the node's new version. Raises NotFound, and VersionMismatch if `version` is given and
        the node no longer has it."""
        limit_s = check_deadline(deadline_s)
        return await super().set(path, _checked_data(data), version=version, deadline_s=limit_s)

    async def delete(self, path: str, *, version: int | None = None, deadline_s: float | None = None) -> None:
        """Delete a node. Raises NotFound, NotEmpty if it has children, VersionMismatch as `set`."""
        await super().delete(path, version=version, deadline_s=check_deadline(deadline_s))

    async def change(self, *operations: Operation, deadline_s: float | None = None) -> tuple[Result, ...]:
        """Carry out these operations (Create, Set, Delete, Check) as one change: all of them or none."""
        for operation in operations:
            if not isinstance(operation, Operation):
                raise InvalidArgument(
                    f"an operation is a Create, Set, Delete or Check, not {shown(operation)}"
                )
            check_text("path", operation.path)
        return await super().change(*operations, deadline_s=check_deadline(deadline_s))

    def lock(self, path: str) -> Lock:
        """The lock of this path, shared by all processes that name the path. A context manager that acquires it."""
        return Lock(self, check_text("path", path))

    def __repr__(self) -> str:
        return f"<ebla.aio.Session {self.id}{', expired' if self.expired else ''}>"


class Lock(locks.Lock):
    """A fair lock, from `session.lock(path)`. A context manager. Not reentrant: one handle holds the lock once."""

    async def acquire(self, timeout_s: float | None = None) -> int:
        """Wait for the lock and return its token. Raises TimedOut after `timeout_s` (None: wait for ever), SessionExpired if
        the session expires before."""
        return await super().acquire(_checked_timeout(timeout_s))

    async def _acquired(self, timeout_s: float | None) -> Self:
        await self.acquire(timeout_s)
        return self

    def __repr__(self) -> str:
        made = self._made if self.held else None
        state = f"held, token {made.version}" if made else "not held"
        return f"<ebla.aio.Lock {self.path!r}, {state}>"


def _checked_timeout(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else check_deadline(timeout_s, "timeout_s")


def _checked_data(data: Any) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"a node's data is bytes, not {shown(data)}; encode it first")
