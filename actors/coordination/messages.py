"""The messages between clients and the active master about the namespace.

Each change increments the namespace's `revision`. A node's version is the revision at which its data was last set: it is
never used twice, even if the node was deleted and made again.
"""

from __future__ import annotations

import msgspec


class OpenSessionRequest(msgspec.Struct, frozen=True):
    """`request_id`: a repeated request gets the same session while that lives. `name`: shown to operators."""

    request_id: str
    timeout_ms: int
    name: str = ""


class SessionRequest(msgspec.Struct, frozen=True):
    session: str


class SessionReply(msgspec.Struct, frozen=True):
    session: str
    timeout_ms: int


class Create(msgspec.Struct, frozen=True, tag="create"):
    """Create a node.

    Attributes:
        path: The node's path.
        data: Its bytes.
        ephemeral: The node is deleted with the session.
        sequential: A number is added to the name, greater than all numbers before.
        parents: Missing nodes above it are made.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    parents: bool = False


class Set(msgspec.Struct, frozen=True, tag="set"):
    """Change the data of a node.

    Attributes:
        path: The node's path.
        data: Its new bytes.
        version: Set only if the node has this version; None: any.
    """

    path: str
    data: bytes
    version: int | None = None


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Delete a node.

    Attributes:
        path: The node's path.
        version: Delete only if the node has this version; None: any.
    """

    path: str
    version: int | None = None


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Let the other operations of the request be carried out only if a node has this version.

    Attributes:
        path: The node's path.
        version: Its version; None: any; 0: the node does not exist.
    """

    path: str
    version: int | None = None


Operation = Create | Set | Delete | Check


class ChangeRequest(msgspec.Struct, frozen=True):
    """Carry out all operations, or none. `number` identifies the request within its session; a repeated one gets the first
    answer. `unanswered`: the lowest number whose answer the client still needs; lower ones are refused."""

    session: str
    number: int
    unanswered: int
    operations: tuple[Operation, ...]


class Result(msgspec.Struct, frozen=True):
    """The result of one operation.

    Attributes:
        path: The node's path, with its number if it is sequential.
        version: The node's new version, or the revision of its deletion.
    """

    path: str
    version: int


class ChangeReply(msgspec.Struct, frozen=True):
    results: tuple[Result, ...]


class NodeRequest(msgspec.Struct, frozen=True):
    """`children`: also return the names of the children."""

    path: str
    children: bool = False


class WaitRequest(msgspec.Struct, frozen=True):
    """Answered when the node was created, deleted or set since revision `seen` (with `children`: when it or a child was
    created or deleted), or after `poll_ms`."""

    path: str
    seen: int
    poll_ms: int
    children: bool = False


class NodeInfo(msgspec.Struct, frozen=True):
    """`children_version`: the revision at which a child was last created or deleted. `owner`: the session of an ephemeral
    node."""

    version: int
    created: int
    children_version: int
    children: int
    owner: str


class NodeReply(msgspec.Struct, frozen=True):
    """The node as of `revision`; None if it does not exist. `changed`: whether a wait ended with a change."""

    revision: int
    node: NodeInfo | None
    data: bytes = b""
    children: tuple[str, ...] = ()
    changed: bool = True


class SessionInfo(msgspec.Struct, frozen=True):
    """A session, as the active master sees it.

    Attributes:
        session: The session's id.
        name: The name that its process gave it, for operators.
        timeout_ms: It expires after this many milliseconds without a message.
        nodes: The number of its ephemeral nodes.
        silent_s: Seconds since its last message.
    """

    session: str
    name: str
    timeout_ms: int
    nodes: int
    silent_s: float


class ListSessionsReply(msgspec.Struct, frozen=True):
    sessions: tuple[SessionInfo, ...]
