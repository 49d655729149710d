"""Files of the host outside the role's directory, written for an operator.

They belong to the operator: nothing here is synced, locked or read again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Protocol


class Outside(Protocol):
    """Paths are absolute. Failures are OSErrors."""

    def make(self, directory: str) -> list[str]:
        """Make the directory if it does not exist, and return the names in it."""

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
