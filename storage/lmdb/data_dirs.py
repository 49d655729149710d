"""The further disks of a role: each may be lost without the others, and without the role's own.

A link under `data/` of the role's directory leads to an environment on a data disk. An error there is a failure of that
disk alone: every use of it raises DataDiskFailed from then on, and it gets no new environments.
storage/directories/instance.py finds lost disks at a start, and records those in which a sync failed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import lmdb

from ebla.storage.directories.instance import InstanceDirectory
from ebla.storage.errors import DataDiskFailed, DiskFailed, StorageError
from ebla.storage.lmdb.commit import for_want_of_space


class Keeper(Protocol):
    """The disk of an environment, as the environment needs it."""

    @property
    def growth_grace_s(self) -> float: ...

    @property
    def failed(self) -> StorageError | None:
        """The first failed sync."""

    def check(self) -> None:
        """Raise once the disk is poisoned or closed."""

    def poison(self, error: DiskFailed) -> StorageError:
        """Record the failure, and return the error for waiting callers."""

    def forget(self, path: str) -> None: ...


class DataDisk:
    """The `Keeper` of environments in one data directory. `role` is the keeper of the role's own directory."""

    def __init__(self, path: Path, role: Keeper, directory: InstanceDirectory) -> None:
        self.path = path
        self.role = role
        self.directory = directory
        self._failed = directory.lost.get(path)
        self._poisoning = threading.Lock()

    @property
    def growth_grace_s(self) -> float:
        return self.role.growth_grace_s

    @property
    def failed(self) -> StorageError | None:
        return self.role.failed or (None if self._failed is None else self._error(self._failed))

    def check(self) -> None:
        self.role.check()
        if self._failed is not None:
            raise self._error(self._failed)

    def poison(self, error: DiskFailed) -> StorageError:
        """From any thread. The failure is recorded before it is reported; if that fails, the role's disk has failed too."""
        with self._poisoning:
            if self._failed is None:
                try:
                    self.directory.lose(self.path, error.message)
                except OSError as refused:
                    both = f"{error}; and that cannot be noted in {self.directory.root}: {refused}"
                    return self.role.poison(DiskFailed(both, path=error.path))
                self._failed = error.message
            return self._error(self._failed)

    def forget(self, path: str) -> None:
        self.role.forget(path)

    def _error(self, why: str) -> DataDiskFailed:
        return DataDiskFailed(
            f"the disk of {self.path} is lost ({why}); its tablets are rebuilt from their peers",
            path=str(self.path),
        )


class DataDisks:
    """All data disks that are configured, or that links lead to."""

    def __init__(self, role: Keeper, directory: InstanceDirectory) -> None:
        self._named = directory.data_dirs
        self._disks = {path: DataDisk(path, role, directory) for path in directory.known_data_dirs()}

    @property
    def any(self) -> bool:
        return bool(self._named)

    def sound(self) -> list[Path]:
        """The directories for new environments. Raises DataDiskFailed if there are none."""
        sound = [path for path in self._named if self._disks[path].failed is None]
        if not sound:
            raise DataDiskFailed(
                "every data directory of this server is lost; replace a disk, and start it again"
            )
        return sound

    @property
    def all_lost(self) -> bool:
        return self.any and all(self._disks[path].failed is not None for path in self._named)

    def there(self) -> list[Path]:
        return [path for path, disk in self._disks.items() if disk.failed is None]

    def of(self, place: Path) -> DataDisk | None:
        """The data disk that a link leads to; None for the role's own disk."""
        target = Path(os.readlink(place)) if place.is_symlink() else place
        return next((disk for path, disk in self._disks.items() if target.is_relative_to(path)), None)

    @contextmanager
    def touching(self, place: Path) -> Iterator[bool]:
        """Make errors of the body a failure of the data disk that `place` leads to. Yields whether that disk is usable."""
        disk = self.of(place)
        try:
            yield disk is None or disk.failed is None
        except (lmdb.Error, OSError) as error:
            code = error.code if isinstance(error, lmdb.Error) else error.errno
            if disk is None or for_want_of_space(code, disk.path):
                raise
            raise disk.poison(DiskFailed(f"cannot use {disk.path}: {error}", path=str(place))) from error
