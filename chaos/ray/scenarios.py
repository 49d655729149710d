"""The scenarios on real Ray: workloads and likely faults. Rates are lower than in simulation, because recovery takes seconds here: a
role is back after one or two, a node after ten.

Each of them can be run with PacificA tables, too (`pacifica-kills`, ...), and `both` has tables of both protocols.

A scenario of the simulation (chaos/scenarios/scenarios.py) can be run as well: with its workloads, replicas and mix of faults.
The roles have production options here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ebla.actors.replication.configuration import PACIFICA, RAFT
from ebla.chaos.plans import (
    DESTROY,
    EVERY_HOST,
    EVERYWHERE,
    MASTER,
    NODES,
    RAY,
    SIMULATION,
    Fault,
    Plan,
    generate,
)
from ebla.chaos.ray.faults.probes import IN_SIMULATION, NETWORK
from ebla.chaos.ray.logs import SharedLog
from ebla.chaos.ray.stage.stage import ROLES
from ebla.chaos.scenarios import scenarios as simulated
from ebla.chaos.scenarios.pacifica import PREFIX
from ebla.chaos.scenarios.scenario import small
from ebla.chaos.workloads.bank import Bank
from ebla.chaos.workloads.base import Workload
from ebla.chaos.workloads.chains import Chains
from ebla.chaos.workloads.churn import Churn
from ebla.chaos.workloads.locks import Locks
from ebla.chaos.workloads.logs.events import Events
from ebla.chaos.workloads.logs.ledgers import Ledgers
from ebla.chaos.workloads.registers import Registers
from ebla.chaos.workloads.stamps import Stamps
from ebla.chaos.workloads.tokens import Tokens
from ebla.storage.errors import InvalidArgument, did_you_mean
from ebla.storage.schema import ROWS

HOSTS = 3
HOSTS_MAX = 8
HOSTS_PARTED = 4  # the head is not cut off: three more hosts allow every kind of partition
BOTH = "both"
NO_POINTS = ("",)  # for drawn plans: fault points are passed in simulation only
TRIES_MAX = 50
FIRST_S = 2.0
FOR_S = 1.0
PAUSED_S = 8.0  # past the lease of a PacificA server, and past the grace of the master
# Seconds until the hit host serves again after the end of a fault.
BACK_S = {
    "crash": 3.0,
    "stop": 3.0,
    "blackout": 6.0,
    "fail_sync": 5.0,
    "lose_disk": 5.0,
    "node_loss": 12.0,
    "node_pause": 4.0,
    "zombie": 20.0,
}
GONE_S = 1.0  # the same for all other kinds
TAIL_S = 2.0  # at the end of the act, without new faults
TWIN_PAUSE_S = 0.3  # of a client of the simulated twin: acts are long here


@dataclass(frozen=True)
class Hit:
    """A fault of a turn. `of`: the master, or another role, of the host whose turn it is if plans name it with a number; by default
    that host's server."""

    kind: str
    for_s: float = FOR_S
    of: str = ""


@dataclass(frozen=True)
class RayScenario:
    """`mix`: expected faults per ten seconds, by kind. `every_s`: if set, there is one turn in this many seconds, so that each is
    alone and its recovery can be measured. `turns`: the faults of each turn, all at the same moment; by default one of each kind.
    `replication`: of the tables; with BOTH, of the processes of clients every other one has PacificA tables. `operations_min`: with
    fewer acknowledged operations per second of act one a run is void."""

    name: str
    mix: Mapping[str, float]
    workloads: Callable[[], list[Workload]]
    hosts: int = HOSTS
    operations_min: float = 10.0
    replicas: int = 3
    replication: str = RAFT
    every_s: float | None = None
    turns: tuple[tuple[Hit, ...], ...] = ()

    @property
    def logs(self) -> bool:
        """Whether its deployment has ledger stores from the beginning."""
        return any(isinstance(each, Events) for each in self.workloads())

    def replication_of(self, group: int) -> str:
        """The protocol of the tables of a process of clients."""
        if self.replication == BOTH:
            return PACIFICA if group % 2 == 0 else RAFT
        return self.replication


def _everything() -> list[Workload]:
    return [Registers(), Tokens(), Bank(), Chains(), Stamps(), Churn()]


def _some() -> list[Workload]:
    return [Registers(), Tokens(), Bank(), Chains()]


PARTED = {"isolate": 0.5, "split": 0.5, "cut": 0.5, "cut_one_way": 0.5}
DISKS = {"slow_disk": 0.5, "full_disk": 0.5, "fail_sync": 0.15, "lose_disk": 0.15}

# Leaders' servers and the master, alone and together. Between two turns of a server others take over what it led.
LEADERS = (
    (Hit("crash"),),
    (Hit("crash", of=MASTER),),
    (Hit("pause", PAUSED_S),),
    (Hit("crash"), Hit("crash", of=MASTER)),
    (Hit("pause", PAUSED_S, MASTER),),
    (Hit("pause", PAUSED_S), Hit("pause", PAUSED_S, MASTER)),
)

# Roles of logs. A store that is away lacks entries, so that a repair follows: the worker and the master are hit while it is made.
# One that is away for AWAY_S is lost, by the auditor's delay on this stage, and its ledgers move to other stores.
AWAY_S = 14.0
REPAIRS = (
    (Hit("pause", 5.0, "store"), Hit("crash", of="worker")),
    (Hit("client_pause", 9.0),),
    (Hit("pause", AWAY_S, "store"), Hit("crash", of=MASTER)),
    (Hit("pause", 9.0, "auditor"), Hit("crash", of="store")),
    (Hit("pause", 5.0, "store"), Hit("pause", 13.0, "worker")),
    (Hit("crash", of="auditor"), Hit("node_loss", 2.0)),
    (Hit("client_crash"), Hit("lose_host", of="store")),
)
REPAIRS_EVERY_S = 16.0

_ALL = (
    RayScenario("calm", {}, _everything),
    RayScenario("crashes", {"crash": 2.0}, _everything),
    RayScenario("kills", {"crash": 1.0}, _some, every_s=12.0),
    RayScenario("losses", {"node_loss": 1.0, "stop": 1.0}, _some, every_s=25.0),
    RayScenario("leaders", {"crash": 1.0, "pause": 1.0}, _some, every_s=20.0, turns=LEADERS),
    RayScenario("stops", {"stop": 0.7, "crash": 0.5, "client_crash": 0.1}, _some),
    RayScenario("blackouts", {"blackout": 0.5}, _some),
    RayScenario("pauses", {"pause": 1.5}, _everything),
    RayScenario("nodes", {"node_loss": 0.5, "node_pause": 0.3}, _some),
    RayScenario("zombies", {"zombie": 0.3}, _some),
    RayScenario("partitions", PARTED, _some, HOSTS_PARTED),
    RayScenario("calls", {"lose": 1.0, "delay": 1.0, "crash": 0.5}, _some),
    RayScenario("disks", DISKS, _some),
    RayScenario(
        "logs",
        {hit.kind: 1.0 for turn in REPAIRS for hit in turn},
        lambda: [*_some(), SharedLog()],
        hosts=4,
        every_s=REPAIRS_EVERY_S,
        turns=REPAIRS,
    ),
    RayScenario(
        "everything",
        {"crash": 0.5, "stop": 0.2, "pause": 0.5, "node_loss": 0.2, "zombie": 0.1, **PARTED, **DISKS},
        _everything,
        HOSTS_PARTED,
    ),
)

_PACIFICA = [replace(each, name=PREFIX + each.name, replication=PACIFICA) for each in _ALL]
_BOTH = RayScenario("both", {"crash": 2.0}, _everything, replication=BOTH)
SCENARIOS = {each.name: each for each in (*_ALL, *_PACIFICA, _BOTH)}


def _runs_here(each: simulated.Scenario) -> bool:
    """Whether the scenario can run on Ray, where a deployment has one master and one namespace, which processes of clients would
    share, hosts are not lost for good, and memtables are so large that columns are rarely written."""
    if each.shape.forced or each.shape.grows or each.storage != ROWS:
        return False
    return each.shape.masters == 1 and not any(isinstance(one, Locks | Ledgers) for one in each.workloads())


SHARED = {name: each for name, each in simulated.SCENARIOS.items() if _runs_here(each)}


def scenario(name: str) -> RayScenario:
    if name in SCENARIOS:
        return SCENARIOS[name]
    if name in SHARED:
        other = SHARED[name]
        least = HOSTS_PARTED if any(kind in NETWORK for kind in other.mix) else HOSTS
        hosts = max(least, other.shape.hosts)
        return RayScenario(
            name,
            other.mix,
            other.workloads,
            hosts,
            replicas=other.replicas,
            replication=other.replication,
        )
    known = dict.fromkeys([*SCENARIOS, *SHARED])
    close = did_you_mean(name, known)
    raise InvalidArgument(f"there is no scenario {name!r}; there are {', '.join(known)}{close}")


def simulated_twin(plan: Plan) -> simulated.Scenario:
    """The scenario in which the simulation runs a plan made for Ray: with its workloads and hosts, for as long as its faults last."""
    wanted = scenario(plan.scenario)
    named = [host for fault in plan.faults for host in fault.where]
    if any(host in ROLES for host in named):
        raise InvalidArgument(
            f"the plan hits {' or '.join(ROLES)}: the one that acts at that moment, which only runs on Ray find; leave these faults out"
        )
    if unknown := [host for host in named if _number(host) > HOSTS_MAX]:
        raise InvalidArgument(f"there is no host {unknown[0]}: a run on Ray has {HOSTS_MAX} hosts at most")
    last_s = max((fault.at_s + fault.for_s for fault in plan.faults), default=0.0)
    hosts = max([wanted.hosts, *map(_number, named)])
    shape = small(hosts=hosts, stores=hosts if wanted.logs else 0)
    return simulated.Scenario(
        plan.scenario,
        wanted.mix,
        wanted.workloads,
        shape,
        last_s + TAIL_S,
        replicas=wanted.replicas,
        replication=wanted.replication_of(1),
        pause_s=TWIN_PAUSE_S,
    )


def one_at_a_time(faults: Sequence[Fault], hosts: Sequence[str]) -> tuple[Fault, ...]:
    """Drop faults that begin before their host has recovered from the last one: the nemesis would delay them, and miss them in the
    end."""
    free_s = dict.fromkeys((*hosts, MASTER), 0.0)
    found = []
    for fault in faults:
        if fault.kind in IN_SIMULATION:
            found.append(fault)  # the nemesis skips it
            continue
        hit = tuple(free_s) if fault.kind in EVERY_HOST else fault.where
        if all(free_s[host] <= fault.at_s for host in hit):
            found.append(fault)
            over_s = fault.at_s + fault.for_s + BACK_S.get(fault.kind, GONE_S)
            free_s.update(dict.fromkeys(hit, over_s))
    return tuple(found)


def _number(host: str) -> int:
    """3 for `host-3`; 0 for the master."""
    number = host.removeprefix("host-")
    return int(number) if number.isdecimal() else 0


def plan_of(name: str, seed: int, hosts: Sequence[str], duration_s: float) -> Plan:
    """The plan of this seed, without faults on hosts that have not recovered. If the seed's draw has no fault, other draws follow,
    so that a scenario with faults always has some."""
    wanted = scenario(name)
    least = HOSTS_PARTED if any(kind in NETWORK for kind in wanted.mix) else HOSTS
    if len(hosts) < least:
        raise InvalidArgument(f"scenario {name} needs {least} hosts, not {len(hosts)}; raise --hosts")
    until_s = max(1.0, duration_s - TAIL_S)
    if wanted.every_s is not None:
        return Plan(name, seed, _in_turn(wanted, wanted.every_s, seed, hosts, until_s), RAY)
    for turn in range(TRIES_MAX):
        faults = one_at_a_time(_faults(wanted, seed + turn * 1_000_003, hosts, until_s), hosts)
        if faults or not wanted.mix:
            break
    return Plan(name, seed, faults, RAY)


def _in_turn(
    wanted: RayScenario, every_s: float, seed: int, hosts: Sequence[str], until_s: float
) -> tuple[Fault, ...]:
    """Turn after turn, host after host: a host that was hit leads fewer tablets than the next one. If nodes are hit, all other
    kinds hit the first host: its node is spared, and it would end up leading all tablets."""
    turns = wanted.turns or tuple((Hit(kind),) for kind in wanted.mix)
    rest = hosts[:1] if any(kind in NODES for kind in wanted.mix) else hosts
    found: list[Fault] = []
    at_s, number = min(FIRST_S, until_s), 0
    while at_s <= until_s:
        again, which = divmod(number, len(turns))
        for hit in turns[which]:
            if hit.kind in DESTROY and any(fault.kind in DESTROY for fault in found):
                continue  # of one host only
            among = hosts if hit.of == "store" else rest
            if hit.kind in (*NODES, "lose_host"):
                among = hosts[1:]
            host = among[(seed + again + which) % len(among)]
            found.append(Fault(at_s, hit.kind, _where(hit, host), hit.for_s))
        at_s, number = at_s + every_s, number + 1
    return tuple(found)


def _where(hit: Hit, host: str) -> tuple[str, ...]:
    if hit.kind in EVERYWHERE:
        return ()
    if hit.of == "store":
        return (host.replace("host", hit.of),)
    return (hit.of or host,)


def _faults(wanted: RayScenario, seed: int, hosts: Sequence[str], until_s: float) -> tuple[Fault, ...]:
    """Draw faults. The head's network cannot be cut: its processes share it with the clients."""
    nodes = {kind: rate for kind, rate in wanted.mix.items() if kind in NETWORK}
    roles = {kind: rate for kind, rate in wanted.mix.items() if kind not in NETWORK}
    faults = list(generate(wanted.name, seed, roles, hosts, NO_POINTS, until_s).faults)
    if nodes:
        for fault in generate(wanted.name, seed, nodes, hosts[1:], NO_POINTS, until_s).faults:
            where = tuple(hosts[-1] if host == MASTER else host for host in fault.where)
            faults.append(msgspec.structs.replace(fault, where=where))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def scenario_of(plan: Plan) -> simulated.Scenario:
    """The simulated scenario of a plan; for a plan drawn for Ray, its simulated twin."""
    return simulated.scenario(plan.scenario) if plan.stage == SIMULATION else simulated_twin(plan)
