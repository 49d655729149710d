"""Tables and logs as Ray Data datasets. A table is read with one task per tablet beside its replica, a log with one per ledger;
both are read and written exactly once.

    dataset = ebla.ray_data.read_table(flights, columns=["origin"], where=ebla.col("origin") == "JFK")
    written = ebla.ray_data.write_table(dataset, copies)
    dataset = ebla.ray_data.read_log(events, start=1000)
    count = ebla.ray_data.write_log(dataset, archive, job="archive of events")

All take a table or a log of `ebla.connect()`, whose handle connects anew in each task's process.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import ray
import ray.data
import xxhash
from ray.data import Dataset, Datasink, Datasource
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import ReadTask, WriteResult
from ray.exceptions import RayTaskError
from ray.util.annotations import RayDeprecationWarning

from ebla import local_scan
from ebla.actors.errors import RequestReused, StaleRequest
from ebla.actors.world import new_id
from ebla.arguments import check_table
from ebla.log import blocks
from ebla.log.blocking import Log
from ebla.options import WriteId
from ebla.placement.deploy.slots import Host, survey
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.storage.predicates.expressions import Expression
from ebla.storage.rows.python_values import shown
from ebla.table import Table

ANYWHERE: list[dict[str, Any]] = [
    {"label_selector": {}}
]  # Ray's second choice, if the host with the replica has no room
# A repeated read task may give other blocks, and Ray would join the first ones of one run with the last ones of another.
ONCE = {"max_retries": 0}


def read_table(
    table: Table, columns: Sequence[str] | None = None, where: Expression | None = None
) -> Dataset:
    """A dataset of these columns (all if None) of the rows for which `where` is true.

    One read task per tablet runs on a host with a replica, if that host has room, and reads the replica's files. Elsewhere
    the task reads through the tablet's leader. Each tablet's rows are of one moment, the moment at which its task runs. Tablets
    that cannot have such rows are not read.

    A read whose task dies, or whose blocks are lost with their host, fails with an error of Ray, such as WorkerCrashedError: read
    again.
    """
    check_table(table, Table)
    schema = table.scan(columns, where).schema
    parts = [
        _read_once(TabletsDatasource(table, tuple(buckets), columns, where), len(buckets), host)
        for host, buckets in _by_host(table, local_scan.buckets(table, where)).items()
    ]
    first, *others = parts or [ray.data.from_arrow(schema.empty_table())]
    whole: Dataset = first.union(*others) if others else first
    return whole


def _read_once(source: Datasource, tasks: int, host: Host | None = None) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RayDeprecationWarning)  # the only way to give `max_retries`
        read: Dataset = ray.data.read_datasource(
            source,
            override_num_blocks=tasks,
            label_selector=None if host is None else host.selector,
            fallback_strategy=None if host is None else ANYWHERE,
            ray_remote_args=ONCE,
        )
    return read


def _by_host(table: Table, buckets: Sequence[int]) -> dict[Host | None, list[int]]:
    """The tablets by a host with a replica, which share the tablets evenly; None for those without."""
    found = survey(ray.nodes())  # type: ignore[no-untyped-call]
    locations = {location.bucket: location for location in table.info().tablets}
    chosen: dict[Host | None, list[int]] = defaultdict(list)
    given: Counter[Host | None] = Counter()
    for bucket in buckets:
        slots = [replica.address.partition("/")[2] for replica in locations[bucket].replicas if replica.alive]
        hosts = [host for host in map(found.host, slots) if host is not None]
        host = min(hosts, key=lambda each: (given[each], each.slot), default=None)
        chosen[host].append(bucket)
        given[host] += 1
    return chosen


class TabletsDatasource(Datasource):
    """Some tablets of a table: one read task each."""

    def __init__(
        self,
        table: Table,
        buckets: tuple[int, ...],
        columns: Sequence[str] | None,
        where: Expression | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table
        self._buckets = buckets
        self._columns = columns
        self._where = where

    def get_name(self) -> str:
        return f"Ebla[{self._table.name}]"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task per tablet; `parallelism` is Ray's wish, which the tablets decide."""
        unknown = BlockMetadata(None, None, None)
        schema = self._table.scan(self._columns, self._where).schema
        return [
            ReadTask(
                partial(_read, self._table, bucket, self._columns, self._where),
                unknown,
                schema,
                per_task_row_limit,
            )
            for bucket in self._buckets
        ]


def _read(
    table: Table, bucket: int, columns: Sequence[str] | None, where: Expression | None
) -> Iterator[Block]:
    tablet = local_scan.scan_tablet(table, bucket, columns, where)
    yield tablet.schema.empty_table()  # a tablet without rows has columns, too
    for batch in tablet:
        yield pa.Table.from_batches([batch])


def write_table(dataset: Dataset, table: Table) -> int:
    """Upsert the rows of `dataset`, and return how many rows were applied.

    A task that Ray runs again sends the same requests with the same ids, so each row is applied once. If a repeated task gives other
    rows than before (a random or time-dependent map function), the write fails with InvalidArgument; rows that earlier tasks wrote stay.
    A failed write can be made again: upserts of the same rows change nothing.

    Give `batch_format="pyarrow"` to `map_batches` before a write. Its default, NumPy, makes NaN of nulls in columns of numbers,
    and tensors of lists.
    """
    check_table(table, Table)
    if not isinstance(dataset, Dataset):
        raise InvalidArgument(f"dataset is a Dataset of Ray Data, not {shown(dataset)}")
    sink = TableDatasink(table, new_id(random.SystemRandom()))
    with _errors_of_tasks():
        dataset.write_datasink(sink)
    return sink.rows


@contextmanager
def _errors_of_tasks() -> Iterator[None]:
    """Raise ebla's errors without Ray's wrapping."""
    try:
        yield
    except RayTaskError as error:
        cause = _ebla_error(error)
        if cause is None:
            raise
        raise cause from None


def _ebla_error(error: BaseException | None) -> EblaError | None:
    """The error that a task raised, inside Ray's wrapping."""
    for _ in range(8):
        if error is None or (isinstance(error, EblaError) and not isinstance(error, RayTaskError)):
            return error
        error = getattr(error, "cause", None) or error.__cause__
    return None


class TableDatasink(Datasink[int]):
    """Writes blocks into a table. `job` names this write: with a task's number and a row's position it makes the request ids.

    The number of a task and its blocks stay the same when Ray runs the task again.
    """

    def __init__(self, table: Table, job: str) -> None:
        self._table = table
        self._job = job
        self.rows = 0

    def get_name(self) -> str:
        return f"Ebla[{self._table.name}]"

    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        client = xxhash.xxh3_128_digest(f"{self._job}/{ctx.task_idx}".encode())
        position = applied = 0
        for block in blocks:
            rows = BlockAccessor.for_block(block).to_arrow()
            if rows.num_rows:
                applied += self._upsert(rows, WriteId(client, position))
            position += rows.num_rows
        return applied

    def _upsert(self, rows: pa.Table, write_id: WriteId) -> int:
        try:
            return self._table.upsert(rows, write_id=write_id).rows
        except (RequestReused, StaleRequest) as error:
            raise InvalidArgument(
                "Ray ran a task again, and the task had other rows than before, or ran long after the first time; the table may have rows of "
                "both runs. Make the functions of the dataset return the same rows each time, or materialize() the dataset before it is written"
            ) from error
        except InvalidArgument as error:
            if error.column is None or not _is_of_numpy(rows, error.column):
                raise
            raise InvalidArgument(
                f"{error.message}. Nulls of numbers become NaN in NumPy batches, and lists become tensors: if this column passed through "
                "map_batches, use map_batches(..., batch_format='pyarrow')",
                column=error.column,
                row=error.row,
            ) from error

    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        self.rows = sum(write_result.write_returns)


def _is_of_numpy(rows: pa.Table, column: str) -> bool:
    """Whether this column has a type that NumPy batches give to other types."""
    kind = rows.schema.field(column).type if column in rows.schema.names else pa.null()
    return pa.types.is_floating(kind) or "tensor" in getattr(kind, "extension_name", "")


# -- logs ----------------------------------------------------------------------------------------------------


def read_log(log: Log, start: int | None = None, end: int | None = None, *, tables: bool = False) -> Dataset:
    """A dataset of the records from position `start` to before `end`, with the columns `position` and `data`, the bytes.

    None stands for the first record that is kept, and for the last one that is acknowledged now. `tables`: the records are Arrow
    tables, as `append_table` and `write_log` make them, and the dataset has their rows instead. One read task per ledger; its blocks
    are in the order of positions. Raises RecordsTrimmed if `start` was deleted; a task does, if its records are deleted before it
    has read them. A read whose task dies, or whose blocks are lost with their host, fails with an error of Ray: read again.
    """
    parts = blocks.parts_of(log, start, end)
    schema = blocks.schema_of(log, parts) if tables else None
    if not parts:
        return ray.data.from_arrow(blocks.SCHEMA.empty_table())
    return _read_once(LogDatasource(log, parts, schema), len(parts))


class LogDatasource(Datasource):
    """Positions of a log: one read task for each part. `tables`: the columns of the tables that the records are."""

    def __init__(self, log: Log, parts: Sequence[range], tables: pa.Schema | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._parts = parts
        self._tables = tables

    def get_name(self) -> str:
        return f"Ebla[{self._log.name}]"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task per part; `parallelism` is Ray's wish, which the ledgers decide."""
        return [
            ReadTask(
                partial(blocks.read_part, self._log, part, self._tables),
                BlockMetadata(None if self._tables else len(part), None, None),
                self._tables or blocks.SCHEMA,
                per_task_row_limit,
            )
            for part in self._parts
        ]


def write_log(dataset: Dataset, log: Log, *, job: str | None = None, tables: bool = False) -> int:
    """Append the column `data` of `dataset`, bytes or text, and return how many records these are. `tables`: append the rows as Arrow
    tables of 10,000 rows instead.

    A log has one writer: it is this process, and appends the rows in the order of the dataset. Ray's tasks compute the rows; one
    that runs again appends nothing twice. `job`: a name under which the log counts the records (docs/logs.md). A write that has
    failed, or whose process has died, can be made again under the same job, and appends what is not in the log yet; the dataset
    must have the same rows in the same order then.
    """
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        with _errors_of_tasks():
            rows = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
            return blocks.append(log, rows, job, tables)
    finally:
        options.preserve_order = before
