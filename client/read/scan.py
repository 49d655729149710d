"""Scans: what they read, and the forms of their result. scan_run.py reads the rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from ebla.arguments import check_int, check_names
from ebla.read import frames
from ebla.read.scan_run import Block, Outdated, ScanPlan, ScanRun
from ebla.show.handles import columns_html
from ebla.storage.errors import InvalidArgument
from ebla.storage.predicates import expressions
from ebla.storage.rows import python_values
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import TableRoutes

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

Row = dict[str, Any]


class Awaited:
    """Rows that are read with await. A plain loop over them, or a use as an Arrow stream, is refused with the remedy."""

    if not TYPE_CHECKING:  # a type checker refuses both by itself

        def _refuse(self, *_: Any) -> NoReturn:
            raise TypeError(
                f"the rows of an ebla.aio.{type(self).__name__} are read with `async for`, or at once with `await "
                "scan.to_arrow()`; without await, use a scan of the blocking API, ebla.connect()"
            )

        __iter__ = __arrow_c_stream__ = _refuse


class Scan(Awaited):
    """Columns and rows to read, from `Table.scan`. Each result runs the scan again.

    The rows of one tablet are of one moment. Two tablets may show different moments, since tablets are read one by one.
    Results raise InvalidArgument if a column that the scan names was dropped or renamed meanwhile, and NotFound if the table
    was dropped.
    """

    def __init__(
        self,
        client: DeploymentClient,
        routes: TableRoutes,
        columns: Sequence[str] | None,
        where: expressions.Expression | None,
        limit: int | None,
        deadline_s: float,
        bucket: int | None = None,
    ) -> None:
        """`bucket`: read one tablet only."""
        self._client = client
        self._routes = routes
        self._columns = None if columns is None else check_names("columns", columns)
        self._where = where
        self._limit = None if limit is None else check_int("limit", limit, 0)
        self._deadline_s = deadline_s
        self._tablets = None if bucket is None else [routes.routes[bucket]]
        self._plan = self._planned()
        self._run: ScanRun | None = None

    def _planned(self) -> ScanPlan:
        schema = self._routes.schema
        columns = [c.name for c in schema.columns] if self._columns is None else self._columns
        names = tuple(schema.column(name).name for name in columns)
        if not names or len(set(names)) != len(names):
            raise InvalidArgument(f"columns must name one column at least, and each once, not {list(names)}")
        predicate = None if self._where is None else expressions.bind(self._where, schema)
        if predicate is not None:
            expressions.encode(predicate)  # refuse a predicate that cannot be sent
        return ScanPlan(schema, names, predicate, self._limit)

    def _plan_again(self, error: Outdated) -> None:
        """Plan a scan of all columns with the present columns. Other scans end in the error."""
        if self._columns is not None:
            raise error
        self._plan = self._planned()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result and their types."""
        return self._plan.arrow

    @property
    def indexes(self) -> dict[str, int]:
        """For each tablet the log index of the last run's snapshot."""
        return {} if self._run is None else dict(self._run.indexes)

    async def to_arrow(self) -> pa.Table:
        """Read all rows into one pyarrow Table: tablets in their order, the rows of each in key order.

        A tablet whose server fails is read again elsewhere. Raises TimedOut if a block does not arrive in time.
        """
        while True:
            try:
                found = await self._collect()
                break
            except Outdated as error:
                self._plan_again(error)
        ordered = [batch for bucket in sorted(found) for batch in found[bucket]]
        return pa.Table.from_batches(ordered, schema=self.schema)

    async def _collect(self) -> dict[int, list[pa.RecordBatch]]:
        found: dict[int, list[pa.RecordBatch]] = {}
        with self._client.watching(f"scan {self._routes.name}", self._received):
            async with aclosing(self._start(self._plan, hold=True)) as blocks:
                async for block in blocks:
                    found.setdefault(block.route.bucket, []).extend(block.batches())
        return found

    def _received(self) -> int:
        return 0 if self._run is None else self._run.received

    async def to_pandas(self) -> pandas.DataFrame:
        """Read all rows into a pandas DataFrame, in the order of `to_arrow`.

        An integer column with nulls has pandas' type Int64, UInt64 or their like, whose nulls are `pandas.NA`; without nulls it
        has NumPy's type. Raises InvalidArgument, with the column, for a value that pandas cannot express, such as a time of day
        with nanoseconds; `to_arrow` reads it.
        """
        return frames.pandas_frame(await self.to_arrow())

    async def to_polars(self) -> polars.DataFrame:
        """All rows as a Polars DataFrame. Raises MissingPackage without the package polars, and InvalidArgument, with the column,
        for seconds that do not fit into Polars' milliseconds."""
        frames.polars()
        return frames.polars_frame(await self.to_arrow())

    async def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """All rows as a relation of this DuckDB connection (None: DuckDB's own). Raises MissingPackage without the package
        duckdb."""
        frames.duckdb()
        return frames.relation(await self.to_arrow(), connection)

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read batches as they arrive, a bounded number ahead, for results that do not fit into memory.

        Rows are in key order within a tablet; batches of several tablets are mixed. Raises ScanInterrupted if a tablet's
        server fails after some of its rows were passed on: their moment cannot be read again.

        A loop over batches or rows shows its progress only while it waits for the next batch, for more than two seconds: between
        batches the terminal belongs to the loop's own output.
        """
        async with aclosing(self._stream()) as stream:
            while True:
                with self._client.waiting(f"scan {self._routes.name}", self._received):
                    batch = await anext(stream, None)
                if batch is None:
                    return
                yield batch

    async def _stream(self, told: ScanPlan | None = None) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `batches`, for callers that show their progress themselves. `told`: the plan whose columns the caller has made use
        of, so that no other batches may follow."""
        begun = told is not None
        while True:
            try:
                async with aclosing(self._start(told or self._plan, hold=False)) as blocks:
                    async for block in blocks:
                        for batch in block.batches():
                            begun = True
                            yield batch
                return
            except Outdated as error:
                if begun:
                    raise
                self._plan_again(error)

    async def __aiter__(self) -> AsyncGenerator[Row, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for row in python_values.rows(batch):
                    yield row

    async def count(self) -> int:
        """Count the rows. Only the first key column is sent."""
        schema = self._plan.schema
        plan = ScanPlan(schema, schema.key[:1], self._plan.predicate, self._plan.limit)
        rows = 0
        with self._client.watching(f"count {self._routes.name}", self._received):
            async with aclosing(self._start(plan, hold=True)) as blocks:
                async for block in blocks:
                    rows += block.rows
        return rows

    async def _start(self, plan: ScanPlan, hold: bool) -> AsyncGenerator[Block, None]:
        await self._client.running(self._routes, self._deadline_s)
        run = ScanRun(self._client, self._routes, plan, self._deadline_s, hold, self._tablets)
        self._run = run
        async with aclosing(run.blocks()) as blocks:
            async for block in blocks:
                yield block

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            "a scan cannot be pickled, since it reads through this connection: pickle the table, and call its scan() there"
        )

    def __repr__(self) -> str:
        return f"<ebla.aio.Scan of {self._routes.name!r}: {', '.join(self._plan.columns)}{self._bounds()}>"

    def _repr_html_(self) -> str:
        """What would be read; nothing is."""
        caption = f"scan of {self._routes.name!r}{self._bounds()}"
        return columns_html(self._plan.schema, caption, self._plan.columns)

    def _bounds(self) -> str:
        where = "" if self._where is None else f" where {self._where!r}"
        return where + ("" if self._plan.limit is None else f" limit {self._plan.limit}")
