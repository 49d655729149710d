"""The table that a feed writes: made if it is missing, and written exactly once.

The requests for a partition of the source depend only on its rows and its number, so that a repeated attempt sends the same
requests with the same ids, and the table is the same as after one attempt:

    client      16 bytes digested from the feed's job, and the partition's number
    calls       up to a fixed number of rows, and of bytes
    sequence    the position of a call's first row in its partition
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from ebla.actors.errors import NotFound, RequestReused, StaleRequest
from ebla.actors.messages import RAFT, TableInfo
from ebla.partitions import PartitionBy, resolve
from ebla.pipelines.datasets import DATASETS
from ebla.pipelines.sources.pieces import grouped
from ebla.storage.errors import InvalidArgument, add_note
from ebla.storage.schema import ROWS, TableSchema
from ebla.table import Database, Table

MODES = ("upsert", "insert")
CALL_ROWS = 32_768
CALL_BYTES = 16_000_000
REPLICAS = 3


# -- the table -----------------------------------------------------------------------------------------------


def table_for(
    db: Database,
    name: str,
    source: str | pa.Schema,
    *,
    primary_key: Sequence[str] = (),
    partition_by: PartitionBy | None = None,
    replicas: int | None = None,
    replication: str | None = None,
    min_members: int | None = None,
    storage: str | None = None,
) -> Table:
    """The table `name`, created if it does not exist.

    Args:
        db: The deployment.
        name: The table.
        source: The columns of a new table: a schema of Arrow, or the name of a data set, such as "flights".
        primary_key: The key. A new table needs one, unless the data set has a default key.
        partition_by: How a new table is divided into tablets. None: the table is one tablet.
        replicas: The replicas of each tablet. None: 3 for a new table.
        replication: As of `Database.create_table`. None: Raft for a new table.
        min_members: As of `Database.create_table`.
        storage: As of `Database.create_table`. None: "rows" for a new table.

    Raises:
        InvalidArgument: The table exists with another definition than the given one. Or it does not exist, and there is no
            key for it, or no data set of this name.
        Unavailable: There are not enough servers for the replicas.
    """
    options = {"replicas": replicas, "replication": replication, "min_members": min_members}
    try:
        table = db.table(name)
    except NotFound:
        pass
    else:
        check_same(table.info(), primary_key, partition_by, {**options, "storage": storage})
        return table
    known = DATASETS.get(source) if isinstance(source, str) else None
    if known is not None:
        schema, primary_key = known.schema, tuple(primary_key) or known.primary_key
    elif isinstance(source, pa.Schema):
        schema = source
    else:
        raise InvalidArgument(f"{source!r} is no data set; read it first, and give its columns")
    if not primary_key:
        raise InvalidArgument(
            f"table {name!r} does not exist; name its primary key to have it made, of the columns "
            f"{', '.join(schema.names)}"
        )
    return db.create_table(
        name,
        schema=schema,
        primary_key=primary_key,
        partition_by=partition_by,
        replicas=replicas or REPLICAS,
        replication=replication or RAFT,
        min_members=min_members,
        storage=storage or ROWS,
    )


def check_same(
    info: TableInfo,
    primary_key: Sequence[str],
    partition_by: PartitionBy | None,
    options: Mapping[str, int | str | None],
) -> None:
    """Raise InvalidArgument if an existing table differs from what is given for a new one. `options`: fields of `info`,
    None if not given."""
    key = info.schema.key
    if primary_key and tuple(primary_key) != key:
        raise InvalidArgument(
            f"table {info.name!r} exists with the primary key {', '.join(key)}, not {', '.join(primary_key)}; leave the "
            "key out, or feed another table"
        )
    if partition_by is not None and resolve(partition_by, info.schema) != info.schema.partitioning:
        raise InvalidArgument(
            f"table {info.name!r} exists with another partitioning than {partition_by!r}; leave the partitioning out, or "
            "feed another table"
        )
    for name, given in options.items():
        if given not in (None, getattr(info, name)):
            raise InvalidArgument(
                f"table {info.name!r} exists with {name} {getattr(info, name)}, not {given}; leave {name} out, or feed "
                "another table"
            )


def check_columns(given: pa.Schema, table: str, wanted: TableSchema) -> None:
    """Check the names of columns before anything is written. Values are checked row by row."""
    names = [column.name for column in wanted.columns]
    for name in given.names:
        if name not in names:
            raise InvalidArgument(
                f"table {table!r} has no column {name!r}; drop it from the source, the columns are {', '.join(names)}",
                column=name,
            )
    for column in wanted.columns:
        if not column.nullable and column.default is None and column.name not in given.names:
            raise InvalidArgument(
                f"the source has no column {column.name!r}, which table {table!r} needs; its columns are "
                f"{', '.join(given.names)}",
                column=column.name,
            )


def lacking(given: pa.Schema, schema: TableSchema) -> dict[str, str]:
    """The columns of the table that the source lacks, and their value in rows that it writes."""
    missing = [column for column in schema.columns if column.name not in given.names]
    return {column.name: "null" if column.default is None else "its default" for column in missing}


def check_arguments(mode: str, *counts: int | None) -> None:
    if mode not in MODES:
        raise InvalidArgument(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if any(count is not None and count < 1 for count in counts):
        raise InvalidArgument("call_rows and partitions must be 1 or more")


# -- writes --------------------------------------------------------------------------------------------------


def feed_again(mode: str, job: str, when: str = "") -> str:
    """The remedy after a feed that ended early."""
    if mode == "insert":
        return f"Feed again with --job {job}{when}: rows that were inserted then count as such"
    return f"Feed again{when}: the table then equals the source"


@contextmanager
def interruption_noted(acknowledged: Callable[[], int], mode: str, job: str) -> Iterator[None]:
    """Add to an interruption (Ctrl-C, SIGTERM) what was written, and the remedy."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        add_note(
            end,
            f"Rows may have been written; {acknowledged():,} were acknowledged (job {job}). {feed_again(mode, job)}",
        )
        raise


class Call(msgspec.Struct, frozen=True):
    """Rows to write together; the first is at `position` in its partition."""

    position: int
    rows: Any  # pa.Table


def client_id(job: str, partition: int) -> bytes:
    """The client id of the partition, the same in every process."""
    return xxhash.xxh3_128_digest(f"{job}/{partition}".encode())


def calls(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int = CALL_BYTES) -> Iterator[Call]:
    """Calls of at most `rows_max` rows and `bytes_max` bytes, if they have more than one row."""
    position = 0
    for pieces in grouped(batches, rows_max, bytes_max):
        rows = pa.Table.from_batches(pieces)
        yield Call(position, rows)
        position += rows.num_rows


def write(
    table: Table, call: Call, *, mode: str, job: str, partition: int, deadline_s: float | None
) -> tuple[int, int]:
    """Write one call; the numbers of rows that were written, and that were present before (insert only)."""
    write_id = client_id(job, partition), call.position
    try:
        if mode == "insert":
            written = table.insert(call.rows, if_present="ignore", deadline_s=deadline_s, write_id=write_id)
        else:
            written = table.upsert(call.rows, deadline_s=deadline_s, write_id=write_id)
    except InvalidArgument as error:
        where = f"{error.message} (partition {partition}, rows from {call.position} on)"
        raise InvalidArgument(where, column=error.column, row=error.row) from error
    except (RequestReused, StaleRequest) as error:
        raise InvalidArgument(
            f"job {job!r} has written partition {partition} before, with other rows or long ago; use another job, "
            "or none (with Spark, sort=True keeps the order of the rows the same at each reading)"
        ) from error
    return written.rows, len(written.rejected)
