"""Locks: clients share locks, make and list sequential nodes, and compare-and-set and watch registers, each in sessions of its
own. Two nodes are always set by one change, so that they are one register: either of them shows its value.

Each step under a lock is noted while its holder is sure to hold it. Names of ephemeral nodes begin with `e-`, others with `p-`.
In the end, when all sessions have ended, no ephemeral node may be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from ebla.actors.coordination import paths
from ebla.actors.coordination.messages import Set
from ebla.chaos.checkers.coordination import check_coordination
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import INVOKE, OK, History
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, at_once, meanwhile, persist, until_stopped
from ebla.coordination.awaited import Lock, Node, Session, Watch
from ebla.errors import SessionExpired, VersionMismatch

LOCKS = ("/locks/a", "/locks/b")
PARENTS = ("/nodes/a", "/nodes/b")
REGISTERS = ("/registers/a", "/registers/b", "/registers/c")
PAIR = "/pair"
SIDES = ("/pair/left", "/pair/right")  # the version of the second is one above that of the first
WATCHED = "/watched"
TIMEOUTS_S = (1.2, 3.0, 9.0)
WAITS_S = (0.3, 3.0, 20.0)
NODES_MAX = 8  # of one client, at a time
GONE_S_MAX = 30.0
WATCHES_S = (0.1, 0.5)
NOTICED_S_MAX = (
    2.0  # after a change, without faults; less than POLL_S of actors/coordination/sessions/nodes.py
)
SEVERAL, CHANGES = 4, 6  # loops side by side, and changes of each
EXPLAINED = {
    **dict.fromkeys(("release", "create", "delete", "cas", "beside-keep"), ("SessionExpired",)),
    "acquire": ("SessionExpired", "TimedOut"),  # another client held the lock that long
    "get": ("TimedOut",),  # no change during the watch
}
SILENT = 0.2  # share of acquired locks whose holder stops its heartbeats


class Locks(Workload):
    """`several`: the weight, beside those of the other verbs, of several changes of one session side by side."""

    name = "locks"
    explained = EXPLAINED

    def __init__(self, several: int = 0) -> None:
        self.several = several
        self._next = 0
        self.problems: list[str] = []
        self._users: list[_User] = []

    async def prepare(self, client: Client) -> None:
        async with await client.db.session(30.0) as session:
            for path in (*LOCKS, *PARENTS):
                await session.create(path, parents=True)
            for path in REGISTERS:
                value = self._take()
                made = session.create(path, str(value).encode(), parents=True)
                await client.ask("cas", path, [0, value], made, lambda result: [True, result.version])
            await session.create(PAIR)
            value = self._take()
            made = session.create(SIDES[0], str(value).encode())
            await client.ask("cas", PAIR, [0, value], made, lambda result: [True, result.version])
            await session.create(SIDES[1], str(value).encode())

    async def run(self, client: Client) -> None:
        user = _User(self, client)
        self._users.append(user)

        async def step() -> None:
            try:
                await user.step()
            except NoAnswer as error:
                user.note_error(error.__cause__)
                raise

        await until_stopped(client, step)
        await user.leave()

    async def conclude(self, client: Client) -> None:
        """Wait until the sessions of all clients have expired; their nodes must be gone then. Then make the last reads."""
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
                self.problems.append(f"all sessions have ended, but {path} still holds {left}")
        for read, paths_read in ((_list, PARENTS), (_get, REGISTERS), (_get, SIDES)):
            for path in paths_read:
                await persist(client, partial(read, client, path))
        await persist(client, lambda: self._notice_change(client))
        await persist(client, lambda: self._notice_deletion(client))

    async def _notice_change(self, client: Client) -> None:
        """A watch of a node reports a change at once, and not only by polling."""
        path = REGISTERS[0]
        opened = client.db.coordination.session(30.0)
        async with await client.beside("session", None, opened) as session:
            watch = await _watch(client, path)
            before = _shown(watch.node)[1]
            async with meanwhile(client.beside("change", path, watch.change(30.0))) as watching:
                await client.clock.sleep(0.1)
                value = self._take()
                call = session.set(path, str(value).encode(), version=before)
                made = await client.ask("cas", path, [before, value], call, lambda version: [True, version])
                began_s = client.now_s()
                noticed = _shown(await watching)
        late_s = client.now_s() - began_s
        if late_s > NOTICED_S_MAX or noticed != [value, made]:
            self.problems.append(
                f"a watch of {path} reported {noticed} {late_s:.1f} s after {[value, made]} was set"
            )

    async def _notice_deletion(self, client: Client) -> None:
        """Watches of a node and of its parent's children report its deletion at once."""
        path, nodes = f"{WATCHED}/{self._take()}", client.db.coordination
        async with await client.beside("session", None, nodes.session(30.0)) as session:
            await client.beside("create", path, session.create(path, parents=True))
            watches = [await nodes.watch(path), await nodes.watch(WATCHED, children=True)]
            calls = [client.beside("change", watch.path, watch.change(10.0)) for watch in watches]
            async with meanwhile(asyncio.gather(*calls)) as watching:
                await client.clock.sleep(0.1)
                began_s = client.now_s()
                await client.beside("delete", path, session.delete(path))
                node, _ = await watching
        late_s = client.now_s() - began_s
        if late_s > NOTICED_S_MAX or node is not None or path.rpartition("/")[2] in watches[1].children:
            left = f"{node} and {watches[1].children}"
            self.problems.append(f"watches of {path} reported {left} {late_s:.1f} s after it was deleted")

    def judge(self, history: History) -> Verdict:
        return check_coordination(history)

    def note_sure(self) -> None:
        """Note the sessions whose clients are sure of them: no list before may lack a node of these."""
        for user in self._users:
            user.note_sure()

    def _take(self) -> int:
        self._next += 1
        return self._next


class _User:
    """One client: its present session, and the nodes that it has made in it."""

    def __init__(self, workload: Locks, client: Client) -> None:
        self.workload = workload
        self.client = client
        self.session: Session | None = None
        self.mine: list[tuple[str, int]] = []
        self._weights: dict[Callable[[Session], Awaitable[None]], int] = {
            self._lock: 7,
            self._create: 5,
            self._delete: 3,
            self._list: 5,
            self._get: 3,
            self._compare_and_set: 4,
            self.leave: 1,
            self._stop_heartbeats: 1,
            self._set_both: 2,
            self._get_side: 2,
            self._watch: 1,
            self._check: 1,
            self._several: workload.several,
        }

    async def step(self) -> None:
        session = await self._opened()
        verb = self.client.random.choices(tuple(self._weights), tuple(self._weights.values()))[0]
        await verb(session)

    async def _opened(self) -> Session:
        if self.session is not None and self.session.expired:
            self._forget()
        if self.session is None:
            timeout_s = self.client.random.choice(TIMEOUTS_S)
            call = self.client.db.session(timeout_s, deadline_s=self.client.deadline_s())
            self.session = await self.client.beside("session", None, call)
        return self.session

    async def leave(self, _: Session | None = None) -> None:
        """Close the session. It is unknown whether the close arrived, so nothing is noted."""
        session, self.session, self.mine = self.session, None, []
        if session is not None:
            await session.close()

    def note_error(self, error: BaseException | None) -> None:
        if isinstance(error, SessionExpired):
            self._forget()

    def _forget(self) -> None:
        assert self.session is not None
        self._note("ended", self.session.id)
        self.session, self.mine = None, []

    async def _ask(self, operation: str, key: Any, value: Any, call: Coroutine[Any, Any, Any]) -> Any:
        return await self.client.ask(operation, key, value, call)

    def _note(self, operation: str, key: Any, value: Any = None) -> None:
        """Note a fact that the client knows at this instant."""
        process = self.client.history.new_process()
        self.client.note(process, INVOKE, operation, key, value)
        self.client.note(process, OK, operation, key)

    def note_sure(self) -> None:
        if self.session is not None and self.session.is_sure:
            self._note("sure", self.session.id)

    async def _oversleep(self, session: Session) -> None:
        """Stop the heartbeats; if the session's timeout is short, long enough for the session to expire."""
        await self._stop_heartbeats(session)
        if session.timeout_s < max(TIMEOUTS_S):
            await self.client.clock.sleep(session.timeout_s * self.client.random.uniform(0.5, 2.0))

    async def _lock(self, session: Session) -> None:
        client = self.client
        lock = session.lock(client.random.choice(LOCKS))
        wait_s = client.random.choice(WAITS_S)
        token = await client.ask("acquire", lock.path, None, lock.acquire(wait_s), int)
        if client.random.random() < SILENT:
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

    async def _delete(self, session: Session) -> None:
        if self.mine:
            path, number = self.mine.pop(self.client.random.randrange(len(self.mine)))
            await self._ask("delete", number, None, session.delete(path, deadline_s=self.client.deadline_s()))

    async def _list(self, _: Session) -> None:
        await _list(self.client, self.client.random.choice(PARENTS))
        self.workload.note_sure()

    async def _get(self, _: Session) -> None:
        await _get(self.client, self.client.random.choice(REGISTERS))

    async def _get_side(self, _: Session) -> None:
        await _get(self.client, self.client.random.choice(SIDES))

    async def _stop_heartbeats(self, session: Session) -> None:
        """Stop the session's own heartbeats, as if its process were paused between two steps."""
        session._keeping.cancel()

    async def _several(self, session: Session) -> None:
        """Make changes of one session side by side: later ones are carried out while one has no answer yet."""

        async def one(client: Client) -> None:
            user = _User(self.workload, client)
            user.mine = self.mine
            for _ in range(CHANGES):
                await client.random.choice((user._create, user._compare_and_set))(session)
                await client.pause()

        await at_once(self.client, SEVERAL, one)

    async def _compare_and_set(self, session: Session) -> None:
        client = self.client
        path = client.random.choice(REGISTERS)
        version = (await _get(client, path))[1]
        if client.random.random() < 0.2:
            version = max(1, version - 1)  # an earlier version, or one that this node never had
        value = self.workload._take()

        async def attempt() -> list[Any]:
            data = str(value).encode()
            try:
                return [True, await session.set(path, data, version=version, deadline_s=client.deadline_s())]
            except VersionMismatch as error:
                return [False, error.found]

        await client.ask("cas", path, [version, value], attempt(), list)

    async def _set_both(self, session: Session) -> None:
        """Set both nodes by one change, which is refused as a whole if the second version is an earlier one."""
        client = self.client
        version = (await _get(client, SIDES[0]))[1]
        named = max(1, version - 1) if client.random.random() < 0.2 else version
        value = self.workload._take()

        async def attempt() -> list[Any]:
            data = str(value).encode()
            left, right = Set(SIDES[0], data, version), Set(SIDES[1], data, named + 1)
            try:
                done = await session.change(left, right, deadline_s=client.deadline_s())
                return [True, done[0].version]
            except VersionMismatch as error:
                return [False, (error.found or 0) - SIDES.index(error.what or "")]

        await client.ask("cas", PAIR, [named, value], attempt(), list)

    async def _watch(self, _: Session) -> None:
        """Read through a watch: each change must show a new version."""
        client = self.client
        watch = await _watch(client, client.random.choice(REGISTERS))
        while client.random.random() < 0.7:
            before = _shown(watch.node)
            call = watch.change(client.random.choice(WATCHES_S))
            after = _shown(await client.ask("get", watch.path, None, call, _shown, reads=True))
            if after[1] == before[1]:
                self.workload.problems.append(f"a watch of {watch.path} reported a change to {after} twice")

    async def _check(self, session: Session) -> None:
        """Send a heartbeat, and check that a node exists that is never deleted."""
        client = self.client
        await client.beside("keep", session.id, session.keep(deadline_s=client.deadline_s()))
        path = client.random.choice(REGISTERS)
        there = session.exists(path, deadline_s=client.deadline_s())
        if not await client.beside("exists", path, there):
            self.workload.problems.append(f"{path} does not exist, although it was never deleted")


async def _list(client: Client, parent: str) -> None:
    call = client.db.coordination.children(parent, deadline_s=client.deadline_s())
    await client.ask(
        "list", parent, None, call, lambda names: [paths.number(name) for name in names], reads=True
    )


async def _get(client: Client, path: str) -> list[int]:
    """Read a register: a node, or one of the two nodes of PAIR."""
    register, ahead = (PAIR, SIDES.index(path)) if path in SIDES else (path, 0)

    async def read() -> list[int]:
        value, version = _shown(await client.db.coordination.get(path, deadline_s=client.deadline_s()))
        return [value, version - ahead]

    return await client.ask("get", register, None, read(), list, reads=True)


async def _watch(client: Client, path: str) -> Watch:
    call = client.db.coordination.watch(path, deadline_s=client.deadline_s())
    return await client.ask("get", path, None, call, lambda watch: _shown(watch.node), reads=True)


def _shown(node: Node | None) -> list[int]:
    assert node is not None, "registers are never deleted"
    return [int(node.data), node.version]
