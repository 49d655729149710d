"""Processes of one host that see each other end, by real processes and signals."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
import uvloop

from ebla.actors import neighbours
from ebla.actors.neighbours import CONNECTIONS_MAX, HostNeighbours
from ebla.actors.ray_shell import MachineClock

SHOWS = """
import asyncio, sys
from ebla.actors.neighbours import HostNeighbours
from ebla.actors.ray_shell import MachineClock

class Tells(HostNeighbours):
    def _accept(self, listener):
        super()._accept(listener)
        for later in sys.argv[3:]:
            self.show(later.encode())
        print("seen", flush=True)

async def main():
    Tells(MachineClock(), sys.argv[1]).show(sys.argv[2].encode())
    print("shows", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}  # Ray's actors have either
_numbers = count()


@pytest.fixture
def deployment() -> str:
    return f"test {os.getpid()} {next(_numbers)}"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(params=LOOPS)
def play(request, monkeypatch):
    """Run a coroutine on one of the loops."""
    monkeypatch.setattr(neighbours, "LOOK_S", 0.01)
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner.run


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def start(started: list[subprocess.Popen[str]]):
    def run(deployment: str, *shown: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SHOWS, deployment, *shown]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert says(process) == "shows"
        return process

    return run


def watcher(deployment: str) -> HostNeighbours:
    return HostNeighbours(MachineClock(), deployment)


async def turns() -> None:
    """What the kernel has told this process by now is known afterwards."""
    for _ in range(10):
        await asyncio.sleep(0)


async def seen_by(process: subprocess.Popen[str]) -> None:
    assert await asyncio.to_thread(says, process) == "seen"


def test_the_end_of_a_process_is_seen_and_a_process_that_stands_still_has_not_ended(deployment, start, play):
    async def scenario() -> bytes:
        process = start(deployment, "the first")
        watching = asyncio.ensure_future(watcher(deployment).ended())
        await seen_by(process)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        await turns()
        assert not watching.done()
        process.kill()
        return await watching

    assert play(scenario()) == b"the first"


def test_a_process_that_starts_later_is_seen_and_one_of_another_deployment_is_not(deployment, start, play):
    async def scenario() -> bytes:
        watching = asyncio.ensure_future(watcher(deployment).ended())
        await turns()
        other = start(deployment + " of others", "another")
        process = start(deployment, "the first")
        await seen_by(process)
        other.kill()
        other.wait()
        await turns()
        assert not watching.done()
        process.kill()
        return await watching

    assert play(scenario()) == b"the first"


def test_the_next_process_is_watched_after_the_end_of_the_first(deployment, start, play):
    async def scenario() -> list[bytes]:
        found, watches = [], watcher(deployment)
        for name in ("the first", "the second"):
            process = start(deployment, name)
            watching = asyncio.ensure_future(watches.ended())
            await seen_by(process)
            process.kill()
            found.append(await watching)
        return found

    assert play(scenario()) == [b"the first", b"the second"]


def test_one_watcher_too_many_sees_nothing_and_takes_that_for_no_end(deployment, play):
    async def scenario() -> bytes:
        shows = watcher(deployment)
        shows.show(b"this process")
        watching = [asyncio.ensure_future(watcher(deployment).ended()) for _ in range(CONNECTIONS_MAX)]
        await turns()
        late = await watcher(deployment)._watch()
        assert not any(each.done() for each in watching)
        watching.pop().cancel()
        await turns()
        again = asyncio.ensure_future(watcher(deployment)._watch())
        await turns()
        assert not again.done(), "there is room for another one"
        for each in [*watching, again]:
            each.cancel()
        return late

    assert play(scenario()) == b""


def test_a_process_of_another_user_is_not_believed(deployment, monkeypatch, play):
    async def scenario() -> bytes:
        watcher(deployment).show(b"this process")
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        return await watcher(deployment)._watch()

    assert play(scenario()) == b""


def test_what_a_process_shows_last_counts(deployment, start, play):
    async def scenario() -> bytes:
        process = start(deployment, "before", "now")
        watching = asyncio.ensure_future(watcher(deployment).ended())
        await seen_by(process)
        process.kill()
        return await watching

    assert play(scenario()) == b"now"


def test_a_process_whose_name_is_taken_is_seen_once_the_other_has_ended(deployment, start, play):
    async def scenario() -> bytes:
        process = start(deployment, "the first")
        watcher(deployment).show(b"the second")
        process.kill()
        process.wait()
        connection = neighbours._socket()
        with connection:
            while connection.connect_ex(watcher(deployment)._path):
                await asyncio.sleep(0.01)
            return await asyncio.get_running_loop().sock_recv(connection, 100)

    assert play(scenario()) == b"the second"


def test_a_process_without_a_free_descriptor_accepts_those_that_watch_it_later(deployment, play):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    accepted: list[int] = []

    class Counts(HostNeighbours):
        def _accept(self, listener: socket.socket) -> None:
            accepted.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            super()._accept(listener)

    async def scenario() -> bytes:
        Counts(MachineClock(), deployment).show(b"this process")
        connection = neighbours._socket()
        with connection:
            connection.connect(watcher(deployment)._path)
            first_free = os.dup(connection.fileno())
            os.close(first_free)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
                await turns()
                assert len(accepted) == 1, "it does not try again at once"
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return await asyncio.get_running_loop().sock_recv(connection, 100)

    assert play(scenario()) == b"this process"


def test_elsewhere_than_on_linux_nothing_is_seen(deployment, monkeypatch, play):
    monkeypatch.setattr(sys, "platform", "darwin")

    async def scenario() -> None:
        watcher(deployment).show(b"this process")
        watching = asyncio.ensure_future(watcher(deployment).ended())
        await turns()
        assert not watching.done()
        watching.cancel()

    play(scenario())
