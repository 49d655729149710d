"""Applied rows that are not yet flushed: newest value by key, None for a deleted row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

# Of a replica's memtables: half of what one array of a flush can have (rows/ragged.py), so that one more write has room.
UNFLUSHED_BYTES_MAX = 1 << 30
KEY_OVERHEAD_BYTES = 120  # two bytes objects and a dict slot, measured on CPython 3.11


class Memtable:
    """Grows until frozen; a frozen one never changes and may be read from another thread.

    `data_bytes`: of keys and values; `memory_bytes`: including the overhead of Python. `written`: rows, each as often as it was
    changed.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Any] = {}
        self.data_bytes = 0
        self.changes = self.written = 0
        self.frozen = False
        self._sorted: list[bytes] | None = None

    @property
    def rows(self) -> dict[bytes, Any]:
        """By key the value, which `value` makes bytes or None (deleted) of."""
        return self._rows

    @property
    def empty(self) -> bool:
        return not self._rows

    def value(self, stored: Any) -> bytes | None:
        found: bytes | None = stored
        return found

    @property
    def memory_bytes(self) -> int:
        return self.data_bytes + KEY_OVERHEAD_BYTES * self.changes

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        assert not self.frozen
        self.rows.update(zip(keys, values, strict=True))
        self.data_bytes += sum(map(len, keys)) + sum(map(len, values))
        self.changes += len(keys)
        self.written += len(keys)

    def delete(self, keys: Sequence[bytes]) -> None:
        assert not self.frozen
        self.rows.update(dict.fromkeys(keys))
        self.data_bytes += sum(map(len, keys))
        self.changes += len(keys)
        self.written += len(keys)

    def freeze(self) -> None:
        self.frozen = True

    def sorted_keys(self) -> list[bytes]:
        assert self.frozen
        if self._sorted is None:
            self._sorted = sorted(self.rows)
        return self._sorted

    def range(
        self, start: bytes, stop: bytes | None, limit: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes | None]], bytes | None]:
        """Items of a frozen memtable with start <= key < stop, ascending, and the key of the next item in the range, if any. At
        most `limit` items, and only the last of them exceeds `bytes_max`."""
        keys = self.sorted_keys()
        low = bisect_left(keys, start)
        high = len(keys) if stop is None else bisect_left(keys, stop)
        rows = self.rows
        items = [(key, rows[key]) for key in keys[low : min(high, low + limit)]]
        if self.data_bytes > bytes_max:
            ends = list(accumulate(len(key) + len(value or b"") for key, value in items))
            del items[bisect_left(ends, bytes_max) + 1 :]
        following = low + len(items)
        return items, keys[following] if following < high else None
