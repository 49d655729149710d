"""Applied rows of a columnar tablet that are not yet flushed: single rows as the row codec packs them, and batches as they came.

Batches stay as they are. The first use of a single key puts their keys into the index of rows, which costs about 0.2 us for each
row; a load that only adds batches never pays that. A frozen table is sorted once, for its flush and for all scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ebla.storage.rows import ragged
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.batches import Batch
from ebla.storage.runs.order import newest
from ebla.storage.runs.pieces import Piece, joined, of_rows, place_of
from ebla.storage.tablets.memtable import Memtable

NUMBER_BITS = 32  # of a row in its batch; the bits above are the number of the batch
ROW_MASK = (1 << NUMBER_BITS) - 1


class Sorted(NamedTuple):
    """All rows of a table with the columns of `codec`, each key once, in key order. `ends`: the bytes of all rows up to each."""

    codec: RowCodec
    piece: Piece
    ends: Array

    def range(
        self, start: bytes, stop: bytes | None, limit: int, bytes_max: int
    ) -> tuple[Piece, bytes | None]:
        """The rows with start <= key < stop, and the key of the next row in the range, if any. At most `limit` rows, and only the
        last of them exceeds `bytes_max`."""
        keys = self.piece.keys
        low = place_of(keys, start) if start else 0
        high = max(low, len(keys) if stop is None else place_of(keys, stop))
        before = int(self.ends[low - 1]) if low else 0
        full = int(np.searchsorted(self.ends, before + bytes_max)) + 1
        until = min(high, low + limit, full)
        return self.piece.slice(low, until), keys[until].as_py() if until < high else None


class ColumnsMemtable(Memtable):
    """Of a tablet whose checksums begin with `seed`. What `rows` has for a key is bytes, None, or the place of a row in a batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._batches: list[Batch] = []
        self._index: tuple[dict[bytes, Any], int] = {}, 0  # and the number of batches whose rows are in it
        self._sorted_as: Sorted | None = None

    @property
    def empty(self) -> bool:
        return not self._batches and not self._index[0]

    @property
    def rows(self) -> dict[bytes, Any]:
        rows, count = self._index
        if count < len(self._batches):
            if self.frozen:
                rows = dict(rows)  # another thread may read the present one
            for number in range(count, len(self._batches)):
                keys = ragged.objects(self._batches[number].keys())
                first = number << NUMBER_BITS
                rows.update(zip(keys, range(first, first + len(keys)), strict=True))
                self.changes += len(keys)
            self._index = rows, len(self._batches)
        return rows

    def value(self, stored: Any) -> bytes | None:
        if isinstance(stored, int):
            return self._batches[stored >> NUMBER_BITS].packed(stored & ROW_MASK, self.seed)
        return super().value(stored)

    def put_batch(self, batch: Batch) -> None:
        assert not self.frozen
        self._batches.append(batch)
        self.data_bytes += len(batch.data)
        self.written += batch.rows

    def sorted(self, codec: RowCodec, path: str) -> Sorted:
        """The rows of a frozen table. Raises Corruption for a row that fails its checksum."""
        assert self.frozen
        found = self._sorted_as
        if found is None or found.codec is not codec:
            found = self._sorted_as = self._sort(codec, path)
        return found

    def _sort(self, codec: RowCodec, path: str) -> Sorted:
        names = list(codec.header.bit)
        rows, indexed = self._index
        sources: list[Piece] = []
        packed = sorted(key for key, stored in rows.items() if not isinstance(stored, int))
        if packed:
            sources.append(of_rows(codec, rows, packed, self.seed, path, names))
        if indexed:
            places = np.fromiter((each for each in rows.values() if isinstance(each, int)), np.int64)
            places.sort()
            ends = np.searchsorted(places, np.arange(indexed + 1) << NUMBER_BITS)
            for number, (start, stop) in enumerate(pairwise(ends.tolist())):
                if start < stop:
                    wanted = places[start:stop] & ROW_MASK
                    sources.append(self._piece(number, codec, names).take(wanted))
        sources += [self._piece(number, codec, names) for number in range(indexed, len(self._batches))]
        whole = joined(sources)
        if self._batches:
            whole = whole.take(newest(whole.keys))
        return Sorted(codec, whole, np.cumsum(whole.sizes()))

    def _piece(self, number: int, codec: RowCodec, names: Sequence[str]) -> Piece:
        return self._batches[number].under(codec).piece(names)
