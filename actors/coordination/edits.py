"""The edits of the namespace: facts in the past tense, in the master's edit log beside those of the catalog.

Each change has its revision. Revisions only grow, so a repeated or lost edit is found in a replay.
"""

from __future__ import annotations

import msgspec

from ebla.actors.coordination.messages import Result


class SessionOpened(msgspec.Struct, frozen=True, tag="session_opened"):
    session: str
    request: str
    timeout_ms: int
    name: str


class SessionEnded(msgspec.Struct, frozen=True, tag="session_ended"):
    """A session was closed, or expired. Its ephemeral nodes were deleted at `revision` and the following ones."""

    session: str
    revision: int
    expired: bool


class NodeCreated(msgspec.Struct, frozen=True, tag="created"):
    revision: int
    path: str
    data: bytes
    owner: str = ""


class NodeSet(msgspec.Struct, frozen=True, tag="set"):
    revision: int
    path: str
    data: bytes


class NodeDeleted(msgspec.Struct, frozen=True, tag="deleted"):
    revision: int
    path: str


NodeChange = NodeCreated | NodeSet | NodeDeleted


class NodesChanged(msgspec.Struct, frozen=True, tag="nodes_changed"):
    """A session's request `number`, with this digest of its operations, was carried out with `results`. Its answers below
    `unanswered` are no longer needed."""

    session: str
    number: int
    unanswered: int
    digest: int
    changes: tuple[NodeChange, ...]
    results: tuple[Result, ...]


CoordinationEdit = SessionOpened | SessionEnded | NodesChanged
KINDS = (SessionOpened, SessionEnded, NodesChanged)
