"""A fair lock: processes get it in the order in which they asked, and each holder gets a greater token than all before.

Each process that wants the lock creates an ephemeral, sequential node below the lock's path. The node with the lowest number
holds the lock; every other process watches the node before its own only, so that a release wakes one process, not all.

A holder may pause so long that its session expires and another process gets the lock. The holder cannot notice this, but the
protected resource can: pass it the token, and let it refuse tokens lower than the highest it has seen. Without that, check
`held` before each step: it is true only while, by this process's clock, no other process can have the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from typing_extensions import Self

from ebla.actors.asking.retries import BACKOFF_MAX_S, retriable
from ebla.actors.coordination import paths
from ebla.actors.coordination.errors import SessionExpired
from ebla.actors.coordination.messages import Create, Delete, Result
from ebla.actors.coordination.sessions.changes import Request, Session
from ebla.actors.errors import ConnectionClosed, NotFound, TimedOut
from ebla.storage.errors import EblaError, InvalidArgument

log = logging.getLogger("ebla")

WAITER = "waiter-"
PERSIST_S = 60.0  # for one of the calls that repeat a request until it is answered


class Lock:
    """A fair lock. An async context manager. Not reentrant: one handle holds the lock once."""

    def __init__(self, session: Session, path: str) -> None:
        paths.validate(paths.join(path, WAITER), sequential=True)
        self._path = path
        self._session = session
        self._made: Result | None = None
        self._busy = False

    @property
    def path(self) -> str:
        """The lock's path; all processes that name it share the lock."""
        return self._path

    @property
    def held(self) -> bool:
        """Whether this handle holds the lock and, by this process's clock, no other process can."""
        return self._made is not None and self._session.is_sure

    @property
    def token(self) -> int:
        """Greater than the tokens of all earlier holders. Raises InvalidArgument if the lock is not held."""
        if self._made is None:
            raise InvalidArgument(f"the lock {self.path} is not held; acquire it first")
        return self._made.version

    async def acquire(self, timeout_s: float | None = None) -> int:
        """Wait for the lock and return its token. Raises TimedOut after `timeout_s` (None: wait for ever), SessionExpired if
        the session expires before."""
        limit_s = float("inf") if timeout_s is None else timeout_s
        if self._busy:
            raise InvalidArgument(
                f"this handle of the lock {self.path} holds it, or waits for it: make another one for another user"
            )
        self._busy = True
        waiter = Create(paths.join(self.path, WAITER), ephemeral=True, sequential=True, parents=True)
        request = self._session._request(waiter)
        try:
            self._made = await self._turn(request, limit_s)
        finally:
            if self._made is None:
                self._busy = False
                self._spawn(self._undo(request))
        return self._made.version

    async def release(self) -> None:
        """Release the lock. Raises SessionExpired if the session has expired, so that the lock was lost before."""
        made, self._made = self._made, None
        if made is None:
            raise InvalidArgument(f"the lock {self.path} is not held")
        self._busy = False
        request = self._session._request(Delete(made.path))
        try:
            await request.ask(self._session.timeout_s)
        except NotFound as error:
            raise NotFound(
                f"the lock {self.path} was not held to the end: another client deleted {made.path}",
                what=made.path,
            ) from error
        except SessionExpired:
            raise
        except BaseException as error:  # the lock of a cancelled caller is released, too
            self._spawn(self._persist(request))
            if not isinstance(error, EblaError):
                raise
            log.info("the lock %s will be released later: %s", self.path, error)

    # -- waiting

    async def _turn(self, request: Request, limit_s: float) -> Result:
        """Wait until the own node is the first, and return it."""
        session = self._session
        clock = session._master.world.clock
        until = clock.monotonic() + limit_s
        (made,) = await request.ask(limit_s)
        while True:
            reply = await session._read(self.path, True, _left(until, clock.monotonic()))
            if paths.name(made.path) not in reply.children:
                await session.keep(deadline_s=_left(until, clock.monotonic()))  # it may have expired
                raise NotFound(
                    f"another client deleted {made.path}, which waited for the lock {self.path}",
                    what=made.path,
                )
            before = _before(reply.children, made)
            if before is None:
                while not session.is_sure:  # it may have expired since
                    await session.keep(deadline_s=_left(until, clock.monotonic()))
                return made
            await self._until_gone(paths.join(self.path, before), reply.revision, until, limit_s)

    async def _until_gone(self, path: str, seen: int, until: float, limit_s: float) -> None:
        session = self._session
        clock = session._master.world.clock
        while True:
            left_s = until - clock.monotonic()
            reply = await session._poll(path, seen, False, left_s)
            session._check()
            if reply.node is None:
                return
            if left_s <= 0:
                raise TimedOut(f"the lock {self.path} was not free within {limit_s:g} s", deadline_s=limit_s)
            seen = reply.revision

    # -- cleaning up

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._session._master.world.spawn(work, f"leave the lock {self.path}")

    async def _undo(self, request: Request) -> None:
        """Delete the own node if it was created."""
        made = await self._persist(request)
        if made is not None:
            await self._persist(self._session._request(Delete(made.path)))

    async def _persist(self, request: Request) -> Result | None:
        """Repeat the request until it is answered; None if it is refused, or the session has ended."""
        session = self._session
        while True:
            try:
                (result,) = await request.ask(PERSIST_S)
                return result
            except (SessionExpired, ConnectionClosed):
                return None
            except EblaError as error:
                if not (error.retriable or retriable(error) or type(error).possibly_applied):
                    return None
                log.info("the lock %s: %s", self.path, error)
            await session._master.world.clock.sleep(BACKOFF_MAX_S)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        """An error of the block takes precedence over an error of the release."""
        try:
            await self.release()
        except EblaError as failed:
            if error is None:
                raise
            log.info("the lock %s: %s", self.path, failed)


def _before(names: tuple[str, ...], made: Result) -> str | None:
    """The waiting node directly before the own one; None if the own node is the first."""
    numbers = {paths.number(name): name for name in names if name.startswith(WAITER)}
    ahead = [number for number in numbers if number is not None and number < made.version]
    return numbers[max(ahead)] if ahead else None


def _left(until: float, now: float) -> float:
    return max(0.01, until - now)
