"""The time of each tablet's log as the invariants look at it: it never goes back, and never runs ahead of the clocks.

Kept outside of every node, by tablet and by the mark of a forced configuration: each side of one goes its own way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.tablet.engine.replica import Replica
from ebla.chaos.plans import RATE_RANGE
from ebla.storage.logs.entries import START, Position

SLACK_US = 1000  # by which times that are rounded may differ


@dataclass
class LogTimes:
    newest: dict[tuple[str, int], Position] = field(default_factory=dict)  # committed

    def look_at(self, replica: Replica, now_s: float, who: str) -> None:
        """`now_s`: of virtual time; a log began after its beginning, and no clock runs faster than RATE_RANGE."""
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
