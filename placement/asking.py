"""Ask the actors of a deployment for their state, many at a time and within a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import ray
import ray.exceptions
import ray.util

from ebla.actors.errors import from_frame
from ebla.actors.ray_shell import FAILED, RUNNING, Pong
from ebla.actors.ray_world import reason
from ebla.actors.world import decode_answer

POLL_S = 0.05
NAMESPACE = "ebla-"  # DeploymentConfig.namespace begins so
ROLES = ("master/", "journal/", "tablet-server/", "ledger-store/", "replication-worker/", "auditor/")
UNREACHABLE, AWAY, MISSING = "unreachable", "away", "missing"


class RoleStatus(msgspec.Struct, frozen=True):
    """The state of one role. `state`: starting, running, failed or stopping, as the role reports;
    unreachable (no answer: it restarts, or its host is busy or cut off), away (its slot has no
    alive node), or missing (it was not launched)."""

    address: str
    slot: str
    state: str
    pid: int | None = None
    node_id: str | None = None
    restarted: bool = False
    started_us: int | None = None
    error: str | None = None


Answer = Pong | str  # an actor's answer, or why there is none


def settled(pong: Pong) -> bool:
    """Whether the state is final: waiting longer would not change it."""
    return pong.state in (RUNNING, FAILED)


def poll(
    handles: Mapping[str, Any], deadline_s: float, enough: Callable[[str, Pong], bool] | None = None
) -> dict[str, Answer]:
    """Get each actor's state. With `enough`, actors whose answer is not enough, or missing, are
    asked again until the deadline."""
    answers: dict[str, Answer] = dict.fromkeys(handles, "it does not answer")
    asked = {handle.ping.remote(): address for address, handle in handles.items()}
    while asked and (left_s := deadline_s - time.monotonic()) > 0:
        ready, _ = ray.wait(list(asked), num_returns=1, timeout=min(left_s, 1.0))
        again = []
        for reference in ready:
            address = asked.pop(reference)
            try:
                pong = decode_answer(ray.get(reference), Pong)
            except ray.exceptions.RayError as error:
                answers[address] = reason(error)
                again.append(address)
            else:
                answers[address] = pong
                if enough is not None and not enough(address, pong):
                    again.append(address)
        if again and enough is not None:
            time.sleep(POLL_S)
            asked.update({handles[address].ping.remote(): address for address in again})
    return answers


def status(address: str, slot: str, answer: Answer) -> RoleStatus:
    if isinstance(answer, str):
        return RoleStatus(address, slot, UNREACHABLE, error=answer)
    error = from_frame(answer.error) if answer.error is not None else None
    why = f"{type(error).__name__}: {error}" if error is not None else None
    return RoleStatus(
        address,
        answer.slot,
        answer.state,
        answer.pid,
        answer.node_id,
        answer.restarted,
        answer.started_us,
        why,
    )


def named_actors(namespace: str) -> list[str]:
    """The addresses of the deployment's existing actors, in any state."""
    entries = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in entries if entry["namespace"] == namespace)


def deployments() -> list[str]:
    """The names of the deployments that have a role in this Ray cluster. Feeds and Spark sessions have actors in namespaces that
    begin alike."""
    entries = ray.util.list_named_actors(all_namespaces=True)
    namespaces = {entry["namespace"] for entry in entries if entry["name"].startswith(ROLES)}
    return sorted(each.removeprefix(NAMESPACE) for each in namespaces if each.startswith(NAMESPACE))


def find_actor(namespace: str, address: str) -> Any | None:
    try:
        return ray.get_actor(address, namespace=namespace)
    except ValueError:
        return None


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
