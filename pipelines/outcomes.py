"""Progress and results of feeds and comparisons, the same for Spark and for pyarrow."""

from __future__ import annotations

import msgspec

from ebla.show.handles import shown
from ebla.show.progress import Seen


@shown
class FeedProgress(msgspec.Struct, frozen=True):
    """`rows`: answered by the table. `total_rows`: None for an unknown source."""

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
    """`rows`: rows of the source that the table has now; `rejected`: present before (insert only). `retries`: attempts beyond the
    first. `skipped`: rows that do not fit. `repeated`: rows that were left out for another row with their key; None if they
    were not counted, and then they are among `rows` or `rejected`."""

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


class Sample(msgspec.Struct, frozen=True):
    """A missing, extra or different row. `columns`: those that differ; values as text. `key`: of a row of the source that has no key,
    its file and row."""

    kind: str
    key: dict[str, str | None]
    columns: tuple[str, ...] = ()
    source: dict[str, str | None] = {}
    table: dict[str, str | None] = {}


class ReplicaDigest(msgspec.Struct, frozen=True):
    address: str
    rows: int | None
    digest: str | None
    error: str | None = None


class TabletDigests(msgspec.Struct, frozen=True):
    """The replicas of one tablet as of `index`. `equal`: all answered, with the same digest."""

    tablet: str
    bucket: int
    index: int
    equal: bool
    replicas: tuple[ReplicaDigest, ...]
    error: str | None = None


@shown
class VerifyReport(msgspec.Struct, frozen=True):
    """`replicas_equal` is None if replicas were not compared. `ok`: nothing is missing, extra, different or unequal."""

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
