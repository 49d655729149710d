"""The tablet of a row, and the tablets that can have rows which match a predicate.

    hash     xxh3-64 of the hash columns' closed key encodings, one after the other, modulo the buckets
    range    the number of splits that are not above the encoded key
    tablet   bucket * ranges + range

Stored rows are found by this arithmetic, so it never changes (a golden test checks it).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import product, repeat
from math import prod
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import ragged
from ebla.storage.rows.keys import KeyCodec
from ebla.storage.rows.python_values import shown
from ebla.storage.rows.ragged import Array
from ebla.storage.schema import Hash, Range, TableSchema

COMBINATIONS_MAX = 1024  # of hash column values; beyond that every bucket is included

_hash = xxhash.xxh3_64_intdigest


class KeyBounds(msgspec.Struct, frozen=True):
    """Bounds of the keys of all matching rows: start <= key < stop (None: no end). `equal`: the key columns that can only
    have certain values, with the closed key encodings of these."""

    start: bytes = b""
    stop: bytes | None = None
    equal: tuple[tuple[str, tuple[bytes, ...]], ...] = ()

    @property
    def empty(self) -> bool:
        """No row can match."""
        return self.stop is not None and self.start >= self.stop


NOWHERE = KeyBounds(b"", b"")


def hash_spec(*columns: str, buckets: int) -> Hash:
    """Divide rows into `buckets` parts by a hash of these key columns."""
    if isinstance(buckets, bool) or not isinstance(buckets, int):
        raise InvalidArgument(f"buckets is a whole number, such as 16, not {shown(buckets)}")
    for name in columns:
        if not isinstance(name, str):
            raise InvalidArgument(
                f'hash columns are names, such as hash("id", buckets=16), not {shown(name)}'
            )
    made = Hash(columns, buckets)
    made.validate()
    return made


def range_spec(columns: Sequence[str], splits: Sequence[Any], schema: TableSchema) -> Range:
    """Divide rows at `splits`: ascending values of `columns` (tuples if there are several), a prefix of the key.

    A split is the first key of its part: rows below the first split are part 0.
    """
    columns = (columns,) if isinstance(columns, str) else tuple(columns)
    if columns != schema.key[: len(columns)] or not columns:
        raise InvalidArgument(
            f"range columns must be a prefix of the primary key {schema.key}, not {columns}; reorder or drop columns",
            column=next((name for name in columns if name not in schema.key), None),
        )
    codec = KeyCodec([schema.column(name) for name in columns], open_end=len(columns) == len(schema.key))
    encoded: list[bytes] = []
    for place, split in enumerate(splits):
        values = split if isinstance(split, tuple) else (split,)
        if len(values) != len(columns):
            raise InvalidArgument(
                f"split {place} has {len(values)} values for {len(columns)} range columns; give a tuple of one each",
                row=place,
            )
        made = codec.encode_row(dict(zip(columns, values, strict=True)))
        if encoded and made <= encoded[-1]:
            raise InvalidArgument(
                f"split {place} ({shown(split)}) is not above the one before; sort them", row=place
            )
        encoded.append(made)
    return Range(columns, tuple(encoded))


class Partitioner:
    """The partitioning of one table."""

    def __init__(self, schema: TableSchema) -> None:
        self.partitioning = schema.partitioning
        hashed, ranged = self.partitioning.hash, self.partitioning.range
        self.buckets = hashed.buckets if hashed else 1
        self.ranges = self.partitioning.ranges
        self.splits = list(ranged.splits) if ranged else []
        self.hash_columns = hashed.columns if hashed else ()
        self.codec = (
            KeyCodec([schema.column(name) for name in hashed.columns], open_end=False) if hashed else None
        )

    def assign(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> Array:
        """The tablet number (int32) of every row. `rows` need only have the hash columns."""
        tablets = np.zeros(len(keys), np.int64)
        if self.codec:
            hashes = map(_hash, ragged.objects(self.codec.encode(rows)))
            buckets = np.fromiter(hashes, np.uint64, len(keys)) % np.uint64(self.buckets)
            tablets = buckets.astype(np.int64) * self.ranges
        if self.splits:
            found = map(bisect_right, repeat(self.splits), ragged.objects(keys))
            tablets = tablets + np.fromiter(found, np.int64, len(keys))
        return tablets.astype(np.int32)

    def assign_row(self, row: Mapping[str, Any], key: bytes) -> int:
        bucket = _hash(self.codec.encode_row(row)) % self.buckets if self.codec else 0
        return bucket * self.ranges + bisect_right(self.splits, key)

    def prune(self, bounds: KeyBounds | None) -> list[int]:
        """The numbers, ascending, of the tablets that can have rows within `bounds`."""
        if bounds is None:
            bounds = KeyBounds()
        if bounds.empty:
            return []
        first = bisect_right(self.splits, bounds.start)
        last = len(self.splits) if bounds.stop is None else bisect_left(self.splits, bounds.stop)
        return [
            bucket * self.ranges + part for bucket in self._buckets(bounds) for part in range(first, last + 1)
        ]

    def _buckets(self, bounds: KeyBounds) -> list[int]:
        equal = dict(bounds.equal)
        choices = [equal.get(name) for name in self.hash_columns]
        known = [choice for choice in choices if choice is not None]
        if len(known) < len(choices) or prod(map(len, known)) > COMBINATIONS_MAX:
            return list(range(self.buckets))
        if not choices:
            return [0]
        return sorted({_hash(b"".join(each)) % self.buckets for each in product(*known)})
