"""Defects of the coordination namespace and its clients."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.coordination import paths, requests
from ebla.actors.coordination.edits import NodesChanged, NodeSet, SessionEnded
from ebla.actors.coordination.messages import Create, Result
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.coordination.sessions import locks
from ebla.actors.coordination.timers import Timers
from ebla.chaos.defects.defect import Swap, defect


@defect("locks", 60, requests._Draft, "_create")
def sequences_in_memory(original: Any, self: requests._Draft, operation: Create) -> Any:
    """Only the memory of the active master counts the numbers of sequential nodes."""
    if not operation.sequential:
        return original(self, operation)
    memory = vars(self._base)
    number = memory.get("counted", 0) + 1
    while self._node(paths.numbered(operation.path, number)) is not None:
        number += 1
    memory["counted"] = number
    path = paths.numbered(operation.path, number)
    return original(self, replace(operation, path=path, sequential=False))


@defect("locks", 20, requests, "decide")
def change_carries_out_the_first(original: Any, namespace: Namespace, request: Any, limits: Any) -> Any:
    """Only the first operation of a change of several nodes is carried out."""
    return original(namespace, replace(request, operations=request.operations[:1]), limits)


@defect("locks", 20, Namespace, "_set")
def watchers_not_notified(original: Any, self: Namespace, change: NodeSet) -> None:
    """Watchers do not learn that their node was set."""
    notify, self.notify = self.notify, lambda path: None
    original(self, change)
    self.notify = notify


@defect("locks", 20, Namespace, "changed_since")
def deletions_not_notified(original: Any, self: Namespace, path: str, seen: int, children: bool) -> bool:
    """Watchers do not learn that their node was deleted."""
    return path in self.nodes and original(self, path, seen, children)


@defect("locks", 100, Timers, "begin", seed=54)
def no_fresh_timeout(original: Any, self: Timers, sessions: Any) -> None:
    """A new master expires sessions before they could send a heartbeat to it."""
    original(self, known := list(sessions))
    self._renewed_at.update(dict.fromkeys(known, float("-inf")))


@defect("locks", 60, Namespace, "_session_ended")
def nodes_outlive_sessions(self: Namespace, edit: SessionEnded) -> None:
    """An expired session leaves its ephemeral nodes behind."""
    for path in self.owned(edit.session):
        self.nodes[path] = replace(self.nodes[path], owner="")
    self._owned.pop(edit.session, None)
    del self.opened[self.sessions.pop(edit.session).request]


# It does not check whether that waiter held the lock or gave up.
@defect("locks", 60, seed=9)
def turn_without_checking() -> list[Swap]:
    """A waiter takes a lock when the waiter before it is gone, although another process holds the lock."""
    original = locks._before
    waited: dict[str, None] = {}  # made for each run

    def before(names: tuple[str, ...], made: Result) -> str | None:
        if made.path in waited:
            return None
        waited[made.path] = None
        return original(names, made)

    return [(locks, "_before", before)]


@defect("crowds", 60, Namespace, "_nodes_changed", seed=0)
def open_change_forgotten(original: Any, self: Namespace, edit: NodesChanged) -> None:
    """The answer to the lowest of a session's open changes is dropped: its retry is carried out again."""
    original(self, edit)
    dropped = {edit.unanswered} - {edit.number}
    session = self.sessions[edit.session]
    kept = tuple(answer for answer in session.answers if answer.number not in dropped)
    self.sessions[edit.session] = replace(session, answers=kept)
