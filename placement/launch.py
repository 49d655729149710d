"""Bring a deployment up, take it down, and report its state. Needs a process that is connected to Ray.

`up` is idempotent: it launches missing roles, adopts existing ones, and waits until every role has
reported its state. The masters' journal is made before the first master that needs it is launched.
A new Ray cluster over the old data directories comes up complete, because everything that must
outlive Ray is on disk: the directories of the roles, and their slots (placement/state.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
import ray.exceptions

from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import RUNNING, Pong
from ebla.placement import asking
from ebla.placement.asking import AWAY, MISSING, Answer, RoleStatus, find_actor, named_actors, poll
from ebla.placement.config import DeploymentConfig, configure
from ebla.placement.deploy import groups, memory, slots
from ebla.placement.deploy.fleet import DOWN_S, Fleet, Progress, await_gone, end_actor
from ebla.placement.deploy.groups import Group
from ebla.placement.deploy.roles import PlanRoles, RoleSpec, journal_of, plan_roles
from ebla.placement.deploy.slots import SLOT_LABEL, Survey
from ebla.placement.journal import catalog, journals
from ebla.placement.journal.catalog import JOURNAL, MASTER
from ebla.placement.ray_private import check_version
from ebla.placement.state import Deployment
from ebla.storage.errors import InvalidArgument

UP_S = 120.0
GOODBYE_S = 2.0  # from an actor's last answer until Ray has removed its name
STATUS_S = 3.0
POLL_S = 0.05
ACTIVE_S = 20.0  # the lease of a former active master expires within 2 s


class UpReport(msgspec.Struct, frozen=True):
    """The result of `up`. `launched` and `adopted` are addresses; `roles`: the state of each role;
    `warnings`: problems for the operator."""

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
        """Every role runs, and tables can be made."""
        if journals.INACTIVE in self.warnings:
            return False
        return all(role.state == RUNNING and role.error is None for role in self.roles)


class DownReport(msgspec.Struct, frozen=True):
    """The result of `down`. Roles in `stopped` stopped gracefully; those in `killed` did not in
    time, and were ended. The data stays in both cases, in `data_dirs`: one directory, unless roles ran
    in several; none if no role answered."""

    name: str
    stopped: tuple[str, ...]
    killed: tuple[str, ...]
    groups: tuple[str, ...]
    data_dirs: tuple[str, ...]


class StatusReport(msgspec.Struct, frozen=True):
    """The state of a deployment. `groups`: Ray's state of each placement group."""

    name: str
    namespace: str
    hosts: Survey
    groups: dict[str, str]
    roles: tuple[RoleStatus, ...]


# -- up ------------------------------------------------------------------------------------------------------


def up(
    settings: DeploymentConfig | Mapping[str, Any],
    *,
    plan: PlanRoles = plan_roles,
    progress: Progress | None = None,
    timeout_s: float = UP_S,
) -> UpReport:
    """Bring the deployment up. `settings`: those to change, and the others stay as they are saved;
    a DeploymentConfig has all of them. Roles that cannot run now are reported; they raise no error."""
    show = progress or (lambda message: None)
    deadline_s = time.monotonic() + timeout_s
    _require_connected()
    wanted, running = _located(settings)
    available = _survey()
    before = memory.recall(wanted, available.hosts)
    if before.revision == 0 and not running:
        _require_none(wanted)
    if not isinstance(settings, DeploymentConfig):
        wanted = configure({**settings, "data_dir": wanted.data_dir}, before.config)
    chosen = slots.choose(available, wanted.slots)
    show(f"{_hosts(len(chosen.hosts))}: {', '.join(chosen.slots)}")
    state = _remember(wanted, before, available, chosen)
    config = state.config
    placed = _place(state, available, show, deadline_s)

    new = (
        groups.group_name(config.name, state.groups_made) if state.groups_made > before.groups_made else None
    )
    fleet = Fleet(config, placed, state, available, show, new)
    state = catalog.made(fleet, plan, state, available, deadline_s)
    state, ungrown = catalog.grown(fleet, plan, state, available, deadline_s)
    assert state.journal is not None
    seats = catalog.seats(state)
    there = named_actors(config.namespace)
    specs = expected(catalog.roles(plan, state), available, there)
    now = [spec for spec in specs if not catalog.waits(state, spec.address)]
    answers = fleet.bring(now, max(deadline_s, time.monotonic() + STATUS_S))
    roles = tuple(_status(each, answers.get(each.address), available, state, there) for each in specs)
    unwell = _troubles(roles)
    masters = [role.address for role in roles if role.address.startswith(MASTER) and role.state == RUNNING]
    left_s = min(ACTIVE_S, deadline_s - time.monotonic())
    unwell += [ungrown] if ungrown else []
    journal = journal_of(config, seats, state.journal.id)
    unwell += journals.look(config.namespace, journal, masters, left_s)
    return UpReport(
        name=config.name,
        namespace=config.namespace,
        data_dir=config.data_dir,
        launched=tuple(fleet.launched),
        adopted=tuple(fleet.adopted),
        roles=roles,
        groups=state.groups,
        warnings=(
            *chosen.left_out,
            *_left_behind(before, state, available),
            *_fleeting(chosen),
            *_unapplied(before, state, fleet.adopted),
            *unwell,
        ),
    )


def start_logs(name: str, *, progress: Progress | None = None, timeout_s: float = UP_S) -> UpReport:
    """Give a deployment that runs its ledger stores, from now on. Raises Unavailable if none of its roles answers."""
    if not _directories(_connected_namespace(name)):
        raise Unavailable(f"no role of deployment {name!r} answers; see `ebla status`")
    return up({"name": name, "logs": True}, progress=progress, timeout_s=timeout_s)


def _located(settings: DeploymentConfig | Mapping[str, Any]) -> tuple[DeploymentConfig, dict[str, str]]:
    """The settings, and the data directories of the roles that run. Their directory is used if none
    is given; another one is refused, because roles would start there without their data."""
    wanted = settings if isinstance(settings, DeploymentConfig) else configure(settings)
    running = _directories(wanted.namespace)
    used = sorted(set(running.values()))
    if len(used) == 1 and not isinstance(settings, DeploymentConfig) and "data_dir" not in settings:
        return configure({**settings, "data_dir": used[0]}), running
    others = [address for address in sorted(running) if running[address] != wanted.data_dir]
    if others:
        remedy = f"use `--data-dir {used[0]}`"
        if len(used) > 1:
            remedy = "run `ebla down`, then `ebla up` with the --data-dir that has the data"
        raise InvalidArgument(
            f"{', '.join(others)} of deployment {wanted.name} {'runs' if len(others) == 1 else 'run'} in "
            f"{', '.join(sorted({running[address] for address in others}))}, not in {wanted.data_dir}; {remedy}"
        )
    return wanted, running


def _directories(namespace: str) -> dict[str, str]:
    """The data directory of each role that answers."""
    handles = {a: handle for a in named_actors(namespace) if (handle := find_actor(namespace, a)) is not None}
    answers = poll(handles, time.monotonic() + STATUS_S)
    roots = {a: answer.root for a, answer in answers.items() if isinstance(answer, Pong) and answer.root}
    return {a: str(Path(root).parent.parent) for a, root in roots.items()}  # <data_dir>/<slot>/<role>


def _require_none(config: DeploymentConfig) -> None:
    """Refuse to begin a deployment beside roles that exist and do not say where their data is."""
    if there := named_actors(config.namespace):
        raise Unavailable(
            f"{', '.join(there)} exist and do not answer, and no host has saved settings in {config.data_dir}; is this their "
            "directory (`--data-dir`)? `ebla down` ends them, and keeps their data"
        )


def _require_connected() -> None:
    check_version()
    if not ray.is_initialized():
        raise Unavailable("this process is not connected to a Ray cluster; use connect_ray(), or start one")


def _connected_namespace(name: str) -> str:
    """The namespace of the deployment's actors, if this process is connected to a Ray cluster."""
    _require_connected()
    return DeploymentConfig(name=name).namespace


def _survey() -> Survey:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return slots.survey(nodes)


def _remember(config: DeploymentConfig, before: Deployment, available: Survey, chosen: Survey) -> Deployment:
    """The new state of the deployment; it is durable when this returns, before any launch."""
    config = catalog.settled(config, before, chosen.hosts)
    catalog.require_possible(before, config, asking.named_actors(config.namespace))
    covered = groups.recognise(groups.present(config.name), before.groups, available.hosts)
    made = before.groups_made
    journal = catalog.kept(before, config)
    seats = slots.seat(
        chosen.slots, *catalog.counts(config), before.masters, journal.wanted if journal else ()
    )
    journal = catalog.planned(journal, seats.journals)
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
    return state


def _place(state: Deployment, available: Survey, show: Progress, deadline_s: float) -> dict[str, Group]:
    """The placement groups by name; missing ones are created. One that an earlier `up` has created may never have had room."""
    name = state.config.name
    there = {group.name: group for group in groups.present(name)}
    for wanted in state.groups:
        if wanted in there and there[wanted].state not in groups.UNPLACED:
            continue
        show(f"placing {_hosts(len(state.groups[wanted]))} in {wanted}")
        if wanted not in there:
            hosts = [host for slot in state.groups[wanted] if (host := available.host(slot)) is not None]
            groups.create(wanted, hosts)
        while wanted not in there or there[wanted].state in groups.UNPLACED:
            if time.monotonic() > deadline_s:
                state_now = there[wanted].state if wanted in there else "unknown to Ray"
                raise Unavailable(
                    f"placement group {wanted} is {state_now}: Ray found no room for {', '.join(state.groups[wanted])}; "
                    f"do these nodes run, with {slots.BUNDLE_CPU} CPU free each?"
                )
            time.sleep(POLL_S)
            there = {group.name: group for group in groups.present(name)}
    return there


def expected(specs: Sequence[RoleSpec], available: Survey, there: Sequence[str]) -> list[RoleSpec]:
    """The roles to wait for: without the tablet servers whose host is away and whose actor Ray does
    not know any more; they were stopped or removed."""
    return [
        spec
        for spec in specs
        if available.host(spec.slot) is not None or spec.address in there or not spec.sets_aside
    ]


def _status(
    spec: RoleSpec, answer: Answer | None, available: Survey, state: Deployment, there: Sequence[str]
) -> RoleStatus:
    if available.host(spec.slot) is None:
        remedy = "run `ebla up` when a node with this label has joined"
        if spec.address in there:
            remedy = "the role comes back when a node with this label joins"
        return RoleStatus(
            spec.address, spec.slot, AWAY, error=f"slot {spec.slot} has no alive node; {remedy}"
        )
    if answer is None:
        return RoleStatus(spec.address, spec.slot, MISSING, error="it starts when the journal has grown")
    found = asking.status(spec.address, spec.slot, answer)
    if found.error is None and catalog.joins(state, spec.address):
        return msgspec.structs.replace(found, error="it counts when the journal has grown")
    return found


def _hosts(number: int) -> str:
    return "1 host" if number == 1 else f"{number} hosts"


def _troubles(roles: Iterable[RoleStatus]) -> list[str]:
    """One sentence for the roles that have the same trouble."""
    together: dict[tuple[str, str], list[str]] = {}
    for role in roles:
        if role.error:
            together.setdefault((role.state, role.error), []).append(role.address)
    return [
        f"{', '.join(addresses)} {'is' if len(addresses) == 1 else 'are'} {state}: {error}"
        for (state, error), addresses in together.items()
    ]


def _left_behind(before: Deployment, state: Deployment, available: Survey) -> list[str]:
    """The hosts that had roles in the former Ray cluster, and are in no group of this one: Ray knows nothing of their roles."""
    former, chosen = groups.bundles(before.groups), state.config.slots
    absent = [
        slot
        for slot in sorted(former.keys() - groups.bundles(state.groups).keys())
        if available.host(slot) is None and (not chosen or slot in chosen)
    ]
    if not absent:
        return []
    return [f"hosts that had roles have not joined: {', '.join(absent)}; run `ebla up` when they have"]


def _fleeting(chosen: Survey) -> list[str]:
    return [
        f"node {host.node_id} ({host.address}) has no label {SLOT_LABEL}: its data is not found again after a "
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
    """Stop every role gracefully, end those that do not stop, and remove the groups. Only data is
    left, for the next `up`. The journal nodes stop last, because the active master releases its
    lease at them."""
    show = progress or (lambda message: None)
    namespace = _connected_namespace(name)
    data_dirs = tuple(sorted(set(_directories(namespace).values())))
    deadline_s = time.monotonic() + timeout_s
    addresses = named_actors(namespace)
    keepers = [address for address in addresses if address.startswith(JOURNAL)]
    for leaving in ([address for address in addresses if address not in keepers], keepers):
        goodbyes = _ask_to_stop(namespace, leaving)
        while goodbyes and (left_s := deadline_s - time.monotonic()) > 0:
            _, goodbyes = ray.wait(goodbyes, num_returns=len(goodbyes), timeout=min(left_s, 1.0))
            show(f"{len(goodbyes)} of {len(addresses)} roles are stopping")
    killed = _end_remaining(namespace, min(deadline_s, time.monotonic() + GOODBYE_S))
    removed: dict[str, str] = {}  # id -> name
    until_s = time.monotonic() + DOWN_S
    # An `ebla up` at the same time may still launch roles; those in a removed group would never run.
    while (there := groups.present(name)) or named_actors(namespace):
        if time.monotonic() > until_s:
            left = ", ".join([*named_actors(namespace), *(group.name for group in there)])
            raise Unavailable(
                f"Ray still has {left}: let an `ebla up` that runs now end, or see the dashboard; then run `ebla down` again"
            )
        for group in there:
            if group.id not in removed:
                groups.remove(group)
                removed[group.id] = group.name
        killed += _end_remaining(namespace, 0.0)
        time.sleep(POLL_S)
    stopped = tuple(address for address in addresses if address not in killed)
    return DownReport(name, stopped, tuple(dict.fromkeys(killed)), tuple(removed.values()), data_dirs)


def stop(name: str, addresses: Sequence[str], *, timeout_s: float = DOWN_S) -> tuple[str, ...]:
    """Stop these roles gracefully, and return those that were not gone already. The next `up`
    launches them again."""
    namespace = _connected_namespace(name)
    there = [address for address in addresses if find_actor(namespace, address) is not None]
    goodbyes = _ask_to_stop(namespace, there)
    if goodbyes:
        ray.wait(goodbyes, num_returns=len(goodbyes), timeout=timeout_s)
    await_gone(namespace, there, time.monotonic() + timeout_s)
    return tuple(there)


def forget(name: str, address: str) -> bool:
    """End the actor of a role whose host is gone for good: Ray would start it again with its host.
    Returns whether there was one."""
    return end_actor(_connected_namespace(name), address)


def _ask_to_stop(namespace: str, addresses: Sequence[str]) -> list[Any]:
    """Request a stop of each role. A role answers by ending, which Ray reports in different ways, so only the
    disappearance of its name counts."""
    handles = [find_actor(namespace, address) for address in addresses]
    return [handle.shutdown.remote() for handle in handles if handle is not None]


def _end_remaining(namespace: str, deadline_s: float) -> list[str]:
    """End the actors that have not stopped by themselves at the deadline."""
    while named_actors(namespace) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    killed = []
    for address in named_actors(namespace):
        handle = find_actor(namespace, address)
        if handle is not None:
            ray.kill(handle, no_restart=True)
            killed.append(address)
    return killed


# -- status --------------------------------------------------------------------------------------------------


def status(name: str, *, timeout_s: float = STATUS_S) -> StatusReport:
    """The state of all roles, within `timeout_s`."""
    namespace = _connected_namespace(name)
    found = {address: find_actor(namespace, address) for address in named_actors(namespace)}
    handles = {address: handle for address, handle in found.items() if handle is not None}
    answers = poll(handles, time.monotonic() + timeout_s)
    roles = [asking.status(address, "", answers[address]) for address in handles]
    return StatusReport(
        name=name,
        namespace=namespace,
        hosts=_survey(),
        groups={group.name: group.state for group in groups.present(name)},
        roles=tuple(sorted(roles, key=lambda role: role.address)),
    )
