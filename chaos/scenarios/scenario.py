"""The class of scenarios, and the limits and mixes of faults that several scenarios share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ebla.actors.fault_points import POINTS
from ebla.chaos.checkers.refusals import EXPLAINED
from ebla.chaos.plans import HOLD_S, PARTS
from ebla.chaos.simulation.deployment import Shape
from ebla.chaos.workloads.base import DEADLINES_S, PAUSE_S, Workload
from ebla.storage.schema import ROWS

# Small limits: an event that occurs every few gigabytes in production occurs every few seconds here.
SMALL = {
    "memtable_bytes": 20_000,
    "shared_log_bytes": 30_000,
    "log_retained_entries_max": 4_000,  # a replica that lags further is replaced by a copy
    "seqno_s": 1.0,
    "follower_failed_s": 4.0,
    "copy_idle_s": 5.0,
}
SMALL_MASTER = {"checkpoint_edits": 12, "forget_min_s": 2.0, "replicas_coming_max": 2}


def small(
    *,
    server: Mapping[str, Any] = MappingProxyType({}),
    master: Mapping[str, Any] = MappingProxyType({}),
    **shape: Any,
) -> Shape:
    """A deployment with the small limits and these changes of them."""
    return Shape(server={**SMALL, **server}, master={**SMALL_MASTER, **master}, **shape)


@dataclass(frozen=True)
class Scenario:
    """`mix`: expected faults per ten seconds, by kind (chaos/plans.py). `duration_s`: of act one. `operations_min`: with fewer
    answered operations a run is void. `replication`, `storage`: of its tables. `victims`: hosts that faults may hit, by default those of tablet servers.
    `destroyed`: those whose data may be destroyed, by default all of them.
    `deadlines_s`: each operation gets one of them. `excused`: errors that faults explain."""

    name: str
    mix: Mapping[str, float]
    workloads: Callable[[], list[Workload]]
    shape: Shape = field(default_factory=small)
    duration_s: float = 8.0
    replicas: int = 3
    replication: str = "raft"
    storage: str = ROWS
    hold_s: tuple[float, float] = HOLD_S  # how long a fault lasts
    holds_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # the same, of some kinds
    amounts: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of some kinds: from, to
    pause_s: float = PAUSE_S  # of a client between two operations, at most
    deadlines_s: tuple[float, ...] = DEADLINES_S
    check_s: float = 0.1  # between two checks of the invariants
    operations_min: int = 10
    points: tuple[str, ...] = POINTS
    victims: tuple[str, ...] = ()
    destroyed: tuple[str, ...] = ()
    excused: Collection[str] = EXPLAINED

    def host_names(self) -> tuple[str, ...]:
        """The hosts that its plans name."""
        return self.victims or self.shape.host_names()


def rates(table: str) -> dict[str, float]:
    """A mix: kinds of faults, each with its expected faults per ten seconds."""
    pairs = (pair.split() for pair in table.split(","))
    return {kind: float(rate) for kind, rate in pairs}


PROCESSES = rates("crash 2, crash_point 6, stop 1, pause 2, zombie 1, blackout 0.5, client_crash 0.5")
NETWORK = rates("isolate 2, split 1, cut 2, cut_one_way 2, lose 1, repeat 1, delay 1")
ENVELOPES = dict.fromkeys(PARTS, 1.0)
CLOCKS = {"clock_rate": 2.0, "clock_jump": 1.0}
DISKS = rates(
    "rot 2, misdirect 1, stale 0.5, fail_sync 0.5, full_disk 1, slow_disk 1, lose_disk 0.3, old_copy 0.5"
)
IDLE = {
    **rates(
        "crash 1.5, stop 0.5, pause 3, zombie 1, isolate 2, cut 2, cut_one_way 3, lose 1, repeat 1, delay 3"
    ),
    **rates("clock_rate 2, slow_disk 0.5"),
    **ENVELOPES,
}
ELECTIONS = rates("crash 4, crash_point 6, blackout 2, isolate 4, split 4, slow_disk 6, lose 1")
