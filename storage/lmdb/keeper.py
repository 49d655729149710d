"""What an LMDB environment needs of its disk."""

from __future__ import annotations

from typing import Protocol

from ebla.storage.errors import DiskFailed, StorageError


class Keeper(Protocol):
    """What an environment needs of its disk."""

    @property
    def growth_grace_s(self) -> float: ...

    @property
    def failed(self) -> StorageError | None:
        """Set once, by whoever sees the first failed sync."""

    def check(self) -> None:
        """Raise once the disk is poisoned or closed."""

    def poison(self, error: DiskFailed) -> StorageError:
        """What it means for whoever waits."""

    def forget(self, path: str) -> None: ...
