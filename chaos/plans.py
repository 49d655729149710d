"""Plans of faults: plain data that says what goes wrong, where, when and for how long.

The same plan runs in simulation (chaos/simulation/nemesis.py) and on a real Ray cluster (chaos/ray/nemesis.py), is kept
as JSON when it finds a defect, and shrinks by dropping faults. Hosts are named as they are in both: `host-1`, ...

    kind            where    amount               what
    crash           host     -                    SIGKILL of its roles, started again after `for_s`
    crash_point     host     a fault point        the same, when the host next passes the point
    stop            host     -                    SIGTERM, started again after `for_s`
    pause           host     -                    SIGSTOP for `for_s`
    zombie          host     -                    paused and believed dead; its address is given to a second incarnation,
                                                  then it runs on for a second beside it
    node_loss       host     -                    SIGKILL of its Ray node and all its roles, back after `for_s`
    node_pause      host     -                    SIGSTOP of its Ray node and all its roles for `for_s`
    blackout        -        -                    SIGKILL of every host at once, all started again after `for_s`
    client_crash    -        -                    SIGKILL of a client; another one comes after `for_s`
    isolate         host     -                    cut off from every other host and client for `for_s`
    split           hosts    -                    these hosts on one side, all others on the other side
    cut             2 hosts  -                    the two do not hear each other (a partial partition)
    cut_one_way     2 hosts  -                    the second does not hear the first
    lose            -        share of messages    messages lost
    repeat          -        share of messages    messages delivered twice, out of order
    delay           -        seconds at most      messages late
    slow_disk       host     seconds at most      every sync takes that long
    slow_disks      -        seconds at most      the same on every host
    full_disk       host     -                    no space for `for_s`
    fail_sync       host     -                    a sync fails: the server ends, and returns as a new one after `for_s`
    rot             host     seed                 one stored record is another one
    misdirect       host     seed                 one record is served where another was written
    stale           host     seed                 one record is an older version of itself
    lose_disk       host     -                    the directory is gone: returns as a new server after `for_s`
    old_copy        host     -                    the directory is again what it was `for_s` ago; in simulation only
    clock_rate      host     seconds per second   its monotonic clock runs fast or slow for `for_s`
    clock_jump      host     seconds              its wall clock jumps

`master` is a host like the others for crash, stop, pause and isolate. The first host is spared NODES: on Ray its node
is the head, whose loss is the cluster's.

The budget: faults of disks that destroy data (DESTROY) hit one host per plan, because three replicas bear the loss of
one. Everything else may hit everybody, at the same time too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType

import msgspec

DESTROY = ("fail_sync", "rot", "misdirect", "stale", "lose_disk", "old_copy")
PAIRS = ("cut", "cut_one_way")
EVERYWHERE = ("lose", "repeat", "delay", "blackout", "client_crash")
NODES = ("node_loss", "node_pause")
MASTER_TOO = ("crash", "stop", "pause", "isolate")
RATE_RANGE = (0.9, 1.1)  # two clocks may drift apart by 22 %; leases bear 25 % (see RaftLimits)
HOLD_S = (0.1, 6.0)
OVERTIME_S = 0.5  # a fault ends this long after act one at the latest
MASTER = "master"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """At `at_s` since the beginning of act one, for `for_s`. `where`: the hosts, as the kind needs them."""

    at_s: float
    kind: str
    where: tuple[str, ...] = ()
    for_s: float = 0.0
    amount: float = 0.0
    point: str = ""

    def __str__(self) -> str:
        where = " ".join(self.where) + " " if self.where else ""
        amount = f"{self.amount:g} " if self.amount else ""
        point = f"at {self.point} " if self.point else ""
        held = f"for {self.for_s:.2f} s" if self.for_s else ""
        return f"at {self.at_s:6.2f} s: {self.kind} {where}{amount}{point}{held}".rstrip()


class Plan(msgspec.Struct, frozen=True):
    """`scenario` and `seed` decide everything that is not a fault: who asks what, when, and how messages travel."""

    scenario: str
    seed: int
    faults: tuple[Fault, ...]

    def without(self, number: int) -> Plan:
        left = self.faults[:number] + self.faults[number + 1 :]
        return msgspec.structs.replace(self, faults=left)


def encode(plan: Plan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def decode(data: bytes) -> Plan:
    """Raises msgspec.ValidationError, which names the field."""
    return msgspec.json.decode(data, type=Plan)


def generate(
    scenario: str,
    seed: int,
    mix: Mapping[str, float],
    hosts: Sequence[str],
    points: Sequence[str],
    duration_s: float,
    hold_s: tuple[float, float] = HOLD_S,
    holds_s: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Plan:
    """A plan of this seed. `mix`: how many faults of each kind to expect per ten seconds; `hold_s`: how long they last,
    unless `holds_s` says otherwise of a kind. Each seed leaves some kinds out and doubles others, so that rare
    combinations come up (swarm testing)."""
    chance = Random(f"plan:{scenario}:{seed}")
    damaged = chance.choice(list(hosts))
    faults: list[Fault] = []
    for kind, rate in mix.items():
        expected = rate * duration_s / 10 * chance.choice((0.0, 0.5, 1.0, 2.0))
        count = int(expected) + (chance.random() < expected % 1)
        held_s = holds_s.get(kind, hold_s)
        faults += [_fault(chance, kind, hosts, damaged, points, duration_s, held_s) for _ in range(count)]
    return Plan(scenario, seed, tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _fault(
    chance: Random,
    kind: str,
    hosts: Sequence[str],
    damaged: str,
    points: Sequence[str],
    duration_s: float,
    hold_s: tuple[float, float],
) -> Fault:
    at_s = round(chance.uniform(0.0, duration_s), 3)
    for_s = hold_s[0] * (hold_s[1] / hold_s[0]) ** chance.random()
    for_s = round(min(for_s, duration_s + OVERTIME_S - at_s), 3)
    point = chance.choice(list(points)) if kind == "crash_point" else ""
    if point.startswith(MASTER):
        where: tuple[str, ...] = (MASTER,)
    else:
        where = _where(chance, kind, hosts, damaged)
    return Fault(at_s, kind, where, for_s, _amount(chance, kind), point)


def _where(chance: Random, kind: str, hosts: Sequence[str], damaged: str) -> tuple[str, ...]:
    if kind in EVERYWHERE:
        return ()
    if kind == "split":
        return tuple(sorted(chance.sample(list(hosts), chance.randint(1, len(hosts) - 1))))
    if kind in PAIRS:
        return tuple(chance.sample(list(hosts), 2))
    if kind in DESTROY:
        return (damaged,)
    if kind in MASTER_TOO and chance.random() < 0.2:
        return (MASTER,)
    if kind in NODES:
        return (chance.choice(list(hosts[1:])),)
    return (chance.choice(list(hosts)),)


def _amount(chance: Random, kind: str) -> float:
    ranges = {
        "lose": (0.01, 0.3),
        "repeat": (0.01, 0.5),
        "delay": (0.01, 1.0),
        "slow_disk": (0.02, 4.0),
        "slow_disks": (0.02, 1.0),
        "clock_rate": RATE_RANGE,
        "clock_jump": (-3600.0, 3600.0),
        "rot": (1, 1e9),
        "misdirect": (1, 1e9),
        "stale": (1, 1e9),
    }
    if kind not in ranges:
        return 0.0
    low, high = ranges[kind]
    return float(int(chance.uniform(low, high))) if low == 1 else round(chance.uniform(low, high), 4)


def shrink(plan: Plan, fails: Callable[[Plan], bool], tries_max: int = 200) -> Plan:
    """The plan with every fault left out that the failure does not need. `fails` runs a plan; at most `tries_max`
    runs are made, the larger pieces first."""
    tries, size = 0, max(1, len(plan.faults) // 2)
    while size:
        start = 0
        while start < len(plan.faults) and tries < tries_max:
            left = plan.faults[:start] + plan.faults[start + size :]
            smaller = msgspec.structs.replace(plan, faults=left)
            tries += 1
            if fails(smaller):
                plan = smaller
            else:
                start += size
        size //= 2
    return plan
