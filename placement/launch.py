"""Bring a deployment up, take it down, and say how it is. Needs a process that is connected to Ray.

`up` is idempotent: it launches what is missing, adopts what is there, and waits until every role has told how it is.
A brand-new Ray cluster over the old data directories comes up with everything, because what must outlive Ray is on
disk: the roles' directories, and placement/state.py's memory of who sat where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import ray
import ray.exceptions
import ray.util

from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import FAILED, RUNNING, STOPPING, load
from ebla.actors.ray_world import remote_class
from ebla.placement import groups, memory, slots
from ebla.placement.asking import RoleStatus, ask, hear
from ebla.placement.config import DeploymentConfig
from ebla.placement.ray_private import check_version
from ebla.placement.roles import PlanRoles, RoleSpec, plan_roles
from ebla.placement.slots import SLOT_LABEL, Seats, Survey

UP_S = 120.0
DOWN_S = 60.0
STATUS_S = 3.0
POLL_S = 0.05

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
    """`stopped` said goodbye; `killed` did not answer in time and were ended. Data stays in both cases."""

    name: str
    stopped: tuple[str, ...]
    killed: tuple[str, ...]
    groups: tuple[str, ...]


class StatusReport(msgspec.Struct, frozen=True):
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
    """`config` as placement.config.configure returns it. Roles that cannot run now are in the report, not raised."""
    tell = progress or (lambda message: None)
    deadline_s = time.monotonic() + timeout_s
    _require_connected()
    available = slots.survey(ray.nodes())
    chosen = slots.choose(available, config.slots)
    tell(f"{len(chosen.hosts)} hosts: {', '.join(chosen.slots)}")

    remembered = memory.recall(config, available.hosts)
    covered = groups.recognise(groups.present(config.name), remembered.groups, available.hosts)
    needed = groups.uncovered(chosen.hosts, covered)
    seats = slots.seat(chosen.slots, config.masters, remembered.masters)
    made = remembered.groups_made
    if needed:
        made += 1
        covered = {**covered, groups.group_name(config.name, made): tuple(host.slot for host in needed)}
    warnings = [*chosen.left_out, *_fleeting(chosen), *_unapplied(config, remembered.config)]
    state = remembered.revised(config=config, masters=seats.masters, groups=covered, groups_made=made)
    memory.keep(state, remembered, available.hosts)

    if needed:
        tell(f"placing {len(needed)} hosts in {groups.group_name(config.name, made)}")
        groups.create(groups.group_name(config.name, made), needed)
        _await_groups(config.name, [groups.group_name(config.name, made)], deadline_s)
    specs = list(plan(config, _with_all_slots(seats, covered)))
    reachable = [spec for spec in specs if available.host(spec.slot) is not None]
    away = [_away(spec) for spec in specs if available.host(spec.slot) is None]
    fleet = _Fleet(config, groups.bundles(covered), tell)
    handles = {spec.address: fleet.adopt_or_launch(spec) for spec in reachable}
    told = hear(handles, deadline_s, fleet.settled)
    order = {spec.address: position for position, spec in enumerate(specs)}
    statuses = [_status(spec.address, spec.slot, told[spec.address]) for spec in reachable]
    warnings += [f"{role.address} is {role.state}: {role.error}" for role in (*statuses, *away) if role.error]
    return UpReport(
        name=config.name,
        namespace=config.namespace,
        data_dir=config.data_dir,
        launched=tuple(fleet.launched),
        adopted=tuple(fleet.adopted),
        roles=tuple(sorted((*statuses, *away), key=lambda role: order[role.address])),
        groups=covered,
        warnings=tuple(warnings),
    )
