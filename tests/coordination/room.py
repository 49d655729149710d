"""A namespace without masters: requests are decided as by a master, and their edits applied at once.

All edits are replayed into a second namespace, and both must be equal.
"""

from __future__ import annotations

from typing import Any

from ebla.actors.coordination import requests
from ebla.actors.coordination.edits import NodesChanged, SessionEnded, SessionOpened
from ebla.actors.coordination.limits import Limits
from ebla.actors.coordination.messages import ChangeRequest, Check, Create, Delete, Operation, Result, Set
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.invariants import require_sound


class Room:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.catalog = Catalog()
        self.twin = Catalog()
        self.told: list[str] = []
        self.numbers: dict[str, int] = {}
        self.namespace.notify = self.told.append

    @property
    def namespace(self) -> Namespace:
        return self.catalog.namespace

    def apply(self, *edits: Any) -> None:
        """Through the encoding of the journal."""
        carried = e.decode(e.encode(edits))
        self.catalog.apply(carried)
        self.twin.apply(carried)
        require_sound(self.catalog)
        assert self.twin.image() == self.catalog.image()

    def reload(self) -> None:
        """Start again from a checkpoint."""
        image = self.catalog.image()
        self.catalog = Catalog()
        self.catalog.load(image)
        assert self.catalog.image() == image
        self.namespace.notify = self.told.append

    # -- requests of clients ----------------------------------------------------------------------------------

    def open(self, session: str = "s", timeout_ms: int = 1000) -> str:
        self.apply(SessionOpened(session, f"request of {session}", timeout_ms, ""))
        return session

    def end(self, session: str = "s") -> None:
        self.apply(SessionEnded(session, self.namespace.revision + 1, True))

    def ask(
        self, *operations: Operation, session: str = "s", number: int | None = None, unanswered: int = 0
    ) -> Any:
        if number is None:
            number = self.numbers.get(session, 0)
            self.numbers[session] = number + 1
        request = ChangeRequest(session, number, unanswered, operations)
        requests.validate(request, self.limits)
        decided = requests.decide(self.namespace, request, self.limits)
        if isinstance(decided, NodesChanged):
            self.apply(decided)
            return decided.results
        return decided

    def create(self, path: str, data: bytes = b"", session: str = "s", **options: bool) -> Result:
        (result,) = self.ask(Create(path, data, **options), session=session)
        return result

    def set(self, path: str, data: bytes, version: int | None = None) -> Result:
        (result,) = self.ask(Set(path, data, version))
        return result

    def delete(self, path: str, version: int | None = None) -> Result:
        (result,) = self.ask(Delete(path, version))
        return result

    def expect(self, path: str, version: int | None = None) -> Result:
        (result,) = self.ask(Check(path, version))
        return result

    def data(self, path: str) -> bytes | None:
        node = self.namespace.nodes.get(path)
        return None if node is None else node.data

    def changed(self, path: str, seen: int, children: bool = False) -> bool:
        return self.namespace.changed_since(path, seen, children)
