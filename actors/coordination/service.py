"""The active master's part of the namespace: it carries out changes, answers reads, expires sessions.

durable first   a change is in the edit log before it is answered and before waiting calls return
exactly once    a repeated request gets the first answer, also from a later active master
patience        a session expires after a whole timeout of silence on this master's clock; after a take-over the
                timeout starts again
reported        a request with an expired session gets SessionExpired; all nodes of the session are gone by then
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ebla.actors.coordination import messages as m
from ebla.actors.coordination import paths, requests
from ebla.actors.coordination.edits import CoordinationEdit, NodesChanged, SessionEnded, SessionOpened
from ebla.actors.coordination.errors import LimitReached
from ebla.actors.coordination.limits import Limits
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.coordination.timers import TICK_S, Timers
from ebla.actors.coordination.watchers import Watchers
from ebla.actors.errors import Throttled
from ebla.actors.messages import Empty
from ebla.actors.world import World, new_id, rpc
from ebla.storage.errors import DiskFull, EblaError, InvalidArgument

T = TypeVar("T")

log = logging.getLogger(__name__)

OVERDUE_S = 5.0  # the end of a session is one edit


class Scribe(Protocol):
    """The one writer of the catalog, of which the namespace is a part: actors/master/catalog/scribe.py."""

    async def change(
        self,
        name: str,
        decide: Callable[[], Sequence[CoordinationEdit]],
        conclude: Callable[[], T],
        *,
        next_one: bool = False,
    ) -> T: ...


class Coordination:
    def __init__(
        self,
        world: World,
        namespace: Namespace,
        scribe: Scribe,
        serves: Callable[[], bool],
        limits: Limits,
    ) -> None:
        """`serves`: whether it may answer at this instant."""
        self.namespace = namespace
        self._world = world
        self._scribe = scribe
        self._limits = limits
        self._timers = Timers(world.clock, serves)
        self._watchers = Watchers(world.clock, limits.polls_max)
        self._refusals = requests.Refusals()
        self._expiring: tuple[str, ...] = ()
        self._expiring_since: float | None = None
        self._due = asyncio.Event()

    def begin(self) -> None:
        """Start as the active master."""
        self._timers.begin(self.namespace.sessions)
        self.namespace.notify = self._watchers.notify
        self._world.spawn(self._tick(), "time sessions")
        self._world.spawn(self._expire(), "expire sessions")

    def close(self) -> None:
        self._watchers.close()

    # -- sessions --------------------------------------------------------------------------------------------

    @rpc
    async def open_session(self, request: m.OpenSessionRequest) -> m.SessionReply:
        requests.validate_open(request, self._limits)
        namespace = self.namespace

        def decide() -> Sequence[CoordinationEdit]:
            if request.request_id in namespace.opened:
                return ()
            if len(namespace.sessions) >= self._limits.sessions_max:
                raise LimitReached(
                    f"there are {len(namespace.sessions)} sessions, and sessions_max is {self._limits.sessions_max}: "
                    "close some, or raise master.coordination.sessions_max",
                    limit="sessions_max",
                )
            session = new_id(self._world.random)
            return (SessionOpened(session, request.request_id, request.timeout_ms, request.name),)

        def conclude() -> m.SessionReply:
            session = namespace.sessions[namespace.opened[request.request_id]]
            self._timers.renew(session.session)
            return m.SessionReply(session.session, session.timeout_ms)

        return await self._scribe.change("open_session", decide, conclude)

    @rpc
    async def keep_session(self, request: m.SessionRequest) -> m.SessionReply:
        """Renew a session. While the session is being expired, the call waits for the outcome."""

        def require_session() -> Sequence[CoordinationEdit]:
            requests.session_of(self.namespace, request.session)
            return ()

        def conclude() -> m.SessionReply:
            self._timers.renew(request.session)
            session = self.namespace.sessions[request.session]
            return m.SessionReply(session.session, session.timeout_ms)

        if request.session in self._expiring:
            return await self._scribe.change("keep_session", require_session, conclude)
        require_session()
        return conclude()

    @rpc
    async def close_session(self, request: m.SessionRequest) -> Empty:
        """Close a session; a no-op if it has ended."""

        def decide() -> Sequence[CoordinationEdit]:
            return self._ends((request.session,), expired=False)

        def conclude() -> Empty:
            self._ended(request.session)
            return Empty()

        return await self._scribe.change("close_session", decide, conclude)

    async def _tick(self) -> None:
        """A separate task, so that a wait for anything else does not look like a paused master."""
        while True:
            await self._world.clock.sleep(TICK_S)
            self._timers.tick()
            if any(map(self._timers.overdue, self.namespace.sessions.values())):
                self._due.set()

    async def _expire(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if self._expiring_since is None:
                self._expiring_since = self._world.now()
            try:
                await self._end_overdue()
            except (Throttled, DiskFull) as error:
                log.warning("%s: %s; trying again", self._world.address, error)
            else:
                self._expiring_since = None

    async def _end_overdue(self) -> None:
        """End the sessions before all other waiting changes: a wait for a lock must not include waits for tables."""
        sessions = self.namespace.sessions

        def decide() -> Sequence[CoordinationEdit]:
            self._timers.tick()
            self._expiring = tuple(
                name for name, session in sessions.items() if self._timers.overdue(session)
            )
            return self._ends(self._expiring, expired=True)

        def conclude() -> None:
            for session in self._expiring:
                self._ended(session)
                log.info("%s: session %s has expired", self._world.address, session)
            self._expiring = ()

        await self._scribe.change("expire_session", decide, conclude, next_one=True)

    def overdue(self) -> int:
        """The number of expired sessions, if their end has been under way for too long."""
        since = self._expiring_since
        if since is None or self._world.now() - since < OVERDUE_S:
            return 0
        return sum(map(self._timers.overdue, self.namespace.sessions.values()))

    def _ends(self, sessions: Sequence[str], *, expired: bool) -> Sequence[CoordinationEdit]:
        edits = []
        revision = self.namespace.revision + 1
        for session in sessions:
            if session in self.namespace.sessions:
                edits.append(SessionEnded(session, revision, expired))
                revision += len(self.namespace.owned(session))
        return edits

    def _ended(self, session: str) -> None:
        self._timers.ended(session)
        self._refusals.forget(session)

    @rpc
    async def list_sessions(self, request: Empty) -> m.ListSessionsReply:
        namespace = self.namespace
        return m.ListSessionsReply(
            tuple(
                m.SessionInfo(
                    session.session,
                    session.name,
                    session.timeout_ms,
                    len(namespace.owned(session.session)),
                    self._timers.silent_s(session.session),
                )
                for session in namespace.sessions.values()
            )
        )

    # -- nodes -----------------------------------------------------------------------------------------------

    @rpc
    async def change_nodes(self, request: m.ChangeRequest) -> m.ChangeReply:
        requests.validate(request, self._limits)
        if request.session in self.namespace.sessions:
            self._timers.renew(request.session)
        results: tuple[m.Result, ...] = ()

        def decide() -> Sequence[CoordinationEdit]:
            nonlocal results
            decided = self._decide(request)
            if isinstance(decided, NodesChanged):
                results = decided.results
                return (decided,)
            results = decided
            return ()

        return await self._scribe.change("change_nodes", decide, lambda: m.ChangeReply(results))

    def _decide(self, request: m.ChangeRequest) -> NodesChanged | tuple[m.Result, ...]:
        requests.session_of(self.namespace, request.session)
        self._refusals.require_new(request)
        try:
            return requests.decide(self.namespace, request, self._limits)
        except EblaError as error:
            self._refusals.note(request, error)
            raise

    @rpc
    async def read_node(self, request: m.NodeRequest) -> m.NodeReply:
        paths.validate(request.path)
        return self._reply(request.path, request.children)

    @rpc
    async def wait_node(self, request: m.WaitRequest) -> m.NodeReply:
        """Wait for a change of the node since `seen`, including changes before this call."""
        paths.validate(request.path)
        if request.seen > self.namespace.revision:
            raise InvalidArgument(
                f"revision {request.seen} is still to come, the present one is {self.namespace.revision}: was it read "
                "from another deployment?"
            )

        def changed() -> bool:
            return self.namespace.changed_since(request.path, request.seen, request.children)

        poll_s = min(max(0, request.poll_ms) / 1000, self._limits.poll_s_max)
        await self._watchers.wait(request.path, changed, poll_s)
        return self._reply(request.path, request.children, changed())

    def _reply(self, path: str, children: bool, changed: bool = True) -> m.NodeReply:
        namespace = self.namespace
        node = namespace.nodes.get(path)
        if node is None:
            return m.NodeReply(namespace.revision, None, changed=changed)
        names = namespace.children(path) if children else ()
        return m.NodeReply(namespace.revision, namespace.info(path), node.data, names, changed)
