"""The time of each tablet's log: it never goes back, and never runs ahead of the clocks.

The memory is kept outside of every node, by tablet and forced epoch: each side of a forced configuration has its own time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.tablet.engine.replica import Replica
from ebla.chaos.plans import RATE_RANGE
from ebla.storage.logs.entries import START, Position

SLACK_US = 1000  # for rounding


@dataclass
class LogTimes:
    newest: dict[tuple[str, int], Position] = field(default_factory=dict)  # committed

    def check(self, replica: Replica, now_s: float, who: str) -> None:
        """`now_s` is virtual time: every log is younger, and no clock runs faster than RATE_RANGE."""
        log, core = replica.log, replica.core
        committed = log.position(max(log.dropped.index, min(core.commit_index, log.last_index)))
        side = replica.tablet, core.committed_configuration.unsafe
        newest = self.newest.get(side, START)
        earlier, later = sorted((newest, committed), key=lambda position: position.index)
        assert earlier.time_us <= later.time_us, (
            f"{who}: log time goes back from {earlier.time_us} at entry {earlier.index} to {later.time_us} at {later.index}"
        )
        self.newest[side] = later
        ahead_us = log.last.time_us - int(now_s * RATE_RANGE[1] * 1e6)
        assert ahead_us <= SLACK_US, f"{who}: log time is {ahead_us} us ahead of every clock"
