"""Scenarios of stored answers: retries, expiry and refusals."""

from __future__ import annotations

from ebla.chaos.scenarios.scenario import Scenario, small
from ebla.chaos.workloads.refused import Refused
from ebla.chaos.workloads.tokens import Tokens

ANSWERS = (
    Scenario(
        "retries",
        {"blackout": 8.0, "crash": 2.0, "lose": 4.0, "repeat": 4.0, "delay": 4.0, "full_disk": 2.0},
        lambda: [Tokens()],
        small(clients=5, server={"memtable_bytes": 300}),
        holds_s={"blackout": (0.05, 0.5), "repeat": (3.0, 8.0), "delay": (3.0, 8.0)},  # the last two overlap
        pause_s=0.15,
    ),
    Scenario(  # answers expire after seconds, and each server has another setting
        "clocks",
        {
            "clock_jump": 8.0,
            "clock_rate": 4.0,
            "blackout": 3.0,
            "client_crash": 6.0,
            "crash": 2.0,
            "isolate": 2.0,
            "lose": 2.0,
            "repeat": 4.0,
            "delay": 4.0,
        },
        lambda: [Tokens(calls=2)],
        small(clients=4, uneven={"results_retention_s": (4.0, 5.0, 6.0)}),
        duration_s=10.0,
        holds_s={"blackout": (0.05, 0.5), "repeat": (3.0, 8.0), "delay": (3.0, 8.0)},
        pause_s=0.04,
        deadlines_s=(1.0,),
    ),
    Scenario(  # refused requests arrive again, late
        "refusals",
        {
            "repeat": 8.0,
            "delay": 8.0,
            "lose": 2.0,
            "cut_clients": 1.0,
            "crash": 1.5,
            "isolate": 1.0,
            "cut_master": 1.0,
        },
        lambda: [Refused()],
        small(
            clients=3,
            server={"memtable_bytes": 4 << 20, "shared_log_bytes": 16 << 20},  # for rows that are large
        ),
        duration_s=10.0,
        holds_s={"repeat": (3.0, 8.0), "delay": (3.0, 8.0)},
        pause_s=0.1,
    ),
)
