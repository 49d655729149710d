"""What clients and the active master say to each other about the namespace.

Whatever changes is a number of the namespace's one count, its `revision`. A node's version is the revision at which its data
was last set: it never comes twice, not even if the node was deleted and made again.
"""

from __future__ import annotations

import msgspec


class OpenSessionRequest(msgspec.Struct, frozen=True):
    """`request_id`: a repeated one gets the same session, while that lives. `name` is for whoever looks at sessions."""

    request_id: str
    timeout_ms: int
    name: str = ""


class SessionRequest(msgspec.Struct, frozen=True):
    session: str


class SessionReply(msgspec.Struct, frozen=True):
    session: str
    timeout_ms: int


class Create(msgspec.Struct, frozen=True, tag="create"):
    """`ephemeral`: it goes with the session. `sequential`: a number is added to its name that no node ever had, greater than
    all before. `parents`: the nodes above it are made if they are missing."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    parents: bool = False


class Set(msgspec.Struct, frozen=True, tag="set"):
    """`version`: only if that is the node's version."""

    path: str
    data: bytes
    version: int | None = None


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    path: str
    version: int | None = None


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Changes nothing; the operations beside it are carried out only if the node has this version (None: any; 0: there is
    no such node)."""

    path: str
    version: int | None = None


Operation = Create | Set | Delete | Check


class ChangeRequest(msgspec.Struct, frozen=True):
    """All of the operations, or none. `number` identifies it within its session; a repeated one gets the first answer.
    `unanswered`: the lowest number whose answer the client still waits for; lower ones are not carried out any more."""

    session: str
    number: int
    unanswered: int
    operations: tuple[Operation, ...]


class Result(msgspec.Struct, frozen=True):
    """Of one operation: the node, and its version now. Of a deleted one, the revision at which it went."""

    path: str
    version: int


class ChangeReply(msgspec.Struct, frozen=True):
    results: tuple[Result, ...]


class NodeRequest(msgspec.Struct, frozen=True):
    """`children`: their names as well."""

    path: str
    children: bool = False


class WaitRequest(msgspec.Struct, frozen=True):
    """Answered when the node has come, gone or been set since revision `seen` (with `children`: when it has come or gone, or
    a child of it has), or after `poll_ms`."""

    path: str
    seen: int
    poll_ms: int
    children: bool = False


class NodeInfo(msgspec.Struct, frozen=True):
    """`children_version`: the revision at which a child last came or went. `owner`: the session whose end it goes with."""

    version: int
    created: int
    children_version: int
    children: int
    owner: str


class NodeReply(msgspec.Struct, frozen=True):
    """As of `revision`; `node` is None where there is none. `changed`: of a wait, whether there was a change."""

    revision: int
    node: NodeInfo | None
    data: bytes = b""
    children: tuple[str, ...] = ()
    changed: bool = True


class SessionInfo(msgspec.Struct, frozen=True):
    """`silent_s`: since when the master has not heard of it."""

    session: str
    name: str
    timeout_ms: int
    nodes: int
    silent_s: float


class ListSessionsReply(msgspec.Struct, frozen=True):
    sessions: tuple[SessionInfo, ...]
