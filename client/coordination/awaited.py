"""Sessions and nodes for coordination, awaited. docs/coordination.md tells what they promise.

    async with await db.session(timeout_s=10.0) as session:
        await session.create("/workers/w-", b"host-1", ephemeral=True, sequential=True, parents=True)
        node = await session.get("/config")
        await session.set("/config", b"new", version=node.version)   # VersionMismatch if somebody was faster
        async with session.lock("/locks/nightly") as lock:
            ...                                                       # lock.token fences whatever is written here

A session lives as long as its process says so at least once within its timeout, which it does by itself. When it has expired,
its ephemeral nodes are gone, and whatever is asked with it gets SessionExpired.
"""

from __future__ import annotations

from ebla.actors.coordination import messages as m
from ebla.actors.coordination.messages import Check, Create, Delete, Result, Set
from ebla.arguments import check_deadline, check_int, check_text
from ebla.coordination.changes import SESSION_S, ChangingSession
from ebla.coordination.locks import Lock
from ebla.coordination.nodes import Node, Nodes, Watch

__all__ = ["Check", "Coordination", "Create", "Delete", "Node", "Result", "Session", "Set", "Watch"]


class Coordination(Nodes):
    """Reads nodes, and opens sessions."""

    async def session(
        self, timeout_s: float = SESSION_S, *, name: str = "", deadline_s: float | None = None
    ) -> Session:
        """Open a session. `name` is for whoever looks at `ebla coord sessions`."""
        timeout_ms = int(check_deadline(timeout_s, "timeout_s") * 1000)
        request = m.OpenSessionRequest(
            self._connection.new_request_id(), check_int("timeout_s", timeout_ms, 1), check_text("name", name)
        )
        asked_at = self._connection.world.clock.monotonic()
        reply = await self._connection.ask_master(
            "open_session", request, m.SessionReply, deadline_s=check_deadline(deadline_s)
        )
        return Session(self._connection, reply, asked_at)


class Session(ChangingSession):
    """See the module. An async context manager: at its end the session is closed, and its ephemeral nodes are gone."""

    def lock(self, path: str) -> Lock:
        """A lock that all who name the same path share. See locks.py."""
        return Lock(self, check_text("path", path))
