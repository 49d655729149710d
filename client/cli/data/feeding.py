"""`ebla feed`: rows of a source into a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec import structs

from ebla.cli.data import sources
from ebla.cli.frame.options import NewMinMembers, NewReplication, NewStorage, option
from ebla.cli.frame.problems import FAILED, Usage
from ebla.cli.frame.ui import Ui
from ebla.cli.tables import schemas
from ebla.storage.errors import InvalidArgument
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.operate.waiting import Progress
    from ebla.partitions import PartitionBy
    from ebla.pipelines.outcomes import FeedReport
    from ebla.pipelines.sources.check import Checked
    from ebla.pipelines.sources.source import Source as Opened
    from ebla.storage.schema import TableSchema
    from ebla.table import Database, Table

BUCKETS = 8


Mode = Literal["upsert", "insert"]
OnError = Literal["fail", "skip"]
FeedOnError = Annotated[
    OnError,
    option(
        "--on-error",
        "If rows do not fit or repeat a key: write nothing, or skip them (of a repeated key the last row stays).",
    ),
]
FeedPartitions = Annotated[
    int | None, sources.spark_option("--partitions N", "Distribute the rows over N tasks.", min=1)
]


def feed(
    ui: Ui,
    source: sources.Source,
    table: sources.TableName,
    dry_run: Annotated[
        bool, option("--dry-run", "Show types, a sample and the rows that do not fit. Write nothing.")
    ] = False,
    on_error: FeedOnError = "fail",
    mode: Annotated[Mode, option("-m --mode", "Replace rows whose key exists, or keep them.")] = "upsert",
    format: sources.Format = None,
    option: sources.Options = None,
    job: Annotated[
        str | None, option("--job NAME", "A repeated feed with the same name changes no row twice.")
    ] = None,
    key: Annotated[str | None, option("-k --key A,B", "Primary key of a new table.")] = None,
    hash: Annotated[
        str | None, option("--hash A,B:N", "Tablets of a new table, by a hash of key columns.")
    ] = None,
    replicas: Annotated[
        int | None, option("-r --replicas N", "Replicas of each tablet of a new table (default: 3).", min=1)
    ] = None,
    replication: NewReplication = None,
    min_members: NewMinMembers = None,
    storage: NewStorage = None,
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
        if chosen == "spark" and on_error == "skip":
            raise Usage(
                "Spark ends at the first row that does not fit; --on-error skip needs --engine arrow",
                option="--on-error",
            )
        with sources.connected(ui, progress) as database:
            plan = _Plan(ui, progress, database, opened, table, source)
            named = {"replication": replication, "storage": storage}
            plan.choose_table(key, hash, {"replicas": replicas, "min_members": min_members, **named}, dry_run)
            checked = plan.check() if chosen == "arrow" or dry_run else None
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
        self.rows: int | None = None  # that were read for the types; None for a data set, which has its types
        self.source, self.types = infer(opened, self._count)
        self.table = _open(database, table)
        self.key: tuple[str, ...] = ()
        self.partition_by: PartitionBy | None = None
        self.options: dict[str, Any] = {}
        self.lacking: dict[str, str] = {}
        self.schema: TableSchema

    def _count(self, rows: int) -> None:
        self.rows = rows
        self.progress.step(f"reading types: {count(rows, 'row')}")

    @property
    def keyless(self) -> bool:
        return self.table is None and not self.key

    def choose_table(
        self, key: str | None, hashed: str | None, options: dict[str, Any], dry_run: bool
    ) -> None:
        """The schema of the table, or of the one to be made; none in a dry run without a key for it. Raises Usage or
        InvalidArgument for options that contradict it. `options`: of the table, None if not given."""
        from ebla.partitions import resolve
        from ebla.pipelines import target
        from ebla.pipelines.datasets import DATASETS
        from ebla.pipelines.sources.notes import unknown_column
        from ebla.storage.schema import TableSchema

        known = DATASETS.get(self.source.name)
        self.key = schemas.parse_names(key, "--key") if key else ()
        self.partition_by, self.options = _partition_by(hashed), options
        if self.table is not None:
            target.check_same(self.table.info(), self.key, self.partition_by, options)
            self.schema = self.table._awaited._routes.schema
            target.check_columns(self.types, self.name, self.schema)
            self.lacking = target.lacking(self.types, self.schema)
            return
        if known is not None:
            self.key = self.key or known.primary_key
            self.partition_by = self.partition_by or _partition_by(f"{','.join(known.hash_by)}:{BUCKETS}")
        if not self.key and dry_run:
            return
        if not self.key:
            raise Usage(
                f"there is no table {self.name!r}; --key a,b creates it, with a key of the columns "
                f"{', '.join(self.types.names)}",
                option="--key",
            )
        for name in self.key:
            if name not in self.types.names:
                raise Usage(unknown_column(name, self.source, self.types.names), option="--key", column=name)
        plain = TableSchema.from_arrow(self.types, self.key)
        self.schema = TableSchema.from_arrow(self.types, self.key, resolve(self.partition_by, plain))

    def check(self) -> Checked:
        """Read every row in the table's types. The result names them as `ebla table create` takes them."""
        from ebla.cli.frame.types import type_name
        from ebla.pipelines.sources.check import check, preview
        from ebla.storage.arrow_types import column_of

        if self.keyless:
            shown = preview(self.source, self.types, self.rows or 0)
            return structs.replace(
                shown, columns={field.name: type_name(column_of(field)) for field in self.types}
            )
        found = check(
            self.source, self.schema, show=lambda rows: self.progress.step(f"checking {count(rows, 'row')}")
        )
        columns = {name: type_name(self.schema.column(name)) for name in found.columns}
        return structs.replace(found, columns=columns)

    def no_rows(self, checked: Checked | None) -> str | None:
        """The problem if a new table would have no row: its columns would have types that no value has shown."""
        from ebla.pipelines.arrow.feed import place_of

        rows = self.rows if checked is None else checked.fitting
        if self.table is not None or rows != 0:
            return None
        first = checked.unfit_rows[0] if checked is not None and checked.unfit_rows else None
        found = f"no row fits ({place_of(first)})" if first else "it has no rows"
        return (
            f"{self.given!r} shows no types for the new table {self.name!r}: {found}; mend the source, or create the "
            "table first with `ebla table create`"
        )

    def _refuse_no_rows(self, checked: Checked | None) -> None:
        problem = self.no_rows(checked)
        if problem is not None:
            raise InvalidArgument(problem)

    @property
    def notes(self) -> list[str]:
        """Surprises in the columns, also in those that the source lacks."""
        from ebla.pipelines.sources.notes import notes

        lines = [_lacking_line(self.lacking)] if self.lacking else []
        return lines + notes(self.source, self.key, self.table is None)

    def show_inferred(self, checked: Checked | None) -> None:
        """Show what was recognised, before anything is written."""
        from ebla.pipelines.report import columns_view, facts_line

        self.ui.note(facts_line(self.given, self.source.facts))
        for line in self.notes:
            self.ui.note(line)
        if checked is not None and not self.ui.json:
            self.ui.err.print(columns_view(checked, self.schema.key))

    def feed(self, checked: Checked, mode: Mode, on_error: OnError, job: str | None) -> FeedReport:
        from ebla.pipelines.arrow import feed as feeding

        if on_error == "fail":
            feeding.refuse_unfit(checked)
        self._refuse_no_rows(checked)
        return feeding.write(
            self.source,
            self._target(),
            checked,
            mode=mode,
            on_error=on_error,
            job=job,
            on_progress=lambda now: self.progress.step(*now.seen),
        )

    def feed_with_spark(self, mode: Mode, job: str | None, options: sources.SparkOptions) -> FeedReport:
        self._refuse_no_rows(None)
        with sources.spark_session(f"ebla feed {self.name}", self.progress, options) as session:
            from ebla.pipelines import feed as feeding
            from ebla.pipelines.frames import frame

            target = self._target()
            known = self.source.name if self.source.facts.format == "data set" else None
            return feeding.feed(
                session,
                known or frame(session, self.source, wanted=target.schema),
                target,
                mode=mode,
                job=job,
                partitions=options.partitions,
                on_progress=lambda now: self.progress.step(*now.seen),
            )

    def show(self, report: FeedReport | None, checked: Checked | None, on_error: OnError) -> None:
        """Show what was fed; for a dry run, which has no report, what was found."""
        if report is None:
            assert checked is not None, "a dry run has checked the source"
            _show_dry_run(self, checked, on_error)
            return
        from ebla.pipelines.report import feed_view, troubles_view

        report = structs.replace(report, source=self.given)
        new = self.table is None
        document = {**structs.asdict(report), "table_created": new, **self.described(checked)}
        left_out = troubles_view(checked) if checked is not None else None
        self.ui.show(document, f"created table {self.name}" if new else None, feed_view(report), left_out)

    def described(self, checked: Checked | None) -> dict[str, Any]:
        document: dict[str, Any] = {"lacking": self.lacking, "notes": self.notes}
        return document if checked is None else {**document, "checked": checked}

    def _target(self) -> Table:
        from ebla.pipelines import target

        return self.table or target.table_for(
            self.database,
            self.name,
            self.types,
            primary_key=self.key,
            partition_by=self.partition_by,
            **self.options,
        )


def _open(database: Database, name: str) -> Table | None:
    """The table, or None if it is to be made."""
    from ebla.errors import NotFound

    try:
        return database.table(name)
    except NotFound:
        return None


def _partition_by(hashed: str | None) -> PartitionBy | None:
    import ebla.partitions as partitions

    if hashed is None:
        return None
    spec = schemas.parse_hash(hashed)
    return partitions.hash(*spec.columns, buckets=spec.buckets)


def _show_dry_run(plan: _Plan, checked: Checked, on_error: OnError) -> None:
    """Exit status 1 if the feed would fail. Without a key, only what was recognised is shown."""
    from ebla.pipelines.report import columns_view, facts_line, rows_view

    if plan.keyless:
        plan.ui.show(
            {"table": plan.name, "table_exists": False, "key": [], "would_feed": False}
            | plan.described(checked),
            facts_line(plan.given, checked.facts),
            "",
            columns_view(checked, (), len(checked.columns)),
            *plan.notes,
            "",
            f"nothing was written; there is no table {plan.name}: choose --key A,B from these columns to create it",
        )
        return
    no_rows = plan.no_rows(checked)
    able = (checked.clean or on_error == "skip") and no_rows is None
    new = plan.table is None
    document = {"table": plan.name, "table_exists": not new, "key": plan.schema.key, "would_feed": able}
    last = f"nothing was written; {'a feed would create' if new else 'a feed would change'} table {plan.name}"
    if no_rows is not None:
        last = f"nothing was written; a feed would fail: {no_rows}"
    elif not able:
        last = "nothing was written; a feed would fail, unless --on-error skip leaves rows out"
    plan.ui.show(
        {**document, **plan.described(checked)},
        facts_line(plan.given, checked.facts),
        "",
        columns_view(checked, plan.schema.key, len(checked.columns)),
        *plan.notes,
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
