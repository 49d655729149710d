"""The target of a fault: exactly the process at an address, and its state in the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import psutil

from ebla.actors import messages as m
from ebla.actors.ray_shell import Pong
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.ray.report.injection import Unobserved
from ebla.storage.errors import InvalidArgument

PING_S = 10.0
SIGNAL_S = 5.0  # from a signal to its effect: the kernel is fast, unless a disk is slow
STARTED_SLACK_S = 1.0
POLL_S = 0.02


async def ask(network: RayNetwork, address: str, timeout_s: float = PING_S) -> Pong:
    """The answer of the role's process about itself, in any state."""
    return await network.call(address, "ping", m.Empty(), Pong, timeout_s)


def process_of(pong: Pong) -> psutil.Process:
    """The process that answered. Its start time is compared, so that a process of another machine, or another process that got the
    pid since, is never hit."""
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


def stopped(process: psutil.Process) -> bool:
    """Whether the process is in state T: stopped by a signal."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


def gone(process: psutil.Process) -> bool:
    """Whether the process has ended, also if its parent has not collected its status yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()


async def until_gone(process: psutil.Process, within_s: float) -> bool:
    return await until(lambda: gone(process), within_s)


async def require_stopped(process: psutil.Process) -> None:
    """Wait until a SIGSTOP has its effect. Raises Unobserved."""
    if not await until(lambda: stopped(process), SIGNAL_S):
        raise Unobserved(f"process {process.pid} still runs after its SIGSTOP")


async def until(check: Callable[[], bool], within_s: float) -> bool:
    """Wait until `check()` is true. Returns whether it was in time."""
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
