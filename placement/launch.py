"""Bring a deployment up, take it down, and say how it is. Needs a process that is connected to Ray.

`up` is idempotent: it launches what is missing, adopts what is there, and waits until every role has told how it is. The
masters' journal is made before the first master that needs it is launched.
A brand-new Ray cluster over the old data directories comes up with everything, because what must outlive Ray is on
disk: the roles' directories, and placement/state.py's memory of who sat where.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import ray
import ray.exceptions

from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import RUNNING, STOPPING, Pong, load
from ebla.actors.ray_world import remote_class
from ebla.placement import asking, groups, journals, memory, slots
from ebla.placement.asking import AWAY, MISSING, RoleStatus, Told, find_actor, hear, named_actors
from ebla.placement.config import DeploymentConfig
from ebla.placement.groups import Group
from ebla.placement.ray_private import check_version
from ebla.placement.roles import JOURNAL_NODE_ROLE, PlanRoles, RoleSpec, journal_of, plan_roles
from ebla.placement.slots import SLOT_LABEL, Seats, Survey
from ebla.placement.state import Deployment, JournalMemory
from ebla.storage.errors import InvalidArgument

UP_S = 120.0
DOWN_S = 60.0
GOODBYE_S = 2.0  # from an actor's last answer until Ray has forgotten its name
STATUS_S = 3.0
POLL_S = 0.05
JOURNAL = "journal/"

Progress = Callable[[str], None]


class UpReport(msgspec.Struct, frozen=True):
    """`launched` and `adopted` are addresses; `roles` tells how each is now; `warnings` what to look at."""

    name: str
    namespace: str
    data_dir: str
    launched: tuple[str, ...]
    adopted: tuple[str, ...]
    roles: tuple[RoleStatus, ...]
    groups: dict[str, tuple[str, ...]]
    warnings: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return all(role.state == RUNNING for role in self.roles)


class DownReport(msgspec.Struct, frozen=True):
    """`stopped` said goodbye; `killed` did not in time, and were ended. The data stays in both cases."""

    name: str
    stopped: tuple[str, ...]
    killed: tuple[str, ...]
    groups: tuple[str, ...]


class StatusReport(msgspec.Struct, frozen=True):
    """`groups`: Ray's word for the state of each."""

    name: str
    namespace: str
    hosts: Survey
    groups: dict[str, str]
    roles: tuple[RoleStatus, ...]


# -- up ------------------------------------------------------------------------------------------------------


def up(
    config: DeploymentConfig,
    *,
    plan: PlanRoles = plan_roles,
    progress: Progress | None = None,
    timeout_s: float = UP_S,
) -> UpReport:
    """`config` as placement.config.configure returns it. What cannot run now is in the report, not raised."""
    tell = progress or (lambda message: None)
    deadline_s = time.monotonic() + timeout_s
    _require_connected()
    available = _survey()
    chosen = slots.choose(available, config.slots)
    tell(f"{len(chosen.hosts)} hosts: {', '.join(chosen.slots)}")
    before, state = _remember(config, available, chosen)
    placed = _place(state, available, tell, deadline_s)

    fleet = _Fleet(config, placed, state, available, tell)
    state = _journal_made(fleet, plan, state, available, deadline_s)
    seats = _seats(state)
    specs = list(plan(config, seats, _journal_id(state)))
    told = fleet.bring(specs, deadline_s)
    roles = tuple(
        asking.status(spec.address, spec.slot, told[spec.address]) if spec.address in told else _away(spec)
        for spec in specs
    )
    unwell = [f"{role.address} is {role.state}: {role.error}" for role in roles if role.error]
    if state.journal is not None:
        unwell += journals.look(config.namespace, journal_of(config, seats, state.journal.id))
    return UpReport(
        name=config.name,
        namespace=config.namespace,
        data_dir=config.data_dir,
        launched=tuple(fleet.launched),
        adopted=tuple(fleet.adopted),
        roles=roles,
        groups=state.groups,
        warnings=(*chosen.left_out, *_fleeting(chosen), *_unapplied(before, state, fleet.adopted), *unwell),
    )


def _require_connected() -> None:
    check_version()
    if not ray.is_initialized():
        raise Unavailable("this process is not connected to a Ray cluster; use connect_ray(), or start one")


def _survey() -> Survey:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return slots.survey(nodes)


def _remember(config: DeploymentConfig, available: Survey, chosen: Survey) -> tuple[Deployment, Deployment]:
    """What was remembered, and what is now: durable before anything is launched."""
    before = memory.recall(config, available.hosts)
    _require_possible(before, config)
    covered = groups.recognise(groups.present(config.name), before.groups, available.hosts)
    made = before.groups_made
    journal = _kept(before.journal, config)
    seats = slots.seat(
        chosen.slots, config.masters, config.journals, before.masters, journal.slots if journal else ()
    )
    if journal is None and seats.journals:
        journal = JournalMemory(id=secrets.token_hex(16), slots=seats.journals)
    seated = (*chosen.slots, *seats.masters, *seats.journals)
    wanted = [host for host in available.hosts if host.slot in seated]
    needed = groups.uncovered(wanted, covered)
    if needed:
        made += 1
        covered = {**covered, groups.group_name(config.name, made): tuple(host.slot for host in needed)}
    state = before.revised(
        config=config, masters=seats.masters, journal=journal, groups=covered, groups_made=made
    )
    memory.keep(state, before, available.hosts)
    return before, state


def _kept(journal: JournalMemory | None, config: DeploymentConfig) -> JournalMemory | None:
    """One that was never made is planned anew if another number of nodes is wanted now."""
    if journal is None or journal.formatted or len(journal.slots) == config.journals:
        return journal
    return None


def _require_possible(before: Deployment, config: DeploymentConfig) -> None:
    """What is there already allows no other number of journal nodes, and no fewer masters."""
    if before.revision == 0:
        return
    journal, masters = before.journal, len(before.masters)
    if journal is not None and not journal.formatted:
        return
    if journal is None and config.journals:
        raise InvalidArgument(
            f"journals is {config.journals}, but this deployment keeps its catalog in master/0 alone, and moving it is not "
            "built yet; set journals to 0 and masters to 1, or set up a new deployment and copy the tables"
        )
    if journal is not None and config.journals != len(journal.slots):
        raise InvalidArgument(
            f"journals is {config.journals}, but the catalog is in a journal of {len(journal.slots)} nodes, and they cannot "
            f"be exchanged; set journals to {len(journal.slots)}"
        )
    if config.masters < masters:
        raise InvalidArgument(
            f"masters is {config.masters}, but there are {masters}, and the one that is left out may hold the only "
            f"checkpoint of what the journal let go of; set masters to {masters}"
        )
    if config.masters > masters and (running := asking.named_actors(config.namespace)):
        raise InvalidArgument(
            f"masters is {config.masters}, but {len(running)} roles run that know of {masters}; `ebla down`, then "
            "`ebla up`"
        )


def _seats(state: Deployment) -> Seats:
    """Also of hosts that are away now."""
    chosen = state.config.slots
    served = tuple(sorted(slot for slot in groups.bundles(state.groups) if not chosen or slot in chosen))
    return Seats(state.masters, served, state.journal.slots if state.journal else ())


def _journal_id(state: Deployment) -> str:
    return state.journal.id if state.journal else ""


def _journal_made(
    fleet: _Fleet,
    plan: PlanRoles,
    state: Deployment,
    available: Survey,
    deadline_s: float,
) -> Deployment:
    """The journal exists on all of its nodes, and that is remembered, before the first master starts."""
    journal, config = state.journal, state.config
    if journal is None or journal.formatted:
        return state
    seats = _seats(state)
    nodes = [spec for spec in plan(config, seats, journal.id) if spec.role == JOURNAL_NODE_ROLE]
    fleet.bring(nodes, deadline_s)
    made = journals.make(config.namespace, journal_of(config, seats, journal.id))
    remembered = state.revised(journal=msgspec.structs.replace(journal, id=made, formatted=True))
    memory.keep(remembered, state, available.hosts)
    return remembered


def _place(state: Deployment, available: Survey, tell: Progress, deadline_s: float) -> dict[str, Group]:
    """The placement groups by name, made where they are missing."""
    name = state.config.name
    there = {group.name: group for group in groups.present(name)}
    for missing in [group for group in state.groups if group not in there]:
        hosts = [host for slot in state.groups[missing] if (host := available.host(slot)) is not None]
        tell(f"placing {len(hosts)} hosts in {missing}")
        groups.create(missing, hosts)
        while there.get(missing) is None or there[missing].state != "CREATED":
            if time.monotonic() > deadline_s:
                state_now = there[missing].state if missing in there else "unknown to Ray"
                raise Unavailable(
                    f"placement group {missing} is {state_now}: Ray found no room for {groups.slots_text(hosts)}; do "
                    f"these nodes have {slots.BUNDLE_CPU} CPU free?"
                )
            time.sleep(POLL_S)
            there = {group.name: group for group in groups.present(name)}
    return there


class _Fleet:
    """Finds or makes the actor of each role, and counts which."""

    def __init__(
        self,
        config: DeploymentConfig,
        placed: dict[str, Group],
        state: Deployment,
        available: Survey,
        tell: Progress,
    ) -> None:
        self.launched: list[str] = []
        self.adopted: list[str] = []
        self._config = config
        self._placed = placed
        self._bundles = groups.bundles(state.groups)
        self._available = available
        self._tell = tell
        self._handles: dict[str, Any] = {}

    def bring(self, specs: Sequence[RoleSpec], deadline_s: float) -> dict[str, Told]:
        """What each of the roles says once it is there; those whose host is away say nothing."""
        for spec in specs:
            if spec.address not in self._handles and self._available.host(spec.slot):
                self._handles[spec.address] = self._adopt_or_launch(spec)
        wanted = {
            spec.address: self._handles[spec.address] for spec in specs if spec.address in self._handles
        }
        return hear(wanted, deadline_s, self._settled)

    def _adopt_or_launch(self, spec: RoleSpec) -> Any:
        handle = find_actor(self._config.namespace, spec.address)
        if handle is not None and _stopped_half_way(handle):
            ray.kill(handle, no_restart=True)
            _await_gone(self._config.namespace, [spec.address], time.monotonic() + DOWN_S)
            handle = None
        if handle is not None:
            self.adopted.append(spec.address)
            return handle
        self.launched.append(spec.address)
        self._tell(f"launching {spec.address} on {spec.slot}")
        bundle = self._bundles[spec.slot]
        options = remote_class(load(spec.role)).options(
            name=spec.address,
            namespace=self._config.namespace,
            get_if_exists=True,
            scheduling_strategy=groups.strategy(self._placed[bundle.group], bundle.index),
        )
        return options.remote(msgspec.msgpack.encode(spec.assignment(self._config)))

    def _settled(self, address: str, pong: Pong) -> bool:
        done = asking.settled(pong)
        if done:
            self._tell(f"{address} is {pong.state}")
        return done


def _stopped_half_way(handle: Any) -> bool:
    """An earlier `down` that was interrupted: the role has said goodbye and its actor is still there."""
    told = hear({"": handle}, time.monotonic() + STATUS_S)[""]
    return isinstance(told, Pong) and told.state == STOPPING


def _away(spec: RoleSpec) -> RoleStatus:
    why = f"slot {spec.slot} has no alive node; the role comes back when a node with this label joins"
    return RoleStatus(spec.address, spec.slot, AWAY, error=why)


def _fleeting(chosen: Survey) -> list[str]:
    return [
        f"node {host.node_id} ({host.address}) has no label {SLOT_LABEL}: what it keeps is not found again after a "
        f"restart of the node; start it with --labels {SLOT_LABEL}=NAME"
        for host in chosen.hosts
        if not host.lasting
    ]


def _unapplied(before: Deployment, state: Deployment, adopted: Sequence[str]) -> list[str]:
    if before.config == state.config or before.revision == 0 or not adopted:
        return []
    return ["roles that ran already keep the settings they were launched with: `ebla down`, then `ebla up`"]


# -- down ----------------------------------------------------------------------------------------------------


def down(name: str, *, progress: Progress | None = None, timeout_s: float = DOWN_S) -> DownReport:
    """Stop every role gracefully, end what does not stop, remove the groups. Only data is left, for the next `up`. The
    journal's nodes go last: the active master says goodbye to them."""
    tell = progress or (lambda message: None)
    _require_connected()
    namespace = DeploymentConfig(name=name).namespace
    deadline_s = time.monotonic() + timeout_s
    addresses = named_actors(namespace)
    keepers = [address for address in addresses if address.startswith(JOURNAL)]
    for leaving in ([address for address in addresses if address not in keepers], keepers):
        goodbyes = _ask_to_stop(namespace, leaving)
        while goodbyes and (left_s := deadline_s - time.monotonic()) > 0:
            _, goodbyes = ray.wait(goodbyes, num_returns=len(goodbyes), timeout=min(left_s, 1.0))
            tell(f"{len(goodbyes)} of {len(addresses)} roles are stopping")
    killed = _end_remaining(namespace, min(deadline_s, time.monotonic() + GOODBYE_S))
    _await_gone(namespace, addresses, time.monotonic() + DOWN_S)
    there = groups.present(name)
    for group in there:
        groups.remove(group)
    stopped = tuple(address for address in addresses if address not in killed)
    return DownReport(name, stopped, tuple(killed), tuple(group.name for group in there))


def _ask_to_stop(namespace: str, addresses: Sequence[str]) -> list[Any]:
    """Each answers by ending: what Ray makes of that differs, so only the name's being gone counts."""
    handles = [find_actor(namespace, address) for address in addresses]
    return [handle.shutdown.remote() for handle in handles if handle is not None]


def _end_remaining(namespace: str, deadline_s: float) -> list[str]:
    """Actors that are still there at the deadline did not stop by themselves: end them."""
    while named_actors(namespace) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    killed = []
    for address in named_actors(namespace):
        handle = find_actor(namespace, address)
        if handle is not None:
            ray.kill(handle, no_restart=True)
            killed.append(address)
    return killed


def _await_gone(namespace: str, addresses: Sequence[str], deadline_s: float) -> None:
    while left := set(named_actors(namespace)) & set(addresses):
        if time.monotonic() > deadline_s:
            raise Unavailable(
                f"Ray does not end the actors {', '.join(sorted(left))}; see the dashboard, then try again"
            )
        time.sleep(POLL_S)


# -- status --------------------------------------------------------------------------------------------------


def status(
    name: str, *, expected: Mapping[str, str] | None = None, timeout_s: float = STATUS_S
) -> StatusReport:
    """How everything is, within `timeout_s`. `expected` (address to slot) names roles that should be there."""
    _require_connected()
    namespace = DeploymentConfig(name=name).namespace
    found = {address: find_actor(namespace, address) for address in named_actors(namespace)}
    handles = {address: handle for address, handle in found.items() if handle is not None}
    told = hear(handles, time.monotonic() + timeout_s)
    slots_of = dict(expected or {})
    roles = [asking.status(address, slots_of.get(address, ""), told[address]) for address in handles]
    roles += [
        RoleStatus(address, slot, MISSING, error="it was never launched, or taken down; run `ebla up`")
        for address, slot in slots_of.items()
        if address not in handles
    ]
    return StatusReport(
        name=name,
        namespace=namespace,
        hosts=_survey(),
        groups={group.name: group.state for group in groups.present(name)},
        roles=tuple(sorted(roles, key=lambda role: role.address)),
    )
