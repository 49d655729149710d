"""Keeps Ray off the console and away from signals: a command prints its own output and sets its own exit status.

With `-v` Ray's messages are printed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

# Child processes inherit this: `ebla up --local` starts Ray's nodes, whose logs must stay complete.
SILENT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # without it every ray.init warns of a future change


def before_ray(verbose: int) -> None:
    """Must be called before ray is imported for the first time."""
    level = logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s")
    if verbose:
        return
    logging.getLogger().addFilter(_not_py4j)
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")


def _not_py4j(record: logging.LogRecord) -> bool:
    """py4j reports every call into an ended JVM at length; the command reports it once."""
    return "/py4j/" not in record.pathname


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, but SIGTERM cancels the work, and the process ends when the work has cleaned up. An exception in the
    handler would end an arbitrary task, and be reported as an unhandled one."""
    import asyncio

    from ebla.actors import deadlines

    main = threading.current_thread() is threading.main_thread()
    received = False

    async def body() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def terminated(number: int, frame: FrameType | None) -> None:
            nonlocal received
            received = True
            end_on_sigterm()  # a second signal ends the process at once
            loop.call_soon_threadsafe(task.cancel)

        if main:
            signal.signal(signal.SIGTERM, terminated)
        return await work

    try:
        return deadlines.run(body())
    except asyncio.CancelledError:
        if received:
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        end_on_sigterm()


def end_on_sigterm() -> None:
    """Clean up on SIGTERM as on Ctrl-C: `ray job stop` and supervisors send it."""

    def terminated(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)


def leave_ray() -> None:
    """Disconnect, if the command has connected. Ray itself does this at the end of a process, after 0.5 s of sleep."""
    if "ray" in sys.modules:
        from ebla.placement.connection import disconnect_ray

        disconnect_ray()
