"""A session that changes nodes: it sends its own heartbeats, and each of its changes is made once."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TypeVar

from typing_extensions import Self

from ebla.actors.asking.certainty import Tries
from ebla.actors.asking.master_client import MasterClient
from ebla.actors.asking.retries import BACKOFF_MAX_S, retriable, same
from ebla.actors.coordination import messages as m
from ebla.actors.coordination.errors import SessionExpired
from ebla.actors.coordination.limits import UNDER_WAY_MAX
from ebla.actors.coordination.messages import Create, Delete, Operation, Result, Set
from ebla.actors.coordination.sessions.nodes import Nodes
from ebla.actors.errors import ConnectionClosed, TimedOut
from ebla.actors.messages import Empty
from ebla.storage.errors import EblaError

log = logging.getLogger("ebla")

HEARTBEATS_PER_TIMEOUT = 3
SURE_SHARE = 0.8  # of the timeout: the rates of the clocks of masters and clients may differ by a fifth
CLOSE_S = 5.0

S = TypeVar("S", bound="Session")


async def open_session(
    kind: type[S], master: MasterClient, timeout_s: float, *, name: str = "", deadline_s: float
) -> S:
    """Open a session of this class. It expires `timeout_s` after the last heartbeat; `ebla coord sessions` shows its `name`."""
    request = m.OpenSessionRequest(master.new_request_id(), int(timeout_s * 1000), name)
    asked_at = master.world.now()
    reply = await master.ask("open_session", request, m.SessionReply, deadline_s=deadline_s)
    return kind(master, reply, asked_at)


class Session(Nodes):
    """Changes nodes. An async context manager: at its end the session is closed, and its ephemeral nodes are deleted."""

    def __init__(self, master: MasterClient, opened: m.SessionReply, asked_at: float) -> None:
        super().__init__(master)
        self._id = opened.session
        self._timeout_s = opened.timeout_ms / 1000
        self._ended: EblaError | None = None
        self._next = 0
        self._outstanding: dict[int, None] = {}  # requests without a known answer, ascending
        # requests too far above the lowest outstanding one
        self._held_back: dict[int, asyncio.Future[None]] = {}
        self._sure_until = 0.0
        self._kept(asked_at)
        self._keeping = self._master.world.spawn(self._keep(), f"keep session {self.id}")

    @property
    def id(self) -> str:
        """The session's id, which `ebla coord sessions` shows."""
        return self._id

    @property
    def timeout_s(self) -> float:
        """The session expires when no heartbeat of this process arrives for this time, in seconds."""
        return self._timeout_s

    # -- heartbeats and the end

    @property
    def expired(self) -> bool:
        """Whether the session is known to have ended."""
        return self._ended is not None

    @property
    def is_sure(self) -> bool:
        """Whether the session cannot have expired yet, by this process's clock."""
        return self._ended is None and self._master.world.now() < self._sure_until

    async def keep(self, *, deadline_s: float) -> None:
        """Send a heartbeat now, besides those that the session sends by itself. Raises SessionExpired."""
        self._check()
        asked_at = self._master.world.now()
        request = m.SessionRequest(self.id)
        try:
            await self._master.ask("keep_session", request, m.SessionReply, deadline_s=deadline_s)
        except SessionExpired as error:
            self._end(error)
            raise
        self._kept(asked_at)

    async def close(self) -> None:
        """Delete the session's ephemeral nodes: at once, or after its timeout if no master answers."""
        if self._ended is not None:
            return
        self._end(SessionExpired(f"session {self.id} was closed; open another session", session=self.id))
        self._keeping.cancel()
        try:
            request = m.SessionRequest(self.id)
            await self._master.ask("close_session", request, Empty, deadline_s=CLOSE_S)
        except EblaError as error:
            log.info("session %s was not closed, it will expire: %s", self.id, error)

    async def _keep(self) -> None:
        clock = self._master.world.clock
        pause_s = self.timeout_s / HEARTBEATS_PER_TIMEOUT
        while self._ended is None:
            await clock.sleep(pause_s)
            try:
                await self.keep(deadline_s=self.timeout_s)
            except (SessionExpired, ConnectionClosed):
                return
            except EblaError as error:
                log.info("session %s may expire: %s", self.id, error)
                pause_s = BACKOFF_MAX_S
            else:
                pause_s = self.timeout_s / HEARTBEATS_PER_TIMEOUT

    def _kept(self, asked_at: float) -> None:
        """A master has received a request of the session, at `asked_at` or later."""
        self._sure_until = max(self._sure_until, asked_at + SURE_SHARE * self.timeout_s)

    def _end(self, why: EblaError) -> None:
        if self._ended is None:
            self._ended = why
            for number in list(self._held_back):
                self._release(number)

    def _check(self) -> None:
        if self._ended is not None:
            raise same(self._ended)

    # -- changes

    @property
    def _lowest(self) -> int:
        return next(iter(self._outstanding), self._next)

    async def _room(self, number: int, deadline_s: float) -> None:
        """Wait until few enough changes are under way that masters accept this one."""
        if number < self._lowest + UNDER_WAY_MAX:
            return
        future = self._held_back[number] = asyncio.get_running_loop().create_future()
        try:
            if deadline_s == inf:
                await future
            else:
                async with self._master.world.clock.timeout(deadline_s):
                    await future
        except TimeoutError:
            late = TimedOut(
                f"a change of session {self.id} was not sent within {deadline_s:g} s: {UNDER_WAY_MAX} others are under way",
                deadline_s=deadline_s,
            )
            late.possibly_applied = False
            raise late from None
        finally:
            self._held_back.pop(number, None)

    def _release(self, number: int) -> None:
        future = self._held_back.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _over(self, number: int) -> None:
        """The request is not sent again. Send the requests that it held back."""
        before = self._lowest
        self._outstanding.pop(number, None)
        for freed in range(before, self._lowest):
            self._release(freed + UNDER_WAY_MAX)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
        deadline_s: float,
    ) -> Result:
        """Create a node; returns its path and version. Raises AlreadyPresent, NotFound (a node above it is missing),
        LimitReached."""
        operation = Create(path, data, ephemeral, sequential, parents)
        (result,) = await self.change(operation, deadline_s=deadline_s)
        return result

    async def set(self, path: str, data: bytes, *, version: int | None = None, deadline_s: float) -> int:
        """Set a node's data, and return the node's new version. Raises NotFound, and VersionMismatch if `version` is given and
        the node no longer has it."""
        (result,) = await self.change(Set(path, data, version), deadline_s=deadline_s)
        return result.version

    async def delete(self, path: str, *, version: int | None = None, deadline_s: float) -> None:
        """Delete a node. Raises NotFound, NotEmpty if it has children, VersionMismatch as `set`."""
        await self.change(Delete(path, version), deadline_s=deadline_s)

    async def change(self, *operations: Operation, deadline_s: float) -> tuple[Result, ...]:
        """Carry out these operations (Create, Set, Delete, Check) as one change: all of them or none."""
        request = self._request(*operations)
        try:
            return await request.ask(deadline_s)
        finally:
            request.give_up()

    def _request(self, *operations: Operation) -> Request:
        number, self._next = self._next, self._next + 1
        self._outstanding[number] = None
        return Request(self, number, operations)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class Request:
    """One change of a session. It may be sent again until it is given up, and is carried out once."""

    def __init__(self, session: Session, number: int, operations: tuple[Operation, ...]) -> None:
        self._session = session
        self._number = number
        self._operations = operations
        self._tries = Tries()
        self._answer: tuple[Result, ...] | EblaError | None = None

    async def ask(self, deadline_s: float) -> tuple[Result, ...]:
        """Send the request unless its answer is known; returns or raises the answer."""
        if self._answer is None:
            await self._ask(deadline_s)
        if isinstance(self._answer, EblaError):
            raise same(self._answer)
        assert self._answer is not None
        return self._answer

    async def _ask(self, deadline_s: float) -> None:
        session = self._session
        session._check()
        master = session._master
        began = master.world.now()
        await session._room(self._number, deadline_s)
        session._check()
        message = m.ChangeRequest(session.id, self._number, session._lowest, self._operations)
        asked_at = master.world.now()
        left_s = max(0.01, deadline_s - (asked_at - began))
        try:
            reply = await master.ask(
                "change_nodes", message, m.ChangeReply, deadline_s=left_s, tries=self._tries
            )
        except SessionExpired as error:
            session._end(error)
            raise
        except ConnectionClosed:
            self.give_up()
            raise
        except EblaError as error:
            if error.retriable or retriable(error) or type(error).possibly_applied:
                raise
            self._answer = error
        else:
            self._answer = reply.results
            session._kept(asked_at)
        self.give_up()

    def give_up(self) -> None:
        """Do not send the request again. A copy that arrives after the session's next change is not carried out."""
        self._session._over(self._number)
