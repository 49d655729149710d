"""Read another process's environment in place: node-local scans at the speed of memory.

The owner goes on writing and growing while any number of readers look at snapshots; LMDB's lock file keeps the
pages of a snapshot from being reused. A reader that stays open long makes the owner's file grow, so close it.
What is read is what the owner has flushed; ask it first to flush as far as you want to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lmdb

from ebla.storage.errors import Damaged
from ebla.storage.lmdb.files import DATA_FILE, DATABASES_MAX, READERS_MAX
from ebla.storage.lmdb.reads import SPARE_READS, LmdbMapping

ADDRESS_SPACE_BYTES = 1 << 36  # only addresses; the larger, the rarer the owner's growth is noticed


class LmdbReader(LmdbMapping):
    """A `Reader` with snapshots over the environment in `directory`, which another process may be writing."""

    def __init__(
        self, directory: Path, databases: Sequence[str], *, map_bytes: int = ADDRESS_SPACE_BYTES
    ) -> None:
        path = str(directory)
        if not (directory / DATA_FILE).is_file():
            raise Damaged(f"there is no environment at {path}; look for the host that holds it", path=path)
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
            handles = {name: opened.open_db(name.encode(), create=False) for name in databases}
        except lmdb.Error as error:
            raise Damaged(f"cannot read the environment at {path}: {error}", path=path) from error
        super().__init__(path, opened, handles)

    def close(self) -> None:
        self._shut()
