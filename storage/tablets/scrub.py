"""A walk over all rows of an environment, for damage that reads do not meet.

LMDB's pages have no checksums. A walk from end to end finds rows that a damaged page hides from every read: keys must
ascend, every row must pass its checksum, and the count must match the tree's root. Small tablets are walked before they
are served, all others in the background (actors/tablet/upkeep/scrubber.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ebla.storage.environment import Environment, Snapshot
from ebla.storage.errors import Corruption
from ebla.storage.lmdb.neighbours import require_ascending
from ebla.storage.rows import checksum

PIECE_ROWS = 4096  # a few milliseconds; other work runs between two pieces
PIECE_BYTES = 4_000_000


async def scrub(
    environment: Environment, database: str, seed: int, pause: Callable[[], Awaitable[None]] | None = None
) -> int:
    """Verify all rows and return their number. Raises Corruption; SnapshotExpired if the walk took too long."""
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
    """Verify a piece of rows after the key `before`; return their number and the last key."""
    items = snapshot.items(
        database, before + b"\0" if before else b"", limit=PIECE_ROWS, bytes_max=PIECE_BYTES
    )
    keys = [before, *(key for key, _ in items)]
    require_ascending(keys, path)
    checksum.verify([key + value for key, value in items], seed, path)
    return len(items), keys[-1]
