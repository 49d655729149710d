"""Who is hit: the process behind an address, surely that one, and what the kernel says of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import psutil

from ebla.actors import messages as m
from ebla.actors.ray_shell import Pong
from ebla.actors.ray_world import RayNetwork
from ebla.storage.errors import InvalidArgument

PING_S = 10.0
STARTED_SLACK_S = 1.0
POLL_S = 0.02


async def ask(network: RayNetwork, address: str, timeout_s: float = PING_S) -> Pong:
    """What the role's process says of itself, in whatever state it is."""
    return await network.call(address, "ping", m.Empty(), Pong, timeout_s)


def process_of(pong: Pong) -> psutil.Process:
    """The process that answered. Its start time is compared, so that a pid of another machine, or one that was given
    to a stranger since, is never hit."""
    elsewhere = (
        f"{pong.address} runs as process {pong.pid} of another machine; faults reach this machine only"
    )
    try:
        process = psutil.Process(pong.pid)
    except psutil.NoSuchProcess as error:
        raise InvalidArgument(elsewhere) from error
    if process.create_time() > pong.started_us / 1e6 + STARTED_SLACK_S:
        raise InvalidArgument(elsewhere)
    return process


def stands_still(process: psutil.Process) -> bool:
    """State T: stopped by a signal."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


def gone(process: psutil.Process) -> bool:
    """Ended; a zombie has ended, too, and only waits for its parent's notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()


async def until_gone(process: psutil.Process, within_s: float) -> bool:
    return await until(lambda: gone(process), within_s)


async def until_still(process: psutil.Process, within_s: float) -> bool:
    return await until(lambda: stands_still(process), within_s)


async def until(check: Callable[[], bool], within_s: float) -> bool:
    """Whether `check()` comes true in time."""
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
