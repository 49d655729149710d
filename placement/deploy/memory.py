"""Keep a deployment's state (placement/state.py) on this host and on every slot, and find it again.

If this host has a copy, that copy is used. If it has none (the first `up`, or another head than
last time), a Ray task on each slot reads the copy there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from ebla.actors.errors import Unavailable
from ebla.actors.ray_world import ACTOR
from ebla.placement import state
from ebla.placement.asking import first_line
from ebla.placement.config import DeploymentConfig
from ebla.placement.deploy.slots import Host
from ebla.placement.state import Deployment
from ebla.storage.errors import InvalidArgument

TASKS_S = 150.0  # if a worker process hangs at its start, Ray starts another one after 60 s


def recall(config: DeploymentConfig, hosts: Sequence[Host]) -> Deployment:
    """The saved state; a new one of this configuration if none was saved."""
    found = state.newest([state.load(config.data_dir)], config.name)
    if found is None:
        answers = _on_each(hosts, _read, config.data_dir)
        where = f"{config.data_dir}/{state.FILE}"
        copies = [
            state.decode(data, f"{host.slot}:{where}")
            for host, (data, *_) in zip(hosts, answers, strict=True)
            if data
        ]
        found = state.newest(copies, config.name)
        if found is None:
            with_masters = sorted({slot for _, _, slots in answers for slot in slots})
            _require_journals(
                config, sorted({slot for _, slots, _ in answers for slot in slots}), with_masters
            )
            return _anew(config, tuple(with_masters))
    return found or _anew(config)


def _anew(config: DeploymentConfig, masters: tuple[str, ...] = ()) -> Deployment:
    return Deployment(uuid=secrets.token_hex(16), revision=0, config=config, masters=masters)


def _require_journals(config: DeploymentConfig, slots: Sequence[str], with_masters: Sequence[str]) -> None:
    """Refuse settings that do not match the journal's directories when the saved state is lost and
    they are not: a master with another journal would begin an empty catalog."""
    if slots and with_masters:
        raise InvalidArgument(
            f"{config.data_dir} has a journal that has grown, with nodes of {', '.join([*with_masters, *slots])}, and no {state.FILE}; "
            "bring that file back from any host"
        )
    nodes = slots or with_masters
    if nodes and config.journals != len(nodes):
        raise InvalidArgument(
            f"journals is {config.journals or 'not set'}, but {config.data_dir} has journal nodes of {', '.join(nodes)}; set journals "
            f"to {len(nodes)}"
        )


def keep(deployment: Deployment, before: Deployment, hosts: Sequence[Host]) -> None:
    """Save the state; durable on every host when it returns. A no-op if nothing changed."""
    if deployment.revision == before.revision and deployment.revision > 0:
        return
    data_dir = deployment.config.data_dir
    data = state.encode(deployment)
    state.save(data_dir, data)
    _on_each(hosts, state.save, data_dir, data)


def _read(data_dir: str) -> tuple[bytes | None, list[str], list[str]]:
    """The saved state on this host, the slots of journal nodes with a directory of their own here,
    and the slots of journal nodes in a master's directory here."""
    path = Path(data_dir) / state.FILE
    nodes = [found.parent.parent.name for found in Path(data_dir).glob("*/journal/instance")]
    with_masters = [found.parent.parent.name for found in Path(data_dir).glob("*/master/journals")]
    return path.read_bytes() if path.exists() else None, nodes, with_masters


def _on_each(hosts: Sequence[Host], work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `work` on every host, and return the answers in the order of the hosts. The tasks have the environment of roles, so that
    Ray can start a role in the process of a task that has ended."""
    task = ray.remote(num_cpus=0, max_retries=1, runtime_env=ACTOR["runtime_env"])(work)
    references = [task.options(label_selector=host.selector).remote(*arguments) for host in hosts]
    late = set(ray.wait(references, num_returns=len(references), timeout=TASKS_S)[1])
    if late:
        silent = [host.slot for host, each in zip(hosts, references, strict=True) if each in late]
        raise Unavailable(
            f"no worker process of Ray answered within {TASKS_S:.0f} s on {', '.join(silent)}; look at the load and at Ray's logs "
            "there, and try again"
        )
    try:
        return list(ray.get(references))
    except ray.exceptions.RayError as error:
        raise Unavailable(
            f"cannot reach the data directory on every host: {first_line(error)}; is it writable, and is ebla "
            "installed on all nodes?"
        ) from error
