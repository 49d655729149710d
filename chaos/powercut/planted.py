"""Defects that the replay must find: storage layers that acknowledge data that is not on the disk.

no_meta_sync        LMDB without the sync of its root (`metasync=False`): the last commit may be undone
no_sync             LMDB without any sync (`sync=False`)
early_answer        the shared log answers before its commit
no_directory_sync   files are renamed into place, and the directory is not synced
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb

from ebla.storage.directories import instance
from ebla.storage.environment import Batch
from ebla.storage.errors import InvalidArgument
from ebla.storage.lmdb import environment, files
from ebla.storage.lmdb.environment import LmdbEnvironment
from ebla.storage.lmdb.files import DATABASES_MAX, READERS_MAX
from ebla.storage.lmdb.reads import SPARE_READS
from ebla.storage.logs import shared_log


def plant(defect: str) -> None:
    if defect:
        if defect not in PLANTED:
            raise InvalidArgument(f"planted must be one of {', '.join(PLANTED)}, not {defect!r}")
        PLANTED[defect]()


def _map_without(*syncs: str) -> None:
    def map_environment(directory: Path, map_bytes: int, *, synced: bool = True) -> lmdb.Environment:
        return lmdb.open(
            str(directory),
            map_size=map_bytes,
            meminit=False,
            max_dbs=DATABASES_MAX,
            max_readers=READERS_MAX,
            max_spare_txns=SPARE_READS,
            sync=synced and "sync" not in syncs,
            metasync="metasync" not in syncs,
        )

    setattr(files, "map_environment", map_environment)  # noqa: B010 - a module's name
    setattr(environment, "map_environment", map_environment)  # noqa: B010


def _answer_early() -> None:
    commit = LmdbEnvironment.commit

    async def early(self: LmdbEnvironment, batch: Batch) -> None:
        if self.path == shared_log.PATH:
            self._submit(batch)
        else:
            await commit(self, batch)

    setattr(LmdbEnvironment, "commit", early)  # noqa: B010


def _sync_files_only() -> None:
    sync_path = instance.sync_path

    def sync_file(path: Path) -> None:
        if not path.is_dir():
            sync_path(path)

    setattr(instance, "sync_path", sync_file)  # noqa: B010
    setattr(files, "sync_path", sync_file)  # noqa: B010


PLANTED: dict[str, Callable[[], None]] = {
    "no_meta_sync": partial(_map_without, "metasync"),
    "no_sync": partial(_map_without, "sync"),
    "early_answer": _answer_early,
    "no_directory_sync": _sync_files_only,
}
