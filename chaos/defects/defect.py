"""How a defect is written, and plans that are written by hand because drawn plans hardly ever show the defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static, signature
from typing import Any

from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import plan_of
from ebla.chaos.scenarios.scenarios import scenario

Swap = tuple[Any, str, Any]  # a class or module, the name of its attribute, the replacement

# The leader is cut off from its followers, but not from its clients, and its disk becomes slow. Its own entries are still on
# their way to the disk when the entries of the next leader replace them.
SLOW_AND_CUT_OFF = (
    Fault(2.0, "cut", ("host-1", "host-2"), 2.6),
    Fault(2.0, "cut", ("host-1", "host-3"), 2.6),
    Fault(2.0, "slow_disk", ("host-1",), 6.7, 6.0),
)

# Half of all messages arrive twice, and messages are up to a second late: after the sender got its answer and continued.
LATE_DUPLICATES = (Fault(0.0, "repeat", (), 8.0, 0.5), Fault(0.0, "delay", (), 8.0, 1.0))

# Messages are up to a second late, and one host after the other is heard by none, but hears the others.
LATE_AND_UNHEARD = (
    Fault(0.0, "delay", (), 10.0, 1.0),
    *(
        Fault(
            1.5 + 2.0 * turn, "cut_one_way", (f"host-{turn % 3 + 1}", f"host-{(turn + other) % 3 + 1}"), 1.9
        )
        for turn in range(4)
        for other in (1, 2)
    ),
)

# A server ends, and is back soon. Then each server in turn is not heard by one of the others.
ENDED_AND_UNHEARD = (
    Fault(0.5, "crash", ("host-1",), 0.2),
    Fault(1.4, "cut_one_way", ("host-2", "host-3"), 2.2),
    Fault(3.7, "cut_one_way", ("host-3", "host-2"), 2.2),
)

# Messages are up to three seconds late, half of them arrive twice, and one server after the other ends and is back soon.
LATE_COPIES = (
    Fault(0.0, "repeat", (), 12.0, 0.5),
    Fault(0.0, "delay", (), 12.0, 3.0),
    *(Fault(1.0 + 1.5 * turn, "crash", (f"host-{turn % 3 + 1}",), 0.4) for turn in range(6)),
)

# A host is down for almost the whole run.
ONE_HOST_DOWN = (Fault(1.5, "crash", ("host-1",), 10.0),)

# Every message arrives twice, and some are late. Masters die, and journal nodes are cut off from the next master once it
# has begun, so that no node still knows its lease when its requests arrive again.
LATE_PROMISES = (
    Fault(0.0, "repeat", (), 12.0, 1.0),
    Fault(0.0, "delay", (), 12.0, 5.0),
    *(Fault(at_s, "crash", ("master",), 1.0) for at_s in (1.0, 5.0, 9.0)),
    *(Fault(at_s, "isolate", (f"journal-{n}",), 2.0) for n, at_s in enumerate((3.0, 3.5, 7.0))),
)

# The active master is paused until its lease has expired. When a contender requests an epoch, two journal nodes have full
# disks until the active master continues.
ONE_NODE_PROMISES = (
    Fault(4.0, "pause", ("master",), 2.5),
    *(Fault(4.5, "full_disk", (f"journal-{n}",), 2.0) for n in (0, 1)),
)

# The active master is cut off from all others while it holds the lease, and the journal nodes start again.
STARTED_UNDER_A_LEASE = (
    Fault(4.0, "isolate", ("master",), 3.0),
    *(Fault(4.1, "crash", (f"journal-{n}",), 0.02) for n in range(3)),
)

# Two hosts are away until they are given up. When they return, no master runs that could inform them, and the survivors
# are isolated for a while.
GIVEN_UP_AND_BACK = (
    Fault(1.0, "away", ("host-1", "host-2"), 4.5),
    Fault(5.2, "crash", ("master",), 8.0),
    *(Fault(5.3, "isolate", (f"host-{number}",), 2.5) for number in (3, 4, 5)),
)

# A server stops, and its flushes wait for data disks that hang. Meanwhile the other two crash, one after the other, and are
# back at once.
CRASHES_BESIDE_A_STOP = (
    Fault(1.9, "hang_data", ("host-1",), 14.0, 1.0),
    Fault(2.0, "stop", ("host-1",), 0.5),
    Fault(2.5, "crash", ("host-2",), 0.2),
    Fault(4.5, "crash", ("host-3",), 0.2),
    Fault(6.5, "crash", ("host-2",), 0.2),
)

# All ledger stores start again together, again and again.
STORES_START_AGAIN = tuple(
    Fault(0.3 + 0.5 * number, "crash", (f"store-{store}",), 0.02)
    for number in range(15)
    for store in (1, 2, 3, 4, 5)
)

# The host of a ledger store is lost, and copies reach the disks of the others late.
LOST_BESIDE_SLOW_DISKS = (
    *(Fault(0.0, "slow_disk", (f"store-{store}",), 14.0, 1.0) for store in (2, 3, 4, 5)),
    Fault(2.0, "lose_host", ("store-1",)),
)

# The host of a ledger store is lost, and each worker ends in the middle of its first repair.
WORKERS_END = (
    Fault(2.0, "lose_host", ("store-1",)),
    *(
        Fault(2.5, "crash_point", (f"worker-{number}",), 6.0, 0.0, "ledger.repair.after_move")
        for number in (2, 3, 4, 5)
    ),
)

# Disks of ledger stores are full while ledgers are deleted.
FULL_DISKS = tuple(
    Fault(at_s, "full_disk", (f"store-{store}",), 1.5)
    for at_s in (3.0, 6.0, 9.0, 12.0)
    for store in (1, 2, 3, 4, 5)
)


@dataclass(frozen=True)
class Defect:
    """`what` is wrong, and the scenario that shows it within `seeds_max` seeds; `seed` is one that did. `faults`: a plan
    written by hand, instead of a drawn one."""

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


def defect(
    scenario: str,
    seeds_max: int,
    where: Any = None,
    attribute: str = "",
    *,
    seed: int = 0,
    faults: tuple[Fault, ...] = (),
) -> Callable[[Callable[..., Any]], Defect]:
    """Make the function a defect, with the function's name and docstring. The function replaces `attribute` of `where`, which it
    gets as its first argument if that is called `original`; without `where` it returns the swaps."""

    def make(function: Callable[..., Any]) -> Defect:
        name, what = function.__name__.replace("_", "-"), " ".join((function.__doc__ or "").split())
        wraps = next(iter(signature(function).parameters), "") == "original"

        def swap() -> list[Swap]:
            return [
                (where, attribute, _around(getattr_static(where, attribute), function) if wraps else function)
            ]

        swaps = function if where is None else swap
        return Defect(name, what[0].lower() + what[1:].rstrip("."), scenario, seeds_max, swaps, seed, faults)

    return make


def _around(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def around(*arguments: Any, **named: Any) -> Any:
        return function(original, *arguments, **named)

    around.__signature__ = signature(partial(function, original))  # type: ignore[attr-defined]
    return around
