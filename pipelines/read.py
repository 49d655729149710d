"""A table as a Spark DataFrame: one partition per tablet, read from the disk of a host with a replica.

Each task asks the tablet's leader for the log index that it must see, has a replica on its own host flush up to it, and reads
the replica's files; on a host without a replica it reads through the leader (client/local_scan.py). A tablet's rows are of
one moment; two tablets may be of different moments.

Spark gets the host of a replica as a preference, which it follows while an executor there is free. After
`spark.locality.wait` a task runs elsewhere, and reads through the leader.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from ray.core.generated import common_pb2

from ebla import local_scan
from ebla.pipelines.executors import hosts_of_executors
from ebla.placement.deploy.nearby import address_slots
from ebla.placement.extras import needs
from ebla.storage.arrow_types import column_of
from ebla.storage.errors import InvalidArgument
from ebla.storage.predicates.expressions import Expression
from ebla.storage.rows.convert import to_array
from ebla.table import Table

with needs("spark"):
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType


def read_table(
    spark: SparkSession,
    table: Table,
    columns: Sequence[str] | None = None,
    where: Expression | None = None,
    *,
    local: bool = True,
) -> DataFrame:
    """The rows for which `where` is true, or all; tablets that cannot have such rows are not read.

    `local=False` reads everything through the leaders.
    """
    schema = spark_schema(table.schema, columns)
    work = _ReadTask(
        pickle.dumps(table),
        tuple(local_scan.buckets(table, where)),
        schema.names,
        where,
        local,
        schema.json(),
    )
    return _one_partition_each(spark, table, work.buckets).mapInArrow(work, schema)


def spark_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> StructType:
    """Spark's types for these columns. A timestamp without a zone stays without one; unsigned integers become wider ones, and
    JSON text. Raises InvalidArgument for a column that Spark has no type for."""
    names = schema.names if columns is None else list(columns)
    for name in names:
        if name not in schema.names:
            raise InvalidArgument(
                f"there is no column {name!r}; the columns are {', '.join(schema.names)}", column=name
            )
    chosen = pa.schema([_inside(schema.field(name), name) for name in names])
    return from_arrow_schema(chosen, prefer_timestamp_ntz=True)


def _kept(kind: pa.DataType, column: str) -> pa.DataType:
    """Spark keeps microseconds for every unit, and has no unsigned integers."""
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time(kind):
        raise InvalidArgument(
            f"column {column!r} has times of day ({kind}), for which Spark has no type; leave the column out with "
            "columns=[...]",
            column=column,
        )
    if pa.types.is_map(kind):
        return pa.map_(_kept(kind.key_type, column), _inside(kind.item_field, column))
    if pa.types.is_list(kind):
        return pa.list_(_inside(kind.value_field, column))
    if pa.types.is_struct(kind):
        return pa.struct([_inside(each, column) for each in kind])
    return kind


def _inside(field: pa.Field, column: str) -> pa.Field:
    return field.with_type(_kept(field.type, column))


_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.json_(): pa.string(),
}


@dataclass(frozen=True)
class _ReadTask:
    """Reads the tablets with the given places in `buckets`. `schema` is Spark's, as JSON."""

    table: bytes
    buckets: tuple[int, ...]
    columns: list[str]
    where: Expression | None
    local: bool
    schema: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table: Table = pickle.loads(self.table)
        wanted = to_arrow_schema(StructType.fromJson(json.loads(self.schema)))
        for batch in batches:
            for place in batch.column(0).to_pylist():
                tablet = local_scan.scan_tablet(
                    table, self.buckets[place], self.columns, self.where, local=self.local
                )
                for rows in tablet:
                    yield in_spark_types(rows, wanted)


def in_spark_types(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in wanted:
        array = rows.column(field.name)
        if array.type != field.type:
            try:
                array = to_array(column_of(field), array)
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"column {field.name!r} holds {array.type} values that Spark, which keeps {field.type}, cannot "
                    "hold; leave the column out",
                    column=field.name,
                ) from error
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


# -- placement -----------------------------------------------------------------------------------------------


def _one_partition_each(spark: SparkSession, table: Table, buckets: Sequence[int]) -> DataFrame:
    """A DataFrame of the numbers 0.. whose partition i has i, and prefers a host with a replica of tablet i."""
    jvm: Any = spark.sparkContext._jvm
    reader: Any = jvm.org.apache.spark.sql.raydp.ObjectStoreReader
    if not buckets or not isinstance(reader, JavaClass):  # a session that RayDP did not make
        return spark.range(0, len(buckets), 1, max(1, len(buckets))).selectExpr("cast(id as int) as idx")
    address: Any = common_pb2.Address  # type: ignore[attr-defined]
    hosts = preferred_hosts(spark, table, buckets)
    places = [address(ip_address=host).SerializeToString() for host in hosts]
    return DataFrame(reader.createRayObjectRefDF(spark._jsparkSession, places), spark)


def preferred_hosts(spark: SparkSession, table: Table, buckets: Sequence[int]) -> list[str]:
    """A host for each tablet: with a replica, with an executor if possible, chosen evenly."""
    host_of = {slot: host for host, slots in address_slots().items() for slot in slots}
    locations = {location.bucket: location for location in table.info().tablets}
    running = hosts_of_executors(spark)
    given: Counter[str] = Counter()
    found = []
    for bucket in buckets:
        slots = [replica.address.partition("/")[2] for replica in locations[bucket].replicas if replica.alive]
        hosts = sorted({host_of[slot] for slot in slots if slot in host_of})
        able = [host for host in hosts if host in running] or hosts or [""]
        chosen = min(able, key=lambda host: given[host])
        given[chosen] += 1
        found.append(chosen)
    return found
