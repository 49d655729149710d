"""A log that all processes of clients share: their clients race to be its writer, also across processes, and read each other's records.

A process that is paused loses the log to a client of another one, and is a writer that does not know that it was fenced when it
resumes. Every process notes its operations by the clock that all processes of a machine share, and the run merges the histories and
judges them as one.
"""

from __future__ import annotations

from ebla.chaos.ray.shared import VALUES
from ebla.chaos.workloads.logs.events import Events

NAME = "log"
ROLL_BYTES = 5_000


class SharedLog(Events):
    """`name` is the name of a process's history, which ends with the number of the process."""

    name = NAME
    roll_bytes = ROLL_BYTES

    @property
    def log(self) -> str:
        return NAME

    @property
    def first(self) -> int:
        return int(self.name.rpartition("-")[2]) * VALUES
