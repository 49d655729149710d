"""Blocks, filters and the order of keys: rows of any schema come out as they went in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.errors import Corruption
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import blocks, filters, parts
from ebla.storage.runs.blocks import PLACE, Block, Head, encode, open_block
from ebla.storage.runs.order import newest
from ebla.storage.runs.pieces import Piece, joined, of_rows, place_of
from ebla.storage.schema import COLUMNS, COMPRESSIONS, TableSchema
from tests.storage.tables import plain, tables
from tests.sweeps import examples

SEED = checksum.seed("tablet")
RUN = 7


def piece_of(codec: RowCodec, batch: pa.RecordBatch, gone: Sequence[bytes] = ()) -> Piece:
    rows: dict[bytes, bytes | None] = dict(zip(*codec.encode(batch, SEED), strict=True))
    rows.update(dict.fromkeys(gone))
    return of_rows(codec, rows, sorted(rows), SEED, "data", list(codec.header.bit))


def compressed(codec: RowCodec, compression: str) -> RowCodec:
    return RowCodec(msgspec.structs.replace(codec.schema, storage=COLUMNS, compression=compression))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_block_is_compressed_where_it_becomes_smaller(compression: str) -> None:
    plain_codec = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.binary())]), ["k"]))
    codec = compressed(plain_codec, compression)
    noise = np.random.default_rng(1).bytes(100 * 1000)
    for value, smaller in ((lambda k: b"x" * 100, True), (lambda k: noise[100 * k : 100 * k + 100], False)):
        rows = codec.arrow([{"k": k, "v": value(k)} for k in range(1000)])
        (without,) = encode(piece_of(plain_codec, rows), plain_codec, RUN, SEED)
        (cut,) = encode(piece_of(codec, rows), codec, RUN, SEED)
        assert cut.size == without.size == len(without.value)
        if compression == "none" or not smaller:
            assert cut.value == without.value
        else:
            assert len(cut.value) < len(without.value) / 3
        assert opened(codec, cut.value).piece(["v"]).rows(codec, ["k", "v"]) == rows


def opened(codec: RowCodec, value: bytes, number: int = 0, head: Head | None = None) -> Block:
    """With `head`, of the block before it was damaged, as by a reader that has kept it."""
    if head is not None:
        return Block(memoryview(value), head, codec, PLACE.pack(RUN, number), "data")
    return open_block(memoryview(value), codec, PLACE.pack(RUN, number), SEED, "data")


@settings(max_examples=examples(80))
@given(
    table=tables(rows_max=12, rows_min=1),
    rows=st.integers(1, 5),
    compression=st.sampled_from(COMPRESSIONS),
    data=st.data(),
)
def test_blocks_return_the_rows_of_any_schema(
    table: tuple[RowCodec, pa.RecordBatch], rows: int, compression: str, data: st.DataObject
) -> None:
    codec, batch = compressed(table[0], compression), table[1]
    keys = codec.encode(batch, SEED)[0]
    gone = data.draw(st.lists(st.sampled_from(keys), unique=True))
    names = data.draw(st.lists(st.sampled_from(codec.names), unique=True))
    piece = piece_of(codec, batch, gone)
    with patch.object(blocks, "ROWS", rows), patch.object(blocks, "WORTH", 1000):
        cuts = encode(piece, codec, RUN, SEED)
    for number, cut in enumerate(cuts):
        checksum.verify_row(PLACE.pack(RUN, number), cut.value, SEED)
    made = [opened(codec, cut.value, number) for number, cut in enumerate(cuts)]
    assert [block.rows for block in made] == [cut.rows for cut in cuts]
    assert all(cut.rows <= rows for cut in cuts)
    wanted = [name for name in names if name in codec.header.bit]
    whole = joined([block.piece(wanted) for block in made])
    assert whole.keys.to_pylist() == sorted(dict.fromkeys(keys))
    assert [(block.keys()[0].as_py(), block.keys()[-1].as_py()) for block in made] == [
        (cut.first, cut.last) for cut in cuts
    ]
    kept = {key: value for key, value in zip(*codec.encode(batch, SEED), strict=True) if key not in gone}
    expected = codec.decode([key + kept[key] for key in sorted(kept)], SEED, names)
    found = whole.present().rows(codec, names)
    found.validate(full=True)
    assert found.schema == expected.schema
    assert plain(found) == plain(expected)
    for block in made:
        for row in range(block.rows):
            key = block.key_at(row)
            assert block.is_gone(row) == (key in gone)
            assert key in gone or block.packed(row, SEED) == kept[key]
        stored = [block.key_at(row) for row in range(block.rows)]
        others = [key for key in (*keys, b"", b"\x00", *(key[:-1] for key in stored)) if key <= stored[-1]]
        places = {key: row for row, key in enumerate(stored)}
        for asked in (stored, [*others, *stored], *([key] for key in (*others, *stored))):
            assert block.places_of(asked) == [places.get(key) for key in asked]


@settings(max_examples=examples(100))
@given(
    table=tables(rows_max=9, rows_min=1),
    group=st.sampled_from([8, 64]),
    compression=st.sampled_from(COMPRESSIONS),
    is_known=st.booleans(),
    data=st.data(),
)
def test_a_single_read_of_a_damaged_block_is_right_or_refused(
    table: tuple[RowCodec, pa.RecordBatch], group: int, compression: str, is_known: bool, data: st.DataObject
) -> None:
    codec, batch = compressed(table[0], compression), table[1]
    rows = dict(zip(*codec.encode(batch, SEED), strict=True))
    gone = data.draw(st.sampled_from(list(rows)))
    with (
        patch.object(parts, "GROUP", group),
        patch.object(blocks, "GROUP", group),
        patch.object(blocks, "WORTH", 1000),
    ):
        value = bytearray(encode(piece_of(codec, batch, [gone]), codec, RUN, SEED)[0].value)
        head = opened(codec, bytes(value)).head if is_known else None
        at = data.draw(st.integers(0, len(value) - 1) | st.integers(0, min(len(value) - 1, 100)))
        if data.draw(st.booleans()):
            value[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del value[at:]
        with pytest.raises(Corruption):
            checksum.verify_row(PLACE.pack(RUN, 0), bytes(value), SEED)
        absent = [key[:-1] for key in rows if key[:-1] not in rows]
        for key in (*rows, *(key for key in absent if key <= max(rows))):
            try:
                block = opened(codec, bytes(value), head=head)
                (row,) = block.places_of([key])
                found = None if row is None or block.is_gone(row) else block.packed(row, SEED)
            except Corruption:
                continue
            assert found == (None if key == gone else rows.get(key))


def test_a_block_in_another_place_is_refused() -> None:
    codec = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int64())]), ["k"]))
    cut = encode(piece_of(codec, codec.arrow([{"k": 1}])), codec, RUN, SEED)[0]
    for key, seed in ((PLACE.pack(RUN, 1), SEED), (PLACE.pack(RUN, 0), SEED + 1)):
        with pytest.raises(Corruption, match="a header that fails its checksum"):
            open_block(memoryview(cut.value), codec, key, seed, "data")


@given(keys=st.lists(st.binary(max_size=24), max_size=40))
def test_the_last_of_equal_keys_is_kept_in_the_order_of_keys(keys: list[bytes]) -> None:
    _check_newest(keys)


@given(size=st.integers(1, 40), data=st.data())
def test_the_last_of_equal_keys_of_one_length_is_kept(size: int, data: st.DataObject) -> None:
    some = st.binary(min_size=size, max_size=size) | st.sampled_from(
        [bytes(size), b"\x01" + bytes(size - 1), bytes(size - 1) + b"\x01"]
    )
    _check_newest(data.draw(st.lists(some, max_size=40)))


def _check_newest(keys: list[bytes]) -> None:
    last = {key: place for place, key in enumerate(keys)}
    assert newest(pa.array(keys, pa.binary())).tolist() == [last[key] for key in sorted(last)]


@given(
    keys=st.lists(st.binary(max_size=4), unique=True), key=st.binary(max_size=4), skipped=st.integers(0, 3)
)
def test_the_place_of_a_key_is_the_number_of_keys_below_it(
    keys: list[bytes], key: bytes, skipped: int
) -> None:
    ordered = sorted(keys)
    array = pa.array(ordered, pa.binary())[skipped:]
    assert place_of(array, key) == sum(each < key for each in ordered[skipped:])


@given(
    keys=st.lists(st.binary(max_size=20), max_size=200, unique=True), others=st.lists(st.binary(max_size=8))
)
def test_a_filter_passes_each_of_its_keys(keys: list[bytes], others: list[bytes]) -> None:
    hashed = filters.hashes(pa.array(keys, pa.binary()))
    assert hashed.tolist() == [filters.hash_of(key) for key in keys]
    bits = filters.make(hashed)
    assert filters.may_have_many(bits, hashed).all()
    asked: list[Any] = [filters.hash_of(key) for key in (*keys, *others)]
    alone = [filters.may_have(bits, each, filters.mask_of(each)) for each in asked]
    assert alone == filters.may_have_many(bits, np.array(asked, np.uint64)).tolist()


def _text(number: int) -> bytes:
    return b"%d" % number


def _int64(number: int) -> bytes:
    return (number ^ 1 << 63).to_bytes(8, "big")  # as the key of an int64 column is encoded


@pytest.mark.parametrize(
    "key", [_text, _int64, lambda number: b"user/" + _text(number), lambda number: _int64(number << 20)]
)
def test_a_filter_refuses_most_other_keys(key: Callable[[int], bytes]) -> None:
    def hashed(start: int) -> Any:
        return filters.hashes(pa.array([key(number) for number in range(start, start + 10_000)], pa.binary()))

    bits = filters.make(hashed(0))
    for start in (10_000, 1_000_000, 123_456_789):
        assert filters.may_have_many(bits, hashed(start)).mean() < 0.02


def test_a_block_of_another_layout_is_damage() -> None:
    one = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"]))
    two = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int64())]), ["k"]))
    cut = encode(piece_of(one, one.arrow([{"k": 1, "v": 2}])), one, RUN, SEED)[0]
    with pytest.raises(Corruption, match="5 parts, not those of layout 0"):
        opened(two, cut.value)
