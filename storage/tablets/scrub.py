"""A walk over all rows of an environment, for the damage that reads do not meet.

LMDB's pages have no checksums. What a damaged page hides from every read is noticed by going from end to end: keys ascend,
every row is whole, and there are as many as the tree's root says. What is small is walked before it is served, everything
else now and then (actors/tablet/upkeep/scrubber.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ebla.storage.environment import Environment, Snapshot
from ebla.storage.errors import Corruption
from ebla.storage.lmdb.neighbours import require_ascending
from ebla.storage.rows import checksum

PIECE_ROWS = 4096  # a few milliseconds; between two pieces others have their turn
PIECE_BYTES = 4_000_000


async def scrub(
    environment: Environment, database: str, seed: int, pause: Callable[[], Awaitable[None]] | None = None
) -> int:
    """The number of rows, all of them good. Raises Corruption; SnapshotExpired if the walk took too long."""
    snapshot = environment.snapshot()
    try:
        expected = snapshot.count(database)
        seen, before = 0, b""
        while True:
            rows, before = await environment.run(_piece, snapshot, database, before, seed, environment.path)
            seen += rows
            if not rows:
                break
            if pause is not None:
                await pause()
    finally:
        snapshot.close()
    if seen != expected:
        raise Corruption(f"{environment.path} has {expected} rows, {seen} are found", path=environment.path)
    return seen


def _piece(snapshot: Snapshot, database: str, before: bytes, seed: int, path: str) -> tuple[int, bytes]:
    """How many rows stand behind the key `before`, up to a piece, and the last one's key."""
    items = snapshot.items(
        database, before + b"\0" if before else b"", limit=PIECE_ROWS, bytes_max=PIECE_BYTES
    )
    keys = [before, *(key for key, _ in items)]
    require_ascending(keys, path)
    checksum.verify([key + value for key, value in items], seed, path)
    return len(items), keys[-1]
