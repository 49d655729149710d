"""Decisions on requests to change nodes: a refusal, or the changes. Await-free.

The operations of one request see each other's effects, and are carried out together or not at all.
"""

from __future__ import annotations

import msgspec
import xxhash

from ebla.actors.coordination import paths
from ebla.actors.coordination.edits import NodeChange, NodeCreated, NodeDeleted, NodesChanged, NodeSet
from ebla.actors.coordination.errors import LimitReached, NotEmpty, SessionExpired, VersionMismatch
from ebla.actors.coordination.limits import Limits
from ebla.actors.coordination.messages import (
    ChangeRequest,
    Check,
    Create,
    Delete,
    OpenSessionRequest,
    Operation,
    Result,
    Set,
)
from ebla.actors.coordination.namespace import Namespace, Node, Session
from ebla.actors.errors import AlreadyPresent, NotFound, RequestReused, StaleRequest, Throttled
from ebla.storage.errors import EblaError, InvalidArgument

REFUSALS_MAX = 1000  # of a session
REQUEST_ID_MAX = 128
SESSION_NAME_MAX = 256
RETRY_AFTER_S = 0.1

_encode = msgspec.msgpack.Encoder().encode


def validate_open(request: OpenSessionRequest, limits: Limits) -> None:
    timeout_s = request.timeout_ms / 1000
    if not limits.session_s_min <= timeout_s <= limits.session_s_max:
        raise InvalidArgument(
            f"a session's timeout is {limits.session_s_min:g} to {limits.session_s_max:g} s, not {timeout_s:g}"
        )
    if not 0 < len(request.request_id) <= REQUEST_ID_MAX or len(request.name) > SESSION_NAME_MAX:
        raise InvalidArgument(
            f"a session's request id has 1 to {REQUEST_ID_MAX} characters, its name {SESSION_NAME_MAX} at most"
        )


def validate(request: ChangeRequest, limits: Limits) -> None:
    """Raise InvalidArgument for a request that can never succeed in any namespace."""
    if not 0 <= request.unanswered <= request.number:
        raise InvalidArgument(
            f"request {request.number} cannot be below the lowest unanswered one, {request.unanswered}"
        )
    if not 0 < len(request.operations) <= limits.operations_max:
        raise InvalidArgument(
            f"a change has 1 to {limits.operations_max} operations, not {len(request.operations)}"
        )
    for operation in request.operations:
        paths.validate(operation.path, isinstance(operation, Create) and operation.sequential)
        size = len(operation.data) if isinstance(operation, Create | Set) else 0
        if size > limits.data_bytes_max:
            raise InvalidArgument(
                f"a node's data has {limits.data_bytes_max} bytes at most, not {size}: keep large data in a table"
            )
        if operation.path == paths.ROOT and isinstance(operation, Create | Delete):
            raise InvalidArgument("the root always exists; name a node below it")


def session_of(namespace: Namespace, session: str) -> Session:
    found = namespace.sessions.get(session)
    if found is None:
        raise SessionExpired(
            f"session {session} has expired or was closed; its ephemeral nodes are gone: open another session",
            session=session,
        )
    return found


def decide(namespace: Namespace, request: ChangeRequest, limits: Limits) -> NodesChanged | tuple[Result, ...]:
    """The edit to make durable; or the results, if nothing changes or the request was carried out before."""
    session = session_of(namespace, request.session)
    digest = xxhash.xxh3_64_intdigest(_encode(request.operations))
    earlier = session.answer(request.number)
    if earlier is not None:
        if earlier.digest != digest:
            raise RequestReused(
                f"request {request.number} of session {request.session} had other operations before; use a new number"
            )
        return earlier.results
    if request.number < session.unanswered:
        raise _given_up(request)
    unanswered = max(request.unanswered, session.unanswered)
    awaited = sum(answer.number >= unanswered for answer in session.answers)  # this change drops the others
    if awaited >= limits.unanswered_max:
        raise Throttled(
            f"session {request.session} waits for {awaited} answers",
            limit="unanswered_max",
            retry_after_s=RETRY_AFTER_S,
        )
    draft = _Draft(namespace, request.session, limits)
    results = tuple(draft.carry_out(operation) for operation in request.operations)
    if not draft.changes:
        return results
    return NodesChanged(request.session, request.number, unanswered, digest, tuple(draft.changes), results)


class _OfSession:
    def __init__(self) -> None:
        self.unanswered = 0
        self.errors: dict[int, EblaError] = {}


class Refusals:
    """Requests that were refused in this active term: a late copy of such a request is refused as well. In memory only,
    because a late copy was sent to this process. The namespace keeps the answers of carried out requests."""

    def __init__(self) -> None:
        self._of: dict[str, _OfSession] = {}

    def require_new(self, request: ChangeRequest) -> None:
        """Raise the error with which the request was refused before, or StaleRequest if its client gave it up."""
        of = self._of.setdefault(request.session, _OfSession())
        if request.unanswered > of.unanswered:
            of.unanswered = request.unanswered
            for number in [number for number in of.errors if number < request.unanswered]:
                del of.errors[number]
        if request.number < of.unanswered:
            raise _given_up(request)
        earlier = of.errors.get(request.number)
        if earlier is not None:
            raise type(earlier)(earlier.message, **earlier.values())

    def note(self, request: ChangeRequest, error: EblaError) -> None:
        errors = self._of[request.session].errors
        if not error.retriable and len(errors) < REFUSALS_MAX:
            errors[request.number] = error

    def forget(self, session: str) -> None:
        self._of.pop(session, None)


def _given_up(request: ChangeRequest) -> StaleRequest:
    return StaleRequest(f"request {request.number} of session {request.session} was given up by its client")


class _Draft:
    """The namespace as it will be after the operations so far."""

    def __init__(self, namespace: Namespace, session: str, limits: Limits) -> None:
        self.changes: list[NodeChange] = []
        self._base = namespace
        self._session = session
        self._limits = limits
        self._revision = namespace.revision
        self._nodes: dict[str, Node | None] = {}
        self._children: dict[str, int] = {}
        self._added_bytes = 0
        self._added_nodes = 0

    def carry_out(self, operation: Operation) -> Result:
        if isinstance(operation, Create):
            return self._create(operation)
        if isinstance(operation, Set):
            return self._set(operation)
        if isinstance(operation, Delete):
            return self._delete(operation)
        return self._check(operation)

    def _create(self, operation: Create) -> Result:
        self._make_parents(operation)
        revision, path = self._revision + 1, operation.path
        if operation.sequential:
            # A client may have created a node with such a name; skip its number.
            while self._node(paths.numbered(path, revision)) is not None:
                revision += 1
            path = paths.numbered(path, revision)
        elif self._node(path) is not None:
            raise AlreadyPresent(f"there is a node {path} already", what=path)
        self._add(path, operation.data, self._session if operation.ephemeral else "", revision)
        return Result(path, revision)

    def _make_parents(self, operation: Create) -> None:
        missing: list[str] = []
        above = paths.parent(operation.path)
        while self._node(above) is None:
            missing.append(above)
            above = paths.parent(above)
        if missing and not operation.parents:
            raise NotFound(
                f"there is no node {missing[0]}: create it first, or ask for the parents to be made",
                what=missing[0],
            )
        for path in reversed(missing):
            self._add(path, b"", "", self._revision + 1)

    def _add(self, path: str, data: bytes, owner: str, revision: int) -> None:
        above = paths.parent(path)
        holder = self._node(above)
        assert holder is not None
        if holder.owner:
            raise InvalidArgument(f"{above} is ephemeral and has no children; create the node elsewhere")
        children = self._child_count(above) + 1
        self._require(
            children <= self._limits.children_max, "children_max", f"{above} has {children - 1} children"
        )
        self._added_nodes += 1
        nodes = len(self._base.nodes) + self._added_nodes
        self._require(nodes <= self._limits.nodes_max, "nodes_max", f"there are {nodes - 1} nodes")
        self._grow(len(path.encode()) + len(data))
        self._nodes[path] = Node(data, revision, revision, owner=owner)
        self._children[above] = children
        self._note(NodeCreated(revision, path, data, owner))

    def _set(self, operation: Set) -> Result:
        node = self._expect(operation.path, operation.version)
        self._grow(len(operation.data) - len(node.data))
        revision = self._revision + 1
        self._nodes[operation.path] = Node(operation.data, node.created, revision, owner=node.owner)
        self._note(NodeSet(revision, operation.path, operation.data))
        return Result(operation.path, revision)

    def _delete(self, operation: Delete) -> Result:
        path = operation.path
        node = self._expect(path, operation.version)
        children = self._child_count(path)
        if children:
            raise NotEmpty(f"{path} has {children} children; delete them first", what=path)
        self._added_nodes -= 1
        self._added_bytes -= len(path.encode()) + len(node.data)
        self._nodes[path] = None
        above = paths.parent(path)
        self._children[above] = self._child_count(above) - 1
        self._note(NodeDeleted(self._revision + 1, path))
        return Result(path, self._revision)

    def _check(self, operation: Check) -> Result:
        if operation.version == 0:
            found = self._node(operation.path)
            if found is not None and found.version:  # the root has version 0 until it is set
                raise _mismatch(operation.path, 0, found.version)
            return Result(operation.path, 0)
        return Result(operation.path, self._expect(operation.path, operation.version).version)

    def _expect(self, path: str, version: int | None) -> Node:
        node = self._node(path)
        if node is None and not version:
            raise NotFound(f"there is no node {path}", what=path)
        if node is None or version not in (None, node.version):
            raise _mismatch(path, version or 0, 0 if node is None else node.version)
        return node

    def _node(self, path: str) -> Node | None:
        return self._nodes[path] if path in self._nodes else self._base.nodes.get(path)

    def _child_count(self, path: str) -> int:
        return self._children.get(path, self._base.child_count(path))

    def _note(self, change: NodeChange) -> None:
        self.changes.append(change)
        self._revision = change.revision

    def _grow(self, by: int) -> None:
        self._added_bytes += by
        held = self._base.bytes + self._added_bytes
        self._require(
            by <= 0 or held <= self._limits.bytes_max, "bytes_max", f"the namespace would hold {held} bytes"
        )

    def _require(self, holds: bool, limit: str, what: str) -> None:
        if not holds:
            most = getattr(self._limits, limit)
            raise LimitReached(
                f"{what}, and {limit} is {most}: delete some, or raise master.coordination.{limit}",
                limit=limit,
            )


def _mismatch(path: str, wanted: int, found: int) -> VersionMismatch:
    there = f"has version {found}" if found else "is not there"
    return VersionMismatch(
        f"node {path} {there}, not {wanted}: read it again, then decide again",
        what=path,
        wanted=wanted,
        found=found,
    )
