"""Signals that end a process: Ctrl-C (SIGINT), and SIGTERM from a supervisor."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep these signals from stopping the work within, which must be bounded: cleanup. A second
    SIGTERM is usual: `timeout` sends one to a command's whole process group. Outside of the main
    thread no signal stops it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {each: signal.signal(each, signal.SIG_IGN) for each in ENDING}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)  # None: set by C code


@contextmanager
def own_handler_of_sigterm() -> Iterator[None]:
    """Keep this process's handler, if it has one, where a library installs its own."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    yield
    if before not in (None, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, before)
