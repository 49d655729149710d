"""Sessions, nodes, watches and locks for code that does not await: every method does the same as the method of its name in
awaited.py.

Threads may share all handles but a lock's, which one thread uses at a time. A session cannot be pickled: each process opens
its own, and a forked child has none of its parent's sessions and locks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from typing_extensions import Self

from ebla.coordination import awaited as coordination
from ebla.coordination.awaited import Node, Nodes
from ebla.errors import ConnectionClosed
from ebla.transport.bridge import blocking, like, reading
from ebla.transport.opening import Opening

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Coordination:
    __doc__ = Nodes.__doc__

    _awaited: Nodes

    def __init__(self, run: Run, awaited: Nodes) -> None:
        self._run = run
        self._awaited = awaited

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")

    get = blocking(Nodes.get)
    exists = blocking(Nodes.exists)
    children = blocking(Nodes.children)
    sessions = blocking(Nodes.sessions)

    @like(Nodes.watch)
    def watch(self, path: str, *, children: bool = False, deadline_s: float | None = None) -> Watch:
        watch = self._awaited.watch(path, children=children, deadline_s=deadline_s)
        return Watch(self._run, self._run(watch))


class Watch:
    """The last known state of a node, from `Session.watch`."""

    __doc__ = coordination.Watch.__doc__

    def __init__(self, run: Run, awaited: coordination.Watch) -> None:
        self._run = run
        self._awaited = awaited

    path: str = reading(coordination.Watch.path)
    node: Node | None = reading(coordination.Watch.node)
    children: list[str] = reading(coordination.Watch.children)

    change = blocking(coordination.Watch.change)

    def __repr__(self) -> str:
        return f"<ebla.Watch {self.path!r}>"


class Session(Coordination):
    """A session, from `Database.session`; a context manager."""

    __doc__ = coordination.Session.__doc__

    _awaited: coordination.Session

    id: str = reading(coordination.Session.id)
    timeout_s: float = reading(coordination.Session.timeout_s)
    expired: bool = reading(coordination.Session.expired)
    is_sure: bool = reading(coordination.Session.is_sure)

    keep = blocking(coordination.Session.keep)
    create = blocking(coordination.Session.create)
    set = blocking(coordination.Session.set)
    delete = blocking(coordination.Session.delete)
    change = blocking(coordination.Session.change)

    @like(coordination.Session.lock)
    def lock(self, path: str) -> Lock:
        return Lock(self._run, self._awaited.lock(path))

    @like(coordination.Session.close)
    def close(self) -> None:
        try:
            self._run(self._awaited.close())
        except ConnectionClosed:
            return  # the session expires

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Lock:
    """A lock, from `Session.lock`; a context manager."""

    __doc__ = coordination.Lock.__doc__

    def __init__(self, run: Run, awaited: coordination.Lock) -> None:
        self._run = run
        self._awaited = awaited

    path: str = reading(coordination.Lock.path)
    token: int = reading(coordination.Lock.token)
    held: bool = reading(coordination.Lock.held)

    @like(coordination.Lock.acquire)
    def acquire(self, timeout_s: float | None = None) -> int:
        return self._run(Opening(self._awaited._acquired(timeout_s))).token  # type: ignore[no-any-return]

    release = blocking(coordination.Lock.release)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._run(self._awaited.__aexit__(kind, error, traceback))

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")
