"""Keeps Ray off the console and out of the way: a command prints its own result and ends as it says.

`-v` lets Ray speak.
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

# Only what a child process may inherit: `ebla up --local` starts Ray's nodes, and their logs are wanted.
SILENT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # else every ray.init warns of a change to come


def before_ray(verbose: int) -> None:
    """Call it before ray is imported for the first time."""
    level = logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s")
    if verbose:
        return
    logging.getLogger().addFilter(_not_py4j)
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")


def _not_py4j(record: logging.LogRecord) -> bool:
    """py4j reports every call into a JVM that has ended, at length; the command says once what that means."""
    return "/py4j/" not in record.pathname


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run; SIGTERM cancels the work and ends the process when it has cleaned up. An exception out of the handler
    would end whichever task runs at that moment, and be reported as one that nobody expected."""
    import asyncio

    main = threading.current_thread() is threading.main_thread()
    told = False

    async def body() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def terminated(number: int, frame: FrameType | None) -> None:
            nonlocal told
            told = True
            end_on_sigterm()  # a second one does not wait
            loop.call_soon_threadsafe(task.cancel)

        if main:
            signal.signal(signal.SIGTERM, terminated)
        return await work

    try:
        return asyncio.run(body())
    except asyncio.CancelledError:
        if told:
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        end_on_sigterm()


def end_on_sigterm() -> None:
    """`ray job stop` and supervisors send SIGTERM: clean up on the way out, as with Ctrl-C. Again after ray.init, which
    puts a handler there that aborts the process."""

    def terminated(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)
