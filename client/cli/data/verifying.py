"""`ebla verify`: the proof that a table equals its source. `ebla demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from ebla.cli.data import sources
from ebla.cli.frame import quiet
from ebla.cli.frame.options import NewReplication, option
from ebla.cli.frame.problems import FAILED, NotCompared
from ebla.cli.frame.ui import Ui
from ebla.placement.extras import needs
from ebla.storage.errors import EblaError

if TYPE_CHECKING:
    from ebla.operate.waiting import Progress
    from ebla.pipelines.outcomes import VerifyReport
    from ebla.pipelines.sources.source import Source as Opened
    from ebla.table import Table


def verify(
    ui: Ui,
    source: sources.Source,
    table: sources.TableName,
    format: sources.Format = None,
    option: sources.Options = None,
    samples: Annotated[
        int, option("--samples N", "Number of rows to show of each kind of difference.", min=0)
    ] = 10,
    replicas: Annotated[
        bool, option("--replicas/--no-replicas", "Also compare the replicas with each other.")
    ] = True,
    engine: sources.EngineOption = None,
    executors: sources.Executors = None,
    cores: sources.Cores = None,
    memory: sources.Memory = None,
    on_slot: sources.OnSlot = None,
    avoid_slot: sources.AvoidSlot = None,
) -> None:
    """Check that a table equals its source. Exit status 0: equal, 1: different, 2: not compared. Changes nothing.

    Compares every row: missing, extra and different rows. Also compares the replicas of each tablet by digests.
    """
    from ebla.pipelines.sources.notes import notes

    try:
        spark = sources.SparkOptions(executors, cores, memory, on_slot, avoid_slot)
        with ui.working(f"verify {table}") as progress, ui.kept_stdout():
            progress.step("recognising the source")
            opened = sources.open_checked(source, format, option)
            for line in notes(opened, (), new=False):
                ui.note(line)
            chosen = sources.choose_engine(engine, spark, opened)
            with sources.connected(ui, progress) as database:
                target = database.table(table)
                if chosen == "spark":
                    report = _with_spark(opened, target, samples, replicas, progress, spark)
                else:
                    from ebla.pipelines.arrow import verify as verifying

                    report = verifying.verify(
                        opened, target, samples=samples, replicas=replicas, progress=progress.step
                    )
    except EblaError as error:
        raise NotCompared(error) from error
    report = structs.replace(report, source=source)
    from ebla.pipelines.report import verify_view

    ui.show(report, verify_view(report))
    if not report.ok:
        raise typer.Exit(FAILED)


def _with_spark(
    opened: Opened,
    target: Table,
    samples: int,
    replicas: bool,
    progress: Progress,
    options: sources.SparkOptions,
) -> VerifyReport:
    with sources.spark_session(f"ebla verify {target.name}", progress, options) as session:
        from ebla.pipelines import verify as verifying
        from ebla.pipelines.frames import frame

        return verifying.verify(
            session,
            frame(session, opened, wanted=target.schema),
            target,
            samples=samples,
            replicas=replicas,
            progress=progress.step,
        )


def demo(ui: Ui, replication: NewReplication = None) -> None:
    """Run the main job end to end: load flights, kill a node meanwhile, verify. Removes everything afterwards.

    Uses its own local Ray cluster and directory. Exit status 0: no row was lost or written twice.
    """
    quiet.before_ray(ui.verbose)
    with needs("demo"):
        from ebla.pipelines import demo as demonstration
    from ebla.pipelines.report import demo_view
    from ebla.show.steps import Steps

    with ui.kept_stdout():
        found = demonstration.run(Steps(ui.err, quiet=ui.silent), replication or "raft")
    ui.show({"ok": found.ok, **structs.asdict(found)}, demo_view(found))
    if not found.ok:
        raise typer.Exit(FAILED)
