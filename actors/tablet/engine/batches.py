"""Validity of a batch of rows. The leader checks it before it becomes an entry, and every replica
again when the entry is applied, since a committed entry cannot be refused.

A batch names the version of the table in which it was encoded. An older one keeps its meaning: rows
that lack a column added since get its default, and columns dropped since are ignored. So a client
may send the same bytes again after any alteration, and they are applied once.

Raises InvalidArgument or SchemaMismatch from the batch and the schema alone, so that all replicas
judge alike. Rows are not decoded: their checksums are verified where they arrive.
"""

from __future__ import annotations

import msgspec

from ebla.actors.errors import SchemaMismatch
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, RowBatch
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.batches import Batch
from ebla.storage.schema import COLUMNS, KEY_BYTES_MAX, TableSchema
from ebla.storage.tablets.results import CLIENT_BYTES

BATCH_ROWS_MAX = 200_000

decode_batch = msgspec.msgpack.Decoder(RowBatch).decode


def check_version(schema: TableSchema, version: int) -> None:
    """Refuse a caller with a newer version than this replica's; an older one is fine."""
    if version > schema.version:
        raise SchemaMismatch(
            f"the tablet has version {schema.version} of its table, the request is of {version}; the tablet "
            "gets that version soon, try again",
            wanted=version,
            found=schema.version,
        )


def check_readable(schema: TableSchema, version: int) -> None:
    """Refuse a reader that does not know every present column by its present name."""
    if version == schema.version:
        return
    check_version(schema, version)
    if version < schema.renewed:
        raise SchemaMismatch(
            f"columns of the table changed in version {schema.renewed}, the request is of {version}; fetch the table again",
            wanted=version,
            found=schema.version,
        )


def check_batch(schema: TableSchema, batch: RowBatch) -> None:
    check_version(schema, batch.schema_version)
    if len(batch.client) != CLIENT_BYTES:
        raise InvalidArgument(f"client must be {CLIENT_BYTES} bytes, not {len(batch.client)}")
    if batch.sequence < 0:
        raise InvalidArgument(f"a sequence is 0 or more, not {batch.sequence}")
    if not 0 < batch.rows <= BATCH_ROWS_MAX:
        raise InvalidArgument(f"a batch has 1 to {BATCH_ROWS_MAX} rows, this one {batch.rows}")
    if not UPSERT <= batch.kind <= DELETE:
        raise InvalidArgument(f"kind must be {UPSERT} to {DELETE}, not {batch.kind}")
    if batch.columnar:
        _check_columnar(schema, batch)
        return
    if len(batch.values) != (0 if batch.kind == DELETE else len(batch.keys)):
        raise InvalidArgument(f"a batch of {len(batch.keys)} keys came with {len(batch.values)} values")
    sizes = list(map(len, batch.keys))
    if not min(sizes) or max(sizes) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a key is 1 to {KEY_BYTES_MAX} bytes, these are {min(sizes)} to {max(sizes)}")
    if batch.kind == UPDATE:
        _check_columns(schema, batch.columns, batch.schema_version)


def _check_columnar(schema: TableSchema, batch: RowBatch) -> None:
    if schema.storage != COLUMNS:
        raise InvalidArgument("the rows of a batch are in columns, and the table has rows")
    if batch.kind not in (UPSERT, INSERT) or batch.keys or batch.values or batch.columns:
        raise InvalidArgument(
            "rows in columns are for UPSERT and INSERT, and have no keys and values beside them"
        )


def columnar(codec: RowCodec, batch: RowBatch, seed: int | None) -> Batch:
    """The rows of a checked batch in columns, for a tablet whose present schema has this codec. With `seed` None their
    checksum is not verified. Raises Corruption."""
    return Batch(batch.columnar, codec, codec.layout_in(batch.schema_version), seed)


def packed(codec: RowCodec, batch: RowBatch, seed: int) -> tuple[list[bytes], list[bytes]]:
    """The keys and the values of a batch, in either form; `seed` is for rows that came in columns."""
    if not batch.columnar:
        return batch.keys, batch.values
    rows = columnar(codec, batch, None)
    own, piece = rows.layout.codec, rows.own()
    return own.encode(piece.rows(own, own.names), seed, piece.keys)


def _check_columns(schema: TableSchema, columns: tuple[str, ...], version: int) -> None:
    for place, name in enumerate(columns):
        column = schema.called(name, version)
        if not column.until and column.name in schema.key:
            raise InvalidArgument(f"key column {name!r} cannot be updated; delete and insert", column=name)
        if name in columns[:place]:
            raise InvalidArgument(f"column {name!r} is to be updated twice; name it once", column=name)
