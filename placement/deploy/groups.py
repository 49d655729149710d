"""Placement groups, which pin roles to hosts and bring them back when a host returns.

Each generation of slots has one detached STRICT_SPREAD group `ebla-<deployment>-<n>`, with one
bundle per slot that selects the slot's label. When a node dies, its bundle waits for a node with
that label. Later slots get a further group, because a group cannot grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ebla.actors.errors import Unavailable
from ebla.placement.deploy.slots import BUNDLE_CPU, Host

# The states of a group until it is CREATED. One that has lost a node is RESCHEDULING.
UNPLACED = ("PENDING", "PREPARED")


class Group(msgspec.Struct, frozen=True):
    """A placement group. `state`: Ray's, one of PENDING, PREPARED, CREATED, RESCHEDULING. `nodes`:
    the node id of each bundle, "" if none."""

    name: str
    id: str
    state: str
    nodes: tuple[str, ...]


class Bundle(msgspec.Struct, frozen=True):
    group: str
    index: int


def group_name(deployment: str, number: int) -> str:
    return f"ebla-{deployment}-{number}"


# -- decisions -----------------------------------------------------------------------------------------------


def recognise(
    present: Sequence[Group], known: Mapping[str, tuple[str, ...]], hosts: Sequence[Host]
) -> dict[str, tuple[str, ...]]:
    """The slots of each present group, from the saved state, or (if that was lost) by the nodes of
    its bundles."""
    slot_of = {host.node_id: host.slot for host in hosts}
    found: dict[str, tuple[str, ...]] = {}
    for group in present:
        slots = known.get(group.name)
        if slots is None:
            unknown = [node for node in group.nodes if node not in slot_of]
            if unknown:
                raise Unavailable(
                    f"placement group {group.name} is not in deployment.json, and the hosts of {len(unknown)} of its "
                    "bundles are away; bring them back, or run `ebla down` and `ebla up`"
                )
            slots = tuple(slot_of[node] for node in group.nodes)
        found[group.name] = slots
    return found


def uncovered(hosts: Sequence[Host], covered: Mapping[str, tuple[str, ...]]) -> list[Host]:
    """The hosts that are in no group, and need a further one."""
    slots = [slot for group in covered.values() for slot in group]
    return [host for host in hosts if host.slot not in slots]


def bundles(groups: Mapping[str, tuple[str, ...]]) -> dict[str, Bundle]:
    """The bundle for the roles of each slot."""
    return {slot: Bundle(name, index) for name, slots in groups.items() for index, slot in enumerate(slots)}


# -- Ray -----------------------------------------------------------------------------------------------------


def present(deployment: str) -> list[Group]:
    """The deployment's groups in this Ray cluster, by number."""
    prefix = group_name(deployment, 0)[:-1]
    found = []
    for entry in placement_group_table().values():
        name = entry["name"]
        if name.startswith(prefix) and name[len(prefix) :].isdigit() and entry["state"] != "REMOVED":
            nodes = tuple(entry["bundles_to_node_id"][index] for index in sorted(entry["bundles_to_node_id"]))
            found.append(Group(name, entry["placement_group_id"], entry["state"], nodes))
    return sorted(found, key=lambda group: int(group.name[len(prefix) :]))


def create(name: str, hosts: Sequence[Host]) -> None:
    """Request the group from Ray. The group is ready when its state is CREATED."""
    assert hosts, "a group has bundles"
    placement_group(
        [{"CPU": BUNDLE_CPU} for _ in hosts],
        strategy="STRICT_SPREAD",
        name=name,
        lifetime="detached",
        bundle_label_selector=[host.selector for host in hosts],
    )


def strategy(group: Group, index: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(_handle(group), placement_group_bundle_index=index)


def remove(group: Group) -> None:
    remove_placement_group(_handle(group))


def _handle(group: Group) -> PlacementGroup:
    # By id, because Ray resolves a name in the caller's own namespace.
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group.id)))
