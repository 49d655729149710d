"""What can happen to the namespace: facts in the past tense, in the master's edit log beside those of the catalog.

A change carries the revision at which it took place. Revisions only grow, so an edit that was replayed twice, or left out by
a log that lost it, does not fit.
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
    """It was closed, or expired; its ephemeral nodes went with it, at `revision` and the ones after it."""

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
    """A session's request `number`, with this digest of its operations, was carried out and gets `results`. Its answers to
    requests below `unanswered` are not needed any more."""

    session: str
    number: int
    unanswered: int
    digest: int
    changes: tuple[NodeChange, ...]
    results: tuple[Result, ...]


CoordinationEdit = SessionOpened | SessionEnded | NodesChanged
KINDS = (SessionOpened, SessionEnded, NodesChanged)
