"""The batches of clients, in lanes, and the rows after them.

A lane is one client that writes to one tablet: it has keys of its own and one batch under way at a time, which it sends until it
is answered. So its rows after n batches are known exactly. After a power cut they must be the rows after all acknowledged
batches, or after these and the one under way.

`change` applies a batch to rows. It is written independently of the server's code (actors/tablet/engine/apply.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, RowBatch
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import ROWS, Hash, Partitioning, TableSchema

FIELDS = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int32())])
CODEC = RowCodec(TableSchema.from_arrow(FIELDS, ["k"]))
PATCH_COLUMNS = ("n",)
PATCH_CODEC = RowCodec(CODEC.schema, PATCH_COLUMNS)
COLUMNS = ("k", "v", "n")

LANE_STRIDE = 10_000  # from the first key of a lane to that of the next
LANE_KEYS = 40
BULK_KEYS = 4300  # more than LMDB environments accept before they are reopened
ANSWERS_KEPT = 3  # how many answers a lane's client may still request again
_LARGE_BYTES = 5000  # needs pages of its own
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RowBatch).decode

Row = dict[str, Any]
Rows = dict[int, Row]


def schema(buckets: int, storage: str = ROWS) -> TableSchema:
    partitioning = Partitioning(hash=Hash(("k",), buckets)) if buckets > 1 else Partitioning()
    return TableSchema.from_arrow(FIELDS, ["k"], partitioning, storage=storage)


def encode_batch(tablet: str, client: bytes, sequence: int, kind: int, rows: Sequence[Row]) -> bytes:
    seed = checksum.seed(tablet)
    keys = [CODEC.encode_key(row) for row in rows]
    values: list[bytes] = []
    if kind != DELETE:
        codec = PATCH_CODEC if kind == UPDATE else CODEC
        chosen = ("k", *PATCH_COLUMNS) if kind == UPDATE else COLUMNS
        values = [codec.encode_row({name: row[name] for name in chosen}, seed)[1] for row in rows]
    columns = PATCH_COLUMNS if kind == UPDATE else ()
    return _encode(
        RowBatch(
            client=client,
            sequence=sequence,
            first_incomplete=max(0, sequence - ANSWERS_KEPT),
            kind=kind,
            schema_version=CODEC.schema.version,
            digest=checksum.rows_digest(kind, columns, keys, values),
            keys=keys,
            values=values,
            columns=columns,
        )
    )


def decode_batch(data: bytes) -> RowBatch:
    return _decode(data)


def random_batch(rng: random.Random, tablet: str, client: bytes, sequence: int, first_key: int) -> bytes:
    """A batch, mostly of upserts, with values from a few bytes to more than a page."""
    kind = rng.choice((UPSERT, UPSERT, UPSERT, INSERT, UPDATE, DELETE))
    keys = rng.sample(range(first_key, first_key + LANE_KEYS), rng.choice((1, 1, 2, 4, 8)))
    rows = [{"k": key, "v": _text(rng, key, sequence), "n": rng.randrange(1 << 30)} for key in keys]
    return encode_batch(tablet, client, sequence, kind, rows)


def bulk_batch(tablet: str, client: bytes, sequence: int, first_key: int) -> bytes:
    rows = [{"k": key, "v": f"{key}", "n": sequence} for key in bulk_keys(first_key)]
    return encode_batch(tablet, client, sequence, UPSERT, rows)


def bulk_keys(first_key: int) -> range:
    return range(first_key + LANE_KEYS, first_key + LANE_KEYS + BULK_KEYS)


def _text(rng: random.Random, key: int, sequence: int) -> str:
    size = _LARGE_BYTES if rng.random() < 0.01 else rng.choice((0, 20, 60, 200))
    return f"{key}/{sequence}/" + "abcdefgh"[key % 8] * size


def first_key(batch: RowBatch) -> int:
    return key_of(batch.keys[0]) // LANE_STRIDE * LANE_STRIDE


def key_of(encoded: bytes) -> int:
    return int(CODEC.keys.decode_row(encoded, ())[0])


def change(rows: Rows, tablet: str, batch: RowBatch) -> list[int]:
    """Apply the batch. Returns the positions of its refused rows."""
    rejected = []
    values: Sequence[bytes | None] = batch.values or [None] * len(batch.keys)
    for at, (encoded, value) in enumerate(zip(batch.keys, values, strict=True)):
        key = key_of(encoded)
        there = key in rows
        if there if batch.kind == INSERT else (not there and batch.kind != UPSERT):
            rejected.append(at)
        elif value is None:
            del rows[key]
        else:
            rows[key] = {**rows.get(key, {}), **_row(tablet, batch, encoded, value)}
    return rejected


def _row(tablet: str, batch: RowBatch, key: bytes, value: bytes) -> Row:
    codec = PATCH_CODEC if batch.kind == UPDATE else CODEC
    return codec.decode_row(key, value, checksum.seed(tablet))
