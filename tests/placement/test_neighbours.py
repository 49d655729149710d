"""Processes of one host that see each other end, by real processes and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest

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
        print("seen", flush=True)

async def main():
    Tells(MachineClock(), sys.argv[1]).show(sys.argv[2].encode())
    print("shows", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
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


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def start(started: list[subprocess.Popen[str]]):
    def run(deployment: str, shown: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SHOWS, deployment, shown], stdout=subprocess.PIPE, text=True
        )
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


def test_the_end_of_a_process_is_seen_and_a_process_that_stands_still_has_not_ended(deployment, start):
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

    assert asyncio.run(scenario()) == b"the first"


def test_a_process_that_starts_later_is_seen_and_one_of_another_deployment_is_not(
    deployment, start, monkeypatch
):
    monkeypatch.setattr(neighbours, "LOOK_S", 0.01)

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

    assert asyncio.run(scenario()) == b"the first"


def test_the_next_process_is_watched_after_the_end_of_the_first(deployment, start, monkeypatch):
    monkeypatch.setattr(neighbours, "LOOK_S", 0.01)

    async def scenario() -> list[bytes]:
        found, watches = [], watcher(deployment)
        for name in ("the first", "the second"):
            process = start(deployment, name)
            watching = asyncio.ensure_future(watches.ended())
            await seen_by(process)
            process.kill()
            found.append(await watching)
        return found

    assert asyncio.run(scenario()) == [b"the first", b"the second"]


def test_one_watcher_too_many_sees_nothing_and_takes_that_for_no_end(deployment):
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

    assert asyncio.run(scenario()) == b""


def test_a_process_of_another_user_is_not_believed(deployment, monkeypatch):
    async def scenario() -> bytes:
        watcher(deployment).show(b"this process")
        monkeypatch.setattr(os, "getuid", lambda: -1)
        return await watcher(deployment)._watch()

    assert asyncio.run(scenario()) == b""


def test_the_last_process_shown_counts_and_a_name_that_is_taken_does_no_harm(deployment, caplog):
    async def scenario() -> None:
        first, second = watcher(deployment), watcher(deployment)
        first.show(b"before")
        first.show(b"now")
        second.show(b"another")
        assert "no other process of this host will see this one end" in caplog.text
        watching = asyncio.ensure_future(watcher(deployment)._watch())
        await turns()
        assert first._shown == b"now" and not watching.done()
        watching.cancel()

    asyncio.run(scenario())


def test_elsewhere_than_on_linux_nothing_is_seen(deployment, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")

    async def scenario() -> None:
        watcher(deployment).show(b"this process")
        watching = asyncio.ensure_future(watcher(deployment).ended())
        await turns()
        assert not watching.done()
        watching.cancel()

    asyncio.run(scenario())
