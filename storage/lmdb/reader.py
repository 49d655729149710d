"""Read another process's environment in place: node-local scans at the speed of memory.

The owner continues to write and grow while any number of readers use snapshots; LMDB's lock file prevents the reuse of a
snapshot's pages. A reader that stays open long makes the owner's file grow, so close it. Only flushed data is visible:
first ask the owner to flush.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import lmdb
import msgspec

from ebla.storage.errors import Damaged, StorageError
from ebla.storage.lmdb.files import DATA_FILE, DATABASES_MAX, LOCK_FILE, READERS_MAX
from ebla.storage.lmdb.identity import identity_of
from ebla.storage.lmdb.mapping import LmdbMapping
from ebla.storage.lmdb.reads import SPARE_READS

ADDRESS_SPACE_BYTES = 1 << 36  # only addresses; a file that grows beyond them must be mapped again


class LmdbReader(LmdbMapping):
    """A `Reader` with snapshots over the environment in `directory`, which another process may write."""

    def __init__(
        self, directory: Path, databases: Sequence[str], *, map_bytes: int = ADDRESS_SPACE_BYTES
    ) -> None:
        path = str(directory)
        if not (directory / DATA_FILE).is_file():
            raise Damaged(f"there is no environment at {path}; look for the host that holds it", path=path)
        lock = directory / LOCK_FILE
        if not os.access(lock, os.R_OK | os.W_OK):  # LMDB goes on without it
            raise StorageError(
                f"cannot write {lock}, which notes the snapshots of readers, so that their pages are not used again: mount the "
                "directory for writing",
                path=path,
            )
        try:
            opened = lmdb.open(
                path,
                map_size=map_bytes,
                readonly=True,
                create=False,
                max_dbs=DATABASES_MAX,
                max_readers=READERS_MAX,
                max_spare_txns=SPARE_READS,
            )
            identity_of(opened, path)
            handles = {name: opened.open_db(name.encode(), create=False) for name in databases}
        except (lmdb.Error, msgspec.MsgspecError) as error:
            raise Damaged(f"cannot read the environment at {path}: {error}", path=path) from error
        super().__init__(path, opened, handles)

    def close(self) -> None:
        self._shut()
