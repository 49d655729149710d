"""The assignment of rows to tablets, which never changes, and the tablets that a scan may skip."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.keys import KeyCodec
from ebla.storage.rows.partition import NOWHERE, KeyBounds, Partitioner, hash_spec, range_spec
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, Partitioning, TableSchema
from tests.storage.tables import batches, schemas


def partitioned(schema: TableSchema, partitioning: Partitioning) -> TableSchema:
    made = TableSchema(schema.columns, schema.key, partitioning)
    made.validate()
    return made


TABLE = TableSchema(
    (Column("host", "string", False), Column("n", "int32", False), Column("tail", "binary", False)),
    ("host", "n", "tail"),
)


@st.composite
def partitioned_rows(draw: st.DrawFn) -> tuple[TableSchema, pa.RecordBatch]:
    """A table divided by hash, by range, by both or not at all, with splits at some of its own keys."""
    schema = draw(schemas(values_max=1))
    hashed = ranged = None
    if draw(st.booleans()):
        columns = draw(st.lists(st.sampled_from(schema.key), min_size=1, unique=True))
        hashed = hash_spec(*columns, buckets=draw(st.integers(2, 9)))
    if draw(st.booleans()):
        columns = schema.key[: draw(st.integers(1, len(schema.key)))]
        codec = KeyCodec([schema.column(name) for name in columns], open_end=columns == schema.key)
        rows = draw(batches(schema, 4, 1)).select(list(columns)).to_pylist()
        splits = sorted({codec.encode_row(row): row for row in rows}.items())
        ranged = range_spec(columns, [tuple(row.values()) for _, row in splits], schema)
        assert ranged.splits == tuple(encoded for encoded, _ in splits)
    schema = partitioned(schema, Partitioning(hashed, ranged))
    return schema, draw(batches(schema, 8))


@given(partitioned_rows())
@settings(max_examples=40, deadline=None)
def test_one_row_and_a_batch_are_assigned_to_the_same_existing_tablet(table: Any) -> None:
    schema, batch = table
    partitioner, codec = Partitioner(schema), RowCodec(schema)
    keys = codec.encode_keys(batch)
    assigned = partitioner.assign(batch, keys)
    assert assigned.dtype.name == "int32"
    tablets = assigned.tolist()
    assert tablets == [
        partitioner.assign_row(row, key) for row, key in zip(batch.to_pylist(), keys.to_pylist(), strict=True)
    ]
    assert set(tablets) <= set(range(schema.partitioning.tablets))
    assert partitioner.prune(None) == list(range(schema.partitioning.tablets))
    for key, tablet in zip(keys.to_pylist(), tablets, strict=True):
        assert tablet in partitioner.prune(KeyBounds(key, key + b"\0"))


@given(partitioned_rows())
@settings(max_examples=20, deadline=None)
def test_equal_hash_columns_leave_one_bucket(table: Any) -> None:
    schema, batch = table
    partitioner, codec = Partitioner(schema), RowCodec(schema)
    closed = KeyCodec(schema.key_columns(), open_end=False)
    for row in batch.to_pylist():
        equal = tuple(
            (name, (part,)) for name, part in zip(schema.key, closed.encode_parts(row), strict=True)
        )
        found = partitioner.prune(KeyBounds(equal=equal))
        assert partitioner.assign_row(row, codec.encode_key(row)) in found
        assert len(found) == schema.partitioning.ranges


def test_the_assignment_of_rows_never_changes() -> None:
    schema = partitioned(
        TABLE, Partitioning(hash_spec("tail", "host", buckets=16), range_spec(["host"], ["g", "p"], TABLE))
    )
    rows = [
        {"host": host, "n": n, "tail": tail}
        for host, n, tail in [
            ("a", 1, b""),
            ("g", 2, b"\0x"),
            ("gg", 3, b"y"),
            ("o\0", -4, b"z"),
            ("p", 5, b""),
        ]
    ]
    partitioner, codec = Partitioner(schema), RowCodec(schema)
    assert [partitioner.assign_row(row, codec.encode_key(row)) for row in rows] == [36, 28, 43, 34, 38]


def test_a_split_is_the_first_key_of_its_part() -> None:
    splits = [("b", -5), ("b", 7), ("c", 0)]
    schema = partitioned(TABLE, Partitioning(range=range_spec(("host", "n"), splits, TABLE)))
    partitioner, codec = Partitioner(schema), RowCodec(schema)
    for host in ("a", "b", "b\0", "c", "d"):
        for n in (-6, -5, 0, 6, 7, 8):
            for tail in (b"", b"\xff"):
                row = {"host": host, "n": n, "tail": tail}
                assert partitioner.assign_row(row, codec.encode_key(row)) == bisect_right(
                    splits, (host, n)
                ), row


def test_a_range_over_the_whole_key_has_an_open_end_like_the_key() -> None:
    table = TableSchema((Column("key", "string", False),), ("key",))
    ranged = range_spec("key", ["m", "m\0"], table)
    assert ranged.splits == (b"m", b"m\0")
    partitioner = Partitioner(partitioned(table, Partitioning(range=ranged)))
    assert [partitioner.assign_row({"key": k}, k.encode()) for k in ("l", "m", "m\0", "ma")] == [0, 1, 2, 2]


def test_ranges_outside_the_bounds_are_skipped_in_every_bucket() -> None:
    partitioning = Partitioning(hash_spec("n", buckets=2), range_spec(["host"], ["b", "c", "d"], TABLE))
    partitioner = Partitioner(partitioned(TABLE, partitioning))
    b, c, d = (split for split in partitioning.range.splits)  # type: ignore[union-attr]
    assert partitioner.prune(KeyBounds(b, c)) == [1, 5]
    assert partitioner.prune(KeyBounds(b, c + b"\0")) == [1, 2, 5, 6]
    assert partitioner.prune(KeyBounds(b"", b)) == [0, 4]
    assert partitioner.prune(KeyBounds(d)) == [3, 7]
    assert partitioner.prune(NOWHERE) == []
    assert partitioner.prune(KeyBounds(c, b)) == []


def test_too_many_combinations_of_equalities_select_every_bucket() -> None:
    partitioner = Partitioner(partitioned(TABLE, Partitioning(hash_spec("host", "n", buckets=3))))
    many = tuple(bytes([place]) for place in range(40))
    assert partitioner.prune(KeyBounds(equal=(("host", many), ("n", many)))) == [0, 1, 2]
    assert partitioner.prune(KeyBounds(equal=(("host", many[:1]),))) == [0, 1, 2]
    assert len(partitioner.prune(KeyBounds(equal=(("host", many[:1]), ("n", many[:1]))))) == 1


def test_the_hash_spreads_neighbouring_keys_evenly() -> None:
    table = TableSchema((Column("k", "int64", False),), ("k",))
    partitioner = Partitioner(partitioned(table, Partitioning(hash_spec("k", buckets=8))))
    codec = RowCodec(table)
    batch = codec.arrow({"k": range(8000)})
    counts = Counter(partitioner.assign(batch, codec.encode_keys(batch)).tolist())
    assert sorted(counts) == list(range(8))
    assert all(850 < count < 1150 for count in counts.values())


@pytest.mark.parametrize(
    ("columns", "splits", "message"),
    [
        (["n"], [1], "prefix of the primary key"),
        (["nope"], [1], "prefix of the primary key"),
        ([], [], "prefix of the primary key"),
        (["host"], ["b", "a"], "sort them"),
        (["host"], ["b", "b"], "sort them"),
        (["host"], [("b", 1)], "2 values for 1"),
        (["host", "n"], ["b"], "1 values for 2"),
        (["host"], [5], "'host'"),
        (["host"], [None], "'host'"),
    ],
)
def test_splits_that_make_no_ranges_are_refused(columns: Any, splits: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        range_spec(columns, splits, TABLE)
