"""Scenarios with tables whose rows are stored as columns: the same workloads and faults as of other scenarios, with small
memtables, blocks and compactions, so that a run has many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ebla.actors.fault_points import COMPACTION_POINTS
from ebla.chaos.scenarios.scenario import Scenario
from ebla.storage.runs import blocks, writing
from ebla.storage.schema import COLUMNS

PREFIX = "columns-"
# Those that read rows in many ways, or damage, copy, alter or lose them.
WITH = (
    "bank",
    "chains",
    "tokens",
    "retries",
    "scans",
    "disks",
    "full-disks",
    "hung-data",
    "everything",
    "copies",
    "members",
    "mending",
    "alters",
    "restores",
    "crowds",
    "disasters",
)
# Of these, every commit runs the first ones.
FIRST = ("bank", "chains", "scans", "disks", "full-disks", "mending", "alters")

MEMTABLE_BYTES, BLOCK_ROWS, RANGE_BYTES = 400, 4, 500


def with_columns(scenarios: Iterable[Scenario]) -> Iterator[Scenario]:
    for each in scenarios:
        if each.name in WITH:
            # A run with forced configurations follows logs, which may not be flushed and dropped between two looks.
            small = {} if each.shape.forced else {"memtable_bytes": MEMTABLE_BYTES}
            shape = replace(each.shape, server={**each.shape.server, **small})
            points = (*each.points, *COMPACTION_POINTS)
            yield replace(each, name=PREFIX + each.name, storage=COLUMNS, shape=shape, points=points)


@contextmanager
def small_runs() -> Iterator[None]:
    """Blocks of a few rows, and compactions in ranges of a few blocks."""
    kept = blocks.ROWS, writing.RANGE_BYTES
    blocks.ROWS, writing.RANGE_BYTES = BLOCK_ROWS, RANGE_BYTES
    try:
        yield
    finally:
        blocks.ROWS, writing.RANGE_BYTES = kept
