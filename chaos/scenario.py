"""What a scenario is, and what several of them have in common: small limits, and mixes of faults. Their list is scenarios.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebla.actors.fault_points import POINTS
from ebla.chaos.plans import HOLD_S
from ebla.chaos.simulation.deployment import Shape
from ebla.chaos.workloads.base import PAUSE_S, Workload

# Small limits, so that what happens every few gigabytes in production happens every few seconds here.
SMALL = {
    "memtable_bytes": 20_000,
    "shared_log_bytes": 30_000,
    "log_retained_entries_max": 4_000,  # a replica that lags past it is copied anew
    "seqno_s": 1.0,
    "follower_failed_s": 4.0,
    "copy_idle_s": 5.0,
}
SMALL_MASTER = {"checkpoint_edits": 12, "forget_min_s": 2.0}


@dataclass(frozen=True)
class Scenario:
    """`mix`: faults to expect per ten seconds, by kind (chaos/plans.py). `duration_s`: of act one. `operations_min`:
    with fewer answered ones a run is void. `victims`: whom faults hit, by default the hosts of tablet servers."""

    name: str
    mix: Mapping[str, float]
    workloads: Callable[[], list[Workload]]
    shape: Shape = field(default_factory=lambda: Shape(server=SMALL, master=SMALL_MASTER))
    duration_s: float = 8.0
    replicas: int = 3
    hold_s: tuple[float, float] = HOLD_S  # how long a fault lasts
    holds_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # the same, of some kinds
    pause_s: float = PAUSE_S  # of a client between two operations, at most
    look_s: float = 0.1  # between two looks at the invariants
    operations_min: int = 10
    points: tuple[str, ...] = POINTS
    victims: tuple[str, ...] = ()

    def host_names(self) -> tuple[str, ...]:
        """Those that its plans name."""
        return self.victims or self.shape.host_names()


PROCESSES = {
    "crash": 2.0,
    "crash_point": 6.0,
    "stop": 1.0,
    "pause": 2.0,
    "zombie": 1.0,
    "blackout": 0.5,
    "client_crash": 0.5,
}
NETWORK = {
    "isolate": 2.0,
    "split": 1.0,
    "cut": 2.0,
    "cut_one_way": 2.0,
    "lose": 1.0,
    "repeat": 1.0,
    "delay": 1.0,
}
CLOCKS = {"clock_rate": 2.0, "clock_jump": 1.0}
DISKS = {
    "rot": 2.0,
    "misdirect": 1.0,
    "stale": 0.5,
    "fail_sync": 0.5,
    "full_disk": 1.0,
    "slow_disk": 1.0,
    "lose_disk": 0.3,
    "old_copy": 0.5,
}
ELECTIONS = {
    "crash": 4.0,
    "crash_point": 6.0,
    "blackout": 2.0,
    "isolate": 4.0,
    "split": 4.0,
    "slow_disk": 6.0,
    "lose": 1.0,
}
LEASES = {"pause": 10.0, "delay": 8.0, "cut_one_way": 6.0, "clock_rate": 2.0}
