"""From a process to a deployment: the only module of the client that imports Ray.

reach          connects to Ray: inside a Ray task, actor, job or driver to its own cluster; elsewhere to the cluster at
               `address`, at RAY_ADDRESS, the one that `ebla up --local` started, or another one on this machine
make_client    a connection to the deployment, on the running event loop
start_local    a Ray cluster of its own on this machine, with a deployment in it
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import random
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray

from ebla.actors.errors import Unavailable
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.ray_world import RayNetwork
from ebla.actors.world import CallerWorld
from ebla.options import MASTER
from ebla.show.progress import display_of_calls, working
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.transport.client import DeploymentClient
from ebla.wording import command

log = logging.getLogger("ebla")

ROLE = "master/"
TEMPORARY = "ebla-"  # the names of temporary data directories begin so


async def open_client(
    name: str = "ebla", address: str | None = None, progress: bool = False
) -> DeploymentClient:
    """A connection on the running event loop. The first connection to Ray blocks the loop shortly."""
    return make_client(name, progress, reach(name, address).roles)


def start_local(
    hosts: int,
    data_dir: str | os.PathLike[str] | None,
    name: str,
    settings: Mapping[str, Any] | None,
    dashboard: bool,
    counts: Mapping[str, int | None],
    progress: bool,
) -> tuple[str, Callable[[], None]]:
    """The address of the new Ray cluster, and a function that ends everything. The end of the process calls it, too.
    `counts`: settings of roles, None for the default. `progress`: show that of the start."""
    from ebla.arguments import check_int
    from ebla.placement import launch, state
    from ebla.placement.config import configure
    from ebla.placement.connection import connect_ray, disconnect_ray
    from ebla.placement.local.cluster import NODES_MAX, LocalCluster

    hosts = check_int("hosts", hosts, 1, NODES_MAX)
    _require(str, "name", name, "a str, such as 'ebla'")
    _require((str, os.PathLike, type(None)), "data_dir", data_dir, "a path, such as '/data/ebla'")
    _require((Mapping, type(None)), "settings", settings, 'a dict, such as {"masters": 1}')
    if ray.is_initialized():
        raise InvalidArgument(
            "this process is connected to a Ray cluster already, and ebla.local() starts one of its own: use "
            "ebla.connect(), or call ray.shutdown() first"
        )
    kept = None if data_dir is None else Path(data_dir).expanduser().absolute()
    directory = kept or Path(tempfile.mkdtemp(prefix=TEMPORARY))
    display = display_of_calls() if progress else None
    with working(display, f"start {name}") as show, contextlib.ExitStack() as undo:
        _end_abandoned()
        if kept is None:
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
        given = {key: count for key, count in counts.items() if count is not None}
        wanted = {"name": name, **(settings or {}), **given, "data_dir": str(directory / "data")}
        before = state.load(wanted["data_dir"])
        config = configure(wanted, before.config if before is not None else None)
        cluster = LocalCluster.start(
            hosts, directory=directory / "cluster", dashboard=dashboard, progress=show, owned=True
        )
        undo.callback(cluster.stop)
        address = connect_ray(cluster.address, directory=cluster.directory)
        undo.callback(disconnect_ray)
        report = launch.up(config, progress=show)
        unwell = [f"{role.address} is {role.state}: {role.error}" for role in report.roles if role.error]
        if unwell:
            raise Unavailable("the deployment did not come up: " + "; ".join(unwell))
        stack, owner = undo.pop_all(), os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # a forked child must not end its parent's cluster
            stack.close()

    atexit.register(end)
    return address, end


def _end_abandoned() -> None:
    """End the clusters whose program was killed, and delete their data, where it was to be deleted: nobody else knows of them.
    Only this user's: anybody may write to the directory for temporary files. And only those of which a process is found here:
    the program of another one may run in another container."""
    from ebla.placement.local.cluster import HEAD, LocalCluster

    for directory in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(EblaError, OSError):
            if directory.lstat().st_uid != os.getuid():
                continue
            found = LocalCluster.find(directory / "cluster")
            if found is not None and found.abandoned and found.processes(HEAD):
                found.stop()
                shutil.rmtree(directory, ignore_errors=True)


def namespace_of(name: str) -> str:
    return f"ebla-{name}"


class Reached(NamedTuple):
    """`address`: of the Ray cluster. `roles`: the addresses of the deployment's roles that Ray knows, in any state."""

    address: str
    roles: tuple[str, ...]


def reach(name: str, address: str | None) -> Reached:
    """Connect to Ray and check that the deployment exists."""
    from ebla.placement.connection import connect_ray

    require_name(name)
    _require((str, type(None)), "address", address, "a str, such as '10.0.0.5:6379'")
    if ray.is_initialized() and address not in (None, "auto"):
        present = str(ray.get_runtime_context().gcs_address)
        if address != present:
            raise InvalidArgument(
                f"this process is connected to the Ray cluster at {present}, not {address}; leave the address out, or "
                "call ray.shutdown() first"
            )
    reached = Reached(connect_ray(address), roles_of(name))
    if not _masters(reached.roles):
        there = (
            f"no master of deployment {name!r} runs" if reached.roles else f"there is no deployment {name!r}"
        )
        up = command("up", options="" if name == "ebla" else shlex.join(["--name", name]))
        raise Unavailable(f"{there} in the Ray cluster at {reached.address}: start it with {up}")
    return reached


def require_name(name: str) -> None:
    _require(str, "name", name, "the name of a deployment, a str such as 'ebla'")
    if ":" in name:
        raise InvalidArgument(
            f"{name!r} is an address, not the name of a deployment: write ebla.connect(address={name!r}), or "
            f"`--address {name}`"
        )


def _require(kind: type | tuple[type, ...], argument: str, value: Any, wanted: str) -> None:
    if not isinstance(value, kind):
        # It loads Arrow, which commands that only ask roles do without.
        from ebla.storage.rows.python_values import shown

        raise InvalidArgument(f"{argument} is {wanted}, not {shown(value)}")


def roles_of(name: str) -> tuple[str, ...]:
    """The addresses of the deployment's roles that Ray knows."""
    from ebla.placement.asking import named_actors

    return tuple(named_actors(namespace_of(name)))


def masters_of(name: str) -> tuple[str, ...]:
    """The addresses of the deployment's masters that Ray knows, in order."""
    return _masters(roles_of(name))


def _masters(roles: Sequence[str]) -> tuple[str, ...]:
    found = [address for address in roles if address.startswith(ROLE)]
    return tuple(sorted(found, key=lambda address: int(address.removeprefix(ROLE))))


def make_client(name: str, progress: bool = False, roles: Sequence[str] | None = None) -> DeploymentClient:
    """A connection to the deployment, on the running event loop. `progress`: show that of long calls. `roles`: the
    deployment's, if they are known already."""

    def failed(what: str, error: BaseException) -> None:
        log.error("the connection to deployment %r failed in %s", name, what, exc_info=error)
        client.failed(what, error)

    tasks = Tasks(failed)
    world = CallerWorld(
        MachineClock(), RayNetwork(namespace_of(name)), random.Random(os.urandom(32)), tasks.spawn
    )
    masters = masters_of(name) if roles is None else _masters(roles)
    client = DeploymentClient(world, name, masters or (MASTER,), on_close=tasks.cancel)
    if progress:
        client.display = display_of_calls()
    client.start_logs = functools.partial(_start_logs, name)
    return client


def _start_logs(name: str) -> None:
    from ebla.placement import launch

    report = launch.start_logs(name)
    unwell = [f"{role.address} is {role.state}: {role.error}" for role in report.roles if role.error]
    if unwell:
        raise Unavailable("the stores of logs did not come up: " + "; ".join(unwell))
