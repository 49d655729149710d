"""Sessions, nodes, watches and locks for code that does not await. See awaited.py and locks.py: every method does the
same and says the same.

Handles may be shared by threads, a lock's by one at a time. They belong to this process: a session is not pickled, another
process opens its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from ebla.actors.coordination.messages import Operation, Result, SessionInfo
from ebla.coordination import awaited as coordination
from ebla.coordination import locks
from ebla.coordination.nodes import Node, Nodes
from ebla.errors import ConnectionClosed

T = TypeVar("T")

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Coordination:
    """What can be read without a session."""

    def __init__(self, run: Run, awaited: Nodes) -> None:
        self._run_any = run
        self._nodes = awaited

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._run_any(coroutine)  # type: ignore[no-any-return]

    def get(self, path: str, *, deadline_s: float | None = None) -> Node | None:
        return self._run(self._nodes.get(path, deadline_s=deadline_s))

    def exists(self, path: str, *, deadline_s: float | None = None) -> bool:
        return self._run(self._nodes.exists(path, deadline_s=deadline_s))

    def children(self, path: str, *, deadline_s: float | None = None) -> list[str]:
        return self._run(self._nodes.children(path, deadline_s=deadline_s))

    def watch(self, path: str, *, children: bool = False, deadline_s: float | None = None) -> Watch:
        return Watch(
            self._run_any, self._run(self._nodes.watch(path, children=children, deadline_s=deadline_s))
        )

    def sessions(self, *, deadline_s: float | None = None) -> list[SessionInfo]:
        return self._run(self._nodes.sessions(deadline_s=deadline_s))


class Watch:
    def __init__(self, run: Run, awaited: coordination.Watch) -> None:
        self._run = run
        self._awaited = awaited

    @property
    def path(self) -> str:
        return self._awaited.path

    @property
    def node(self) -> Node | None:
        return self._awaited.node

    @property
    def children(self) -> list[str]:
        return self._awaited.children

    def change(self, timeout_s: float | None = None) -> Node | None:
        return self._run(self._awaited.change(timeout_s))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<ebla.Watch {self.path!r}>"


class Session(Coordination):
    """A context manager: at its end the session is closed, and its ephemeral nodes are gone."""

    def __init__(self, run: Run, awaited: coordination.Session) -> None:
        super().__init__(run, awaited)
        self._awaited = awaited

    @property
    def id(self) -> str:
        return self._awaited.id

    @property
    def timeout_s(self) -> float:
        return self._awaited.timeout_s

    @property
    def expired(self) -> bool:
        return self._awaited.expired

    @property
    def is_sure(self) -> bool:
        return self._awaited.is_sure

    def keep(self, *, deadline_s: float | None = None) -> None:
        self._run(self._awaited.keep(deadline_s=deadline_s))

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
        deadline_s: float | None = None,
    ) -> Result:
        return self._run(
            self._awaited.create(
                path,
                data,
                ephemeral=ephemeral,
                sequential=sequential,
                parents=parents,
                deadline_s=deadline_s,
            )
        )

    def set(
        self, path: str, data: bytes, *, version: int | None = None, deadline_s: float | None = None
    ) -> int:
        return self._run(self._awaited.set(path, data, version=version, deadline_s=deadline_s))

    def delete(self, path: str, *, version: int | None = None, deadline_s: float | None = None) -> None:
        self._run(self._awaited.delete(path, version=version, deadline_s=deadline_s))

    def change(self, *operations: Operation, deadline_s: float | None = None) -> tuple[Result, ...]:
        return self._run(self._awaited.change(*operations, deadline_s=deadline_s))

    def lock(self, path: str) -> Lock:
        return Lock(self._run_any, self._awaited.lock(path))

    def close(self) -> None:
        try:
            self._run(self._awaited.close())
        except ConnectionClosed:
            return  # it expires

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")


class Lock:
    """A context manager, as the awaited one."""

    def __init__(self, run: Run, awaited: locks.Lock) -> None:
        self._run = run
        self._awaited = awaited

    @property
    def path(self) -> str:
        return self._awaited.path

    @property
    def held(self) -> bool:
        return self._awaited.held

    @property
    def token(self) -> int:
        return self._awaited.token

    def acquire(self, timeout_s: float | None = None) -> int:
        return self._run(self._awaited.acquire(timeout_s))  # type: ignore[no-any-return]

    def release(self) -> None:
        self._run(self._awaited.release())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._run(self._awaited.__aexit__(kind, error, traceback))

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")
