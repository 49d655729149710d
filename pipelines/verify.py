"""Compares a table with its source, by Spark, and its replicas with each other. Changes nothing.

    missing      a row of the source whose key is not in the table
    extra        a row of the table whose key is not in the source
    different    a key that is in both, with a different column. Null equals null, NaN equals NaN, 0.0 is not -0.0, and
                 instants are compared, not their text. A value that the table's type cannot hold is different
    duplicates   rows of the source beyond the first with their key: the table keeps any one of them

Rows are compared by digests of 128 bits of their other columns, so that only keys and digests are shuffled; rows that differ
are then read in full. Replicas are compared by digests as of one log index per tablet, while writes continue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa

from ebla.pipelines.feed import arrow_schema
from ebla.pipelines.frames import frame as as_frame
from ebla.pipelines.outcomes import Sample, VerifyReport
from ebla.pipelines.read import in_spark_types, read_table, spark_schema
from ebla.pipelines.replicas import Counts, reported
from ebla.pipelines.target import check_columns
from ebla.placement.extras import needs
from ebla.show.progress import working
from ebla.show.steps import Show
from ebla.show.values import texts
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.convert import defaults
from ebla.storage.schema import TableSchema
from ebla.table import Table

with needs("spark"):
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

SAMPLES = 10
_UNFIT = "~unfit"
_HASHES = ("~first", "~second")
_NESTED = (ArrayType, MapType, StructType)
_FLOATS = (FloatType, DoubleType)
# Nulls and microseconds count.
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def verify(
    spark: SparkSession,
    source: DataFrame | str | os.PathLike[str],
    table: Table,
    *,
    samples: int = SAMPLES,
    replicas: bool = True,
    local: bool = True,
    progress: Show | None = None,
) -> VerifyReport:
    """Compare; differences are in the report, not raised, with up to `samples` rows of each kind.

    Raises InvalidArgument if the columns of source and table cannot be compared at all. `progress` gets the steps; None shows
    them as `ebla.connect` says.
    """
    began = time.monotonic()
    if isinstance(source, str | os.PathLike):
        frame = as_frame(spark, os.fspath(source), wanted=table.schema)
    else:
        frame = source
    schema = table._awaited._routes.schema
    check_columns(arrow_schema(frame.schema), table.name, schema)
    frame = _with_defaults(frame, schema)
    name = source if isinstance(source, str) else "DataFrame"
    with working(table._awaited._client.display, f"verify {table.name}") as shown:
        show = progress or shown
        show("comparing source and table")
        comparison = _Comparison(frame, read_table(spark, table, local=local), table)
        counts = comparison.counts()
        different: tuple[Sample, ...] = ()
        if not counts.same:
            show("reading different rows")
            different = comparison.samples(counts, samples)
        return reported(table, name, counts, different, replicas, show, began)


# -- source and table ----------------------------------------------------------------------------------------


class _Comparison:
    """Both sides in the table's columns and types, joined on the key."""

    def __init__(self, source: DataFrame, stored: DataFrame, table: Table) -> None:
        self.key = list(table.primary_key)
        self.values = [name for name in table.schema.names if name not in self.key]
        wanted = spark_schema(table.schema)
        self.types = {field.name: field.dataType for field in wanted.fields}
        self.left = _in_types_of(source, wanted)
        self.right = stored.withColumn(_UNFIT, F.lit(None).cast("string"))
        self.left_digests = self._digested(self.left).withColumn("~source", F.lit(True))
        self.right_digests = self._digested(self.right).withColumn("~table", F.lit(True))
        self.joined = self._join(self.left_digests, self.right_digests)

    def counts(self) -> Counts:
        """The counts in one pass. Keys that the source repeats need a second pass: any of their rows may be in the table."""
        once = self.left_digests.groupBy(*map(_name, self.key)).agg(
            F.count(F.lit(1)).alias("~rows"), *[F.min(_name(each)).alias(each) for each in _HASHES]
        )
        row = (
            self._join(once, self.right_digests)
            .agg(
                F.coalesce(F.sum("l.~rows"), F.lit(0)).alias("source"),
                F.count("l.~rows").alias("keys"),
                F.count("r.~table").alias("table"),
                F.count_if(F.isnull("r.~table")).alias("missing"),
                F.count_if(F.isnull("l.~rows")).alias("extra"),
                F.count_if(self._differs()).alias("different"),
            )
            .first()
        )
        assert row is not None, "an aggregate has one row"
        duplicates = row.source - row["keys"]
        different = self._different().count() if duplicates else row.different
        return Counts(row.source, row.table, row.missing, row.extra, different, duplicates)

    def samples(self, counts: Counts, wanted: int) -> tuple[Sample, ...]:
        found: list[Sample] = []
        if counts.missing:
            found += [
                Sample("missing", _texts(row)) for row in self._missing().distinct().limit(wanted).collect()
            ]
        if counts.extra:
            found += [Sample("extra", _texts(row)) for row in self._extra().limit(wanted).collect()]
        if counts.different:
            found += self._compared(self._different().limit(wanted))
        return tuple(found)

    def _missing(self) -> DataFrame:
        return self.joined.where(F.isnull("r.~table")).select(*self._keys("l"))

    def _extra(self) -> DataFrame:
        return self.joined.where(F.isnull("l.~source")).select(*self._keys("r"))

    def _keys(self, side: str) -> list[Column]:
        return [F.col(f"{side}.{_name(name)}").alias(name) for name in self.key]

    def _different(self) -> DataFrame:
        """The keys whose row in the table equals no row of the source."""
        both = self.joined.where(F.col("l.~source") & F.col("r.~table"))
        alike = both.select(*self._keys("l"), (~self._differs()).alias("~alike")).groupBy(
            *map(_name, self.key)
        )
        return alike.agg(F.max("~alike").alias("~alike")).where(~F.col("~alike")).drop("~alike")

    def _compared(self, keys: DataFrame) -> list[Sample]:
        """The rows in full, with the names of the columns that differ."""
        keys = keys.persist()  # a limit may choose other keys when it runs again
        wanted = F.broadcast(keys)
        left = self.left.join(wanted, self.key, "left_semi")
        right = self.right.join(wanted, self.key, "left_semi")
        rows = self._join(left, right).select(
            F.struct(*self._keys("l")).alias("key"),
            F.struct(*[F.col(f"l.{_name(n)}") for n in [*self.key, *self.values]]).alias("source"),
            F.struct(*[F.col(f"r.{_name(n)}") for n in [*self.key, *self.values]]).alias("table"),
            F.array(
                *[
                    F.when(~self._plain(n, left).eqNullSafe(self._plain(n, right)), F.lit(n))
                    for n in self.values
                    for left, right in [(F.col(f"l.{_name(n)}"), F.col(f"r.{_name(n)}"))]
                ]
            ).alias("columns"),
            F.col(f"l.{_name(_UNFIT)}").alias("unfit"),
        )
        found = []
        collected = rows.collect()
        keys.unpersist()
        for row in collected:
            columns = [name for name in row.columns if name is not None]
            if row.unfit is not None and row.unfit not in columns:
                columns.append(row.unfit)
            source, stored = _texts(row.source), _texts(row.table)
            found.append(
                Sample(
                    "different",
                    _texts(row.key),
                    tuple(columns),
                    {name: source[name] for name in columns if name in source},
                    {name: stored[name] for name in columns if name in stored},
                )
            )
        return found

    def _join(self, left: DataFrame, right: DataFrame) -> DataFrame:
        same = reduce(and_, [F.col(f"l.{_name(k)}") == F.col(f"r.{_name(k)}") for k in self.key])
        return left.alias("l").join(right.alias("r"), same, "full_outer")

    def _digested(self, frame: DataFrame) -> DataFrame:
        """The key, and two digests of the other columns, and of which of them are null: Spark's hash skips nulls."""
        parts: list[Column] = [F.col(_name(_UNFIT)).isNull()]
        for name in self.values:
            parts += [F.col(_name(name)).isNull(), self._plain(name, F.col(_name(name)))]
        digests = [F.xxhash64(F.lit(seed), *parts).alias(name) for seed, name in enumerate(_HASHES)]
        return frame.select(*[F.col(_name(k)) for k in self.key], *digests)

    def _plain(self, name: str, column: Column) -> Column:
        """A value that Spark can compare and hash: nested ones as text, because Spark compares no maps, and its hash skips nulls in
        lists; floats as text, because Spark takes 0.0 and -0.0 for equal."""
        if isinstance(self.types[name], _NESTED):
            return _as_json(column)
        return column.cast("string") if isinstance(self.types[name], _FLOATS) else column

    def _differs(self) -> Column:
        """True, false, or null if one side is missing."""
        first, second = (F.col(f"l.{_name(h)}") != F.col(f"r.{_name(h)}") for h in _HASHES)
        return first | second


def _with_defaults(frame: DataFrame, schema: TableSchema) -> DataFrame:
    """With the columns of the table that the source lacks, as a feed writes them; those without a default are null later."""
    kinds, values = _defaults(schema, frame.columns)
    if not kinds.fields:
        return frame
    return frame.crossJoin(F.broadcast(frame.sparkSession.createDataFrame([values], kinds)))


def _defaults(schema: TableSchema, given: Sequence[str]) -> tuple[StructType, tuple[Any, ...]]:
    """The defaults of the columns that are not given, as Spark has them."""
    lacking = [c for c in schema.columns if c.default is not None and c.name not in given]
    row = pa.RecordBatch.from_arrays([defaults(c, 1) for c in lacking], names=[c.name for c in lacking])
    kinds = spark_schema(row.schema)
    columns = in_spark_types(row, to_arrow_schema(kinds)).columns
    return kinds, tuple(column[0].as_py(maps_as_pydicts="strict") for column in columns)


def _in_types_of(frame: DataFrame, wanted: StructType) -> DataFrame:
    """The rows in the table's columns and types. `_UNFIT` names a column whose value the type cannot hold, or is null."""
    given = {field.name: field.dataType for field in frame.schema.fields}
    chosen: list[Column] = []
    unfit: list[Column] = []
    for field in wanted.fields:
        column = F.col(_name(field.name)) if field.name in given else F.lit(None)
        cast = column.cast(field.dataType)
        if field.name in given and given[field.name] != field.dataType:
            back = cast.cast(given[field.name])
            if isinstance(field.dataType, _NESTED):
                back, column = _as_json(back), _as_json(column)
            unfit.append(F.when(~back.eqNullSafe(column), F.lit(field.name)))
        chosen.append(cast.alias(field.name))
    try:
        return frame.select(*chosen, F.coalesce(*unfit, F.lit(None).cast("string")).alias(_UNFIT))
    except AnalysisException as error:
        raise InvalidArgument(
            f"source and table cannot be compared, their types are too far apart: {str(error).splitlines()[0]}"
        ) from error


def _as_json(column: Column) -> Column:
    return F.to_json(F.struct(column.alias("value")), _JSON)


def _name(column: str) -> str:
    escaped = column.replace("`", "``")
    return f"`{escaped}`"


def _texts(row: Any) -> dict[str, str | None]:
    return {} if row is None else texts(row.asDict(recursive=True))
