"""A second check of keys that a read did not find, because LMDB's pages have no checksums.

A damaged pointer or key makes LMDB search in the wrong place and report an existing row as absent. Then the rows on
both sides of the key's place are out of order, or fail their checksum.

    absent      for every key that was not found: the row before its place is smaller, the row after it larger, and both
                pass their checksums
    edges       of a range that was read: the row before it is outside it, its last row is directly before the following
                row (or is the last of all), and the following row passes its checksum

This costs two row reads for every key that is not found, none for a found one. Consecutive keys between the same two
rows share one check.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt

from ebla.storage.environment import Item, Reader
from ebla.storage.errors import Corruption
from ebla.storage.rows import checksum

Gap = tuple[Item | None, Item | None]


def require_absent(reader: Reader, database: str, keys: Sequence[bytes], seed: int, path: str) -> None:
    """Raise Corruption unless each of the keys, which were not found, is truly absent."""
    gap: Gap | None = None
    for key in sorted(keys):
        if gap is not None and (gap[1] is None or key < gap[1][0]):
            continue  # keys ascend, so the key is after gap[0]
        (gap,) = reader.around(database, [key])
        _require_whole(gap, seed, path)
        before, after = gap
        if (before is not None and before[0] >= key) or (after is not None and after[0] <= key):
            raise _hidden(key, path)


def require_edges(
    reader: Reader,
    database: str,
    start: bytes,
    stop: bytes | None,
    rows: Sequence[bytes],
    seed: int,
    path: str,
    *,
    to_the_end: bool,
) -> None:
    """Raise Corruption unless `rows` (key and value joined) can be the rows from `start` on, and, with `to_the_end`, up to
    `stop`."""
    ((before, first),) = reader.around(database, [start])
    inside = first if first is not None and (stop is None or first[0] < stop) else None
    if (before is not None and before[0] >= start) or _joined(inside) != (rows[0] if rows else None):
        raise _hidden(start, path)
    _require_whole((before, first), seed, path)
    if not to_the_end:
        return
    if stop is None:
        last, behind, misplaced = reader.last(database), None, False
    else:
        ((last, behind),) = reader.around(database, [stop])
        misplaced = behind is not None and behind[0] < stop
    inside = last if last is not None and last[0] >= start else None
    if misplaced or _joined(inside) != (rows[-1] if rows else None):
        raise _hidden(start if stop is None else stop, path)
    _require_whole((last, behind), seed, path)


def require_ascending(keys: Sequence[bytes], path: str) -> None:
    if not ascend(keys):
        raise Corruption(f"the rows of {path} do not ascend", path=path)


def require_order(
    reader: Reader, database: str, start: bytes, stop: bytes | None, rows: Sequence[bytes], path: str
) -> None:
    """Raise Corruption unless `rows` (key and value joined), read from `start` on, are in the order of their keys: a damaged
    pointer may lead to another page."""
    if not ascend(rows):  # although their keys may ascend, if one begins with another
        again = reader.items(database, start, stop, limit=len(rows))
        require_ascending([key for key, _ in again], path)


def ascend(found: Sequence[bytes]) -> bool:
    return all(map(lt, found, islice(found, 1, None)))


def _joined(item: Item | None) -> bytes | None:
    return None if item is None else item[0] + item[1]


def _require_whole(gap: Gap, seed: int, path: str) -> None:
    for item in gap:
        if item is not None:
            checksum.verify_row(*item, seed, path)


def _hidden(key: bytes, path: str) -> Corruption:
    return Corruption(
        f"the pages of {path} are damaged: the rows beside the place of key {key.hex()} do not belong there",
        path=path,
    )
