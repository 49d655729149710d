"""Scenarios with PacificA tables: the same workloads and faults as of scenarios with Raft tables, and faults of single messages.

These scenarios have no such variant:

    locks       has no tables
    growing     lets the journal grow; its tables have one replica, which pauses as often as the master does
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.fault_points import PACIFICA_POINTS
from ebla.chaos.scenarios.scenario import ENVELOPES, Scenario

PREFIX = "pacifica-"
WITHOUT = ("locks", "growing")

# Leases are half as long as in production, so that a server ends, and returns, within a run.
LIMITS = DetectorLimits(beacon_s=0.5, lease_s=2.0, grace_s=2.5)
SERVER = {"beacon_s": LIMITS.beacon_s, "beacon_lease_s": LIMITS.lease_s}

# Of these, every commit runs the first ones.
FIRST = ("registers", "churn", "quiet", "elections", "leases", "masters", "everything", "disks", "full-disks")


def with_pacifica(scenarios: Iterable[Scenario]) -> Iterator[Scenario]:
    for each in scenarios:
        if each.name not in WITHOUT:
            variant = replace(each, name=PREFIX + each.name, replication="pacifica")
            mix = {**each.mix, **ENVELOPES} if each.mix else {}
            shape = replace(
                each.shape,
                server={**each.shape.server, **SERVER},
                master={**each.shape.master, "detector": LIMITS},
            )
            yield replace(variant, mix=mix, shape=shape, points=(*each.points, *PACIFICA_POINTS))
