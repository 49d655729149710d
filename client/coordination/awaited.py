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

from ebla.actors.coordination import messages as m
from ebla.actors.coordination.messages import Check, Create, Delete, Result, Set
from ebla.arguments import check_deadline, check_int, check_text
from ebla.coordination.changes import SESSION_S, ChangingSession
from ebla.coordination.locks import Lock
from ebla.coordination.nodes import Node, Nodes, Watch
from ebla.transport.opening import Opening

__all__ = ["Check", "Coordination", "Create", "Delete", "Node", "Result", "Session", "Set", "Watch"]


class Coordination(Nodes):
    """Reads nodes, and opens sessions."""

    def session(
        self, timeout_s: float = SESSION_S, *, name: str = "", deadline_s: float | None = None
    ) -> Opening[Session]:
        """Open a session. `ebla coord sessions` shows its `name`."""
        timeout_ms = int(check_deadline(timeout_s, "timeout_s") * 1000)
        request = m.OpenSessionRequest(
            self._connection.new_request_id(), check_int("timeout_s", timeout_ms, 1), check_text("name", name)
        )
        limit_s = check_deadline(deadline_s)

        async def opened() -> Session:
            asked_at = self._connection.world.clock.monotonic()
            reply = await self._connection.ask_master(
                "open_session", request, m.SessionReply, deadline_s=limit_s
            )
            return Session(self._connection, reply, asked_at)

        return Opening(opened())


class Session(ChangingSession):
    """A session, from `Database.session`. A context manager: at its end the session is closed, and its ephemeral nodes are
    deleted.

    Each change is made once, also if its answer is lost. When the session has ended, every method raises SessionExpired.
    """

    def lock(self, path: str) -> Lock:
        """The lock of this path, shared by all processes that name the path. A context manager that acquires it."""
        return Lock(self, check_text("path", path))
