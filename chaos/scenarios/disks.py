"""Scenarios of disks that are full, slow or hang."""

from __future__ import annotations

from ebla.actors.fault_points import REPAIR_POINTS
from ebla.chaos.scenarios.scenario import DISKS, Scenario, small
from ebla.chaos.workloads.chains import Chains
from ebla.chaos.workloads.churn import TABLES, Churn
from ebla.chaos.workloads.moves import Moves
from ebla.chaos.workloads.registers import Registers

DISK_SCENARIOS = (
    Scenario("disks", DISKS, lambda: [Registers(), Chains()], pause_s=0.2),
    Scenario(  # servers start on full disks, with unfinished deletions and copies
        "full-disks",
        {"full_disk": 12.0, "crash": 8.0, "crash_point": 12.0, "isolate": 1.0},
        lambda: [Moves(), Churn(TABLES), Registers(keys=2, tablets=2)],
        small(
            hosts=5,
            clients=3,
            server={"follower_failed_s": 1.5, "log_retained_entries_max": 25, "copy_idle_s": 2.0},
            master={"rpc_backoff_max_s": 1.0},
        ),
        holds_s={"full_disk": (1.0, 4.0), "crash": (0.2, 1.5), "crash_point": (0.2, 1.5)},
        pause_s=0.2,
        points=REPAIR_POINTS,
    ),
    Scenario(  # some of a server's data disks hang for longer than the server waits
        "hung-data",
        {"hang_data": 6.0, "crash": 1.0, "isolate": 1.0},
        lambda: [Chains(tablets=6), Registers(keys=2, tablets=4)],
        small(clients=5, server={"memtable_bytes": 3_000, "disk_hung_s": 0.5}),
        holds_s={"hang_data": (3.0, 8.0), "crash": (0.2, 2.0), "isolate": (0.2, 2.0)},
        pause_s=0.1,
    ),
)
