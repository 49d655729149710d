"""A lock between threads that read an environment and one that exchanges its map or ends transactions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """A lock that many readers share, or one closer has alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        # Made for each closer, because it takes more memory than the rest of an environment.
        self._shut: threading.Condition | None = None

    def enter(self) -> None:
        with self._lock:
            while self._shut:
                self._shut.wait()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._shut:
                self._shut.notify_all()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextlib.contextmanager
    def closed_if_empty(self) -> Iterator[bool]:
        """As `closed`, without waiting: False, and nothing is closed, if a thread is inside or closes the gate."""
        with self._lock:
            empty = not self._inside and self._shut is None
            shut = threading.Condition(self._lock)
            if empty:
                self._shut = shut
        try:
            yield empty
        finally:
            if empty:
                with self._lock:
                    self._shut = None
                    shut.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Run the body while no thread is inside, and keep threads from entering."""
        with self._lock:
            while self._shut:
                self._shut.wait()
            shut = self._shut = threading.Condition(self._lock)
            while self._inside:
                shut.wait()
        try:
            yield
        finally:
            with self._lock:
                self._shut = None
                shut.notify_all()
