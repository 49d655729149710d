"""A table, awaited. `ebla.aio` shows its API; `ebla.table` runs it for code that does not await, with the same docstrings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from ebla.actors import messages as m
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, TableInfo
from ebla.arguments import check_choice, check_deadline, check_key, check_write_id
from ebla.errors import EblaError, InvalidArgument, ScanInterrupted
from ebla.options import Written
from ebla.read.reader import Reader
from ebla.read.scan import Awaited, Scan
from ebla.show.handles import describe, table_html
from ebla.storage.errors import add_note
from ebla.storage.predicates.expressions import Expression
from ebla.storage.rows import python_values
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import TableRoutes
from ebla.write.alter import Alteration
from ebla.write.writer import Writer, check_rows

if TYPE_CHECKING:
    from ebla.options import IfRefused, Row, Rows, WriteIdLike

FRUITLESS_SCANS_MAX = 3  # of a delete: interrupted scans in succession that led to no deletion


class Table(Awaited):
    """A table of a deployment, from `Database.table` or `Database.create_table`.

    Handles are cheap, and tasks or threads may share them: calls of many callers leave in few requests. All methods take
    `deadline_s`, the longest wait in seconds (60 by default): for one row, for each batch of a call with many rows, for each
    block of a scan. After it they raise TimedOut.

    **Writes.** When a write returns, its rows are synced to disk on a majority of the replicas. Every row is written as a
    whole or not at all. The rows of one call are no transaction: they are written in batches of one tablet each, a batch as
    a whole or not at all, and readers may see some batches before others. Rows are checked before any is sent, so a row that
    does not fit the schema changes nothing. Rows of a stream are checked and written in windows of about 32 MB; an error
    leaves the windows before it written.

    **Retries.** A request without an answer is sent again, and applied once, also if its first attempt arrives late. A
    caller that wants to repeat a whole call, even from another process, gives a `write_id` (see WriteId).

    **Cancellation.** A cancelled call, or one that Ctrl-C ends, sends no further batches. It does not recall those that are
    on their way: their rows may be written after the call has ended.

    **Errors of every method.** TimedOut, Unavailable, Throttled and OutcomeUnknown as `ebla.errors` describes them, NotFound
    if the table was dropped, ConnectionClosed. `error.possibly_applied` says whether a write may have taken effect.
    """

    def __init__(self, client: DeploymentClient, routes: TableRoutes) -> None:
        self._client = client
        self._routes = routes
        self._writer = Writer(client, routes)
        self._reader = Reader(client, routes)

    # -- description

    @property
    def name(self) -> str:
        """The table's present name."""
        return self._routes.name

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, as this connection knows them; an alteration changes them."""
        return self._routes.arrow

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The names of the key columns, in the order of the key."""
        return self._routes.schema.key

    async def info(self, *, deadline_s: float | None = None) -> TableInfo:
        """Get the table's schema, and where its tablets are, from the master.

        Args:
            deadline_s: Longest wait in seconds.

        Raises:
            TimedOut: The master did not answer in time.
        """
        request = m.TableName(self.name, self._routes.info.table)
        info = await self._client.master.ask(
            "get_table", request, m.TableInfo, deadline_s=check_deadline(deadline_s)
        )
        self._routes.update(info)
        return info

    def alter(self) -> Alteration:
        """Begin an alteration: add, rename or drop columns, rename the table. `apply` carries all of it out, or nothing.

        Clients may read and write meanwhile. Stored rows are not rewritten.
        """
        return Alteration(self._client, self._routes)

    # -- writes

    async def upsert(
        self, rows: Rows, *, deadline_s: float | None = None, write_id: WriteIdLike | None = None
    ) -> Written:
        """Insert rows; a row whose key exists is replaced as a whole.

        A column that `rows` do not name gets its default, else null, **also in rows that had a value for it**. To keep the
        other columns, use `update`. A missing column that takes no null is refused.

        Args:
            rows: One row as a dict; or many: a list of dicts, a table, record batch or frame (pyarrow, pandas, Polars, NumPy
                records), or a stream of record batches (docs/data.md). Columns are matched by name, in any order. If a key
                occurs twice, the later row wins.
            deadline_s: Longest wait in seconds, for each batch of rows.
            write_id: Makes the call repeatable: a repetition with the same rows in the same form changes nothing, and gets the
                first answer.

        Returns:
            The number of written rows.

        Raises:
            InvalidArgument: A row does not fit the schema, at `column` and `row`. Nothing is written, except that of a stream
                the windows before that row are (see the class); `possibly_applied` and a note say so.
            OverLimit: A key or a row is too large. Earlier windows of a stream are written, as above.
            SourceUnreadable: The source of a stream raised CancelledError or the like; other errors of it pass as they are.
            TimedOut: A batch was not acknowledged in time. It may be written; earlier batches are.
            OutcomeUnknown: It is not known whether a batch was written; the last answer was that no server can say.
            DiskFull: A disk is full. Nothing of the refused batch is written; other batches may be.
            RequestReused: The `write_id` was used with other rows, or with the same rows once as a stream and once not.
        """
        return await self._write(UPSERT, rows, False, deadline_s, write_id)

    async def insert(
        self,
        rows: Rows,
        *,
        if_present: IfRefused = "error",
        deadline_s: float | None = None,
        write_id: WriteIdLike | None = None,
    ) -> Written:
        """Insert new rows; a row whose key exists is left as it is.

        Whether the key exists is decided where the row is stored, in the order of all writes: of several callers that insert
        one key, exactly one succeeds.

        Args:
            rows: As in `upsert`.
            if_present: For keys that exist: "error" raises AlreadyPresent, "ignore" lists them in the result's `rejected`.
            deadline_s: Longest wait in seconds, for each batch of rows.
            write_id: As in `upsert`.

        Returns:
            The number of inserted rows, and the positions of those that exist.

        Raises:
            AlreadyPresent: Rows exist, at the positions `rows` of the call. All other rows were inserted: `applied`.
            InvalidArgument: A row does not fit the schema, as in `upsert`.
            TimedOut: As in `upsert`, as are all other errors.
        """
        strict = check_choice("if_present", if_present, ("error", "ignore")) == "error"
        return await self._write(INSERT, rows, strict, deadline_s, write_id)

    async def update(
        self,
        rows: Rows,
        *,
        if_absent: IfRefused = "error",
        deadline_s: float | None = None,
        write_id: WriteIdLike | None = None,
    ) -> Written:
        """Set the named columns of existing rows, and keep their other columns.

        All rows of one call name the same columns: the key, and those to set. A column that is named with None becomes null.

        Args:
            rows: As in `upsert`.
            if_absent: For keys without a row: "error" raises NotFound, "ignore" lists them in the result's `rejected`.
            deadline_s: Longest wait in seconds, for each batch of rows.
            write_id: As in `upsert`.

        Returns:
            The number of updated rows, and the positions of those that do not exist.

        Raises:
            NotFound: Rows do not exist, at the positions `rows` of the call. All other rows were updated: `applied`.
            InvalidArgument: A row does not fit the schema, or rows name different columns, or none outside the key.
            TimedOut: As in `upsert`, as are all other errors.
        """
        strict = check_choice("if_absent", if_absent, ("error", "ignore")) == "error"
        return await self._write(UPDATE, rows, strict, deadline_s, write_id)

    async def delete(
        self,
        keys: Rows | None = None,
        *,
        where: Expression | None = None,
        if_absent: IfRefused = "error",
        deadline_s: float | None = None,
        write_id: WriteIdLike | None = None,
    ) -> Written:
        """Delete rows by their keys, or the rows that meet a condition.

        With `where`, the call reads the keys of the matching rows and deletes these rows in batches. This is atomic for
        each row, and not for all rows together: other callers may see some rows deleted before others. A row that is changed
        after the call read its key is deleted, too. A row that is inserted during the call may be deleted or stay. If the
        call fails, rows that it deleted stay deleted; call it again to delete the others.

        Args:
            keys: As the rows of `upsert`; columns outside the key are ignored, so whole rows may be given.
            where: A condition, such as `ebla.col("at") < yesterday`, instead of `keys`.
            if_absent: For `keys` without a row: "error" raises NotFound, "ignore" lists them in the result's `rejected`.
            deadline_s: Longest wait in seconds, for each batch of rows and each block of the scan.
            write_id: As in `upsert`; not with `where`.

        Returns:
            The number of rows that this call deleted, each counted once, and the positions of `keys` without a row.

        Raises:
            NotFound: Rows do not exist, at the positions `rows` of the call. All other rows were deleted: `applied`.
            InvalidArgument: A key or the condition does not fit the schema.
            ScanInterrupted: With `where`: scans were interrupted again and again. Rows may have been deleted.
            TimedOut: As in `upsert`, as are all other errors.
        """
        strict = check_choice("if_absent", if_absent, ("error", "ignore")) == "error"
        if isinstance(keys, Expression):
            raise InvalidArgument(
                "delete takes a condition by name: give where=, such as where=ebla.col('n') < 5"
            )
        if (keys is None) == (where is None):
            raise InvalidArgument(
                "delete takes either keys, or where=condition, such as where=ebla.col('n') < 5"
            )
        if where is None:
            return await self._write(DELETE, keys, strict, deadline_s, write_id)
        if write_id is not None:
            raise InvalidArgument(
                "a write_id numbers the rows of a call, which are not known with where: leave it out; a repeated call "
                "deletes the rows that are left"
            )
        return await self._delete_where(where, deadline_s)

    async def _delete_where(self, where: Expression, deadline_s: float | None) -> Written:
        """A scan that is interrupted begins again: the rows that were deleted no longer match."""
        scan = self.scan(self.primary_key, where, deadline_s=deadline_s)
        deleted = fruitless = 0
        with self._client.watching(f"delete from {self.name}", lambda: deleted):
            while True:
                before = deleted
                try:
                    async with aclosing(scan._stream()) as batches:
                        async for batch in batches:
                            deleted += (await self._write(DELETE, batch, False, deadline_s, None)).rows
                    return Written(deleted)
                except EblaError as error:
                    fruitless = fruitless + 1 if deleted == before else 0
                    if isinstance(error, ScanInterrupted) and fruitless < FRUITLESS_SCANS_MAX:
                        continue
                    error.possibly_applied = error.possibly_applied or deleted > 0
                    add_note(error, f"{deleted} rows were deleted before; call again to delete the others")
                    raise

    async def _write(
        self, kind: int, rows: Any, strict: bool, deadline_s: float | None, write_id: WriteIdLike | None
    ) -> Written:
        limit_s = check_deadline(deadline_s)
        if not self._routes.all_running:
            await self._client.running(self._routes, limit_s)
        if isinstance(rows, dict) and write_id is None:
            written = await self._writer.one(kind, rows, limit_s)
        else:
            written = await self._writer.many(kind, rows, check_write_id(write_id), limit_s)
        return check_rows(kind, self.name, written, strict) if written.rejected else written

    # -- reads

    async def get(self, key: Mapping[str, Any], *, deadline_s: float | None = None) -> Row | None:
        """Get one row by its whole key.

        The read is linearizable: it sees every write that was acknowledged before the call.

        Args:
            key: The key columns and their values, such as `{"user": "ada", "at": now}`.
            deadline_s: Longest wait in seconds.

        Returns:
            The row as a dict of all columns, or None if there is none.

        Raises:
            InvalidArgument: A key column is missing, has an invalid value, or a column is not part of the key.
            Corruption: The row's bytes fail their check.
            TimedOut: No replica answered in time.
        """
        limit_s = check_deadline(deadline_s)
        check_key(key, self.primary_key)
        if not self._routes.all_running:
            await self._client.running(self._routes, limit_s)
        return await self._reader.get(key, limit_s)

    @overload
    async def get_many(
        self, keys: Rows, *, as_arrow: Literal[False] = False, deadline_s: float | None = None
    ) -> list[Row | None]: ...

    @overload
    async def get_many(
        self, keys: Rows, *, as_arrow: Literal[True], deadline_s: float | None = None
    ) -> pa.RecordBatch: ...

    async def get_many(self, keys: Rows, *, as_arrow: bool = False, deadline_s: float | None = None) -> Any:
        """Get many rows by their keys. Each row is read as by `get`; two rows may be of different moments.

        Args:
            keys: As in `delete`.
            as_arrow: Return Arrow data instead of dicts.
            deadline_s: Longest wait in seconds.

        Returns:
            One entry for each key, in their order: the row or None. With `as_arrow` a RecordBatch of the existing rows, in
            the order of their keys.

        Raises:
            InvalidArgument: A key does not fit the schema, at `column` and `row`.
            TimedOut: No replica answered in time.
        """
        limit_s = check_deadline(deadline_s)
        if not self._routes.all_running:
            await self._client.running(self._routes, limit_s)
        found, places = await self._reader.get_many(keys, limit_s)
        if as_arrow:
            return found.take(pa.array(places[places >= 0]))
        rows = python_values.rows(found)
        return [None if place < 0 else rows[place] for place in places.tolist()]

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Expression | None = None,
        limit: int | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Scan:
        """Choose columns and rows to read. Nothing is read before a result is asked for.

        The rows of one tablet are of one moment; two tablets may show different moments.

        Args:
            columns: The columns to read, in this order; None for all.
            where: A condition, such as `(ebla.col("origin") == "JFK") & (ebla.col("delay") > 60)`. The servers evaluate it.
            limit: The largest number of rows.
            deadline_s: Longest wait in seconds, for each block of rows.

        Raises:
            InvalidArgument: There is no such column, or a value does not fit its column.
        """
        return Scan(self._client, self._routes, columns, where, limit, check_deadline(deadline_s))

    async def count(self, where: Expression | None = None, *, deadline_s: float | None = None) -> int:
        """Count the rows, or those that meet a condition. All their keys are read; the moments are those of a `scan`.

        Args:
            where: A condition, as of `scan`; None for all rows.
            deadline_s: Longest wait in seconds, for each block of keys.

        Raises:
            InvalidArgument: There is no such column, or a value does not fit its column.
            TimedOut: A block did not arrive in time.
        """
        return await self.scan(where=where, deadline_s=deadline_s).count()

    def __aiter__(self) -> AsyncGenerator[Row, None]:
        return self.scan().__aiter__()

    async def flush(self, *, deadline_s: float | None = None) -> dict[str, int]:
        """Write every tablet's applied rows from the leader's memory into its table on disk. Writes are durable without
        this call: the log has them.

        Args:
            deadline_s: Longest wait in seconds, for each tablet.

        Returns:
            For each tablet the log index up to which the disk has the rows.

        Raises:
            TimedOut: A tablet's leader did not answer in time. Other tablets may be written.
        """
        limit_s = check_deadline(deadline_s)
        await self._client.running(self._routes, limit_s)
        ask = self._client.router.ask
        replies = await asyncio.gather(
            *(
                ask(r, "flush", m.FlushRequest(r.tablet), m.FlushReply, what="flush", deadline_s=limit_s)
                for r in self._routes.routes
            )
        )
        return {tablet: index for _, reply in replies for tablet, index in reply.flushed.items()}

    def __repr__(self) -> str:
        return f"<ebla.aio.Table {describe(self._routes.info)}>"

    def _repr_html_(self) -> str:
        return table_html(self._routes.info)
