"""Defects of what lies on disk and in memory, and of scans over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebla.actors import incarnations
from ebla.actors.tablet.engine import identity
from ebla.actors.tablet.engine.log import TabletLog
from ebla.chaos.defects.defect import Swap, defect
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.storage.rows import checksum
from ebla.storage.runs.reading import RunReader
from ebla.storage.runs.statistics import Statistics
from ebla.storage.tablets.memtable import Memtable
from ebla.storage.tablets.positions import alteration_of, flushed_of, put_position
from ebla.storage.tablets.row_tree import RowSnapshot, RowTree
from ebla.storage.tablets.tablet_store import TabletStore


@defect("scans", 300, seed=1)
def unpinned_scan() -> list[Swap]:
    """A scan also reads rows that are flushed during the scan."""
    original = RowTree.snapshot

    class Unpinned:
        def __init__(self, environment: Any) -> None:
            self._environment = environment

        def __getattr__(self, name: str) -> Any:
            return getattr(self._environment, name)

        def close(self) -> None: ...

    def snapshot(self: RowTree, *arguments: Any) -> RowSnapshot:
        made = original(self, *arguments)
        made.base.close()
        unpinned: Any = Unpinned(self.environment)
        return RowSnapshot(self.environment, unpinned, made.tables, made.position, self.seed)

    return [(RowTree, "snapshot", snapshot)]


@defect("logs", 60, seed=4)
def log_trimmed_early() -> list[Swap]:
    """The shared log drops entries that a tablet still needs."""

    async def move(self: TabletLog, below_seq: int) -> None:
        return None

    return [(TabletLog, "oldest_shared_seq", lambda self: None), (TabletLog, "move", move)]


@defect("chains", 60, TabletStore, "flush", seed=0)
async def flush_claims_too_much(original: Any, self: TabletStore) -> Any:
    """A flush stores its end position with the rows of its beginning."""
    before = self.applied
    await self.environment.run(lambda: None)
    await original(self)
    if self.applied != before:
        stored = flushed_of(self.environment, self.environment.path)
        altered = alteration_of(self.environment, self.environment.path)
        await self.environment.commit([put_position(self.applied, stored.answers, altered)])
        self.flushed = self.applied
    return self.flushed


@defect("disks", 60, seed=2)
def no_checksums() -> list[Swap]:
    """Records are used without checking their checksums."""
    return [
        (checksum, "verify", lambda joined, seed, path=None: None),
        (checksum, "verify_row", lambda key, value, seed, path=None: 0),
        (
            checksum,
            "verified_block",
            lambda joined, seed, path=None, layout=0: bytes(checksum.BRIDGE_BYTES).join(joined),
        ),
    ]


@defect("registers", 60, seed=0)
def no_directory_lock() -> list[Swap]:
    """Two incarnations write one directory."""
    original = MemoryDisk.open_instance

    async def open_instance(self: MemoryDisk, new_uuid: str) -> Any:
        self.state.holder = None
        return await original(self, new_uuid)

    return [(MemoryDisk, "open_instance", open_instance), (MemoryDisk, "_check_not_gone", lambda self: None)]


@defect("copies", 60)
def old_copy_accepted() -> list[Swap]:
    """An old copy of a server's directory is accepted as the server."""

    def is_old(shown: Any, known: Any) -> bool:
        return False

    return [(incarnations, "is_old", is_old), (identity, "is_old", is_old)]


@defect("crowds", 60, TabletStore, "flush", seed=14)
async def frozen_beside_a_flush(original: Any, self: TabletStore) -> Any:
    """A flush drops the rows that a scan froze during the flush."""
    flushed = await original(self)
    self.frozen = []
    return flushed


@defect("crowds", 60, Memtable, "range", seed=1)
def row_behind_a_block(
    original: Any, self: Memtable, start: bytes, stop: bytes | None, limit: int, bytes_max: int
) -> Any:
    """A scan misses a row that is the only one after a block."""
    items, following = original(self, start, stop, limit, bytes_max)
    if following is not None and original(self, following, stop, 1, bytes_max)[1] is None:
        following = None
    return items, following


@defect("columns-scans", 60, Statistics, "of")
def bounds_of_the_first_row(original: Any, self: Statistics, start: int, stop: int) -> bytes:
    """The statistics of a block know its first row only."""
    made: bytes = original(self, start, min(start + 1, stop))
    return made


@defect("columns-scans", 60, RunReader, "sources", seed=2)
def newer_blocks_left_out(
    original: Any, self: RunReader, start: bytes, stop: bytes | None, names: Any, limit: int, where: Any
) -> Any:
    """A scan leaves out every block without a match, also one that hides older rows."""
    places = self.places

    def matching(start: bytes, stop: bytes | None) -> Any:
        found, until = places(start, stop)
        return [each for each in found if self._may_match(each, where)], until

    if where is not None:
        self.places = matching  # type: ignore[method-assign]
    try:
        return original(self, start, stop, names, limit, where)
    finally:
        self.__dict__.pop("places", None)


@defect("scans", 40, TabletStore, "get_many")
def oldest_frozen_first(original: Any, self: TabletStore, keys: Sequence[bytes]) -> Any:
    """A read finds the oldest of several frozen values of a key."""
    self.frozen.reverse()
    try:
        return original(self, keys)
    finally:
        self.frozen.reverse()
