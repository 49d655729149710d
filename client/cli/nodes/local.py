"""The local Ray cluster of several nodes that `ebla up --local N` starts on this machine, or finds running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Ui
from ebla.operate.naming import Refused
from ebla.placement.extras import missing
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.operate.waiting import Progress
    from ebla.placement.config import DeploymentConfig
    from ebla.placement.local.cluster import LocalCluster

LOOPBACK = "127.0.0.1"


def local_cluster(
    ui: Ui,
    nodes: int | None,
    cpus: int,
    auth: str | None,
    dashboard: bool,
    timeout_s: float,
    progress: Progress,
) -> tuple[LocalCluster | None, list[str]]:
    """The local cluster, started if `nodes` is given, and the nodes that this call has started. Nodes that have ended are started
    again. None if another Ray cluster is used."""
    from ebla.placement.connection import local_directory
    from ebla.placement.local.cluster import LocalCluster

    directory = local_directory()
    found = LocalCluster.find(directory, progress.step)
    running = found if found is not None and found.running else None
    if nodes is None:
        if running is None or not is_meant(ui, running):
            return None, []
        return running, _back(running, timeout_s, progress)
    _require_no_other(ui, running)
    if running is None:
        started = LocalCluster.start(
            nodes,
            directory=directory,
            dashboard=dashboard,
            num_cpus=cpus,
            auth=auth,
            environment=_java(ui),
            progress=progress.step,
            timeout_s=timeout_s,
        )
        return started, list(started.slots)
    if len(running.slots) != nodes:
        raise Refused(
            f"a local cluster of {count(len(running.slots), 'node')} runs already, not of {nodes}",
            hint=f"`ebla up --local {len(running.slots)}` uses it, `ebla down` ends it; the data stays",
        )
    mode = running.state.settings.auth.mode
    if auth not in (None, mode):
        raise Refused(
            f"the local cluster that runs has --auth {mode}, not {auth}",
            hint=f"`ebla down`, then `ebla up --local {nodes} --auth {auth}`; the data stays",
        )
    return running, _back(running, timeout_s, progress)


def wanted(ui: Ui) -> str | None:
    """The address that --address or RAY_ADDRESS names."""
    return ui.common.address or os.environ.get("RAY_ADDRESS") or None


def is_meant(ui: Ui, local: LocalCluster) -> bool:
    """Whether commands go to this local cluster: unless --address or RAY_ADDRESS names another one."""
    return wanted(ui) in (None, local.state.address)


def _require_no_other(ui: Ui, running: LocalCluster | None) -> None:
    """Refuse --local beside another address: this command and later ones would go there, not to the local cluster."""
    if ui.common.address is not None:
        raise Usage("--local starts its own cluster; leave out --address", option="--local")
    named = wanted(ui)
    if named is not None and (running is None or not is_meant(ui, running)):
        raise Usage(
            f"--local starts its own cluster, but RAY_ADDRESS names {named}, and every command would go there",
            option="--local",
            hint="`unset RAY_ADDRESS`, then run the command again",
        )


def _back(running: LocalCluster, timeout_s: float, progress: Progress) -> list[str]:
    """Start the nodes again that have ended."""
    ended = [number for number in sorted(running.state.nodes) if not running.alive(number)]
    for number in ended:
        progress.step(f"starting node {number} again")
        running.start_node(number, timeout_s)
    return [running.slots[number - 1] for number in ended]


def require_room(config: DeploymentConfig, nodes: int | None) -> None:
    """Refuse settings that `nodes` local nodes cannot fulfil, before they are started."""
    if nodes is None:
        return
    from ebla.placement import state
    from ebla.placement.deploy.slots import Host
    from ebla.placement.journal import catalog
    from ebla.placement.local import node

    hosts = [Host(node.slot_of(number), "", LOOPBACK) for number in range(1, nodes + 1)]
    slots = [host.slot for host in hosts]
    if config.slots and not set(config.slots) & set(slots):
        raise Usage(
            f"none of {count(nodes, 'local node')} has a slot of {', '.join(config.slots)}; they have {', '.join(slots)}",
            option="--slot",
        )
    Path(config.data_dir).mkdir(parents=True, exist_ok=True)
    catalog.require_room(config, state.load(config.data_dir), hosts)


@contextmanager
def failure_remembered(nodes: int | None) -> Iterator[None]:
    """Record a failed start, so that later commands report it instead of using another Ray cluster."""
    if nodes is None:
        yield
        return
    from ebla.placement.connection import local_directory
    from ebla.placement.local import failure

    with failure.remembered(local_directory(), nodes):
        yield


@contextmanager
def undone_on_failure(cluster: LocalCluster | None, started: list[str]) -> Iterator[None]:
    """End the cluster that this command started if the command fails or is interrupted."""
    try:
        yield
    except BaseException:
        if cluster is not None and len(started) == len(cluster.slots):
            from ebla.placement.connection import disconnect_ray

            disconnect_ray()
            cluster.stop()
        raise


def _java(ui: Ui) -> dict[str, str]:
    """The environment in which Ray's nodes can run Spark. Without Java all commands work; feed and verify work without Spark."""
    from ebla.placement import java

    if missing("spark"):
        return {}  # Java is for Spark only
    try:
        return java.environment()
    except java.NoJava as error:
        ui.warn(f"`ebla feed` and `ebla verify` work here without Spark only: {error}")
        return {}


def exposure(cluster: LocalCluster | None, address: str) -> list[str]:
    """A warning if programs on other machines can use the Ray cluster at `address` without a token."""
    from ebla.placement.connection import exposed_at

    addresses = exposed_at(address)
    if not addresses:
        return []
    remedy = "start Ray with RAY_AUTH_MODE=token"
    if cluster is not None:
        remedy = f"`ebla down`, then `ebla up --local {len(cluster.slots)} --auth token`"
    return [
        f"Ray asks for no token: every program that reaches its ports here ({', '.join(addresses)}) can run code on this "
        f"machine, and read and write all tables. Close the ports with a firewall, or use a token: {remedy}"
    ]


def document(cluster: LocalCluster | None, started: list[str]) -> dict[str, Any] | None:
    if cluster is None:
        return None
    return {
        "directory": str(cluster.directory),
        "nodes": list(cluster.slots),
        "started": started,
        "dashboard_url": cluster.state.dashboard_url,
        "environment": cluster.environment(),
    }
