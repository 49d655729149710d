"""Scenarios: how large a deployment is, what its clients do, and what goes wrong. The list that every run picks from.

A scenario is data and a list of workloads. Whoever adds one adds a function here: see docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebla.actors.fault_points import POINTS
from ebla.chaos.simulation.deployment import Shape
from ebla.chaos.workloads.base import Workload
from ebla.chaos.workloads.registers import Registers
from ebla.storage.errors import InvalidArgument

# Small limits, so that what happens every few gigabytes in production happens every few seconds here.
SMALL = {
    "memtable_bytes": 20_000,
    "shared_log_bytes": 30_000,
    "log_retained_entries_max": 400,
}


@dataclass(frozen=True)
class Scenario:
    """`mix`: faults to expect per ten seconds, by kind (chaos/plans.py). `duration_s`: of act one. `operations_min`:
    with fewer answered ones a run is void."""

    name: str
    mix: Mapping[str, float]
    workloads: Callable[[], list[Workload]]
    shape: Shape = field(default_factory=lambda: Shape(server=SMALL))
    duration_s: float = 10.0
    operations_min: int = 20
    points: tuple[str, ...] = POINTS


def _registers() -> list[Workload]:
    return [Registers()]


_ALL = (
    Scenario("calm", {}, _registers),
    Scenario("crashes", {"crash": 3.0, "crash_point": 6.0, "stop": 1.0, "slow_disk": 1.0}, _registers),
    Scenario("pauses", {"pause": 4.0, "zombie": 1.0, "clock_rate": 2.0, "clock_jump": 1.0}, _registers),
    Scenario(
        "network",
        {"isolate": 2.0, "cut": 2.0, "cut_one_way": 2.0, "lose": 1.0, "repeat": 1.0, "delay": 1.0},
        _registers,
    ),
    Scenario(
        "disks",
        {"rot": 1.0, "misdirect": 0.5, "fail_sync": 0.5, "full_disk": 1.0, "slow_disk": 1.0, "lose_disk": 0.3},
        _registers,
    ),
)

SCENARIOS = {scenario.name: scenario for scenario in _ALL}


def scenario(name: str) -> Scenario:
    if name not in SCENARIOS:
        raise InvalidArgument(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
