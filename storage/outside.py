"""Files of the host outside of the role's directory, where an operator has something written out.

They belong to whoever asked for them: nothing here is synced, locked or read again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Protocol


class Outside(Protocol):
    """Paths are absolute. Whatever cannot be done is an OSError."""

    def make(self, directory: str) -> list[str]:
        """Make the directory if it is not there, and tell what it contains."""

    def create(self, path: str) -> IO[bytes]: ...

    def remove(self, path: str) -> None:
        """Absent is no error."""


class HostFiles:
    def make(self, directory: str) -> list[str]:
        Path(directory).mkdir(parents=True, exist_ok=True)
        return sorted(os.listdir(directory))

    def create(self, path: str) -> IO[bytes]:
        return open(path, "wb")

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)
