"""Batches of rows in columns: what goes in comes out, and no bytes, whatever they are, come out as something else."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.messages import UPSERT
from ebla.storage.errors import Corruption, InvalidArgument
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.batches import HEADER, Batch, encode
from ebla.storage.runs.columns import layout_of
from ebla.storage.runs.pieces import Piece
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.write import forms
from tests.storage.tables import plain, tables

SEED = checksum.seed("tablet")
SCHEMA = msgspec.structs.replace(
    TableSchema.from_arrow(
        pa.schema(
            [
                ("s", pa.string()),
                ("k", pa.int64()),
                ("v", pa.string()),
                ("b", pa.bool_()),
                ("l", pa.list_(pa.int64())),
            ]
        ),
        ["s", "k"],
    ),
    storage=COLUMNS,
)
CODEC = RowCodec(SCHEMA)
ROWS = CODEC.arrow(
    [
        {
            "s": "a\x00" + "y" * k,
            "k": k,
            "v": None if k % 3 else "v" * k,
            "b": k % 2 == 0,
            "l": [k] if k % 2 else None,
        }
        for k in range(20)
    ]
)


def piece_of(codec: RowCodec, rows: pa.RecordBatch) -> Piece:
    columnar = RowCodec(msgspec.structs.replace(codec.schema, storage=COLUMNS))
    made = forms.make(columnar, UPSERT, rows, codec.encode_keys(rows), np.zeros(len(rows), np.uint32))
    assert isinstance(made, Piece)
    return made


def with_checksum(body: bytes) -> bytes:
    return body + int(checksum.crc(body, SEED)).to_bytes(checksum.CRC_BYTES, "little")


@settings(max_examples=60, deadline=None)
@given(table=tables(rows_max=12, rows_min=1), data=st.data())
def test_a_batch_returns_the_rows_of_any_schema(
    table: tuple[RowCodec, pa.RecordBatch], data: st.DataObject
) -> None:
    codec, rows = table
    piece = piece_of(codec, rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    batch = Batch(encode(piece.slice(start, stop), codec, SEED), codec, codec.layout, SEED)
    batch.check()
    wanted = rows.slice(start, stop - start)
    assert plain(batch.own().rows(codec, codec.names)) == plain(wanted)
    keys, values = codec.encode(wanted, SEED)
    assert batch.keys().to_pylist() == keys
    assert [batch.packed(row, SEED) for row in range(batch.rows)] == values
    places = data.draw(st.lists(st.integers(0, batch.rows - 1), min_size=1, unique=True))
    some = batch.only(places)
    assert [some.packed(row, SEED) for row in range(some.rows)] == [values[place] for place in places]


@pytest.mark.parametrize("where", ["a byte", "the tablet", "the end"])
def test_a_damaged_or_misdirected_batch_is_refused(where: str) -> None:
    data = encode(piece_of(CODEC, ROWS), CODEC, SEED)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        wrong = {"a byte": bytes(changed), "the tablet": data, "the end": data[:place]}[where]
        with pytest.raises(Corruption, match="a wrong checksum, or is for another tablet"):
            Batch(wrong, CODEC, 0, SEED + 1 if where == "the tablet" else SEED)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_wrong_bytes_under_a_right_checksum_are_refused_or_are_rows(changes: list[tuple[int, int]]) -> None:
    """A program that is not ours may send them, and no server may end, or read beyond them."""
    body = bytearray(encode(piece_of(CODEC, ROWS), CODEC, SEED)[: -checksum.CRC_BYTES])
    for place, value in changes:
        body[place % len(body)] = value
    try:
        batch = Batch(with_checksum(bytes(body)), CODEC, 0, SEED)
        batch.check()
    except (Corruption, InvalidArgument):
        return
    rows = batch.own().rows(CODEC, ("v", "b"))
    rows.validate(full=True)
    assert rows.num_rows == batch.rows == len(batch.keys())


@pytest.mark.parametrize("size", [*range(12), 60])
def test_a_batch_without_a_header_is_refused(size: int) -> None:
    with pytest.raises(Corruption):
        Batch(with_checksum(bytes(size)), CODEC, 0, SEED).check()


def _place(body: bytearray, number: int) -> int:
    place: int = struct.unpack_from("<I", body, HEADER.size + 4 * number)[0]
    return place


def _refused(body: bytearray, why: str) -> None:
    with pytest.raises(Corruption, match=why):
        Batch(with_checksum(bytes(body)), CODEC, 0, SEED).check()


def _body() -> bytearray:
    return bytearray(encode(piece_of(CODEC, ROWS), CODEC, SEED)[: -checksum.CRC_BYTES])


@pytest.mark.parametrize("column", ["", "v", "l"])
@pytest.mark.parametrize(
    ("row", "value"), [(1, 1 << 30), (1, -8), (20, 1 << 30), (0, 3), (10, -(1 << 30)), (11, 1_000_000_000)]
)
def test_offsets_that_lead_beyond_the_data_are_refused(column: str, row: int, value: int) -> None:
    body = _body()
    offsets = layout_of(CODEC).columns[column].offsets if column else 0
    assert offsets is not None
    struct.pack_into("<i", body, _place(body, offsets) + 4 * row, value)
    _refused(body, "offsets that do not ascend from 0|a part outside of it|parts that overlap")


@pytest.mark.parametrize("column", ["v", "l"])
def test_values_under_nulls_are_refused(column: str) -> None:
    """Nested values under nulls are not decoded, and a single row is read where its offsets say."""
    body = _body()
    offsets = layout_of(CODEC).columns[column].offsets
    assert offsets is not None
    at = _place(body, offsets)
    ends = list(struct.unpack_from("<21i", body, at))
    null = next(
        row
        for row in range(1, 20)
        if ROWS.column(column)[row].as_py() is None and ends[row + 1] < ends[row + 2]
    )
    struct.pack_into("<i", body, at + 4 * (null + 1), ends[null + 1] + 1)
    _refused(body, "values of column")


def test_parts_that_overlap_are_refused() -> None:
    """Otherwise a small batch could need much memory."""
    body = _body()
    values = layout_of(CODEC).columns["v"].values
    struct.pack_into("<I", body, HEADER.size + 4 * layout_of(CODEC).columns["l"].values, _place(body, values))
    _refused(body, "parts that overlap")


def rows_with(**changes: Any) -> pa.RecordBatch:
    return CODEC.arrow([{"s": "s", "k": 1, "v": "v", "b": True, "l": [], **changes}])


@pytest.mark.parametrize(
    ("rows", "message"),
    [(rows_with(s="x" * 600), "a key is 1 to"), (rows_with(v="x" * (1 << 20)), "a row is at most")],
)
def test_rows_beyond_the_limits_are_refused(rows: pa.RecordBatch, message: str) -> None:
    closed = [pa.array(sizes, pa.uint16()) for sizes in CODEC.keys.closed_lengths(rows)]
    columns = {name: rows.column(name) for name in CODEC.header.bit}
    data = encode(Piece(CODEC.keys.encode(rows), tuple(closed), columns), CODEC, SEED)
    with pytest.raises(InvalidArgument, match=message):
        Batch(data, CODEC, 0, SEED).check()


def test_a_null_in_a_column_that_may_have_none_is_refused() -> None:
    strict = RowCodec(
        TableSchema.from_arrow(pa.schema([("k", pa.int64()), pa.field("v", pa.int64(), False)]), ["k"])
    )
    keys = strict.keys.encode(strict.arrow([{"k": 1, "v": 1}]))
    data = encode(Piece(keys, (), {"v": pa.array([None], pa.int64())}), strict, SEED)
    with pytest.raises(InvalidArgument, match="column 'v' may not be null"):
        Batch(data, strict, 0, SEED).check()
