"""Rows as bytes: Arrow batches to LMDB keys and values and back, with no Python code per row.

    key      the encoded primary key: byte order is key order (storage/rows/keys.py)
    value    the other columns, a header at the end and a checksum over key and value (storage/rows/header.py)

A RowCodec belongs to one schema, and to all of its value columns or some (the patch of an UPDATE). Single rows have
their own path in plain Python; both paths give equal bytes and equal values. `decode` and `decode_row` verify rows,
unless the caller passes no seed.

Rows of an altered table are read in the layout that they name, and written in the newest. A column that a row lacks has
its default. Without a seed all rows count as ones of the newest layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import add
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.storage.errors import Corruption, invalid_column
from ebla.storage.rows import checksum, convert, nested, ragged
from ebla.storage.rows.fixed import nulls
from ebla.storage.rows.header import Header
from ebla.storage.rows.keys import KeyCodec, check_keys
from ebla.storage.rows.patching import FEW_ROWS, Opener, Patching
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.single import SingleRows, refuse_row
from ebla.storage.schema import ROW_BYTES_MAX, TableSchema

CHUNK_ROWS = 8192  # encoded at a time: the pieces stay in the processor's cache
PATCHES_MAX = 64  # column sets whose codec is cached
WIDE_CHUNK_ROWS = 1024  # for large rows: ROW_BYTES_MAX times this fits Arrow's 32-bit offsets


class Block(NamedTuple):
    """Rows split by offsets only: key i is data[starts[i]:splits[i]], its value follows. `ends[i, j]` is the end in `data` of
    the value's variable column j."""

    data: bytes
    starts: Array
    splits: Array
    header: Array
    ends: Array


class RowCodec:
    """`columns`: the value columns of values, in this order; None for all of the schema. `layout`: of written rows; None for
    the newest of the schema."""

    def __init__(
        self, schema: TableSchema, columns: Sequence[str] | None = None, layout: int | None = None
    ) -> None:
        keys = schema.key_columns()
        if columns is None:
            chosen, names = schema.value_columns(), [column.name for column in schema.columns]
        else:
            for name in columns:
                if name in schema.key:
                    raise invalid_column(name, "is part of the key and cannot be set")
            chosen, names = [schema.column(name) for name in columns], [*schema.key, *columns]
        self.schema = schema
        self.names = names
        self.keys = KeyCodec(keys)
        self.layout = schema.layout if layout is None else layout
        self.header = Header(chosen, len(self.keys.closed_names), self.layout)
        self._older: dict[int, RowCodec] = {}
        self._patches: dict[tuple[tuple[str, ...], int], RowCodec] = {}
        self._opener = Opener(self.keys, self.header)
        self._patching: Patching | None = None  # for the rows that this codec last patched
        self.arrow_schema = schema.arrow(names)
        self._columns = [schema.column(name) for name in names]
        self.single = SingleRows(self._columns, self.keys, self.header)
        self.encode_key, self.encode_row = self.single.encode_key, self.single.encode_row

    def arrow_of(self, names: Sequence[str]) -> pa.Schema:
        """As of the schema, kept for the next batch."""
        return _arrow_of(self, tuple(names))

    # -- batches in ------------------------------------------------------------------------------------------

    def arrow(self, rows: Any) -> pa.RecordBatch:
        """User rows as one batch of exactly this codec's columns (see storage/rows/convert.py)."""
        return convert.to_batch(rows, self._columns, self.arrow_schema)

    def encode_keys(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The keys; `rows` need only have the key columns."""
        keys = self.keys.encode(rows)
        check_keys(keys, self.keys.columns, rows)
        return keys

    def encode(
        self, rows: pa.RecordBatch, seeds: int | Array, keys: pa.BinaryArray | None = None
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of a batch from `arrow`. `seeds`: of the rows' tablet, or one per row."""
        if keys is None:
            keys = self.encode_keys(rows)
        count = len(keys)
        header = np.zeros(count, self.header.dtype)
        null_bits = np.zeros((count, self.header.bitmap_bytes * 8), np.bool_)
        for column in self.header.columns:
            array = rows.column(column.name)
            assert array.type == column.arrow_type(), (column.name, array.type)
            convert.refuse_nulls(column, array)
            if array.null_count:
                null_bits[:, self.header.bit[column.name]] = nulls(array)
        header["nulls"] = np.packbits(null_bits, axis=1, bitorder="little")
        for name, fixed in self.header.fixed.items():
            header[self.header.slot(name)] = fixed.values(rows.column(name))
        for place, sizes in enumerate(self.keys.closed_lengths(rows)):
            header["closed"][:, place] = sizes
        texts = self._texts(rows)
        return self._assemble(keys, texts, header, seeds)

    def sizes(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> Array:
        """The encoded size of each row, key included. Raises the error of `encode` for a row that is too large."""
        sizes = ragged.lengths(keys).astype(np.int64) + self.header.tail_bytes
        texts = self._texts(rows)
        for text in texts:
            sizes += ragged.lengths(text)
        self._check_rows(sizes, texts)
        return sizes

    def _texts(self, rows: pa.RecordBatch) -> list[pa.BinaryArray]:
        columns = [column for column in self.header.columns if column.variable]
        return [nested.to_binary(column, rows.column(column.name)) for column in columns]

    def _assemble(
        self, keys: pa.BinaryArray, texts: list[pa.BinaryArray], header: Array, seeds: int | Array
    ) -> tuple[list[bytes], list[bytes]]:
        """Fill in the ends and the checksums, and cut keys and values out of the joined rows."""
        count = len(keys)
        assert not isinstance(seeds, np.ndarray) or len(seeds) == count
        key_sizes = ragged.lengths(keys).astype(np.int64)
        ends = np.zeros(count, np.int64)
        for place, text in enumerate(texts):
            ends = ends + ragged.lengths(text)
            header["ends"][:, place] = ends
        self._check_rows(key_sizes + ends + self.header.tail_bytes, texts)
        header["crc"] = 0
        if self.header.tag:
            header["tag"] = self.header.tag
        total = int(key_sizes.sum() + ends.sum()) + header.nbytes
        step = CHUNK_ROWS if total < ragged.BYTES_MAX else WIDE_CHUNK_ROWS
        found_keys: list[bytes] = []
        found_values: list[bytes] = []
        for start in range(0, count, step):
            piece = slice(start, start + step)
            joined = ragged.join(
                [keys[piece], *(text[piece] for text in texts), ragged.constant(header[piece])]
            )
            each = seeds[piece].tolist() if isinstance(seeds, np.ndarray) else int(seeds)
            both = _seal(joined, key_sizes[piece], each, self.header.mark)
            found_keys += both[0::2]
            found_values += both[1::2]
        return found_keys, found_values

    def _check_rows(self, sizes: Array, texts: Sequence[pa.BinaryArray]) -> None:
        if len(sizes) and sizes.max() > ROW_BYTES_MAX:
            row = int(np.argmax(sizes > ROW_BYTES_MAX))
            lengths = [int(ragged.lengths(text)[row]) for text in texts]
            refuse_row(int(sizes[row]), dict(zip(self.header.variable, lengths, strict=True)), row)

    # -- batches out -----------------------------------------------------------------------------------------

    def decode(
        self,
        joined: list[bytes],
        seed: int | None,
        columns: Sequence[str] | None = None,
        path: str | None = None,
    ) -> pa.RecordBatch:
        """The rows `joined` (key + value each) as Arrow: `columns` in that order, or all.

        Raises Corruption, with `path`, for a row that fails its checksum (`seed` None: not checked) or does not fit the
        schema.
        """
        wanted = self.names if columns is None else list(columns)
        try:
            return self._decode(joined, seed, wanted, path)
        except checksum.OtherLayouts as error:
            return self._decode_mixed(joined, error.layouts, wanted, path)

    def _decode(
        self, joined: list[bytes], seed: int | None, wanted: list[str], path: str | None
    ) -> pa.RecordBatch:
        """Rows of this codec's layout."""
        block = self._open(joined, seed, path)
        closed = [block.header["closed"][:, place] for place in range(len(self.keys.closed_names))]
        keys = self.keys.decode(block.data, block.starts, block.splits, closed, wanted) if joined else {}
        null_bits = np.unpackbits(block.header["nulls"], axis=1, bitorder="little").view(np.bool_)
        arrays = []
        for name in wanted:
            column = self.schema.column(name)
            if not joined:
                arrays.append(pa.array([], column.arrow_type()))
            elif name in keys:
                arrays.append(keys[name])
            else:
                null = null_bits[:, self._bit(name)]
                arrays.append(self._column(block, name, null if null.any() else None, path))
        if not wanted:
            return _without_columns(len(joined))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_of(wanted))

    def _decode_mixed(
        self, joined: list[bytes], layouts: Sequence[int], wanted: list[str], path: str | None
    ) -> pa.RecordBatch:
        """Verified rows of several layouts: each decoded by its own codec, then put back in order."""
        codecs = {layout: self.of_layout(layout, path) for layout in sorted(dict.fromkeys(layouts))}
        if not wanted:
            return _without_columns(len(joined))
        columns = [self.schema.column(name) for name in wanted]
        parts: list[pa.RecordBatch] = []
        order: list[int] = []
        for layout, codec in codecs.items():
            places = [place for place, each in enumerate(layouts) if each == layout]
            held = [name for name in wanted if name in codec.names]
            found = codec._decode([joined[place] for place in places], None, held, path)
            arrays = [
                found.column(column.name) if column.name in held else convert.defaults(column, len(places))
                for column in columns
            ]
            parts.append(pa.RecordBatch.from_arrays(arrays, schema=self.arrow_of(wanted)))
            order += places
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(parts).combine_chunks().take(pa.array(back)).to_batches()[0]

    def of_layout(self, layout: int, path: str | None) -> RowCodec:
        """The codec for rows of this layout."""
        if layout == self.layout:
            return self
        codec = self._older.get(layout)
        if codec is None:
            if layout > self.schema.version or self.schema.layout_of(layout) != layout:
                raise Corruption(
                    f"rows{f' of {path}' if path else ''} are of layout {layout}, which version {self.schema.version} of "
                    "the table does not know",
                    path=path,
                )
            codec = self._older[layout] = RowCodec(self.schema.in_layout(layout), None, layout)
        return codec

    def layout_in(self, version: int) -> int:
        """The layout of rows that were written in a version of the table."""
        return self.layout if version == self.schema.version else self.schema.layout_of(version)

    def of_patch(self, columns: tuple[str, ...], version: int) -> RowCodec:
        """The codec of UPDATE values that were encoded in `version`, with the column names of then."""
        codec = self._patches.get((columns, version))
        if codec is None:
            if len(self._patches) >= PATCHES_MAX:
                self._patches.clear()
            codec = self._patches[columns, version] = self._of_patch(columns, version)
        return codec

    def _of_patch(self, columns: tuple[str, ...], version: int) -> RowCodec:
        schema = self.schema
        layout = schema.layout_of(version)
        if not schema.renewed:
            return RowCodec(schema, columns)
        asked = [schema.called(name, version).id for name in columns]
        then = schema.in_layout(layout)
        held = {column.id: column.name for column in then.columns}
        return RowCodec(then, [held[each] for each in asked], layout)

    def _renewed(
        self, joined: list[bytes], layouts: Sequence[int], keys: Sequence[bytes], seed: int
    ) -> list[bytes]:
        """The rows (key and value joined) in the newest layout. Raises InvalidArgument for one that becomes too large."""
        rows = self._decode_mixed(joined, layouts, self.names, None)
        return list(map(add, keys, self.encode(rows, seed, pa.array(keys, pa.binary()))[1]))

    def verify(self, joined: list[bytes], seed: int) -> None:
        """Raise Corruption unless these are rows of this codec's layout."""
        self._open(joined, seed, None)

    def patch(
        self,
        old_joined: list[bytes],
        patch_keys: list[bytes],
        patch_values: list[bytes],
        patch_codec: RowCodec,
        seed: int,
    ) -> list[bytes]:
        """The new full values, row by row: `patch_codec`'s columns from the patch, the others from `old_joined`."""
        assert len(old_joined) == len(patch_keys) == len(patch_values)
        assert all(map(bytes.startswith, old_joined, patch_keys)), "patches of other rows"
        if len(patch_keys) <= FEW_ROWS:
            one = patch_codec._onto(self)
            few = [
                one.patch(old, key, patch, seed)
                for old, key, patch in zip(old_joined, patch_keys, patch_values, strict=True)
            ]
            made = [value for value in few if value is not None]
            if len(made) == len(few):
                return made
        try:
            old = self._open(old_joined, seed, None)
        except checksum.OtherLayouts as error:
            old = self._open(self._renewed(old_joined, error.layouts, patch_keys, seed), seed, None)
        new = patch_codec._open(list(map(add, patch_keys, patch_values)), seed, None)
        null_bits = np.unpackbits(old.header["nulls"], axis=1, bitorder="little")
        new_bits = np.unpackbits(new.header["nulls"], axis=1, bitorder="little")
        header = old.header.copy()
        patched = [name for name in patch_codec.header.bit if name in self.header.bit]  # without dropped ones
        for name in patched:
            null_bits[:, self._bit(name)] = new_bits[:, patch_codec._bit(name)]
            if name in self.header.fixed:
                header[self.header.slot(name)] = new.header[patch_codec.header.slot(name)]
        header["nulls"] = np.packbits(null_bits, axis=1, bitorder="little")
        texts = [
            patch_codec._text(new, name) if name in patched else self._text(old, name)
            for name in self.header.variable
        ]
        keys = pa.array(patch_keys, pa.binary())
        return self._assemble(keys, texts, header, seed)[1]

    def _onto(self, rows: RowCodec) -> Patching:
        if self._patching is None or self._patching.rows is not rows._opener:
            self._patching = Patching(rows._opener, self._opener)
        return self._patching

    def _open(self, joined: list[bytes], seed: int | None, path: str | None) -> Block:
        """Verify the rows and find their pieces. All offsets are checked against the row."""
        tail, fixed_bytes = self.header.tail_bytes, self.keys.fixed_bytes
        data = checksum.verified_block(joined, seed, path, self.layout)
        ragged.check_total(len(data))
        sizes = np.fromiter(map(len, joined), np.int64, len(joined))
        stops = np.cumsum(sizes + checksum.BRIDGE_BYTES) - checksum.BRIDGE_BYTES
        starts = stops - sizes
        _refuse_misfits(sizes < tail + fixed_bytes, joined, path)
        if joined:
            header = ragged.window(np.frombuffer(data, np.uint8), tail)[stops - tail].view(self.header.dtype)
        else:
            header = np.zeros(0, self.header.dtype)
        ends = header["ends"].astype(np.int64)
        body = ends[:, -1] if ends.shape[1] else np.zeros(len(joined), np.int64)
        splits = stops - tail - body
        closed = header["closed"].astype(np.int64)
        spare = splits - starts - fixed_bytes - closed.sum(axis=1)
        misfit = spare < 0 if self.keys.ends_open else spare != 0
        if closed.shape[1]:
            misfit |= (closed < 2).any(axis=1)
        if ends.shape[1] > 1:
            misfit |= (np.diff(ends, axis=1) < 0).any(axis=1)
        _refuse_misfits(misfit, joined, path)
        return Block(data, starts, splits, header, ends + splits[:, None])

    def _bit(self, name: str) -> int:
        if name not in self.header.bit:
            raise invalid_column(name, f"is not in these rows, which hold {', '.join(self.names)}")
        return self.header.bit[name]

    def _column(self, block: Block, name: str, null: Array | None, path: str | None) -> pa.Array:
        fixed = self.header.fixed.get(name)
        if fixed:
            return fixed.array(block.header[self.header.slot(name)], null)
        try:
            return nested.from_binary(self.schema.column(name), self._text(block, name), null)
        except ValueError as error:
            raise Corruption(
                f"column {name!r} of rows{f' of {path}' if path else ''} is not of this schema: {error}",
                path=path,
            ) from error

    def _text(self, block: Block, name: str) -> pa.BinaryArray:
        place = self.header.variable.index(name)
        before = block.ends[:, place - 1] if place else block.splits
        return ragged.cut(block.data, before, block.ends[:, place])

    # -- single rows -----------------------------------------------------------------------------------------

    def decode_row(
        self,
        key: bytes,
        value: bytes,
        seed: int | None,
        columns: Sequence[str] | None = None,
        path: str | None = None,
    ) -> dict[str, Any]:
        """One row as Python values, equal to Arrow's to_pylist of `decode`."""
        layout = self.layout if seed is None else checksum.verify_row(key, value, seed, path)
        if layout == self.layout:
            return self.single.decode_row(key, value, columns, path)
        codec = self.of_layout(layout, path)
        wanted = self.names if columns is None else list(columns)
        held = codec.single.decode_row(key, value, [name for name in wanted if name in codec.names], path)
        return {
            name: held[name] if name in held else convert.defaults(self.schema.column(name), 1)[0].as_py()
            for name in wanted
        }


def _without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def _seal(joined: pa.BinaryArray, key_sizes: Array, seeds: int | Sequence[int], mark: int) -> list[bytes]:
    """Put checksums into joined rows that end in four zero bytes. Return key, value, key, value..."""
    crcs = checksum.seals(ragged.objects(joined), seeds, mark)
    places = ragged.offsets(joined)
    data = ragged.content(joined).copy()
    ragged.window(data, checksum.CRC_BYTES)[places[1:] - checksum.CRC_BYTES] = crcs.view("V4")
    cuts = np.empty(2 * len(joined) + 1, np.int32)
    cuts[0::2] = places
    cuts[1::2] = places[:-1] + key_sizes
    return ragged.objects(ragged.from_offsets(cuts, data))


def _refuse_misfits(misfit: Array, joined: Sequence[bytes], path: str | None) -> None:
    if misfit.any():
        row = int(np.argmax(misfit))
        where = f" of {path}" if path else ""
        raise Corruption(
            f"row {row}{where} is not a row of this schema: it begins {joined[row][:64].hex()}",
            path=path,
        )


@lru_cache(256)
def _arrow_of(codec: RowCodec, names: tuple[str, ...]) -> pa.Schema:
    return codec.schema.arrow(names)
