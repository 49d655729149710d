"""Progress and results of feeds and comparisons, the same for Spark and for pyarrow."""

from __future__ import annotations

import msgspec

from ebla.show.handles import shown
from ebla.show.progress import Seen


@shown
class FeedProgress(msgspec.Struct, frozen=True):
    """The progress of a feed.

    Attributes:
        rows: Rows of the source that the table has answered.
        total_rows: Rows of the source, None if that is not known.
        tasks_done: Tasks of Spark that have ended; 0 without Spark.
        tasks: Tasks of Spark in all; 0 without Spark.
        seconds: The time since the feed began.
    """

    rows: int
    total_rows: int | None
    tasks_done: int
    tasks: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def seen(self) -> Seen:
        total = f" of {self.total_rows:,}" if self.total_rows else ""
        tasks = f", {self.tasks_done} of {self.tasks} tasks" if self.tasks else ""
        text = f"{self.rows:,}{total} rows, {self.rows_per_s:,.0f} rows/s{tasks}"
        if self.total_rows:
            return (text, self.rows, self.total_rows)
        return (text, self.tasks_done, self.tasks or None)


@shown
class FeedReport(msgspec.Struct, frozen=True):
    """The outcome of a feed.

    Attributes:
        table: The table's name.
        source: The source's name, such as its path.
        job: The id of the feed. A feed of the same source under the same job is a repetition of this one.
        mode: "upsert" or "insert".
        rows: Rows of the source that the table has now.
        rejected: Rows whose key was present before (mode "insert" only).
        partitions: The partitions of Spark; 1 without Spark.
        calls: Write calls.
        retries: Attempts of tasks beyond the first.
        seconds: The duration.
        rows_per_s: `rows` per second.
        engine: "arrow" or "spark".
        skipped: Rows that do not fit.
        repeated: Rows that were left out for another row with their key; None if they were not counted, and then they are among
            `rows` or `rejected`.
        notes: What was guessed about CSV files and may be wrong, such as the encoding. Without Spark.
    """

    table: str
    source: str
    job: str
    mode: str
    rows: int
    rejected: int
    partitions: int
    calls: int
    retries: int
    seconds: float
    rows_per_s: float
    engine: str = "spark"
    skipped: int = 0
    repeated: int | None = None
    notes: tuple[str, ...] = ()


class Sample(msgspec.Struct, frozen=True):
    """A row that differs between source and table.

    Attributes:
        kind: "missing", "extra" or "different".
        key: Its key columns, as text; of a row of the source that has no key, its file and row.
        columns: The columns that differ.
        source: The row's columns in the source, as text.
        table: The row's columns in the table, as text.
    """

    kind: str
    key: dict[str, str | None]
    columns: tuple[str, ...] = ()
    source: dict[str, str | None] = {}
    table: dict[str, str | None] = {}


class ReplicaDigest(msgspec.Struct, frozen=True):
    """The digest of one replica.

    Attributes:
        address: The address of its tablet server.
        rows: Its rows, None if it did not answer.
        digest: A checksum of its rows, None if it did not answer.
        error: Why it did not answer.
    """

    address: str
    rows: int | None
    digest: str | None
    error: str | None = None


class TabletDigests(msgspec.Struct, frozen=True):
    """The replicas of one tablet, compared.

    Attributes:
        tablet: The tablet's id.
        bucket: Its number in the partitioning, from 0.
        index: The log index as of which all replicas were read.
        equal: All answered, with the same digest.
        replicas: The digest of each replica.
        error: Why the tablet could not be compared.
    """

    tablet: str
    bucket: int
    index: int
    equal: bool
    replicas: tuple[ReplicaDigest, ...]
    error: str | None = None


@shown
class VerifyReport(msgspec.Struct, frozen=True):
    """The comparison of a source with a table.

    Attributes:
        table: The table's name.
        source: The source's name, such as its path.
        source_rows: Rows of the source.
        table_rows: Rows of the table.
        missing: Rows of the source that the table does not have.
        extra: Rows of the table that the source does not have.
        different: Rows whose columns differ.
        duplicates: Rows of the source beyond the first with their key.
        samples: Some of the rows that differ.
        tablets: The comparison of the replicas, a tablet each; empty if they were not compared.
        replicas_equal: All replicas of each tablet agree; None if they were not compared.
        ok: Nothing is missing, extra, different or unequal.
        seconds: The duration.
    """

    table: str
    source: str
    source_rows: int
    table_rows: int
    missing: int
    extra: int
    different: int
    duplicates: int
    samples: tuple[Sample, ...]
    tablets: tuple[TabletDigests, ...]
    replicas_equal: bool | None
    ok: bool
    seconds: float
