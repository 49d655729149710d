"""Random requests against a model of plain dictionaries: contents, refusals and repeated requests."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ebla.actors.coordination import paths
from ebla.actors.coordination.messages import Create, Delete, Set
from ebla.storage.errors import EblaError
from tests.coordination.room import Room

NAMES = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep"])
SESSIONS = ("s", "t")


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.room = Room()
        self.nodes: dict[str, tuple[bytes, str]] = {}
        self.versions: dict[str, int] = {}
        self.numbers: dict[int, None] = {}  # all versions and sequence numbers so far
        self.generation = dict.fromkeys(SESSIONS, 0)
        self.live: dict[str, str] = {}
        self.last: tuple[tuple[Any, ...], dict[str, Any], Any] | None = None
        self.changed_at: dict[str, int] = {}
        for session in SESSIONS:
            self._open(session)

    def _open(self, session: str) -> None:
        self.generation[session] += 1
        self.live[session] = self.room.open(f"{session}{self.generation[session]}")

    def _ask(self, session: str, *operations: Any) -> Any:
        owner = self.live[session]
        number = self.room.numbers.get(owner, 0)
        self.room.numbers[owner] = number + 1
        given = {"session": owner, "number": number}
        answer = self.room.ask(*operations, **given)
        self.last = (operations, given, answer)
        return answer

    def _new(self, path: str, version: int) -> None:
        assert version not in self.numbers, "a version was repeated"
        assert version > max(self.numbers, default=0), "a version went back"
        self.numbers[version] = None
        self.versions[path] = self.changed_at[path] = version

    def _children(self, path: str) -> list[str]:
        return sorted(paths.name(other) for other in self.nodes if paths.parent(other) == path)

    def _may_create(self, path: str) -> bool:
        above = paths.parent(path)
        return path not in self.nodes and (above == "/" or (above in self.nodes and not self.nodes[above][1]))

    @rule(path=NAMES, data=st.binary(max_size=3), session=st.sampled_from(SESSIONS), ephemeral=st.booleans())
    def create(self, path: str, data: bytes, session: str, ephemeral: bool) -> None:
        operation = Create(path, data, ephemeral=ephemeral)
        if not self._may_create(path):
            self._refused(session, operation)
            return
        (result,) = self._ask(session, operation)
        self.nodes[path] = (data, self.live[session] if ephemeral else "")
        self._new(path, result.version)

    @rule(path=NAMES, session=st.sampled_from(SESSIONS), ephemeral=st.booleans())
    def create_sequential(self, path: str, session: str, ephemeral: bool) -> None:
        above = paths.parent(path)
        if above != "/" and (above not in self.nodes or self.nodes[above][1]):
            return
        (result,) = self._ask(session, Create(path, b"", ephemeral=ephemeral, sequential=True))
        assert result.path not in self.nodes and paths.number(result.path) == result.version
        self.nodes[result.path] = (b"", self.live[session] if ephemeral else "")
        self._new(result.path, result.version)

    @rule(path=NAMES, data=st.binary(max_size=3), session=st.sampled_from(SESSIONS), right=st.booleans())
    def set(self, path: str, data: bytes, session: str, right: bool) -> None:
        known = self.versions.get(path, 10**6)
        operation = Set(path, data, known if right else known + 1)
        if path not in self.nodes or not right:
            self._refused(session, operation)
            return
        (result,) = self._ask(session, operation)
        self.nodes[path] = (data, self.nodes[path][1])
        self._new(path, result.version)

    @rule(data=st.data(), session=st.sampled_from(SESSIONS))
    def delete(self, data: Any, session: str) -> None:
        path = data.draw(st.sampled_from(sorted(self.nodes))) if self.nodes else "/a"
        if path not in self.nodes or self._children(path):
            self._refused(session, Delete(path))
            return
        (result,) = self._ask(session, Delete(path))
        self._gone(path, result.version)

    def _gone(self, path: str, at: int) -> None:
        del self.nodes[path]
        self.versions.pop(path)
        self.numbers[at] = None
        self.changed_at[path] = at

    @rule(session=st.sampled_from(SESSIONS))
    def expire(self, session: str) -> None:
        ended = self.live[session]
        mine = [path for path, (_, owner) in self.nodes.items() if owner == ended]
        assert sorted(mine) == sorted(self.room.namespace.owned(ended))
        self.room.end(ended)
        for path in mine:
            self._gone(path, self.room.namespace.gone[path])
        self._open(session)

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self) -> None:
        assert self.last is not None
        operations, given, answer = self.last
        if given["session"] in self.room.namespace.sessions:
            assert self.room.ask(*operations, **given) == answer

    @rule()
    def reload(self) -> None:
        self.room.reload()

    def _refused(self, session: str, operation: Any) -> None:
        before = self.room.catalog.image()
        try:
            self._ask(session, operation)
        except EblaError:
            assert self.room.catalog.image() == before
            return
        raise AssertionError(f"{operation} was carried out")

    @invariant()
    def the_model_holds(self) -> None:
        namespace = self.room.namespace
        assert {p: (n.data, n.owner) for p, n in namespace.nodes.items() if p != "/"} == self.nodes
        assert {p: namespace.nodes[p].version for p in self.nodes} == self.versions
        for path in ("/", *self.nodes):
            assert list(namespace.children(path)) == self._children(path)

    @invariant()
    def no_change_is_missed(self) -> None:
        """A reader of an older revision than the last change of a path gets the change; other readers do not."""
        for path, at in self.changed_at.items():
            assert self.room.changed(path, at - 1)
            assert not self.room.changed(path, self.room.namespace.revision)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
