"""What a planted defect is, and plans that are written, not drawn: what a defect needs, and chance hardly ever brings about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebla.chaos.defects.replication import Swap
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import plan_of
from ebla.chaos.scenarios.scenarios import scenario

# Whoever leads is cut off from its followers, and not from its clients, while its disk takes its time: what is then written
# to it alone is still on its way to the disk when others' entries have come in its place. The disk is slow only just before,
# or the leader would have handed over.
SLOW_AND_CUT_OFF = (
    Fault(1.8, "slow_disk", ("host-1",), 6.7, 6.0),
    Fault(2.0, "cut", ("host-1", "host-2"), 2.6),
    Fault(2.0, "cut", ("host-1", "host-3"), 2.6),
)

# Half of all messages come twice, a fifth of them up to a second late: after the sender was answered, and has gone on.
LATE_DUPLICATES = (Fault(0.0, "repeat", (), 8.0, 0.5), Fault(0.0, "delay", (), 8.0, 1.0))

# Every message comes twice, and some of them late; masters die, and journal nodes are cut off from the next one once it has
# begun, so that nobody holds a lease of them by the time that its requests come again.
LATE_PROMISES = (
    Fault(0.0, "repeat", (), 12.0, 1.0),
    Fault(0.0, "delay", (), 12.0, 5.0),
    *(Fault(at_s, "crash", ("master",), 1.0) for at_s in (1.0, 5.0, 9.0)),
    *(Fault(at_s, "isolate", (f"journal-{n}",), 2.0) for n, at_s in enumerate((3.0, 3.5, 7.0))),
)

# The active master stands still until its lease has run out; of the journal nodes that a contender asks for an epoch then, two
# have full disks until the active one goes on.
ONE_NODE_PROMISES = (
    Fault(4.0, "pause", ("master",), 2.5),
    *(Fault(4.5, "full_disk", (f"journal-{n}",), 2.0) for n in (0, 1)),
)

# Two hosts are away for so long that they are given up. When they return no master is there to tell them, and nobody who was kept
# is heard for a while.
GIVEN_UP_AND_BACK = (
    Fault(1.0, "away", ("host-1", "host-2"), 4.5),
    Fault(5.2, "crash", ("master",), 8.0),
    *(Fault(5.3, "isolate", (f"host-{number}",), 2.5) for number in (3, 4, 5)),
)


@dataclass(frozen=True)
class Defect:
    """`what` is wrong, and the scenario that shows it within `seeds_max` seeds; `seed` is one that did. `faults`: of a plan
    that is written, not drawn."""

    name: str
    what: str
    scenario: str
    seeds_max: int
    swaps: Callable[[], list[Swap]]
    seed: int = 0
    faults: tuple[Fault, ...] = ()

    def plan(self, seed: int) -> Plan:
        if self.faults:
            return Plan(self.scenario, seed, self.faults)
        return plan_of(scenario(self.scenario), seed)
