"""Compares a table with its source in this process, and its replicas with each other. Changes nothing.

    missing      a row of the source whose key is not in the table, or that has no valid key
    extra        a row of the table whose key is not in the source
    different    a key that is in both, with a different column. Null equals null, NaN equals NaN, 0.0 is not -0.0. A value
                 that the table's type cannot hold is different
    duplicates   rows of the source beyond the first with their key: the table keeps any one of them

The source is read once into digests of 64 bits, of each key and of each row (50 bytes of memory for a row at most), then the table is
scanned. A difference is missed with a probability below one in 10^12 for ten million rows. Rows that differ are read in full
from both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ebla.arguments import check_table
from ebla.pipelines import target
from ebla.pipelines.outcomes import Sample, VerifyReport
from ebla.pipelines.replicas import Counts, reported
from ebla.pipelines.sources.fitting import FittedPart, Fitter
from ebla.pipelines.sources.source import Source, infer, opened
from ebla.pipelines.sources.texts import row_texts
from ebla.show.progress import working
from ebla.show.steps import Show
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema
from ebla.table import Table
from ebla.wording import count

SAMPLES = 10


def verify(
    source: Source | str | os.PathLike[str],
    table: Table,
    *,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    samples: int = SAMPLES,
    replicas: bool = True,
    progress: Show | None = None,
) -> VerifyReport:
    """Compare; differences are in the report, not raised, with up to `samples` rows of each kind. `format` and `options` as for
    feed.

    Raises InvalidArgument if the columns of source and table cannot be compared at all, SourceUnreadable. `progress` gets the
    steps; None shows them as `ebla.connect` says.
    """
    check_table(table, Table)
    began = time.monotonic()
    with working(table._awaited._client.display, f"verify {table.name}") as shown:
        show = progress or shown

        def reading(rows: int) -> None:
            show(f"reading the source: {count(rows, 'row')}")

        found, types = infer(opened(source, format, options), reading)
        target.check_columns(types, table.name, table._awaited._routes.schema)
        comparison = _Comparison(found, table, samples)
        comparison.read_source(reading)
        comparison.read_table(lambda rows: show(f"reading the table: {count(rows, 'row')}"))
        counts = comparison.counts
        if counts.missing or counts.different:
            show("reading different rows")
            comparison.read_samples()
        found.check_unchanged()
        return reported(table, found.name, counts, tuple(comparison.samples()), replicas, show, began)


class _Comparison:
    """The digests of the source, and the differences that a scan of the table shows."""

    def __init__(self, source: Source, table: Table, wanted: int) -> None:
        self.source, self.table, self.wanted = source, table, wanted
        self.schema: TableSchema = table._awaited._routes.schema
        self.digests = _Digests(self.schema)
        self.fitter = Fitter(self.schema, source.decimal)
        self.source_rows = self.table_rows = self.duplicates = 0
        self.missing_count = self.extra_count = self.different_count = 0
        self._keys = self._rows = np.zeros(0, np.uint64)
        self._seen = np.zeros(0, np.bool_)
        self._keyless: list[Sample] = []
        self._extra: list[Sample] = []
        self._different: dict[int, dict[str, str | None]] = {}  # by digest of the key: the row of the table
        self._missing: list[Sample] = []
        self._compared: list[Sample] = []

    def read_source(self, show: Callable[[int], None]) -> None:
        keys, rows = [], []
        for part in self.source.parts():
            fitted = self.fitter.fit(part)
            self.source_rows += len(fitted.fits) + len(part.unread)
            lost = len(part.unread) + int(np.count_nonzero(~fitted.keyed))
            self.missing_count += lost
            self._keyless += self._without_key(fitted)[: max(0, self.wanted - len(self._keyless))]
            keys.append(self.digests.of_keys(fitted.keys))
            fitting = fitted.keys.filter(pa.array(fitted.fits[fitted.keyed]))
            rows.append(self.digests.of_rows(self.digests.codec.arrow(fitted.fitting), fitting))
            show(self.source_rows)
        all_keys = np.concatenate(keys) if keys else self._keys
        self._keys = np.unique(all_keys)
        self._rows = np.sort(np.concatenate(rows)) if rows else self._rows
        self.duplicates = len(all_keys) - len(self._keys)
        self._seen = np.zeros(len(self._keys), np.bool_)

    def read_table(self, show: Callable[[int], None]) -> None:
        for batch in self.table.scan().batches():
            self.table_rows += batch.num_rows
            encoded = self.digests.keys.encode_keys(batch)
            keys, rows = self.digests.of_keys(encoded), self.digests.of_rows(batch, encoded)
            known, places = _find(self._keys, keys)
            self._seen[places[known]] = True
            alike, _ = _find(self._rows, rows)
            extra, different = np.flatnonzero(~known), np.flatnonzero(known & ~alike)
            self.extra_count += len(extra)
            self.different_count += len(different)
            for row in _rows(batch, extra[: self.wanted - len(self._extra)], list(self.schema.key)):
                self._extra.append(Sample("extra", row))
            some = different[: self.wanted - len(self._different)]
            for at, row in zip(some.tolist(), _rows(batch, some, batch.schema.names), strict=True):
                self._different[int(keys[at])] = row
            show(self.table_rows)
        self.missing_count += int(np.count_nonzero(~self._seen))

    def read_samples(self) -> None:
        """Read the source again, for the rows to show."""
        missing = set(self._keys[~self._seen][: self.wanted].tolist())
        waiting = missing | set(self._different)
        for part in self.source.parts():
            if not waiting:
                return
            fitted = self.fitter.fit(part)
            keys = self.digests.of_keys(fitted.keys)
            places = np.flatnonzero(fitted.keyed)
            for at in np.flatnonzero(np.isin(keys, np.array(sorted(waiting), np.uint64))).tolist():
                digest = int(keys[at])
                if digest not in waiting:
                    continue
                waiting.discard(digest)
                self._show(digest, fitted, part.columns, int(places[at]), missing)

    @property
    def counts(self) -> Counts:
        differences = self.missing_count, self.extra_count, self.different_count
        return Counts(self.source_rows, self.table_rows, *differences, self.duplicates)

    def samples(self) -> list[Sample]:
        return [*(self._keyless + self._missing)[: self.wanted], *self._extra, *self._compared]

    def _show(
        self, digest: int, fitted: FittedPart, given: pa.RecordBatch, at: int, missing: set[int]
    ) -> None:
        (row,) = row_texts(fitted.batch.slice(at, 1))
        key = {name: row[name] for name in self.schema.key}
        if digest in missing:
            self._missing.append(Sample("missing", key))
            return
        # A value that does not fit is shown as the source has it.
        (raw,) = row_texts(given.slice(at, 1))
        source = {name: raw[name] if row[name] is None else row[name] for name in row}
        stored = self._different[digest]
        names = [name for name in stored if source.get(name) != stored[name]]
        self._compared.append(
            Sample(
                "different",
                key,
                tuple(names),
                {name: source.get(name) for name in names},
                {name: stored[name] for name in names},
            )
        )

    def _without_key(self, fitted: FittedPart) -> list[Sample]:
        keys = set(self.schema.key)
        return [
            Sample(
                "missing", {"file": row.file, "row": str(row.row)}, (), {row.column or "problem": row.problem}
            )
            for row in fitted.unfit
            if row.column is None or row.column in keys
        ]


class _Digests:
    """Digests of keys, and of whole rows."""

    def __init__(self, schema: TableSchema) -> None:
        self.codec = RowCodec(schema)
        self.keys = RowCodec(schema, ())

    def of_keys(self, encoded: pa.BinaryArray) -> Any:
        return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded.to_pylist()), np.uint64, len(encoded))

    def of_rows(self, batch: pa.RecordBatch, keys: pa.BinaryArray) -> Any:
        """`batch` has all columns of the table."""
        arrays = [_one_nan(array) for array in batch.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        encoded, values = self.codec.encode(batch, 0, keys)
        joined = (key + value for key, value in zip(encoded, values, strict=True))
        return np.fromiter(map(xxhash.xxh3_64_intdigest, joined), np.uint64, len(encoded))


def _one_nan(array: pa.Array) -> pa.Array:
    """Every NaN with the same bits."""
    if not pa.types.is_floating(array.type):
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)


def _find(sorted_digests: Any, wanted: Any) -> tuple[Any, Any]:
    """Which of `wanted` are among the sorted digests, and where."""
    places = np.searchsorted(sorted_digests, wanted)
    if not len(sorted_digests):
        return np.zeros(len(wanted), np.bool_), places
    places = np.minimum(places, len(sorted_digests) - 1)
    return sorted_digests[places] == wanted, places


def _rows(batch: pa.RecordBatch, places: Any, names: list[str]) -> list[dict[str, str | None]]:
    return row_texts(batch.select(names).take(pa.array(places, pa.int64()))) if len(places) else []
