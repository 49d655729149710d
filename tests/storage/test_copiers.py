"""Copiers are forks of one process: it may end, hang, or have files with large numbers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys

import psutil
import pytest

from ebla.storage.errors import StorageError
from ebla.storage.lmdb import stream as streams
from tests.storage.two_disks import LARGE, PATH, Two, between_disks, ended


@between_disks
async def test_copies_go_on_when_the_origin_of_their_copiers_has_ended_and_others_begin(two: Two) -> None:
    stream = await (await two.environment()).stream()
    origin = streams._origin._process
    assert origin is not None
    origin.kill()
    origin.wait()
    data = b""
    while piece := await stream.read(1 << 20):
        data += piece
    await two.arrive(data)
    copy = await two.target.open_environment(PATH, ["t"], create=False)
    assert copy.count("t") == len(LARGE)
    stream.close()
    await ended(stream)


@between_disks
async def test_copies_work_beside_more_than_a_thousand_open_files(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 4096), limits[1]))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        monkeypatch.setattr(streams, "_origin", streams.Origin())
        source = await two.environment()
        begun = [await source.stream() for _ in range(3)]
        for stream in begun:
            while await stream.read(1 << 20):
                pass
            stream.close()
            await ended(stream)
        await two.arrive(await two.bytes_of(source))


@between_disks
async def test_an_origin_of_copiers_that_does_not_answer_is_replaced(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_origin", streams.Origin())
    source = await two.environment()
    stream = await source.stream()
    origin = streams._origin._process
    assert origin is not None and streams._origin._control is not None
    streams._origin._control.settimeout(0.2)
    origin.send_signal(signal.SIGSTOP)
    with pytest.raises(StorageError, match="cannot start the copier"):
        await source.stream()
    assert origin.wait(60) == -signal.SIGKILL
    await two.arrive(await two.bytes_of(source))
    stream.close()
    await ended(stream)


@between_disks
async def test_a_copier_that_has_ended_is_soon_forgotten_and_no_other_process_is_killed_for_it(
    two: Two,
) -> None:
    stream = await (await two.environment()).stream()
    first = stream._copier
    assert first is not None and streams._origin._process is not None
    stream.close()
    await ended(stream)
    origin = psutil.Process(streams._origin._process.pid)
    while origin.children():
        await asyncio.sleep(0.01)
    first.done = None
    first.kill()  # its number is nobody's
    assert origin.is_running() and origin.status() != psutil.STATUS_ZOMBIE


def test_the_origin_of_copiers_ends_with_its_owner() -> None:
    program = (
        "import os\n"
        "from ebla.storage.lmdb import stream\n"
        "try: stream.start('t', 'send', '/nowhere', {}).close()\n"
        "finally: print(stream._origin._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    owner = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.returncode == -9
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(owner.stdout)).wait(60)
