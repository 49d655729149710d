"""Keep a deployment's state (placement/state.py) on this host and on every slot, and find it again.

The newest copy counts: a host that was away, or is no slot, may have an older one, and a new host
has none. A Ray task on each slot reads the copy there.
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
from ebla.storage.errors import EblaError, InvalidArgument

TASKS_S = 150.0  # if a worker process hangs at its start, Ray starts another one after 60 s
RECALL_S = 30.0  # with a copy on this host: a hung host does not keep `ebla up` from starting roles elsewhere


def recall(config: DeploymentConfig, hosts: Sequence[Host]) -> Deployment:
    """The newest saved state; a new one of this configuration if none was saved."""
    here = state.load(config.data_dir)
    answers = _on_each(hosts, _read, config.data_dir, needed=here is None)
    copies = [
        state.decode(data, f"{slot}:{config.data_dir}/{state.FILE}")
        for slot, (data, *_) in answers.items()
        if data
    ]
    found = state.newest([here, *copies], config.name)
    if found is not None:
        return found
    with_masters = sorted({slot for _, _, slots in answers.values() for slot in slots})
    _require_journals(
        config, sorted({slot for _, slots, _ in answers.values() for slot in slots}), with_masters
    )
    return Deployment(uuid=secrets.token_hex(16), revision=0, config=config, masters=tuple(with_masters))


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


def _on_each(
    hosts: Sequence[Host], work: Callable[..., Any], *arguments: Any, needed: bool = True
) -> dict[str, Any]:
    """Run `work` on every host, and return the answers by slot. Hosts that give none are left out unless all are `needed`. The tasks
    have the environment of roles, so that Ray can start a role in the process of a task that has ended."""
    task = ray.remote(num_cpus=0, max_retries=1, runtime_env=ACTOR["runtime_env"])(work)
    asked = {host.slot: task.options(label_selector=host.selector).remote(*arguments) for host in hosts}
    wait_s = TASKS_S if needed else RECALL_S
    late = set(ray.wait(list(asked.values()), num_returns=len(asked), timeout=wait_s)[1])
    if late and needed:
        silent = ", ".join(slot for slot, each in asked.items() if each in late)
        raise Unavailable(
            f"no worker process of Ray answered within {TASKS_S:.0f} s on {silent}; look at the load and at Ray's logs "
            "there, and try again"
        )
    answers = {}
    for slot, reference in asked.items():
        try:
            if reference not in late:
                answers[slot] = ray.get(reference)
        except ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), EblaError):
                raise cause from error
            if needed:
                raise Unavailable(
                    f"cannot reach the data directory on {slot}: {first_line(error)}; is it writable, and is ebla "
                    "installed on all nodes?"
                ) from error
    return answers
