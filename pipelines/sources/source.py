"""A recognised source: its files with their dialects, and the columns of its rows.

source = open_source("people.csv")            a path, a glob, a directory, a URI, or the name of a data set
source.parts()                                all rows in order, as text or typed columns
infer(source)                                 the schema for a new table: one pass over all rows
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import SourceUnreadable
from ebla.pipelines import datasets
from ebla.pipelines.sources import dialect as dialects
from ebla.pipelines.sources import readers
from ebla.pipelines.sources.dialect import Dialect
from ebla.pipelines.sources.files import File, Place
from ebla.pipelines.sources.readers import Part, Unfit
from ebla.pipelines.sources.types import Guess, from_text, storable
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.python_values import shown

ShowRows = Callable[[int], None]  # gets the number of rows that were read so far


class Facts(msgspec.Struct, frozen=True):
    """A format as it was recognised. Fields that a format does not have are None."""

    format: str
    files: int
    bytes: int | None = None
    compression: str | None = None
    encoding: str | None = None
    separator: str | None = None
    decimal: str | None = None
    left_out: tuple[str, ...] = ()


def open_source(name: str, format: str | None = None, options: Mapping[str, str] | None = None) -> Source:
    """Recognise the source. Raises SourceUnreadable or InvalidArgument with the remedy."""
    if name in datasets.DATASETS and format is None:
        return DatasetSource(name)
    given = dialects.check_options(options or {})
    place = Place(name)
    files = place.find(format)
    if given and files[0].format != "csv":
        raise InvalidArgument(
            f"{name!r} is {files[0].format}, which has no option {min(given)}; leave the option out"
        )
    found: dict[str, Dialect] = {}
    for file in files if files[0].format == "csv" else ():
        found[file.path] = _dialect(place, file, given)
    # One writer, also of the files that do not show its escapes.
    if any(each.unclear for each in found.values()):
        for path, each in found.items():
            found[path] = msgspec.structs.replace(each, unclear=each.escape != "")
    return FileSource(name, place, files, found)


def opened(
    source: Source | str | os.PathLike[str],
    format: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Source:
    """A source that a caller gives. `~` at its beginning is the home directory."""
    if isinstance(source, FileSource | DatasetSource):
        if format is not None or options:
            raise InvalidArgument("the source is open; give format and options to open_source")
        return source
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgument(
            f"source is a path, a glob, a directory, a URI or the name of a data set, not {type(source).__name__}; rows and frames "
            "are written with table.upsert(rows)"
        )
    return open_source(os.path.expanduser(os.fspath(source)), format, options)


def _dialect(place: Place, file: File, options: Mapping[str, str]) -> Dialect:
    try:
        with place.open(file) as stream:
            return dialects.recognise(stream, file.path, options)
    except OSError as error:
        raise SourceUnreadable(f"{file.path} cannot be read: {error}", source=place.source) from error


@dataclass(frozen=True)
class FileSource:
    """Files of one format. Can be pickled: each process opens the files itself.

    `columns`: the columns to read, in this order; None for those of each part. `left_out`: columns that are not read. `odd`: for
    a column of text, the first value that most of the others' type does not have. `headless`: the first row, if all of its
    names are values of their columns' types.
    """

    name: str
    place: Place
    files: tuple[File, ...]
    dialects: dict[str, Dialect]
    columns: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    odd: tuple[Unfit, ...] = ()
    headless: tuple[str, ...] = ()

    @property
    def facts(self) -> Facts:
        kinds = list(self.dialects.values())
        return Facts(
            format=self.files[0].format,
            files=len(self.files),
            bytes=sum(file.bytes for file in self.files),
            compression=_all(file.compression or "none" for file in self.files),
            encoding=_all(each.encoding for each in kinds),
            separator=_all(each.separator for each in kinds),
            decimal=_all(each.decimal for each in kinds),
            left_out=self.left_out,
        )

    @property
    def decimal(self) -> str:
        marks = {each.decimal for each in self.dialects.values()}
        if len(marks) > 1:
            raise SourceUnreadable(
                f"some files of {self.name!r} have a decimal point and others a comma; feed them one after the other, or "
                "give the option decimal",
                source=self.name,
            )
        return marks.pop() if marks else "."

    @property
    def nameless(self) -> set[str]:
        """The names that columns without a name have here."""
        kinds = self.dialects.values()
        return {dialects.unnamed(at) for each in kinds for at, name in enumerate(each.names) if not name}

    def parts(self) -> Iterator[Part]:
        for file in self.files:
            yield from self.read(file)

    def read(self, file: File) -> Iterator[Part]:
        for part in readers.parts(self.place, file, self.dialects.get(file.path)):
            yield part if self.columns is None else _chosen(part, self.columns)

    def check_unchanged(self, *files: File) -> None:
        """Raise SourceUnreadable if one of these files has changed since it was recognised; without arguments, any file."""
        for file in files or self.files:
            if self.place.changed(file):
                raise SourceUnreadable(
                    f"{file.path} has changed while it was read; feed it again when it is complete",
                    source=self.name,
                )

    def split(self) -> tuple[File, ...]:
        """Pieces for parallel reading: files, and each row group of a parquet file."""
        pieces: list[File] = []
        for file in self.files:
            groups = readers.row_groups(self.place, file)
            single = [msgspec.structs.replace(file, groups=(at, at + 1)) for at in range(groups)]
            pieces += single if groups > 1 else [file]
        return tuple(pieces)


def _chosen(part: Part, columns: tuple[str, ...]) -> Part:
    """The part with exactly these columns. JSON may lack some, which are null there."""
    rows, given = part.columns, set(part.columns.schema.names)
    missing = [name for name in columns if name not in given]
    for name in missing:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
    return part._replace(columns=rows.select(list(columns)), text=part.text | set(missing))


def _all(values: Any) -> str | None:
    return ", ".join(dict.fromkeys(values)) or None


@dataclass(frozen=True)
class DatasetSource:
    """The rows of a named data set."""

    name: str
    decimal: str = "."
    odd: tuple[Unfit, ...] = ()

    @property
    def facts(self) -> Facts:
        return Facts("data set", 0)

    def parts(self) -> Iterator[Part]:
        first = 1
        for batch in datasets.DATASETS[self.name].load().to_batches(readers.PART_ROWS):
            numbers = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            yield Part(self.name, batch, frozenset(), frozenset(), numbers, [])

    def check_unchanged(self) -> None:
        """A data set does not change."""


Source = FileSource | DatasetSource


# -- the columns ---------------------------------------------------------------------------------------------


def infer(source: Source, show: ShowRows = lambda rows: None) -> tuple[Source, pa.Schema]:
    """The source without columns that have no name, and the types that every row fits.

    A column without a name is left out if it is empty (Excel) or numbers the rows (the index of pandas). Raises
    SourceUnreadable if another column has no name.
    """
    if isinstance(source, DatasetSource):
        return source, datasets.DATASETS[source.name].schema
    guesses: dict[str, Guess | pa.DataType] = {}
    nameless = {name: _Nameless() for name in sorted(source.nameless)}
    rows, decimal, same = 0, source.decimal, _SameColumns(source)
    unread: list[Unfit] = []
    odd: dict[str, Unfit] = {}
    for part in source.parts():
        same.check(part)
        unread = unread or part.unread[:1]
        for name, array in zip(part.columns.schema.names, part.columns.columns, strict=True):
            if name in nameless:
                nameless[name].see(array, part)
            elif name in part.text:
                guess = guesses.setdefault(name, Guess(decimal))
                if isinstance(guess, Guess):
                    guess.see(array, name in part.quoted)
                    if guess.odd is not None and name not in odd:
                        odd[name] = _odd(part, name, *guess.odd)
            else:
                guesses[name] = _joined(source, name, guesses.get(name), array.type)
        rows += part.columns.num_rows
        show(rows)
    for name, seen in nameless.items():
        if not seen.needless:
            raise SourceUnreadable(
                f"column {int(name[1:]) + 1} of {source.name!r} has no name in the first row; give it one, or leave it out "
                "(the index of a pandas frame: to_csv(..., index=False))",
                source=source.name,
            )
    fields = [(name, each.found() if isinstance(each, Guess) else each) for name, each in guesses.items()]
    if not fields:
        raise SourceUnreadable(f"{source.name!r} has no columns{_reason(unread)}", source=source.name)
    types = pa.schema(fields)
    found = replace(
        source,
        columns=tuple(types.names),
        left_out=tuple(nameless),
        odd=tuple(odd.values()),
        headless=_headless(source, guesses),
    )
    return found, types


def _headless(source: FileSource, guesses: Mapping[str, Guess | pa.DataType]) -> tuple[str, ...]:
    """The names of the first row if they look like values of their columns. A column of text shows nothing."""
    rows = [each.names for each in source.dialects.values() if each.skipped]
    known = [guesses.get(name) for name in rows[0]] if rows else []
    typed = [
        guess.takes(name)
        for name, guess in zip(rows[0] if rows else (), known, strict=True)
        if isinstance(guess, Guess) and guess.found() != pa.string()
    ]
    return rows[0] if typed and all(typed) else ()


def _odd(part: Part, name: str, value: str, kind: pa.DataType) -> Unfit:
    at = pc.index(pc.utf8_trim_whitespace(part.columns.column(name)), value).as_py()
    return Unfit(part.file, int(part.numbers[at]), name, f"{shown(value)} is not {kind}")


def _reason(unread: list[Unfit]) -> str:
    """Why a source without columns has none: no line of JSON was read, of which this is the first."""
    if not unread:
        return ""
    return f": row {unread[0].row} {unread[0].problem}; write one object per line, in UTF-8"


class _SameColumns:
    """Refuses a file with other columns than the first one; rows of JSON may have any."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._first: tuple[str, set[str]] | None = None

    def check(self, part: Part) -> None:
        names = set(part.columns.schema.names)
        if self._first is None:
            self._first = part.file, names
        file, first = self._first
        if names != first and self._source.files[0].format != "json":
            raise SourceUnreadable(
                f"{part.file} has other columns than {file}: {min(names ^ first)!r} is in one of them only; feed them one "
                "after the other",
                source=self._source.name,
            )


def _joined(source: Source, name: str, known: Guess | pa.DataType | None, kind: pa.DataType) -> pa.DataType:
    """The type that holds the values of all files."""
    if known is None or isinstance(known, Guess) or known == storable(kind):
        return storable(kind)
    try:
        both = [pa.schema([(name, each)]) for each in (known, storable(kind))]
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        raise SourceUnreadable(
            f"column {name!r} of {source.name!r} is {known} in one file and {kind} in another; convert one of them",
            source=source.name,
        ) from error


class _Nameless:
    """A column without a name: is it empty, or does it number the rows?"""

    def __init__(self) -> None:
        self.needless = True
        self._first: dict[str, int] = {}  # by file: the number of a row less its row number

    def see(self, text: pa.Array, part: Part) -> None:
        if text.null_count == len(text):
            return
        counted = from_text(text, pa.int64())
        if counted.bad.any() or counted.values.null_count:
            self.needless = False
            return
        first = counted.values.to_numpy() - part.numbers
        known = self._first.setdefault(part.file, int(first[0]))
        self.needless = self.needless and bool((first == known).all())
