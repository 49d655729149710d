"""`ebla feed`: rows of a source into a table."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.data import sources
from ebla.cli.frame.problems import FAILED, Usage
from ebla.cli.frame.ui import Ui
from ebla.cli.tables import schemas

if TYPE_CHECKING:
    from ebla.operate.waiting import Progress
    from ebla.partitions import PartitionBy
    from ebla.pipelines.outcomes import FeedProgress, FeedReport
    from ebla.pipelines.sources.check import Checked
    from ebla.pipelines.sources.source import Source as Opened
    from ebla.storage.schema import TableSchema
    from ebla.table import Database, Table

BUCKETS = 8


class Mode(StrEnum):
    upsert = "upsert"
    insert = "insert"


class OnError(StrEnum):
    fail = "fail"
    skip = "skip"


FeedMode = Annotated[Mode, typer.Option("--mode", "-m", help="Replace rows whose key exists, or keep them.")]
FeedDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show types, a sample and the rows that do not fit. Write nothing.")
]
FeedOnError = Annotated[
    OnError,
    typer.Option(
        "--on-error",
        help="If rows do not fit or repeat a key: write nothing, or skip them (of a repeated key the last row stays).",
    ),
]
FeedJob = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="A repeated feed with the same name changes no row twice."),
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
    int | None,
    typer.Option(
        "--replicas", "-r", metavar="N", min=1, help="Replicas of each tablet of a new table (default: 3)."
    ),
]
FeedPartitions = Annotated[
    int | None,
    typer.Option(
        "--partitions", metavar="N", min=1, help="Distribute the rows over N tasks.", rich_help_panel="Spark"
    ),
]


def feed(
    ui: Ui,
    source: sources.Source,
    table: sources.TableName,
    dry_run: FeedDryRun = False,
    on_error: FeedOnError = OnError.fail,
    mode: FeedMode = Mode.upsert,
    format: sources.Format = None,
    option: sources.Options = None,
    job: FeedJob = None,
    key: FeedKey = None,
    hash: FeedHash = None,
    replicas: FeedReplicas = None,
    engine: sources.EngineOption = None,
    partitions: FeedPartitions = None,
    executors: sources.Executors = None,
    cores: sources.Cores = None,
    memory: sources.Memory = None,
    on_slot: sources.OnSlot = None,
    avoid_slot: sources.AvoidSlot = None,
) -> None:
    """Write all rows of a source into a table, each exactly once.

    Format, encoding, separator and types are recognised and shown; --dry-run shows only that. A missing table is
    created with the source's columns. If the feed is interrupted, run it again: the table then equals the source.
    """
    spark = sources.SparkOptions(executors, cores, memory, on_slot, avoid_slot, partitions)
    with ui.working(f"feed {table}") as progress, ui.kept_stdout():
        progress.step("recognising the source")
        opened = sources.open_checked(source, format, option)
        chosen = sources.choose_engine(engine, spark, opened)
        if chosen is sources.Engine.spark and on_error is OnError.skip:
            raise Usage(
                "Spark ends at the first row that does not fit; --on-error skip needs --engine arrow",
                option="--on-error",
            )
        with sources.connected(ui, progress) as database:
            plan = _Plan(ui, progress, database, opened, table, source)
            plan.choose_table(key, hash, replicas)
            checked = plan.check() if chosen is sources.Engine.arrow or dry_run else None
            report = None
            if not dry_run:
                plan.show_inferred(checked)
                report = (
                    plan.feed_with_spark(mode, job, spark)
                    if checked is None
                    else plan.feed(checked, mode, on_error, job)
                )
    plan.show(report, checked, on_error)


class _Plan:
    """One feed: the source with its columns, and the table, which may not exist yet."""

    def __init__(
        self, ui: Ui, progress: Progress, database: Database, opened: Opened, table: str, given: str
    ) -> None:
        from ebla.pipelines.sources.source import infer

        self.ui, self.progress, self.database, self.name, self.given = ui, progress, database, table, given
        self.source, self.types = infer(opened, lambda rows: progress.step(f"reading types: {rows:,} rows"))
        self.new = table not in [each.name for each in database.tables(table)]
        self.key: tuple[str, ...] = ()
        self.partition_by: PartitionBy | None = None
        self.replicas: int | None = None
        self.lacking: dict[str, str] = {}
        self.schema: TableSchema

    def choose_table(self, key: str | None, hashed: str | None, replicas: int | None) -> None:
        """The schema of the table, or of the one to be made. Raises Usage or InvalidArgument for options that contradict it."""
        from ebla.partitions import resolve
        from ebla.pipelines import target
        from ebla.pipelines.datasets import DATASETS
        from ebla.storage.schema import TableSchema

        known = DATASETS.get(self.source.name)
        self.key = schemas.parse_names(key, "--key") if key else ()
        self.partition_by, self.replicas = _partition_by(hashed), replicas
        if not self.new:
            table = self.database.table(self.name)
            target.check_same(table.info(), self.key, self.partition_by, replicas)
            target.check_columns(self.types, self.name, table.schema)
            self.schema = table._awaited._routes.schema
            self.lacking = target.lacking(self.types, self.schema)
            return
        if known is not None:
            self.key = self.key or known.primary_key
            self.partition_by = self.partition_by or _partition_by(f"{','.join(known.hash_by)}:{BUCKETS}")
        if not self.key:
            raise Usage(
                f"there is no table {self.name!r}; --key a,b creates it, with a key of the columns "
                f"{', '.join(self.types.names)}",
                option="--key",
            )
        plain = TableSchema.from_arrow(self.types, self.key)
        self.schema = TableSchema.from_arrow(self.types, self.key, resolve(self.partition_by, plain))

    def check(self) -> Checked:
        """Read every row in the table's types."""
        from ebla.pipelines.sources.check import check

        return check(
            self.source, self.schema, show=lambda rows: self.progress.step(f"checking {rows:,} rows")
        )

    def show_inferred(self, checked: Checked | None) -> None:
        """Show what was recognised, before anything is written."""
        from ebla.pipelines.report import columns_view, facts_line

        self.ui.note(facts_line(self.given, self.source.facts))
        if self.lacking:
            self.ui.note(_lacking_line(self.lacking))
        if checked is not None and not self.ui.json:
            self.ui.err.print(columns_view(checked, self.schema.key))

    def feed(self, checked: Checked, mode: Mode, on_error: OnError, job: str | None) -> FeedReport:
        from ebla.pipelines.arrow import feed as feeding

        if on_error is OnError.fail:
            feeding.refuse_unfit(checked)
        return feeding.write(
            self.source,
            self._target(),
            checked,
            mode=mode.value,
            on_error=on_error.value,
            job=job,
            on_progress=lambda now: _show(self.progress, now),
        )

    def feed_with_spark(self, mode: Mode, job: str | None, options: sources.SparkOptions) -> FeedReport:
        with sources.spark_session(f"ebla feed {self.name}", self.progress, options) as session:
            from ebla.pipelines import feed as feeding
            from ebla.pipelines.frames import frame

            target = self._target()
            known = self.source.name if self.source.facts.format == "data set" else None
            return feeding.feed(
                session,
                known or frame(session, self.source, wanted=target.schema),
                target,
                mode=mode.value,
                job=job,
                partitions=options.partitions,
                on_progress=lambda now: _show(self.progress, now),
            )

    def show(self, report: FeedReport | None, checked: Checked | None, on_error: OnError) -> None:
        """Show what was fed; for a dry run, which has no report, what was found."""
        if report is None:
            assert checked is not None, "a dry run has checked the source"
            _show_dry_run(self, checked, on_error)
            return
        from ebla.pipelines.report import feed_view

        report = msgspec.structs.replace(report, source=self.given)
        document = {**msgspec.to_builtins(report), "table_created": self.new, "lacking": self.lacking}
        document |= _described(checked)
        self.ui.show(document, f"created table {self.name}" if self.new else None, feed_view(report))

    def _target(self) -> Table:
        from ebla.pipelines import target

        return target.table_for(
            self.database,
            self.name,
            self.types,
            primary_key=self.key,
            partition_by=self.partition_by,
            replicas=self.replicas,
        )


def _partition_by(hashed: str | None) -> PartitionBy | None:
    import ebla.partitions as partitions

    if hashed is None:
        return None
    spec = schemas.parse_hash(hashed)
    return partitions.hash(*spec.columns, buckets=spec.buckets)


def _show_dry_run(plan: _Plan, checked: Checked, on_error: OnError) -> None:
    """Exit status 1 if the feed would fail."""
    from ebla.pipelines.report import columns_view, facts_line, rows_view

    able = checked.clean or on_error is OnError.skip
    document = {"table": plan.name, "table_exists": not plan.new, "key": plan.schema.key, "would_feed": able}
    document["lacking"] = plan.lacking
    last = f"nothing was written; {'a feed would create' if plan.new else 'a feed would change'} table {plan.name}"
    if not able:
        last = "nothing was written; a feed would fail, unless --on-error skip leaves rows out"
    plan.ui.show(
        {**document, **_described(checked)},
        facts_line(plan.given, checked.facts),
        "",
        columns_view(checked, plan.schema.key),
        _lacking_line(plan.lacking) if plan.lacking else None,
        "",
        rows_view(checked),
        "",
        last,
    )
    if not able:
        raise typer.Exit(FAILED)


def _lacking_line(lacking: dict[str, str]) -> str:
    some = ", ".join(f"{name} ({value})" for name, value in lacking.items())
    return f"columns of the table that the source lacks, with their value in each row written: {some}"


def _described(checked: Checked | None) -> dict[str, Any]:
    return {} if checked is None else {"checked": msgspec.to_builtins(checked)}


def _show(progress: Progress, now: FeedProgress) -> None:
    total = f" of {now.total_rows:,}" if now.total_rows else ""
    tasks = f", {now.tasks_done} of {now.tasks} tasks" if now.tasks else ""
    done, whole = (now.rows, now.total_rows) if now.total_rows else (now.tasks_done, now.tasks or None)
    progress.step(f"{now.rows:,}{total} rows, {now.rows_per_s:,.0f} rows/s{tasks}", done, whole)
