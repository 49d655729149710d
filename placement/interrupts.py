"""Signals that end a process: Ctrl-C (SIGINT), and SIGTERM from a supervisor."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted(notice: str = "") -> Iterator[None]:
    """Keep these signals from stopping the work within, which must be bounded: cleanup. A second
    SIGTERM is usual: `timeout` sends one to a command's whole process group. Outside of the main
    thread no signal stops it. The first signal writes `notice` to standard error."""

    def ignored(number: int, frame: Any) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        os.write(2, f"\n{notice}\n".encode())  # a print may be under way in this thread

    with _handled_by(dict.fromkeys(ENDING, ignored if notice else signal.SIG_IGN)):
        yield


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let these signals end the work within by an exception, also inside of asyncio, which would
    let the work complete: for a prompt."""

    def ended(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    with _handled_by({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: ended}):
        yield


@contextmanager
def _handled_by(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)  # None: set by C code


@contextmanager
def own_handler_of_sigterm() -> Iterator[None]:
    """Keep this process's handler, if it has one, where a library installs its own."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    yield
    if before not in (None, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, before)
