"""Typed records in nodes: read, decide, and set by compare-and-set; if another change comes first, start again.

A change whose answer is lost is sent again by its session, and made once. When the session expires meanwhile, the change is
tried in a new one: the version of the node tells whether the first one was made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.coordination.errors import SessionExpired, VersionMismatch
from ebla.actors.coordination.messages import Operation, Set
from ebla.actors.coordination.sessions.changes import Session, open_session
from ebla.actors.coordination.sessions.nodes import Nodes
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.storage.errors import Corruption, EblaError

R = TypeVar("R", bound=msgspec.Struct)

SESSION_S = 10.0
DEADLINE_S = 30.0


class Sessions(Protocol):
    """Where records get the session that makes their changes."""

    @property
    def nodes(self) -> Nodes: ...

    async def open(self) -> Session: ...


class LastingSession:
    """A session that is opened at its first use, and again when it has expired."""

    def __init__(self, master: MasterClient, name: str, timeout_s: float = SESSION_S) -> None:
        self.nodes = Nodes(master)
        self._master = master
        self._name = name
        self._timeout_s = timeout_s
        self._session: Session | None = None

    async def open(self) -> Session:
        if self._session is None or self._session.expired:
            made = await open_session(
                Session, self._master, self._timeout_s, name=self._name, deadline_s=DEADLINE_S
            )
            if self._session is None or self._session.expired:
                self._session = made
            else:  # another task was first
                with contextlib.suppress(EblaError):
                    await made.close()
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class Records(Generic[R]):
    """Records of one type."""

    def __init__(self, session: Sessions, kind: type[R], named: str) -> None:
        """`named`: what a record is, for messages."""
        self._session = session
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._named = named

    async def get(self, path: str) -> R | None:
        node = await self._session.nodes.get(path, deadline_s=DEADLINE_S)
        return None if node is None else self.opened(path, node.data, node.version)

    async def find(self, path: str) -> tuple[R, int] | None:
        """The record and its version."""
        node = await self._session.nodes.get(path, deadline_s=DEADLINE_S)
        return None if node is None else (self.opened(path, node.data, node.version), node.version)

    async def create(self, path: str, record: R) -> None:
        """Raises AlreadyPresent, also if the record was made by an earlier try whose session has expired."""
        session = await self._session.open()
        data = msgspec.msgpack.encode(record)
        await session.create(path, data, parents=True, deadline_s=DEADLINE_S)

    async def change(self, path: str, transform: Callable[[R], R], *others: Operation) -> R:
        """`others`: operations on other nodes, carried out in the same change, before the record is set. Raises NotFound, what
        `transform` raises, and VersionMismatch if one of the others meets another version than it names."""
        while True:
            node = await self._session.nodes.get(path, deadline_s=DEADLINE_S)
            if node is None:
                raise NotFound(f"there is no {self._named} {path.rpartition('/')[2]}", what=path)
            before = self.opened(path, node.data, node.version)
            changed = transform(before)
            if changed == before:
                return before
            try:
                session = await self._session.open()
                data = msgspec.msgpack.encode(changed)
                operations = (*others, Set(path, data, node.version))
                results = await session.change(*operations, deadline_s=DEADLINE_S)
            except SessionExpired:
                continue
            except VersionMismatch as error:
                if error.what != path:
                    raise
                continue
            return self.opened(path, data, results[-1].version)

    async def put(self, path: str, merge: Callable[[R | None], R]) -> R:
        """Create the record, or change it."""
        while True:
            made = merge(None)
            try:
                await self.create(path, made)
            except AlreadyPresent:
                pass
            except SessionExpired:
                continue
            else:
                return made
            try:
                return await self.change(path, merge)
            except NotFound:
                continue

    async def delete(self, path: str, version: int | None = None) -> bool:
        """Delete the record, if it has this version. Absent is no error. Returns whether no such record is left."""
        while True:
            try:
                session = await self._session.open()
                await session.delete(path, version=version, deadline_s=DEADLINE_S)
            except NotFound:
                return True
            except VersionMismatch:
                return False
            except SessionExpired:
                continue
            return True

    def opened(self, path: str, data: bytes, version: int) -> R:
        """The record in a node of this version."""
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise Corruption(f"the {self._named} at {path} cannot be read: {error}", path=path) from error
