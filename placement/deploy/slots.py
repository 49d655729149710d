"""The hosts, and the placement of roles on them: pure decisions from Ray's list of nodes.

A slot is a host's permanent name: the label `ebla.slot` of its Ray node, or Ray's own node id if
no node has the label. A node id does not outlive its raylet, so data kept under a node id is not
found after a restart of the node.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ebla.actors.errors import Unavailable
from ebla.storage.errors import EblaError, InvalidArgument

SLOT_LABEL = "ebla.slot"
NODE_ID_LABEL = "ray.io/node-id"
ADDRESS_RESOURCE = "node:"  # Ray's own, one per address
BUNDLE_CPU = 0.01  # a bundle must request something; Ray does not schedule the roles' real use


class DuplicateSlot(EblaError):
    """Two nodes have the same slot label: no role may be placed until one of them is renamed."""

    fields = ("slot", "nodes")
    slot: str | None
    nodes: list[str] | None


class Host(msgspec.Struct, frozen=True):
    """One alive Ray node. `lasting`: the slot is a label, and returns with its node."""

    slot: str
    node_id: str
    address: str
    lasting: bool = True

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which Ray finds the node."""
        return {SLOT_LABEL: self.slot} if self.lasting else {NODE_ID_LABEL: self.node_id}


class Survey(msgspec.Struct, frozen=True):
    """The hosts in the order of their slots, and why other nodes were left out."""

    hosts: tuple[Host, ...]
    left_out: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(host.slot for host in self.hosts)

    def host(self, slot: str) -> Host | None:
        return next((host for host in self.hosts if host.slot == slot), None)


class Seats(msgspec.Struct, frozen=True):
    """The slots of the masters, master/0 first, of the tablet servers, and of the nodes of the
    masters' journal, journal/0 first. `in_master`: journal/0 is in the process of master/0."""

    masters: tuple[str, ...]
    tablet_servers: tuple[str, ...]
    journals: tuple[str, ...] = ()
    in_master: bool = False


def survey(nodes: Iterable[Mapping[str, Any]], *, every: bool = False) -> Survey:
    """The hosts of a cluster: the nodes with the label, or every node if none has it, or if `every`
    one is wanted. `nodes` is the result of ray.nodes()."""
    nodes = list(nodes)
    # Dead nodes count: others take no role while all hosts are down.
    labelled = not every and any(map(_label, nodes))
    others = "others" if any(_label(node) and node["Alive"] for node in nodes) else "others, which are dead,"
    found: dict[str, Host] = {}
    left_out: list[str] = []
    for node in nodes:
        if not node["Alive"]:
            continue
        node_id, label = str(node["NodeID"]), _label(node)
        slot, address = label or node_id, str(node.get("NodeManagerAddress", ""))
        host = Host(slot, node_id, address, lasting=bool(label))
        if (node.get("Resources") or {}).get("CPU", 0) < BUNDLE_CPU:
            left_out.append(f"node {node_id} ({slot}) has no CPU to schedule on")
        elif labelled and not label:
            left_out.append(f"node {node_id} ({address}) has no label {SLOT_LABEL}, and {others} have one")
        elif slot in found:
            raise DuplicateSlot(
                f"nodes {found[slot].node_id} and {node_id} both carry the label {SLOT_LABEL}={slot}; restart one "
                "of them with a label of its own",
                slot=slot,
                nodes=[found[slot].node_id, node_id],
            )
        else:
            found[slot] = host
    return Survey(tuple(found[slot] for slot in sorted(found)), tuple(left_out))


def _label(node: Mapping[str, Any]) -> str:
    """The slot label of a node; an empty one is none."""
    return (node.get("Labels") or {}).get(SLOT_LABEL) or ""


def choose(available: Survey, wanted: Sequence[str]) -> Survey:
    """The hosts to use: all, or those of the wanted slots. A wanted slot without a node is left
    out, and listed."""
    if not wanted:
        chosen = available
    else:
        missing = [slot for slot in wanted if available.host(slot) is None]
        hosts = tuple(host for host in available.hosts if host.slot in wanted)
        left_out = available.left_out + tuple(f"slot {slot} has no alive node now" for slot in missing)
        chosen = Survey(hosts, left_out)
    if not chosen.hosts:
        reasons = "; ".join(chosen.left_out) or "no node is alive"
        raise Unavailable(f"no host can take a role: {reasons}; start Ray nodes, or change `slots`")
    return chosen


def seat(
    slots: Sequence[str],
    masters: int,
    journals: int = 1,
    seated: Sequence[str] = (),
    journals_seated: Sequence[str] = (),
) -> Seats:
    """Place the roles. A role that has a slot keeps it, because its directory is there. Further
    masters take the first free slots, and journal nodes prefer hosts without a master. The single
    node of a journal is placed with master/0.

    Every slot gets a tablet server.
    """
    assert len(set(slots)) == len(slots)
    ordered = sorted(slots)
    mastering = _filled("masters", masters, seated[:masters], ordered)
    if journals == 1:
        return Seats(mastering, tuple(ordered), mastering[:1], in_master=True)
    free = [slot for slot in ordered if slot not in mastering]
    journaling = _filled("journals", journals, journals_seated, [*free, *mastering])
    return Seats(mastering, tuple(ordered), journaling)


def _filled(setting: str, wanted: int, seated: Sequence[str], candidates: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(seated)
    free = [slot for slot in candidates if slot not in kept]
    wanting = wanted - len(kept)
    if wanting > len(free):
        able = len(free) + len(kept)
        raise InvalidArgument(
            f"{setting} is {wanted}, but only {able} {'host' if able == 1 else 'hosts'} can take one each; lower `{setting}`, or "
            "start more Ray nodes"
        )
    return kept + tuple(free[: max(0, wanting)])


def machine_of(address: str) -> str:
    """The machine of an address: all loopback addresses are one machine, every other address is a
    machine of its own."""
    try:
        return "loopback" if ipaddress.ip_address(address).is_loopback else address
    except ValueError:  # a host name
        return address


def resource_of_its_own(node_id: str, nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """The resource that selects this node and no other alive node; None if it has none. `nodes` is
    the result of ray.nodes()."""
    holders: dict[str, list[str]] = {}
    for node in nodes:
        for name in node["Resources"] if node["Alive"] else ():
            if name.startswith(ADDRESS_RESOURCE):
                holders.setdefault(name, []).append(str(node["NodeID"]))
    return next((name for name in sorted(holders) if holders[name] == [node_id]), None)
