"""The namespace: nodes in a tree, and the sessions that own ephemeral nodes.

It is a state machine over edits (edits.py), changed by nothing else. It is a part of the catalog, so it is in every
checkpoint and on every master. One count, `revision`, numbers all changes of nodes. It gives versions to nodes, numbers
to sequential nodes and fencing tokens to lock holders; it is never reset, so none of these is used twice, even after
deletions.

The last GONE_MAX deleted nodes are remembered. A client that last saw an absent node before `horizon` gets the answer
that it may have changed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ebla.actors.coordination import paths
from ebla.actors.coordination.edits import (
    CoordinationEdit,
    NodeChange,
    NodeCreated,
    NodeDeleted,
    NodesChanged,
    NodeSet,
    SessionEnded,
    SessionOpened,
)
from ebla.actors.coordination.messages import NodeInfo, Result

GONE_MAX = 10_000

replace = msgspec.structs.replace


class Node(msgspec.Struct, frozen=True):
    """`created`, `version`, `children_version`: the revisions of its creation, of the last change of its data, and of the
    last creation or deletion of a child."""

    data: bytes
    created: int
    version: int
    children_version: int = 0
    owner: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a request that was carried out, for its repetitions."""

    number: int
    digest: int
    results: tuple[Result, ...]


class Session(msgspec.Struct, frozen=True):
    session: str
    request: str
    timeout_ms: int
    name: str
    unanswered: int = 0
    answers: tuple[Answer, ...] = ()

    def answer(self, number: int) -> Answer | None:
        return next((answer for answer in self.answers if answer.number == number), None)


class NamespaceImage(msgspec.Struct, frozen=True):
    """The whole namespace as a value. Children come after their parents."""

    revision: int
    nodes: tuple[tuple[str, Node], ...]
    sessions: tuple[Session, ...]


class Namespace:
    """`notify` is called with each path whose node, or list of children, has changed."""

    def __init__(self) -> None:
        self.revision = 0
        self.nodes: dict[str, Node] = {paths.ROOT: Node(b"", 0, 0)}
        self.sessions: dict[str, Session] = {}
        self.notify: Callable[[str], None] = lambda path: None
        # Derived from nodes and sessions, except for `gone` and `horizon`.
        self.opened: dict[str, str] = {}  # request -> session
        self.bytes = 0
        self.gone: dict[str, int] = {}
        self.horizon = 0
        self._children: dict[str, dict[str, None]] = {}
        self._owned: dict[str, dict[str, None]] = {}

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of records in a checkpoint."""
        return len(self.nodes) - 1 + len(self.sessions)

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._children.get(path, ())))

    def child_count(self, path: str) -> int:
        return len(self._children.get(path, ()))

    def owned(self, session: str) -> tuple[str, ...]:
        """The paths of a session's ephemeral nodes, in the order of their creation."""
        return tuple(self._owned.get(session, ()))

    def info(self, path: str) -> NodeInfo | None:
        node = self.nodes.get(path)
        if node is None:
            return None
        return NodeInfo(node.version, node.created, node.children_version, self.child_count(path), node.owner)

    def changed_since(self, path: str, seen: int, children: bool) -> bool:
        node = self.nodes.get(path)
        if node is None:
            return self.gone.get(path, self.horizon) > seen
        return (max(node.created, node.children_version) if children else node.version) > seen

    def image(self) -> NamespaceImage | None:
        """None if the namespace was never used."""
        if not self.revision and not self.sessions:
            return None
        return NamespaceImage(self.revision, tuple(self.nodes.items()), tuple(self.sessions.values()))

    # -- changing --------------------------------------------------------------------------------------------

    def load(self, image: NamespaceImage) -> None:
        assert len(self) == 0 and not self.revision
        self.revision = self.horizon = image.revision
        for session in image.sessions:
            self._open(session)
        for path, node in image.nodes:
            if path == paths.ROOT:
                self.nodes[path] = node
                self.bytes = len(node.data)
            else:
                self._add(path, node)
        self.check()

    def apply(self, edit: CoordinationEdit) -> None:
        """Apply a durable edit. Replaying the same edits gives an equal namespace."""
        if isinstance(edit, NodesChanged):
            self._nodes_changed(edit)
        elif isinstance(edit, SessionOpened):
            self._open(Session(edit.session, edit.request, edit.timeout_ms, edit.name))
        else:
            self._session_ended(edit)

    def _nodes_changed(self, edit: NodesChanged) -> None:
        session = self.sessions[edit.session]
        assert edit.number >= edit.unanswered >= session.unanswered, edit
        assert session.answer(edit.number) is None, edit
        for change in edit.changes:
            self._change(change)
        kept = tuple(answer for answer in session.answers if answer.number >= edit.unanswered)
        self.sessions[edit.session] = replace(
            session,
            unanswered=edit.unanswered,
            answers=(*kept, Answer(edit.number, edit.digest, edit.results)),
        )

    def _change(self, change: NodeChange) -> None:
        assert change.revision > self.revision, (change, self.revision)
        self.revision = change.revision
        if isinstance(change, NodeCreated):
            self._create(change)
        elif isinstance(change, NodeDeleted):
            self._delete(change.path)
        else:
            self._set(change)

    def _create(self, change: NodeCreated) -> None:
        above = paths.parent(change.path)
        assert change.path not in self.nodes and not self.nodes[above].owner, change
        assert not change.owner or change.owner in self.sessions, change
        self.gone.pop(change.path, None)
        self._add(change.path, Node(change.data, change.revision, change.revision, owner=change.owner))
        self._child_changed(above)
        self.notify(change.path)

    def _set(self, change: NodeSet) -> None:
        node = self.nodes[change.path]
        self.bytes += len(change.data) - len(node.data)
        self.nodes[change.path] = replace(node, data=change.data, version=change.revision)
        self.notify(change.path)

    def _delete(self, path: str) -> None:
        assert path != paths.ROOT and path not in self._children, path
        node, above = self.nodes.pop(path), paths.parent(path)
        self.bytes -= len(path.encode()) + len(node.data)
        siblings = self._children[above]
        del siblings[paths.name(path)]
        if not siblings:
            del self._children[above]
        if node.owner:
            del self._owned[node.owner][path]
        self.gone[path] = self.revision
        if len(self.gone) > GONE_MAX:
            self.horizon = self.gone.pop(next(iter(self.gone)))
        self._child_changed(above)
        self.notify(path)

    def _child_changed(self, path: str) -> None:
        self.nodes[path] = replace(self.nodes[path], children_version=self.revision)
        self.notify(path)

    def _session_ended(self, edit: SessionEnded) -> None:
        for revision, path in enumerate(self.owned(edit.session), edit.revision):
            self._change(NodeDeleted(revision, path))
        ended = self.sessions.pop(edit.session)
        del self.opened[ended.request]
        self._owned.pop(edit.session, None)

    def _open(self, session: Session) -> None:
        assert session.session not in self.sessions and session.request not in self.opened, session
        self.sessions[session.session] = session
        self.opened[session.request] = session.session

    def _add(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        self.bytes += len(path.encode()) + len(node.data)
        self._children.setdefault(paths.parent(path), {})[paths.name(path)] = None
        if node.owner:
            self._owned.setdefault(node.owner, {})[path] = None

    def check(self) -> None:
        """Assert the invariants of the state."""
        for path, node in self.nodes.items():
            assert node.created <= node.version <= self.revision, path
            assert node.children_version <= self.revision, path
            assert not node.owner or (node.owner in self.sessions and path not in self._children), path
            if path != paths.ROOT:
                above = paths.parent(path)
                assert above in self.nodes and paths.name(path) in self._children[above], path
        assert sum(map(len, self._children.values())) == len(self.nodes) - 1
        assert self.bytes == sum(
            len(p.encode()) + len(n.data) for p, n in self.nodes.items() if p != paths.ROOT
        ) + len(self.nodes[paths.ROOT].data)
        for session in self.sessions.values():
            assert self.opened[session.request] == session.session, session.session
            assert all(answer.number >= session.unanswered for answer in session.answers), session.session
