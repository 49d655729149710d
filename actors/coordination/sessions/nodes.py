"""Reads and watches nodes. docs/coordination.md states their promises."""

from __future__ import annotations

from typing import NamedTuple

from ebla.actors.asking.master_client import ATTEMPT_S, MasterClient
from ebla.actors.coordination import messages as m
from ebla.actors.errors import NotFound, TimedOut
from ebla.actors.messages import Empty

POLL_S = 5.0


class Node(NamedTuple):
    """A node as of one revision of the namespace.

    Attributes:
        path: Its path, such as "/locks/nightly".
        data: Its bytes.
        version: The revision of the last change of its data. No version occurs twice.
        created: The revision of its creation.
        children: The number of its children.
        owner: The id of the session whose end deletes the node; None if it stays.
        revision: The revision of the namespace when it was read.
    """

    path: str
    data: bytes
    version: int
    created: int
    children: int
    owner: str | None
    revision: int


class Nodes:
    """Reads nodes. Reads are linearizable; after `deadline_s` seconds without an answer, methods raise TimedOut."""

    def __init__(self, master: MasterClient) -> None:
        self._master = master

    async def get(self, path: str, *, deadline_s: float) -> Node | None:
        """Get a node, or None."""
        return _node(path, await self._read(path, False, deadline_s))

    async def exists(self, path: str, *, deadline_s: float) -> bool:
        """Whether there is a node."""
        return (await self._read(path, False, deadline_s)).node is not None

    async def children(self, path: str, *, deadline_s: float) -> list[str]:
        """List the names of a node's children, sorted. Raises NotFound if there is no node."""
        reply = await self._read(path, True, deadline_s)
        if reply.node is None:
            raise NotFound(f"there is no node {path}", what=path)
        return list(reply.children)

    async def watch(self, path: str, *, children: bool = False, deadline_s: float) -> Watch:
        """Read the node and watch its changes; with `children`, the changes of its list of children."""
        return Watch(self, path, children, await self._read(path, children, deadline_s))

    async def sessions(self, *, deadline_s: float) -> list[m.SessionInfo]:
        """List the sessions of all processes."""
        reply = await self._master.ask("list_sessions", Empty(), m.ListSessionsReply, deadline_s=deadline_s)
        return list(reply.sessions)

    async def _read(self, path: str, children: bool, deadline_s: float) -> m.NodeReply:
        request = m.NodeRequest(path, children)
        return await self._master.ask("read_node", request, m.NodeReply, deadline_s=deadline_s)

    async def _poll(self, path: str, seen: int, children: bool, left_s: float) -> m.NodeReply:
        """Wait a short time for a change. If no master answers for all of `left_s`, raises TimedOut."""
        poll_s = max(0.0, min(left_s, POLL_S))
        request = m.WaitRequest(path, seen, int(poll_s * 1000), children)
        return await self._master.ask(
            "wait_node", request, m.NodeReply, deadline_s=max(left_s, ATTEMPT_S), patience_s=poll_s
        )


class Watch:
    """The last known state of a node: `node` (None: it does not exist) and, if watched, its `children`. No change is missed:
    the next `change` returns at once if the node changed meanwhile, also during a failover of masters."""

    def __init__(self, nodes: Nodes, path: str, children: bool, reply: m.NodeReply) -> None:
        self._path = path
        self._nodes = nodes
        self._of_children = children
        self._took(reply)

    @property
    def path(self) -> str:
        """The watched node's path."""
        return self._path

    @property
    def node(self) -> Node | None:
        """The node as last seen; None if it does not exist."""
        return self._node

    @property
    def children(self) -> list[str]:
        """The names of its children as last seen, if they are watched."""
        return self._children

    def _took(self, reply: m.NodeReply) -> None:
        self._node = _node(self._path, reply)
        self._children = list(reply.children)
        self._seen = reply.revision

    async def change(self, timeout_s: float | None = None) -> Node | None:
        """Wait for the next change of the node, and return the node after it; None if the node was deleted.

        Changes in quick succession may count as one. Raises TimedOut after `timeout_s` seconds (None: wait for ever).
        """
        limit_s = float("inf") if timeout_s is None else timeout_s
        clock = self._nodes._master.world.clock
        until = clock.monotonic() + limit_s
        while True:
            left_s = until - clock.monotonic()
            reply = await self._nodes._poll(self.path, self._seen, self._of_children, left_s)
            self._took(reply)
            if reply.changed:
                return self.node
            if left_s <= 0:
                raise TimedOut(f"{self.path} did not change within {limit_s:g} s", deadline_s=limit_s)


def _node(path: str, reply: m.NodeReply) -> Node | None:
    info = reply.node
    if info is None:
        return None
    return Node(
        path, reply.data, info.version, info.created, info.children, info.owner or None, reply.revision
    )
