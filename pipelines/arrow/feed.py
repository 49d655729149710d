"""Feeds a table from files or a data set in this process: every row that fits is written exactly once.

    report = feed("people.csv", table)                       a path, a glob, a directory, a URI, a named data set
    report = feed("people.csv", table, on_error="skip")      without the rows that do not fit

The source is read three times: for the types, for a check of every row, and for the writes. So with `on_error="fail"` nothing is
written unless all rows fit and no two have the same key. A file that changes in between ends the feed.

A write id is made of the job's name and the position of the row, so that a repetition of a broken feed with the same `job`
changes nothing twice (while the table retains answers, one hour). An upsert may be repeated with any job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from ebla.arguments import check_table
from ebla.errors import FeedFailed, SourceUnfit
from ebla.pipelines import target
from ebla.pipelines.outcomes import FeedProgress, FeedReport
from ebla.pipelines.sources.check import Checked, check, fitting_batches
from ebla.pipelines.sources.notes import notes
from ebla.pipelines.sources.readers import Unfit
from ebla.pipelines.sources.source import Source, infer, opened
from ebla.show.progress import working
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.table import Table
from ebla.wording import count

ON_ERROR = ("fail", "skip")
CALL_ROWS = 131_072  # a call fills the servers' queues; the next one begins when it is answered
PIECE_ROWS = 8192
NAMED_MAX = 3


def feed(
    source: Source | str | os.PathLike[str],
    table: Table,
    *,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    mode: str = "upsert",
    on_error: str = "fail",
    job: str | None = None,
    call_rows: int = CALL_ROWS,
    deadline_s: float | None = None,
    on_progress: Callable[[FeedProgress], None] | None = None,
) -> FeedReport:
    """Write every row of `source` into `table`; with `mode="insert"` rows whose key exists are not changed. A row is replaced as
    a whole: columns of the table that the source lacks get their default, or become null.

    `format` and `options` replace what is recognised, such as options={"encoding": "cp1251"} for a CSV file.
    `on_error`: "fail" writes nothing if a row does not fit or a key is repeated. "skip" leaves out the rows that do not fit;
    of rows with the same key an upsert keeps the last, an insert the first.

    Raises SourceUnreadable, SourceUnfit, InvalidArgument if source and table have different columns: nothing was written. Raises
    FeedFailed if the writes end early: rows may have been written; feed again. `on_progress` gets the progress after each call;
    None shows it as `ebla.connect` says.
    """
    check_table(table, Table)
    target.check_arguments(mode, call_rows)
    if on_error not in ON_ERROR:
        raise InvalidArgument(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}")
    with working(table._awaited._client.display, f"feed {table.name}") as show:

        def checking(rows: int) -> None:
            show(f"{count(rows, 'row')} checked")

        found, types = infer(opened(source, format, options), checking)
        target.check_columns(types, table.name, table._awaited._routes.schema)
        checked = check(found, table._awaited._routes.schema, show=checking)
        return write(
            found,
            table,
            checked,
            mode=mode,
            on_error=on_error,
            job=job,
            call_rows=call_rows,
            deadline_s=deadline_s,
            on_progress=on_progress or (lambda now: show(*now.seen)),
        )


def write(
    source: Source,
    table: Table,
    checked: Checked,
    *,
    mode: str,
    on_error: str,
    job: str | None = None,
    call_rows: int = CALL_ROWS,
    deadline_s: float | None = None,
    on_progress: Callable[[FeedProgress], None],
) -> FeedReport:
    """Write a source that was checked for this table."""
    if on_error == "fail":
        refuse_unfit(checked)
    job = job or os.urandom(8).hex()
    began = time.monotonic()
    rows = rejected = calls = 0
    batches = _counted(
        fitting_batches(source, table._awaited._routes.schema),
        min(call_rows, PIECE_ROWS),
        checked.fitting,
        checked.source,
    )
    try:
        with target.interruption_noted(lambda: rows + rejected, mode, job):
            for call in target.calls(batches, call_rows):
                written, refused = target.write(
                    table, call, mode=mode, job=job, partition=0, deadline_s=deadline_s
                )
                rows, rejected, calls = rows + written, rejected + refused, calls + 1
                seconds = time.monotonic() - began
                on_progress(FeedProgress(rows + rejected, checked.fitting, 0, 0, seconds))
    except EblaError as error:
        if not (calls or error.possibly_applied):
            raise
        raise _broken_off(error, rows + rejected, mode, job) from error
    seconds = time.monotonic() - began
    rate = rows / seconds if seconds > 0 else 0.0
    # Of the rows with one key the table has one: an upsert has written the others before it, an insert was refused for them.
    again = checked.repeated or 0
    rows, rejected = (rows, rejected - again) if mode == "insert" else (rows - again, rejected)
    return FeedReport(
        table=table.name,
        source=source.name,
        job=job,
        mode=mode,
        rows=rows,
        rejected=rejected,
        partitions=1,
        calls=calls,
        retries=0,
        seconds=seconds,
        rows_per_s=rate,
        engine="arrow",
        skipped=checked.unfit,
        repeated=checked.repeated,
        notes=tuple(notes(source, (), new=False)),
    )


def _broken_off(error: EblaError, rows: int, mode: str, job: str) -> FeedFailed:
    """The failure of a feed that may have written rows, with the remedy."""
    again = target.feed_again(mode, job, " when that is mended")
    return FeedFailed(f"the feed ended after {rows} rows: {error.message}. {again}", job=job, rows=rows)


def refuse_unfit(checked: Checked) -> None:
    """Raise SourceUnfit unless every row fits and every key occurs once."""
    if checked.clean:
        return
    problems = []
    if checked.unfit:
        some = "; ".join(map(place_of, checked.unfit_rows[:NAMED_MAX]))
        problems.append(f"{count(checked.unfit, 'row does', 'rows do')} not fit ({some})")
    if checked.repeated:
        first = checked.repeated_rows[0]
        key = ", ".join(f"{name}={value}" for name, value in first.key.items())
        problems.append(
            f"{count(checked.repeated, 'row has', 'rows have')} the key of an earlier row ({first.file} row {first.row} "
            f"has {key}, as row {first.earlier_row})"
        )
    raise SourceUnfit(
        f"{' and '.join(problems)}; nothing was written. Mend the source, or leave these rows out with --on-error skip (in Python, on_error='skip')",
        source=checked.source,
        unfit=checked.unfit,
        repeated=checked.repeated,
        rows=checked.unfit_rows,
    )


def place_of(row: Unfit) -> str:
    """`people.csv row 17, column age: 'abc' is not int64`."""
    return f"{row.file} row {row.row}" + (f", column {row.column}: " if row.column else " ") + row.problem


def _counted(
    batches: Iterator[pa.RecordBatch], rows_max: int, wanted: int, source: str
) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of at most `rows_max`. Raises FeedFailed if they are not as many as were checked."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        for at in range(0, batch.num_rows, rows_max):
            yield batch.slice(at, rows_max)
    if rows != wanted:
        raise FeedFailed(
            f"{source} had {wanted} rows that fit when it was checked, and has {rows} now; feed it again",
            rows=rows,
        )
