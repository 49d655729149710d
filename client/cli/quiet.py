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
from types import FrameType

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


def end_on_sigterm() -> None:
    """`ray job stop` and supervisors send SIGTERM: clean up on the way out, as with Ctrl-C. Again after ray.init, which
    puts a handler there that aborts the process."""

    def terminated(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)
