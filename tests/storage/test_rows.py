"""Rows as bytes: encoding and decoding, as batches and single rows, and refusals."""

from __future__ import annotations

import os
from contextlib import suppress
from decimal import Decimal
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.errors import Corruption, InvalidArgument
from ebla.storage.rows import checksum
from ebla.storage.rows.patching import FEW_ROWS
from ebla.storage.rows.rows import CHUNK_ROWS, RowCodec
from ebla.storage.schema import ROW_BYTES_MAX, Column, TableSchema
from tests.storage.tables import batches, plain, schemas, tables

SEED = checksum.seed("tablet-1")
MANY = FEW_ROWS + 1  # rows that are patched as a batch


def schema(*columns: Column) -> TableSchema:
    """A schema whose key consists of the columns with names that begin with k."""
    return TableSchema(columns, tuple(c.name for c in columns if c.name.startswith("k")))


PLAIN = schema(Column("k", "int64", False), Column("name", "string"), Column("size", "int32"))


def joined(rows: RowCodec, batch: pa.RecordBatch, seed: int = SEED) -> list[bytes]:
    return list(map(add, *rows.encode(batch, seed)))


# -- encoding and decoding -----------------------------------------------------------------------------------


@given(tables())
@settings(max_examples=60, deadline=None)
def test_every_batch_is_decoded_as_it_was_encoded(table: Any) -> None:
    rows, batch = table
    back = rows.decode(joined(rows, batch), SEED)
    assert back.schema.equals(rows.schema.arrow())
    assert plain(back) == plain(batch)
    back.validate(full=True)


@given(tables(rows_max=6))
@settings(max_examples=60, deadline=None)
def test_single_rows_and_batches_have_equal_bytes_and_values(table: Any) -> None:
    rows, batch = table
    values = batch.to_pylist()
    keys, encoded = rows.encode(batch, SEED)
    assert [rows.encode_row(row, SEED) for row in values] == list(zip(keys, encoded, strict=True))
    single = [rows.decode_row(*pair, SEED) for pair in zip(keys, encoded, strict=True)]
    assert plain(single) == plain(rows.decode(joined(rows, batch), SEED))
    assert [list(row) for row in single] == [rows.names] * len(single)


@given(tables(), st.data())
@settings(max_examples=35, deadline=None)
def test_chosen_columns_come_in_the_requested_order(table: Any, data: st.DataObject) -> None:
    rows, batch = table
    chosen = data.draw(st.lists(st.sampled_from(rows.names), unique=True))
    keys, values = rows.encode(batch, SEED)
    back = rows.decode(list(map(add, keys, values)), SEED, chosen)
    assert back.num_rows == batch.num_rows
    assert back.schema.names == chosen
    wanted = plain(rows.decode(list(map(add, keys, values)), SEED))
    assert plain(back) == [{name: row[name] for name in chosen} for row in wanted]
    single = [rows.decode_row(*pair, SEED, chosen) for pair in zip(keys, values, strict=True)]
    assert plain(single) == plain(back)


@given(st.data())
@settings(max_examples=35, deadline=None)
def test_a_patch_replaces_the_named_columns_only(data: st.DataObject) -> None:
    table = data.draw(schemas(values_max=6))
    names = [column.name for column in table.value_columns()]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    rows, some = RowCodec(table), RowCodec(table, chosen)
    old = data.draw(batches(table))
    new = pa.RecordBatch.from_arrays(
        [
            column if name in table.key else fresh
            for name, column, fresh in zip(
                table.arrow().names,
                old.columns,
                data.draw(batches(table, old.num_rows, old.num_rows)).columns,
                strict=True,
            )
        ],
        schema=table.arrow(),
    )
    keys, patches = some.encode(new.select(some.names), SEED)
    made = rows.patch(joined(rows, old), keys, patches, some, SEED)
    whole = [(new if name in chosen else old).column(name) for name in rows.names]
    assert made == rows.encode(pa.RecordBatch.from_arrays(whole, schema=table.arrow()), SEED)[1]
    assert made * MANY == rows.patch(joined(rows, old) * MANY, keys * MANY, patches * MANY, some, SEED)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_row_is_patched_or_refused_alike_alone_and_among_many(
    data: st.DataObject,
) -> None:
    table = data.draw(schemas(values_max=4))
    names = [column.name for column in table.value_columns()]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    rows, some = RowCodec(table), RowCodec(table, chosen)
    batch = data.draw(batches(table, 1, 1))
    (key,), (value,) = rows.encode(batch, SEED)
    _, (patch,) = some.encode(batch.select(some.names), SEED)
    spoilt = [bytearray(value[: -checksum.CRC_BYTES]), bytearray(patch[: -checksum.CRC_BYTES])]
    for body in spoilt:
        for place in data.draw(st.lists(st.integers(0, max(0, len(body) - 1)), max_size=2)) if body else ():
            body[place] = data.draw(st.sampled_from([0, 1, 2, 255]))
    old, new = (checksum.seal(key, bytes(body), SEED) for body in spoilt)

    def patched(times: int) -> Any:
        try:
            return rows.patch([key + old] * times, [key] * times, [new] * times, some, SEED)[0]
        except Corruption as error:
            return str(error)

    assert patched(1) == patched(MANY)


def test_batches_longer_than_a_chunk_are_encoded_whole() -> None:
    rows = RowCodec(PLAIN)
    count = 2 * CHUNK_ROWS + 3
    batch = rows.arrow(
        {"k": range(count), "name": [f"{n}" * (n % 7) for n in range(count)], "size": [None] * count}
    )
    whole = joined(rows, batch)
    assert rows.decode(whole, SEED).equals(batch)
    assert whole[-1] == b"".join(rows.encode_row(batch.slice(count - 1).to_pylist()[0], SEED))


def test_zero_rows_work_on_every_path() -> None:
    rows, some = RowCodec(PLAIN), RowCodec(PLAIN, ["name"])
    assert rows.encode(rows.arrow([]), SEED) == ([], [])
    assert rows.decode([], SEED).equals(rows.arrow([]))
    assert rows.decode([], SEED, []).num_rows == 0
    assert rows.patch([], [], [], some, SEED) == []


def test_bytes_under_a_null_are_not_stored() -> None:
    rows = RowCodec(PLAIN)
    validity = pa.py_buffer(b"\x01")
    junk = pa.Array.from_buffers(pa.int32(), 2, [validity, pa.py_buffer(b"\x07\0\0\0" * 2)])
    text = pa.Array.from_buffers(
        pa.string(), 2, [validity, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x02\0\0\0"), pa.py_buffer(b"ab")]
    )
    batch = rows.arrow(pa.table({"k": [1, 2], "name": text, "size": junk}))
    assert rows.encode(batch, SEED) == rows.encode(rows.arrow(batch.to_pylist()), SEED)


def test_every_row_may_have_a_tablet_of_its_own() -> None:
    rows = RowCodec(PLAIN)
    batch = rows.arrow({"k": [1, 2, 3]})
    seeds = np.array([checksum.seed("a"), checksum.seed("b"), checksum.seed("a")], np.uint32)
    mixed = list(map(add, *rows.encode(batch, seeds)))
    assert rows.decode([mixed[0], mixed[2]], checksum.seed("a"), ["k"]).to_pydict() == {"k": [1, 3]}
    assert mixed[1] == joined(rows, batch, checksum.seed("b"))[1]
    with pytest.raises(Corruption, match="1 of 3"):
        rows.decode(mixed, checksum.seed("a"))


def test_the_bytes_of_a_row_never_change() -> None:
    table = schema(
        Column("k1", "string", False),
        Column("k2", "int16", False),
        Column("text", "string"),
        Column("small", "int8"),
        Column("money", "decimal", precision=5, scale=2),
        Column("blob", "binary"),
        Column("flag", "bool"),
    )
    row = {
        "k1": "a\0",
        "k2": 1,
        "text": "hé",
        "small": None,
        "money": Decimal("-1.00"),
        "blob": b"xyz",
        "flag": True,
    }
    key, value = RowCodec(table).encode_row(row, checksum.seed("t"))
    assert key.hex(" ", -4) == "61000100 008001"
    bitmap, small, money, flag = "02", "00", "9c" + "ff" * 15, "01"
    ends, closed = "03000000" + "06000000", "0500"
    body = "68c3a9" + "78797a" + bitmap + small + money + flag + ends + closed
    assert value.hex() == body + "fb7f6230"


# -- rot -----------------------------------------------------------------------------------------------------


@given(tables(rows_min=1, rows_max=4), st.data())
@settings(max_examples=40, deadline=None)
def test_any_flipped_bit_is_corruption(table: Any, data: st.DataObject) -> None:
    rows, batch = table
    keys, values = rows.encode(batch, SEED)
    place = data.draw(st.integers(0, len(keys) - 1))
    whole = bytearray(keys[place] + values[place])
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    block = list(map(add, keys, values))
    block[place] = bytes(whole)
    with pytest.raises(Corruption, match=f"row {place} begins {whole[:64].hex()}"):
        rows.decode(block, SEED)
    key, value = bytes(whole[: len(keys[place])]), bytes(whole[len(keys[place]) :])
    with pytest.raises(Corruption, match=key.hex()):
        rows.decode_row(key, value, SEED)


def test_a_row_under_another_key_or_in_another_tablet_is_corruption() -> None:
    rows = RowCodec(PLAIN)
    (key, other), (value, _) = rows.encode(rows.arrow({"k": [1, 2]}), SEED)
    with pytest.raises(Corruption, match=other.hex()):
        rows.decode_row(other, value, SEED)
    with pytest.raises(Corruption, match=r"of data/t1 fail") as raised:
        rows.decode([key + value], checksum.seed("tablet-2"), path="data/t1")
    assert raised.value.path == "data/t1"


def test_all_damaged_rows_of_a_block_are_counted() -> None:
    rows = RowCodec(PLAIN)
    block = joined(rows, rows.arrow({"k": range(100)}))
    checksum.verify(block, SEED)
    checksum.verify([], SEED)
    for place in (7, 8, 99):
        block[place] = block[place][:-1] + bytes([block[place][-1] ^ 0x80])
    with pytest.raises(Corruption, match="3 of 100 rows"):
        checksum.verify(block, SEED)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_a_block_passes_exactly_when_each_of_its_rows_does(bodies: list[bytes], seed: int) -> None:
    good = [checksum.seal(b"k", body, seed) for body in bodies]
    checksum.verify([b"k" + value for value in good], seed)
    for value in good:
        checksum.verify_row(b"k", value, seed)
    with pytest.raises(Corruption):
        checksum.verify([b"k" + value for value in good], seed ^ 1)


@given(schemas(), st.lists(st.binary(max_size=80), max_size=4))
@settings(max_examples=60, deadline=None)
def test_bytes_that_are_no_rows_are_refused_without_checksums(
    table: TableSchema, garbage: list[bytes]
) -> None:
    rows = RowCodec(table)
    tail = rows.header.tail_bytes
    for block in (garbage, [b"\0" * tail + each + b"\0" * tail for each in garbage]):
        with suppress(Corruption):
            assert rows.decode(block, None).num_rows == len(block)
        for each in block:
            with suppress(Corruption, InvalidArgument):  # InvalidArgument: a time beyond Python
                assert list(rows.decode_row(each[:4], each[4:], None)) == rows.names


def test_rows_of_another_schema_are_refused_with_a_valid_checksum() -> None:
    narrow, wide = RowCodec(schema(Column("k", "int8", False))), RowCodec(PLAIN)
    key, value = narrow.encode_row({"k": 1}, SEED)
    with pytest.raises(Corruption, match="not a row of this schema"):
        wide.decode([key + value], SEED)
    with pytest.raises(Corruption, match="not a row of this schema"):
        wide.decode_row(key, value, SEED)


@pytest.mark.parametrize(
    ("key", "texts", "ends", "closed"),
    [
        (b"a\0\0z", b"ab", (5, 2), 3),  # the first text ends beyond the second
        (b"a\0\0z", b"ab", (1, 4), 3),  # the texts begin inside the closed key column
        (b"a\0\0z", b"ab", (1, 2), 5),  # a key column longer than the key
        (b"a\0\0z", b"ab", (1, 2), 1),  # a key column shorter than its end mark
    ],
)
def test_contradictory_offsets_are_refused(
    key: bytes, texts: bytes, ends: tuple[int, int], closed: int
) -> None:
    rows = RowCodec(
        schema(
            Column("k1", "string", False),
            Column("k2", "string", False),
            Column("a", "binary"),
            Column("b", "binary"),
        )
    )
    good = checksum.seal(key, texts + rows.header.packed.pack(b"\0", 1, 2, 3), SEED)
    expected = {"k1": "a", "k2": "z", "a": b"a", "b": b"b"}
    assert rows.decode([key + good], SEED).to_pylist() == [expected]
    bad = checksum.seal(key, texts + rows.header.packed.pack(b"\0", *ends, closed), SEED)
    with pytest.raises(Corruption, match="row 1 is not a row of this schema"):
        rows.decode([key + good, key + bad], SEED)


def test_the_digest_depends_on_the_kind_the_columns_and_the_borders_of_keys_and_values() -> None:
    digests = [
        checksum.rows_digest(kind, columns, keys, values)
        for kind, columns, keys, values in (
            (0, (), [b"ab"], [b"c"]),
            (0, (), [b"a"], [b"bc"]),
            (0, (), [b"a", b"b"], [b"c"]),
            (0, (), [b"a", b"b", b"c"], []),
            (0, (), [b"ab", b"c"], []),
            (0, (), [], [b"ab", b"c"]),
            (1, (), [b"ab"], [b"c"]),
            (0, ("a",), [b"ab"], [b"c"]),
            (0, ("b",), [b"ab"], [b"c"]),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert checksum.rows_digest(0, (), [b"ab"], [b"c"]) == digests[0] < 2**64


# -- limits ---------------------------------------------------------------------------------------------------


def test_a_row_over_the_limit_is_refused_with_its_number_and_its_largest_column() -> None:
    rows = RowCodec(PLAIN)
    room = ROW_BYTES_MAX - 8 - rows.header.tail_bytes
    fits, over = {"k": 1, "name": "x" * room}, {"k": 2, "name": "x" * (room + 1)}
    key, value = rows.encode_row(fits, SEED)
    assert len(key) + len(value) == ROW_BYTES_MAX
    assert rows.encode(rows.arrow([fits]), SEED) == ([key], [value])
    words = f"limit of {ROW_BYTES_MAX}, and {room + 1} of them are in column 'name'; keep large values"
    for row, attempt in (
        (1, lambda: rows.encode(rows.arrow([fits, over]), SEED)),
        (None, lambda: rows.encode_row(over, SEED)),
    ):
        with pytest.raises(InvalidArgument, match=words) as raised:
            attempt()
        assert (raised.value.row, raised.value.column) == (row, "name")


def test_a_table_may_consist_of_its_key_only() -> None:
    rows = RowCodec(schema(Column("k1", "binary", False), Column("k2", "bool", False)))
    batch = rows.arrow({"k1": [os.urandom(3), b"", b"\0"], "k2": [True, False, True]})
    assert rows.decode(joined(rows, batch), SEED).equals(batch)
