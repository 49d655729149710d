"""The synchronous API: every call, threads that share a lock, and a waiter that is interrupted."""

from __future__ import annotations

import _thread
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import ebla
from ebla import aio
from ebla.actors.coordination.limits import Limits
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.coordination.service import Coordination
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.world import CallerWorld, Dispatcher, Role, World
from ebla.errors import NotFound, SessionExpired, TimedOut, VersionMismatch
from ebla.link import Link
from ebla.options import MASTER
from ebla.table import Database
from ebla.transport.bridge import Bridge, Waiter
from ebla.transport.client import DeploymentClient
from tests.client.loopback import TURNS_MAX, LoopNetwork


class Namespaces(Role):
    """A master with only a namespace, in memory."""

    parts = (Coordination,)

    def __init__(self, world: World) -> None:
        self.world = world
        self.namespace = Namespace()
        self.coordination = Coordination(world, self.namespace, self, lambda: True, Limits())  # type: ignore[arg-type]
        self.coordination.begin()

    async def change(
        self, name: str, decide: Callable[[], Sequence[Any]], conclude: Callable[[], Any]
    ) -> Any:
        for edit in decide():
            self.namespace.apply(edit)
        return conclude()

    async def perform(self, method: str, request: Any) -> Any:
        return await getattr(self.coordination, method)(request)


@pytest.fixture
def db() -> Iterator[Database]:
    bridge, network = Bridge("loop"), LoopNetwork()

    async def start() -> aio.Database:
        tasks = Tasks(lambda name, error: session.failed(name, error))
        chance, clock = random.Random(1), MachineClock()
        world = World(
            address=MASTER,
            clock=clock,
            network=network,
            disk=None,  # type: ignore[arg-type]
            random=chance,
            spawn=tasks.spawn,
            fail=print,
        )
        network.roles[MASTER] = Dispatcher(Namespaces(world), lambda method, error: print(method, error))
        session = DeploymentClient(
            CallerWorld(clock, network, chance, tasks.spawn), "loop", on_close=tasks.cancel
        )
        return aio.Database(session)

    with Database(("loop", None), Link(bridge, bridge.run(start()))) as made:
        yield made


def test_every_call_works_in_the_synchronous_api(db: Database):
    with db.session(5.0, name="me") as session:
        assert (session.timeout_s, session.expired, session.is_sure) == (5.0, False, True)
        made = session.create("/a/b-", b"1", ephemeral=True, sequential=True, parents=True)
        assert session.children("/a") == [made.path.removeprefix("/a/")]
        node = session.get(made.path)
        assert (node.data, node.version, node.owner) == (b"1", made.version, session.id)
        watch = session.watch("/a/c")
        assert watch.path == "/a/c" and watch.node is None
        session.change(ebla.Create("/a/c"), ebla.Check(made.path, made.version))
        assert watch.change(5.0).path == "/a/c" and watch.children == []
        version = session.set("/a/c", b"2")
        with pytest.raises(VersionMismatch):
            session.delete("/a/c", version=version - 1)
        with pytest.raises(ebla.TimedOut):
            session.watch("/a").change(0.01)
        session.keep()
        assert [each.name for each in db.coordination.sessions()] == ["me"]
        assert repr(session).startswith("<ebla.Session ")
        with session.lock("/lock") as lock:
            assert lock.held and lock.token > version and lock.path == "/lock"
            assert repr(lock) == f"<ebla.Lock '/lock', held, token {lock.token}>"
    assert db.coordination.children("/a") == ["c"] and not db.coordination.exists(made.path)
    assert db.coordination.sessions() == [] and repr(watch) == "<ebla.Watch '/a/c'>"
    with pytest.raises(SessionExpired):
        session.create("/more")
    with pytest.raises(NotFound):
        db.coordination.children(made.path)


def test_a_lock_excludes_threads(db: Database):
    inside: list[int] = []
    tokens: list[int] = []
    with db.session(30.0) as session:

        def work() -> None:
            for _ in range(5):
                with session.lock("/turns") as lock:
                    inside.append(1)
                    assert len(inside) == 1
                    tokens.append(lock.token)
                    inside.pop()

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    assert len(tokens) == 30 and tokens == sorted(tokens)


def signalled() -> None:
    """Ctrl-C, which interrupts what the main thread waits for."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


# `interrupt_main` is a Ctrl-C between the last look for signals and the wait: it interrupts no wait.
@pytest.mark.parametrize("ctrl_c", [signalled, _thread.interrupt_main])
def test_an_interrupted_waiter_leaves_the_queue_of_a_lock(db: Database, ctrl_c: Callable[[], None]):
    with db.session(30.0) as session, session.lock("/lock") as held:
        waiting = session.watch("/lock", children=True)

        def interrupt() -> None:
            db.coordination.exists("/")
            while len(waiting.children) < 2:
                waiting.change(20.0)
            ctrl_c()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            session.lock("/lock").acquire()
        thread.join(20.0)
        while len(waiting.children) > 1:
            waiting.change(20.0)
        assert held.held


class AnswerThenCtrlC(Waiter[Any]):
    """A call whose caller is interrupted when it has got the answer."""

    __slots__ = ("answered",)

    def __init__(self, coroutine: Any) -> None:
        super().__init__(coroutine)
        self.answered, self.lock = self.lock, self  # type: ignore[assignment]

    def acquire(self, timeout: float) -> bool:
        self.answered.acquire()
        raise KeyboardInterrupt

    def release(self) -> None:
        self.answered.release()


def test_what_is_acquired_in_the_instant_of_ctrl_c_is_released(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with db.session(30.0, name="mine") as session:
        lock = session.lock("/lock")
        with monkeypatch.context() as patched:
            patched.setattr("ebla.transport.bridge.Waiter", AnswerThenCtrlC)
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
            with pytest.raises(KeyboardInterrupt):
                db.session(30.0, name="lost")
        session.lock("/lock").acquire(timeout_s=20.0)
        assert not lock.held
        assert any(len(session.sessions()) == 1 for _ in range(TURNS_MAX))


def test_a_lock_that_is_not_acquired_in_time_raises(db: Database):
    with db.session(30.0) as session, session.lock("/lock") as held:
        with pytest.raises(TimedOut, match="was not free within"):
            session.lock("/lock").acquire(timeout_s=0.05)
        held.release()
        held.acquire(timeout_s=5.0)


def test_a_forked_child_holds_no_lock_of_its_parent(db: Database):
    with db.session(30.0) as session, session.lock("/lock") as lock:
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            sure = [each.is_sure for each in (session, session._awaited)]
            held = [each.held for each in (lock, lock._awaited)]
            os.write(sender, repr([*sure, *held, lock]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(receiver, 1000) == b"[False, False, False, False, <ebla.Lock '/lock', not held>]"
        assert session.is_sure and lock.held


def test_a_session_of_a_closed_connection_may_be_closed(db: Database):
    session = db.session(30.0)
    db.close()
    session.close()


def test_closing_a_copy_of_a_connection_ends_its_own_sessions_only(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla import link

    monkeypatch.setattr(link, "shared", lambda name, where: db._link)
    copy, other = (pickle.loads(pickle.dumps(db)) for _ in range(2))
    copy.session(name="ended").close()
    session = copy.session(name="of the closed copy")
    session.create("/here", ephemeral=True)
    with other.session(name="of another copy"):
        copy.close()
        assert [each.name for each in db.coordination.sessions()] == ["of another copy"]
        assert session.expired and not db.coordination.exists("/here")
    session.close()
