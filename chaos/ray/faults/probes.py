"""Which kinds of faults this machine can carry out, and for the others the reason, which the report repeats.

Some kinds need preparations before the cluster starts (`prepared`): a network per node, a library that makes disks fail, or
settings of Ray. They are made only if the plan has such a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ebla.chaos.plans import CATALOGS, PAIRS, PARTS, Fault
from ebla.chaos.ray.faults import network as network_faults
from ebla.chaos.ray.stage import disk_shim, namespaces
from ebla.chaos.ray.stage.disk_shim import DiskShim
from ebla.chaos.ray.stage.namespaces import Namespaces
from ebla.chaos.ray.stage.stage import Needs

IN_SIMULATION = {
    "crash_midway": "no such tool: steps of tasks are counted in simulation only",
    "crash_point": "no such tool: fault points of roles are passed in simulation only",
    "repeat": "no such tool: Ray delivers a call once or not at all; clients repeat lost calls (`lose`)",
    **dict.fromkeys(PARTS, "no such tool: messages of an envelope are separated in simulation only"),
    "cut_master": "no such tool: master and clients are on the head's node, which is not cut off from single nodes",
    "cut_clients": "no such tool: master and clients are on the head's node, which is not cut off from single nodes",
    "rot": "no such tool: records are damaged in simulation and by chaos/powercut",
    "misdirect": "no such tool: records are damaged in simulation and by chaos/powercut",
    "stale": "no such tool: records are damaged in simulation and by chaos/powercut",
    "grow_map": "no such tool: a server's map grows by itself; in simulation it grows on command",
    "hang_disk": "no such tool: hanging syncs are in simulation only; a disk can be slow (`slow_disk`)",
    "lose_data": "no such tool: hosts here have one disk; the loss of one of several is in simulation only",
    "hang_data": "no such tool: hosts here have one disk; a hanging one of several is in simulation only",
    "away": "no such tool: operators that give up hosts are in simulation only",
    "lose_hosts": "no such tool: operators that give up hosts are in simulation only",
    "old_copy": "no such tool: a copy of a directory at one moment is made in simulation only",
    **dict.fromkeys(CATALOGS, "no such tool: a copy of a directory at one moment is made in simulation only"),
    "clock_rate": "no such tool: the processes of a machine share its clock; clocks drift in simulation only",
    "clock_jump": "no such tool: the processes of a machine share its clock; clocks jump in simulation only",
}
PROCESSES = (
    *("crash", "stop", "pause", "zombie", "blackout", "client_crash", "client_pause"),
    *("node_loss", "node_pause", "lose_host", "lose_disk"),
)
NETWORK = ("isolate", "split", *PAIRS)
DISKS = ("slow_disk", "slow_disks", "full_disk", "fail_sync")
CALLS = ("lose", "delay")
KINDS = (*PROCESSES, *NETWORK, *DISKS, *CALLS, *IN_SIMULATION)
# Ray declares a paused node dead after 4 x 1.5 s, instead of 17 s, so that a zombie fits into a run.
QUICK_HEALTH = {"RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "4"}


@dataclass
class Prepared:
    """`reasons`: by kind, why its faults are skipped."""

    needs: Needs = field(default_factory=Needs)
    reasons: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def prepared(faults: Sequence[Fault], hosts: int, directory: Path) -> Iterator[Prepared]:
    """Prepare all that these faults need and this machine has, until the block ends."""
    kinds = dict.fromkeys(fault.kind for fault in faults)
    reasons = {kind: IN_SIMULATION[kind] for kind in kinds if kind in IN_SIMULATION}
    reasons |= {kind: f"no such fault: {kind}" for kind in kinds if kind not in KINDS}
    if not psutil.LINUX:
        what = "no such tool: faults of processes are signals, and their effect is read from Linux's /proc"
        reasons |= {kind: what for kind in kinds if kind in PROCESSES}
    shim: DiskShim | None = None
    if any(kind in DISKS for kind in kinds):
        built = disk_shim.build(directory / "shim")
        if isinstance(built, DiskShim):
            shim = built
        else:
            reasons |= {kind: built for kind in kinds if kind in DISKS}
    environment = network_faults.environment(faults)
    if "zombie" in kinds:
        environment |= QUICK_HEALTH
    with contextlib.ExitStack() as ending:
        network: Namespaces | None = None
        if any(kind in NETWORK for kind in kinds):
            why = namespaces.why_not()
            if why is None:
                ending.callback(namespaces.remove_own)
                network = Namespaces.create(hosts)
            else:
                reasons |= {kind: why for kind in kinds if kind in NETWORK}
        yield Prepared(Needs(network, shim, environment), reasons)
