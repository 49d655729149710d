"""One pass over a source before anything is written: how many rows, which do not fit, and which repeat a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ebla.pipelines.sources.fitting import Fitter, in_types
from ebla.pipelines.sources.readers import Unfit
from ebla.pipelines.sources.source import Facts, ShowRows, Source
from ebla.pipelines.sources.texts import row_texts
from ebla.storage.schema import TableSchema

SHOWN_MAX = 10
KEYS_MAX = 20_000_000  # whose digests are held: 8 bytes each


class Repeated(msgspec.Struct, frozen=True):
    """A row with the key of an earlier row."""

    file: str
    row: int
    key: dict[str, str | None]
    earlier_file: str
    earlier_row: int


class Checked(msgspec.Struct, frozen=True):
    """`rows`: all rows; `fitting` of them fit. `unfit` and `repeated` are numbers of rows, with the first of them in
    `unfit_rows` and `repeated_rows`. `repeated`: None if there were more than KEYS_MAX rows, or no key is known. `columns`: name to type. `sample`: the first
    rows as text."""

    source: str
    facts: Facts
    columns: dict[str, str]
    rows: int
    fitting: int
    unfit: int
    repeated: int | None
    unfit_rows: tuple[Unfit, ...]
    repeated_rows: tuple[Repeated, ...]
    sample: tuple[dict[str, str | None], ...]

    @property
    def clean(self) -> bool:
        return not self.unfit and not self.repeated


def check(
    source: Source, schema: TableSchema, *, shown: int = SHOWN_MAX, show: ShowRows = lambda rows: None
) -> Checked:
    """Read all rows in the table's types. Memory: a part, and at most 50 bytes for each row (8 while reading)."""
    fitter = Fitter(schema, source.decimal)
    keys = _Keys()
    unfit: list[Unfit] = []
    sample: list[dict[str, str | None]] = []
    columns: dict[str, str] = {}
    rows = fitting = unfit_count = 0
    for part in source.parts():
        fitted = fitter.fit(part)
        rows += len(fitted.fits) + len(part.unread)
        unfit_count += len(fitted.unfit)
        unfit += fitted.unfit[: max(0, shown - len(unfit))]
        good = int(fitted.fits.sum())
        fitting += good
        keys.add(
            fitted.file, fitted.numbers[fitted.fits], fitted.keys.filter(pa.array(fitted.fits[fitted.keyed]))
        )
        columns |= {field.name: str(field.type) for field in fitted.batch.schema}
        if len(sample) < shown and good:
            sample += row_texts(fitted.fitting.slice(0, shown - len(sample)))
        show(rows)
    pairs = keys.repeated(shown)
    repeats = _described(source, fitter, schema, pairs.pairs) if pairs is not None and pairs.pairs else ()
    source.check_unchanged()
    return Checked(
        source=source.name,
        facts=source.facts,
        columns=columns,
        rows=rows,
        fitting=fitting,
        unfit=unfit_count,
        repeated=None if pairs is None else pairs.count,
        unfit_rows=tuple(unfit),
        repeated_rows=repeats,
        sample=tuple(sample),
    )


def preview(source: Source, types: pa.Schema, rows: int) -> Checked:
    """The first rows in the types of the source itself, which all its rows fit. Nothing is checked, as there is no key."""
    sample: list[dict[str, str | None]] = []
    for part in source.parts():
        head = part._replace(columns=part.columns.slice(0, SHOWN_MAX - len(sample)), unread=[])
        sample += row_texts(in_types(head, types, source.decimal))
        if len(sample) == SHOWN_MAX:
            break
    columns = {field.name: str(field.type) for field in types}
    return Checked(source.name, source.facts, columns, rows, rows, 0, None, (), (), tuple(sample))


Where = tuple[str, int]


class _Pairs(msgspec.Struct, frozen=True):
    count: int
    pairs: tuple[tuple[Where, Where], ...]  # an earlier row, and one with the same key


class _Keys:
    """Digests of all keys, in the order of the rows. Digests have 64 bits: of 20 million keys, two different ones are taken for
    equal with a probability of one in 100,000."""

    def __init__(self) -> None:
        self._digests: list[Any] | None = []
        self._places: list[tuple[int, str, Any]] = []  # position of the first row, file, row numbers
        self._count = 0

    def add(self, file: str, numbers: Any, keys: pa.Array) -> None:
        if self._digests is None:
            return
        self._digests.append(np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys)))
        run = len(numbers) and int(numbers[-1] - numbers[0]) == len(numbers) - 1
        self._places.append(
            (self._count, file, range(int(numbers[0]), int(numbers[-1]) + 1) if run else numbers)
        )
        self._count += len(keys)
        if self._count > KEYS_MAX:
            self._digests, self._places = None, []

    def repeated(self, shown: int) -> _Pairs | None:
        if self._digests is None:
            return None
        digests = np.concatenate(self._digests) if self._digests else np.zeros(0, np.int64)
        order = np.argsort(digests, kind="stable")
        again = np.flatnonzero(digests[order][1:] == digests[order][:-1]) + 1
        first = again[np.argsort(order[again])[:shown]]
        pairs = zip(order[first - 1].tolist(), order[first].tolist(), strict=True)
        return _Pairs(
            len(again), tuple((self._where(earlier), self._where(later)) for earlier, later in pairs)
        )

    def _where(self, position: int) -> Where:
        starts = [start for start, _, _ in self._places]
        start, file, numbers = self._places[int(np.searchsorted(starts, position, side="right")) - 1]
        return file, int(numbers[position - start])


def _described(
    source: Source, fitter: Fitter, schema: TableSchema, pairs: tuple[tuple[Where, Where], ...]
) -> tuple[Repeated, ...]:
    """The repeated keys, read from the source again."""
    keys: dict[Where, dict[str, str | None]] = {}
    wanted = {later for _, later in pairs}
    for part in source.parts():
        chosen = [at for at, number in enumerate(part.numbers.tolist()) if (part.file, number) in wanted]
        if chosen:
            rows = fitter.fit(part).batch.select(list(schema.key)).take(pa.array(chosen))
            numbers = part.numbers[chosen].tolist()
            keys |= {(part.file, n): row for n, row in zip(numbers, row_texts(rows), strict=True)}
        if len(keys) == len(wanted):
            break
    return tuple(Repeated(*later, keys.get(later, {}), *earlier) for earlier, later in pairs)


def fitting_batches(source: Source, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """The rows that fit, in their order, for a second pass."""
    fitter = Fitter(schema, source.decimal)
    for part in source.parts():
        batch = fitter.fit(part).fitting
        if batch.num_rows:
            yield batch
    source.check_unchanged()
