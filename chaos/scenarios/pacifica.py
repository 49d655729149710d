"""Scenarios with PacificA tables: the same workloads and faults as of scenarios with Raft tables, and faults of single messages.

These scenarios have no such variant:

    locks       has no tables
    growing     lets the journal grow; its tables have one replica, which pauses as often as the master does

Those with several masters hit tablet servers, too: the active master and a primary may be away at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.fault_points import PACIFICA_POINTS
from ebla.chaos.scenarios import columns
from ebla.chaos.scenarios.scenario import ENVELOPES, Scenario, rates, small
from ebla.chaos.workloads.registers import Registers
from ebla.chaos.workloads.tokens import Tokens

PREFIX = "pacifica-"
WITHOUT = ("locks", "growing")
SERVERS_TOO = ("masters", "takeovers")

# Leases are half as long as in production, so that a server ends, and returns, within a run.
LIMITS = DetectorLimits(beacon_s=0.5, lease_s=2.0, grace_s=2.5)
SERVER = {"beacon_s": LIMITS.beacon_s, "beacon_lease_s": LIMITS.lease_s}

# Of these, every commit runs the first ones.
ACCEPTS = Scenario(  # of these tables alone: nothing else depends on the ballots that a lost catalog gave
    PREFIX + "accepts",
    {**rates("accept_catalog 4, crash 3, isolate 2, cut 3, cut_master 2, pause 1, delay 1"), **ENVELOPES},
    lambda: [Registers(), Tokens()],
    small(hosts=4, clients=3, server=SERVER, master={"detector": LIMITS}),
    duration_s=16.0,
    holds_s={"accept_catalog": (0.5, 5.0), "crash": (0.1, 4.0), "cut": (0.5, 6.0), "isolate": (0.5, 6.0)},
    replication="pacifica",
)

FIRST = (
    "registers",
    "churn",
    "quiet",
    "elections",
    "leases",
    "masters",
    "everything",
    "disks",
    "full-disks",
    "accepts",
    "columns-everything",
    "columns-copies",
    "columns-alters",
)


def with_pacifica(scenarios: Collection[Scenario]) -> Iterator[Scenario]:
    for each in (*scenarios, *columns.with_columns(scenarios)):
        if each.name not in WITHOUT:
            variant = replace(each, name=PREFIX + each.name, replication="pacifica")
            mix = {**each.mix, **ENVELOPES} if each.mix else {}
            shape = replace(
                each.shape,
                server={**each.shape.server, **SERVER},
                master={**each.shape.master, "detector": LIMITS},
            )
            victims = (*each.victims, *shape.host_names()) if each.name in SERVERS_TOO else each.victims
            points = (*each.points, *PACIFICA_POINTS)
            yield replace(variant, mix=mix, shape=shape, points=points, victims=victims)
    yield ACCEPTS
