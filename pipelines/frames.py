"""Sources as DataFrames: each Spark task reads its part of the source with the readers of sources/.

A named data set is read from its package on the task's node. Files must be visible on all hosts of the executors; a task reads
a file, or a row group of a parquet file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ebla.pipelines.datasets import DATASETS
from ebla.pipelines.read import in_spark_types, spark_schema
from ebla.pipelines.sources.files import File
from ebla.pipelines.sources.fitting import in_types
from ebla.pipelines.sources.source import DatasetSource, FileSource, Source, infer, open_source
from ebla.placement.extras import needs

with needs("spark"):
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.pandas.types import to_arrow_schema

PARTITIONS = 16


def frame(
    spark: SparkSession,
    source: Source | str,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    wanted: pa.Schema | None = None,
) -> DataFrame:
    """The rows of a source. A column has its type of `wanted`, else the type that all its values fit.

    Raises SourceUnreadable. A row that does not fit ends its task with InvalidArgument, which has the row's place.
    """
    opened = open_source(source, format, options) if isinstance(source, str) else source
    found, types = infer(opened)
    if isinstance(found, DatasetSource):
        work: DatasetPart | FilePart = DatasetPart(found.name, PARTITIONS)
        count = PARTITIONS
    else:
        names = set() if wanted is None else set(wanted.names)
        fields = [wanted.field(f.name) if wanted is not None and f.name in names else f for f in types]
        types = pa.schema([pa.field(field.name, field.type) for field in fields])
        work = FilePart(found, found.split(), types)
        count = len(work.pieces)
    return spark.range(0, count, 1, count).mapInArrow(work, spark_schema(types))


@dataclass(frozen=True)
class DatasetPart:
    """Some of `partitions` runs of equal length, in the order of the rows, as a Spark task reads them."""

    name: str
    partitions: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table = DATASETS[self.name].load()
                start, stop = (table.num_rows * n // self.partitions for n in (number, number + 1))
                yield from table.slice(start, stop - start).to_batches()


@dataclass(frozen=True)
class FilePart:
    """Some of the pieces of a source, as a Spark task reads them."""

    source: FileSource
    pieces: tuple[File, ...]
    types: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = to_arrow_schema(spark_schema(self.types))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = self.pieces[number]
                # Another file than the one whose columns and row groups the driver saw would be read in their places.
                self.source.check_unchanged(piece)
                for part in self.source.read(piece):
                    yield in_spark_types(in_types(part, self.types, self.source.decimal), wanted)
                self.source.check_unchanged(piece)
