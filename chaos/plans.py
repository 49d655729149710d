"""Plans of faults: plain data that says what goes wrong, where, when and for how long.

The same plan runs in simulation (chaos/simulation/nemesis.py) and on a real Ray cluster (chaos/ray/faults/nemesis.py), is kept
as JSON when it finds a defect, and shrinks by dropping faults. Both name hosts `host-1`, ...

    kind            where    amount               effect
    crash           host     -                    SIGKILL of its roles, started again after `for_s`
    crash_point     host     a fault point        the same, when the host next passes the point
    crash_midway    host     steps, from 1        the same, after this many more steps of its tasks
    stop            host     -                    SIGTERM, started again after `for_s`
    pause           host     -                    SIGSTOP for `for_s`
    zombie          host     -                    paused and declared dead; a second incarnation gets its address, and it
                                                  resumes for a second beside the second one
    node_loss       host     -                    SIGKILL of its Ray node and all its roles, back after `for_s`
    node_pause      host     -                    SIGSTOP of its Ray node and all its roles for `for_s`
    blackout        -        -                    SIGKILL of every host, or every tablet server, at once; all start again after `for_s`
    client_crash    -        -                    SIGKILL of a client; another one starts after `for_s`
    client_pause    -        -                    SIGSTOP of a client for `for_s`
    isolate         host     -                    cut off from every other host and client for `for_s`
    split           hosts    -                    these hosts on one side, all others on the other side
    cut             2 hosts  -                    no messages between the two (a partial partition)
    cut_one_way     2 hosts  -                    no messages from the first to the second
    cut_master      host     -                    no messages between the host and the masters
    cut_clients     host     -                    no messages between the host and the clients
    lose            -        share of messages    messages lost
    repeat          -        share of messages    messages delivered twice, out of order
    delay           -        seconds at most      messages late
    lose_parts      -        share of messages    single messages of envelopes lost; in simulation only, like the next two
    repeat_parts    -        share of messages    single messages of envelopes delivered twice
    delay_parts     -        share of messages    single messages of envelopes late
    slow_disk       host     seconds at most      every sync takes up to that long
    slow_disks      -        seconds at most      the same on every host
    hang_disk       host     -                    no sync that begins ends within `for_s`
    full_disk       host     -                    no space for `for_s`
    grow_map        host     -                    for `for_s` LMDB's maps grow again and again: open snapshots expire
    fail_sync       host     -                    a sync fails: the server ends, and returns as a new one after `for_s`
    rot             host     seed                 one bit of a stored record is flipped
    misdirect       host     seed                 one record is read where another was written
    stale           host     seed                 one record is an older version of itself
    lose_disk       host     -                    the directory is lost: returns as a new server after `for_s`
    lose_data       host     -                    the disk with its tablets' rows is lost; the server continues
    hang_data       host     seed                 the disks with the rows of some of its tablets hang for `for_s`
    old_copy        host     -                    the directory is restored as it was `for_s` ago; in simulation only
    old_catalog     -        -                    a single master's directory is as it was `for_s` ago, for some seconds; in
                                                  simulation only
    accept_catalog  -        -                    the same for good, and an operator accepts that; in simulation only
    away            2 hosts  -                    both are down at once, and return after `for_s`
    lose_hosts      host     -                    the host and a second one are lost for good, with their directories. The
                                                  second is the one with which most tablets of `Shape.forced` lose a majority
    lose_host       host     -                    the host of a ledger store is lost for good, with its directory and its worker
    clock_rate      host     seconds per second   its monotonic clock runs fast or slow for `for_s`
    clock_jump      host     seconds              its wall clock jumps

`master` is a host like the others for crash, stop, pause and isolate, and for cuts in plans that are written by hand. With
several masters it is the active one of that moment, and masters and journal nodes are hosts of their own: `master-0`,
`journal-0`, ... The first host is spared NODES: on Ray its node is the head, without which the cluster ends.

The budget: faults of disks that destroy data (DESTROY) hit one host per plan, because three replicas tolerate the loss of
one. All other faults may hit any host, also at the same time. The second host of `lose_hosts` is chosen when the fault
happens, so that all other tablets keep their majorities.

Drawn plans obey these rules. `check` tests any other plan before a run: a fault that hits no host would seem to be
tolerated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Literal

import msgspec

from ebla.actors.fault_points import POINTS
from ebla.storage.errors import InvalidArgument, did_you_mean

PARTS = ("lose_parts", "repeat_parts", "delay_parts")  # of envelopes
KINDS = (
    *("crash", "crash_point", "crash_midway", "stop", "pause", "zombie", "node_loss", "node_pause"),
    *("blackout", "client_crash", "client_pause"),
    *("isolate", "split", "cut", "cut_one_way", "cut_master", "cut_clients", "lose", "repeat", "delay"),
    *PARTS,
    *("slow_disk", "slow_disks", "hang_disk", "full_disk", "grow_map", "fail_sync"),
    *("rot", "misdirect", "stale", "lose_disk", "old_copy", "lose_data", "hang_data"),
    *("old_catalog", "accept_catalog", "away", "lose_hosts", "lose_host"),
    *("clock_rate", "clock_jump"),
)
DESTROY = (
    *("fail_sync", "rot", "misdirect", "stale", "lose_disk", "old_copy", "lose_data", "lose_hosts"),
    "lose_host",
)
PAIRS = ("cut", "cut_one_way")
TWO = (*PAIRS, "away")
CATALOGS = ("old_catalog", "accept_catalog")
EVERYWHERE = ("lose", "repeat", "delay", *PARTS, "blackout", "client_crash", "client_pause", *CATALOGS)
EVERY_HOST = ("blackout", "slow_disks")
NODES = ("node_loss", "node_pause")
MASTER_TOO = ("crash", "stop", "pause", "isolate")
RATE_RANGE = (0.9, 1.1)  # two clocks may drift apart by 22 %; leases tolerate 25 % (see RaftLimits)
HOLD_S = (0.1, 6.0)
OVERTIME_S = 0.5  # a fault ends this long after act one at the latest
MASTER = "master"
SIMULATION: Literal["simulation"] = "simulation"
RAY: Literal["ray"] = "ray"
AT_S_MAX = 86_400.0  # the latest that a fault may begin
FOR_S_MAX = 3600.0
SEEDS = (0.0, 1e9), (1.0, 1e9)
# The amounts of a kind that are allowed, and those that are drawn; other kinds take none.
AMOUNTS = {
    "crash_midway": ((1.0, 1e6), (1.0, 60.0)),
    "lose": ((0.0001, 1.0), (0.01, 0.3)),
    "repeat": ((0.0001, 1.0), (0.01, 0.5)),
    "delay": ((0.0001, 60.0), (0.01, 1.0)),
    **dict.fromkeys(PARTS, ((0.0001, 1.0), (0.05, 0.5))),
    "slow_disk": ((0.0001, 60.0), (0.02, 4.0)),
    "slow_disks": ((0.0001, 60.0), (0.02, 1.0)),
    "clock_rate": (RATE_RANGE, RATE_RANGE),
    "clock_jump": ((-1e8, 1e8), (-3600.0, 3600.0)),
    **dict.fromkeys(("rot", "misdirect", "stale", "hang_data"), SEEDS),
}


class Fault(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A fault `at_s` after the beginning of act one, for `for_s`. `where`: the hosts that the kind needs."""

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


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`scenario` and `seed` decide everything except faults: the clients' operations and the delays of messages. `stage`:
    whether the scenario is one of simulation or of Ray."""

    scenario: str
    seed: int
    faults: tuple[Fault, ...]
    stage: Literal["simulation", "ray"] = "simulation"


def encode(plan: Plan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def decode(data: bytes) -> Plan:
    """Decode a plan. Raises msgspec.ValidationError, which names the field."""
    return msgspec.json.decode(data, type=Plan)


def check(
    plan: Plan, hosts: Sequence[str], points: Sequence[str] = POINTS, catalogs: Collection[str] = CATALOGS
) -> None:
    """Raise InvalidArgument for the first fault that cannot be carried out as it is written, with its number, its field
    and the remedy. `hosts`: all but the master's. `catalogs`: the kinds of CATALOGS that the scenario expects are among these."""
    destroyed: tuple[str, ...] = ()
    for number, fault in enumerate(plan.faults):
        for field, wrong in (
            ("kind", _no_kind(fault) or _unexpected(fault, catalogs)),
            ("at_s", _outside("at_s", fault.at_s, 0.0, AT_S_MAX)),
            ("for_s", _outside("for_s", fault.for_s, 0.0, FOR_S_MAX)),
            ("where", misplaced(fault, (*hosts, MASTER)) or _over_budget(fault, destroyed)),
            ("amount", _unfit_amount(fault)),
            ("point", _unfit_point(fault, points)),
        ):
            if wrong:
                raise InvalidArgument(f"{wrong} - at `$.faults[{number}].{field}`")
        if fault.kind in DESTROY:
            destroyed = fault.where


def misplaced(fault: Fault, hosts: Sequence[str]) -> str:
    """The reason why the fault cannot hit its hosts; empty if it can. `hosts`: the master's, too."""
    unknown = [host for host in fault.where if host not in hosts]
    if unknown:
        return f"there is no host {', '.join(unknown)}; the hosts are {', '.join(hosts)}"
    among = [host for host in hosts if host != MASTER or _hits_master(fault)]
    if fault.kind == "lose_host":
        among = [host for host in hosts if host.startswith("store-")]
        if not set(fault.where) <= set(among):
            return (
                f"lose_host hits a ledger store; name one of {', '.join(among) or 'a scenario that has some'}"
            )
    least, most = _hosts_needed(fault.kind, len(among))
    if most == 0 and fault.where:
        return f"{fault.kind} hits all hosts; leave out `where`"
    if not least <= len(fault.where) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        return f"{fault.kind} needs {wanted} of the hosts {', '.join(among)}, not {len(fault.where)}"
    if not set(fault.where) <= set(among):
        return f"{fault.kind} does not hit {MASTER}; name one of {', '.join(among)}"
    if len(set(fault.where)) < len(fault.where):
        return f"{fault.kind} names a host twice; name each of them once"
    return ""


def _hosts_needed(kind: str, hosts: int) -> tuple[int, int]:
    """The least and the greatest number of hosts."""
    if kind in EVERYWHERE:
        return 0, 0
    if kind in EVERY_HOST:
        return 0, 1  # drawn plans name one host, and hit all
    if kind == "split":
        return 1, hosts - 1
    return (2, 2) if kind in TWO else (1, 1)


def _hits_master(fault: Fault) -> bool:
    return fault.kind in (*MASTER_TOO, *PAIRS) or fault.point.startswith(MASTER)


def _no_kind(fault: Fault) -> str:
    if fault.kind in KINDS:
        return ""
    return f"there is no fault {fault.kind!r}; there are {', '.join(KINDS)}{did_you_mean(fault.kind, KINDS)}"


def _unexpected(fault: Fault, catalogs: Collection[str]) -> str:
    if fault.kind not in CATALOGS or fault.kind in catalogs:
        return ""
    return f"the scenario does not expect {fault.kind}, so it would be a violation; `ebla chaos scenarios` shows which do"


def _over_budget(fault: Fault, destroyed: tuple[str, ...]) -> str:
    if fault.kind not in DESTROY or destroyed in ((), fault.where):
        return ""
    (host,) = destroyed
    return f"data of {host} is destroyed already, and three replicas tolerate the loss of one; name {host} here, too"


def _unfit_amount(fault: Fault) -> str:
    if fault.kind in AMOUNTS:
        allowed, _ = AMOUNTS[fault.kind]
        return _outside(f"the amount of {fault.kind}", fault.amount, *allowed)
    return f"{fault.kind} takes no amount; leave it out" if fault.amount else ""


def _unfit_point(fault: Fault, points: Sequence[str]) -> str:
    if fault.kind != "crash_point":
        return f"{fault.kind} takes no fault point; leave it out" if fault.point else ""
    if fault.point not in points:
        close = did_you_mean(fault.point, points)
        return f"there is no fault point {fault.point!r}{close or '; name one of ' + ', '.join(filter(None, points))}"
    if fault.point.startswith(MASTER) and not all(host.startswith(MASTER) for host in fault.where):
        return f"{fault.point} is passed by {MASTER} only; name {MASTER} as its host"
    return ""


def _outside(what: str, value: float, low: float, high: float) -> str:
    return "" if low <= value <= high else f"{what} must be between {low:g} and {high:g}, not {value:g}"


def generate(
    scenario: str,
    seed: int,
    mix: Mapping[str, float],
    hosts: Sequence[str],
    points: Sequence[str],
    duration_s: float,
    hold_s: tuple[float, float] = HOLD_S,
    holds_s: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    amounts: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    destroyed: Sequence[str] = (),
) -> Plan:
    """Draw a plan from the seed. `mix`: expected faults of each kind per ten seconds. `hold_s`: how long they last; `holds_s`
    and `amounts` give ranges of single kinds. `destroyed`: hosts whose data may be destroyed, by default all. Each seed leaves some kinds out and doubles others, so that rare combinations
    occur (swarm testing)."""
    chance = Random(f"plan:{scenario}:{seed}")
    damaged = chance.choice(list(destroyed or hosts))
    faults: list[Fault] = []
    for kind, rate in mix.items():
        expected = rate * duration_s / 10 * chance.choice((0.0, 0.5, 1.0, 2.0))
        count = int(expected) + (chance.random() < expected % 1)
        least_s, most_s = holds_s.get(kind, hold_s)
        for _ in range(count):
            at_s = round(chance.uniform(0.0, duration_s), 3)
            for_s = least_s * (most_s / least_s) ** chance.random()
            for_s = round(min(for_s, duration_s + OVERTIME_S - at_s), 3)
            point = chance.choice(list(points)) if kind == "crash_point" else ""
            where = _where(chance, kind, hosts, damaged, point)
            faults.append(Fault(at_s, kind, where, for_s, _amount(chance, kind, amounts), point))
    return Plan(scenario, seed, tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _where(chance: Random, kind: str, hosts: Sequence[str], damaged: str, point: str) -> tuple[str, ...]:
    role = _role_of(point)
    if of_role := [host for host in hosts if point and host.startswith(f"{role}-")]:
        return (chance.choice(of_role),)
    if point.startswith(MASTER):
        return (MASTER,)
    if kind in EVERYWHERE:
        return ()
    if kind == "split":
        return tuple(sorted(chance.sample(list(hosts), chance.randint(1, len(hosts) - 1))))
    if kind in TWO:
        return tuple(chance.sample(list(hosts), 2))
    if kind in DESTROY:
        return (damaged,)
    if kind in MASTER_TOO and chance.random() < (0.5 if f"{MASTER}-0" in hosts else 0.2):
        return (MASTER,)
    if kind in NODES:
        return (chance.choice(list(hosts[1:])),)
    return (chance.choice(list(hosts)),)


def _role_of(point: str) -> str:
    """The role that passes the point, as hosts are named."""
    role, _, act = point.partition(".")
    if role != "ledger":
        return role
    return {"repair": "worker", "audit": "auditor"}.get(act.partition(".")[0], "store")


def _amount(chance: Random, kind: str, amounts: Mapping[str, tuple[float, float]]) -> float:
    if kind not in AMOUNTS:
        return 0.0
    low, high = amounts.get(kind, AMOUNTS[kind][1])
    return float(int(chance.uniform(low, high))) if low == 1 else round(chance.uniform(low, high), 4)


def shrink(plan: Plan, fails: Callable[[Plan], bool], tries_max: int = 200) -> Plan:
    """Leave out every fault of a failing plan that the failure does not need. `fails` runs a plan, at most `tries_max` times;
    larger pieces are dropped first."""
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
