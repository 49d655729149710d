"""Locks: clients share locks, make and list sequential nodes, and compare and set others, each in sessions of its own.

Everything that a lock protects is a step that is noted when its holder is sure to hold it. Ephemeral nodes are called `e-`,
others `p-`; in the end, when nobody has a session any more, no ephemeral one may be left.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from ebla.actors.coordination import paths
from ebla.chaos.checkers.coordination import check_coordination
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import INVOKE, OK, History
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, persist, until_stopped
from ebla.coordination import Session
from ebla.errors import SessionExpired, VersionMismatch
from ebla.locks import Lock

LOCKS = ("/locks/a", "/locks/b")
PARENTS = ("/nodes/a", "/nodes/b")
REGISTERS = ("/registers/a", "/registers/b", "/registers/c")
TIMEOUTS_S = (1.2, 3.0, 9.0)
WAITS_S = (0.3, 3.0, 20.0)
NODES_MAX = 8  # of one client, at a time
GONE_S_MAX = 30.0
WEIGHTS = {"lock": 5, "create": 4, "delete": 3, "list": 3, "get": 3, "cas": 4, "leave": 1, "doze": 1}
DOZES = 0.2  # of the holders of locks


class Locks(Workload):
    name = "locks"
    explained = dict.fromkeys(("acquire", "release", "create", "delete", "cas"), ("SessionExpired",))

    def __init__(self) -> None:
        self._next = 0
        self.problems: list[str] = []

    async def prepare(self, client: Client) -> None:
        async with await client.db.session(30.0) as session:
            for path in (*LOCKS, *PARENTS):
                await session.create(path, parents=True)
            for path in REGISTERS:
                value = self._take()
                made = session.create(path, str(value).encode(), parents=True)
                await client.ask("cas", path, [0, value], made, lambda result: [True, result.version])

    async def run(self, client: Client) -> None:
        user = _User(self, client)

        async def step() -> None:
            try:
                await user.step()
            except NoAnswer as error:
                user.told(error.__cause__)
                raise

        await until_stopped(client, step)
        await user.leave()

    async def conclude(self, client: Client) -> None:
        """Sessions of clients that died are silent by now, and end; what was theirs goes with them."""
        nodes = client.db.coordination
        for _ in range(int(GONE_S_MAX)):
            if not await nodes.sessions():
                break
            await client.clock.sleep(1.0)
        else:
            self.problems.append(f"after {GONE_S_MAX:g} s there are still sessions: {await nodes.sessions()}")
        for path in (*LOCKS, *PARENTS):
            left = [name for name in await nodes.children(path) if not name.startswith("p-")]
            if left:
                self.problems.append(f"nobody has a session any more, but {path} still holds {left}")
        for path in PARENTS:
            await persist(client, lambda path=path: _list(client, path))  # type: ignore[misc]
        for path in REGISTERS:
            await persist(client, lambda path=path: _get(client, path))  # type: ignore[misc]

    def judge(self, history: History) -> Verdict:
        if self.problems:
            return Verdict(False, "; ".join(self.problems[:3]), (), len(self.problems))
        return check_coordination(history)

    def _take(self) -> int:
        self._next += 1
        return self._next


class _User:
    """One client: its present session, and which nodes it has made in it."""

    def __init__(self, workload: Locks, client: Client) -> None:
        self.workload = workload
        self.client = client
        self.session: Session | None = None
        self.mine: list[tuple[str, int]] = []

    async def step(self) -> None:
        session = await self._opened()
        what = self.client.random.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
        if what == "lock":
            await self._lock(session)
        elif what == "create":
            await self._create(session)
        elif what == "delete" and self.mine:
            path, number = self.mine.pop(self.client.random.randrange(len(self.mine)))
            await self._ask("delete", number, None, session.delete(path, deadline_s=self.client.deadline_s()))
        elif what == "list":
            await _list(self.client, self.client.random.choice(PARENTS))
            self._note_sure()
        elif what == "get":
            await _get(self.client, self.client.random.choice(REGISTERS))
        elif what == "cas":
            await self._compare_and_set(session)
        elif what == "leave":
            await self.leave()
        elif what == "doze":
            _doze(session)

    async def _opened(self) -> Session:
        if self.session is not None and self.session.expired:
            self._forget()
        if self.session is None:
            timeout_s = self.client.random.choice(TIMEOUTS_S)
            call = self.client.db.session(timeout_s, deadline_s=self.client.deadline_s())
            self.session = await self.client.beside("session", None, call)
        return self.session

    async def leave(self) -> None:
        """Close the session. Whether it was told is not known, so nothing is noted."""
        session, self.session, self.mine = self.session, None, []
        if session is not None:
            await session.close()

    def told(self, error: BaseException | None) -> None:
        if isinstance(error, SessionExpired):
            self._forget()

    def _forget(self) -> None:
        """The session has expired, and the client knows."""
        assert self.session is not None
        self._note("ended", self.session.id)
        self.session, self.mine = None, []

    async def _ask(self, operation: str, key: Any, value: Any, call: Coroutine[Any, Any, Any]) -> Any:
        return await self.client.ask(operation, key, value, call)

    def _note(self, operation: str, key: Any, value: Any = None) -> None:
        """Something that the client knows at this instant."""
        process = self.client.history.new_process()
        self.client.note(process, INVOKE, operation, key, value)
        self.client.note(process, OK, operation, key)

    def _note_sure(self) -> None:
        if self.session is not None and self.session.is_sure:
            self._note("sure", self.session.id)

    async def _oversleep(self, session: Session) -> None:
        """Long enough to be told that it has expired, if that is not too long."""
        _doze(session)
        if session.timeout_s < max(TIMEOUTS_S):
            await self.client.clock.sleep(session.timeout_s * self.client.random.uniform(0.5, 2.0))

    # -- what it does

    async def _lock(self, session: Session) -> None:
        client = self.client
        lock = session.lock(client.random.choice(LOCKS))
        wait_s = client.random.choice(WAITS_S)
        token = await client.ask("acquire", lock.path, None, lock.acquire(wait_s), int)
        if client.random.random() < DOZES:
            await self._oversleep(session)
        await self._use(lock, token)
        await self._ask("release", lock.path, token, lock.release())

    async def _use(self, lock: Lock, token: int) -> None:
        for _ in range(self.client.random.randint(0, 6)):
            if lock.held:
                self._note("use", lock.path, token)
            await self.client.clock.sleep(self.client.random.uniform(0.0, 0.5))

    async def _create(self, session: Session) -> None:
        client = self.client
        if len(self.mine) >= NODES_MAX:
            return
        ephemeral = client.random.random() < 0.7
        parent = client.random.choice(PARENTS)
        call = session.create(
            paths.join(parent, "e-" if ephemeral else "p-"),
            ephemeral=ephemeral,
            sequential=True,
            deadline_s=client.deadline_s(),
        )
        made = await client.ask(
            "create", parent, session.id if ephemeral else None, call, lambda made: paths.number(made.path)
        )
        self.mine.append((made.path, paths.number(made.path) or 0))

    async def _compare_and_set(self, session: Session) -> None:
        client = self.client
        path = client.random.choice(REGISTERS)
        version = (await _get(client, path))[1]
        if client.random.random() < 0.2:
            version = max(1, version - 1)  # one that is gone, or never was this node's
        value = self.workload._take()

        async def attempt() -> list[Any]:
            data = str(value).encode()
            try:
                return [True, await session.set(path, data, version=version, deadline_s=client.deadline_s())]
            except VersionMismatch as error:
                return [False, error.found]

        await client.ask("cas", path, [version, value], attempt(), list)


def _doze(session: Session) -> None:
    """From now on it gives no signs of life by itself, as if its process stood still between two steps."""
    session._keeping.cancel()


async def _list(client: Client, parent: str) -> None:
    call = client.db.coordination.children(parent, deadline_s=client.deadline_s())
    await client.ask(
        "list", parent, None, call, lambda names: [paths.number(name) for name in names], reads=True
    )


async def _get(client: Client, path: str) -> list[int]:
    async def read() -> list[int]:
        node = await client.db.coordination.get(path, deadline_s=client.deadline_s())
        assert node is not None, "registers are never deleted"
        return [int(node.data), node.version]

    return await client.ask("get", path, None, read(), list, reads=True)
