"""The slots on this machine: this process can open the files of their replicas."""

from __future__ import annotations

import time

import ray
import ray.util

from ebla.placement.deploy.slots import SLOT_LABEL, machine_of

KEPT_S = 5.0

_known: tuple[float, tuple[str, ...]] = (float("-inf"), ())


def slots_here() -> tuple[str, ...]:
    """The slots of the alive Ray nodes of this machine; several if one machine runs several nodes.

    Asks the GCS once in KEPT_S at most. Needs a process that is connected to Ray.
    """
    global _known
    now = time.monotonic()
    if now - _known[0] > KEPT_S:
        here = machine_of(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        found = (
            slot
            for address, slots in address_slots().items()
            if machine_of(address) == here
            for slot in slots
        )
        _known = now, tuple(sorted(found))
    return _known[1]


def address_slots() -> dict[str, tuple[str, ...]]:
    """The slots by host address."""
    found: dict[str, list[str]] = {}
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            slot = (node.get("Labels") or {}).get(SLOT_LABEL) or str(node["NodeID"])
            found.setdefault(str(node["NodeManagerAddress"]), []).append(slot)
    return {address: tuple(sorted(slots)) for address, slots in found.items()}
