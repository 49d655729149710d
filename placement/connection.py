"""Connect this process to the Ray cluster in which a deployment lives."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil
import ray

from ebla.actors.errors import NoCluster, Unavailable
from ebla.placement import ray_private
from ebla.placement.interrupts import own_handler_of_sigterm
from ebla.placement.local import failure
from ebla.placement.local.cluster import LocalCluster
from ebla.placement.local.node import DEFAULTS
from ebla.placement.ray_private import Answer, answer, quiet_driver, reread_environment
from ebla.storage.errors import InvalidArgument

REMEDY = "start a cluster on this machine with `ebla up --local 4`, or name one with --address or RAY_ADDRESS"
# In a driver too, a call in flight to an actor that dies fails in 0.1 s instead of 2 s.
DRIVER = ("RAY_timeout_ms_task_wait_for_death_info", "RAY_core_worker_internal_heartbeat_ms")

_changed: dict[
    str, tuple[str | None, str]
] = {}  # variable -> its value before the connection, and that for it

PROBE_S = 3.0
ANSWER_S = 10.0  # a head on a busy machine may be slow, and Ray would wait for it
PORT_MAX = (1 << 16) - 1
INTERNET = (socket.AF_INET, socket.AF_INET6)


def local_directory() -> Path:
    """The directory of the cluster of `ebla up --local`: EBLA_LOCAL_DIR, or ~/.ebla/local."""
    return Path(os.environ.get("EBLA_LOCAL_DIR") or Path.home() / ".ebla" / "local").expanduser().absolute()


def connect_ray(
    address: str | None = None, namespace: str | None = None, directory: Path | None = None
) -> str:
    """Connect, unless this process is connected already, and return the address of the cluster.

    Tried in this order: `address`, RAY_ADDRESS, the local cluster of `directory` (default:
    local_directory()) if one runs, and the cluster that Ray itself finds on this machine. The last
    is not tried if a local cluster was requested and there is none. Raises Unavailable with the
    remedy.
    """
    if not ray.is_initialized():
        _restore_environment()  # an earlier connection may have ended with ray.shutdown()
        with contextlib.ExitStack() as undo:
            undo.callback(_restore_environment)
            _connect(address, namespace, directory or local_directory())
            undo.pop_all()
    return str(ray.get_runtime_context().gcs_address)


def _connect(address: str | None, namespace: str | None, directory: Path) -> None:
    environment, target = choose(address, directory)
    _set({**environment, **{name: DEFAULTS[name] for name in DRIVER if name not in os.environ}})
    reread_environment()
    quiet_driver()
    if target == "auto":
        target = _found_here()
    else:
        _require_listener(target)
    if not environment or "RAY_AUTH_TOKEN" in os.environ:  # the environment has the local cluster's token
        _require_head(target)
    _init(target, namespace)


def disconnect_ray() -> None:
    """Leave the cluster before it ends: when a driver loses its head, Ray logs errors and ends the
    driver, at a time of Ray's choice."""
    if ray.is_initialized():
        ray.shutdown()
    _restore_environment()


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        _changed[name] = (os.environ.get(name), value)
        os.environ[name] = value


def _restore_environment() -> None:
    """Take back the variables of a connection that has ended: with those of its cluster, such as the authentication, the
    process could not use another one. What the user has changed since stays."""
    if not _changed:
        return
    for name, (before, ours) in _changed.items():
        if os.environ.get(name) == ours:
            del os.environ[name]
            os.environ.update({} if before is None else {name: before})
    _changed.clear()
    reread_environment()


def exposed_at(address: str) -> list[str]:
    """The addresses in networks at which other machines can use the cluster without a token, this machine's. Empty if the
    cluster at `address` requires a token, or this machine is in no network."""
    own = [
        each.address for found in psutil.net_if_addrs().values() for each in found if each.family in INTERNET
    ]
    parsed = [ipaddress.ip_address(each.partition("%")[0]) for each in own]
    reachable = [str(each) for each in parsed if not each.is_loopback and not each.is_link_local]
    return reachable if reachable and ray_private.serves_anybody(address, PROBE_S) else []


def choose(address: str | None, directory: Path) -> tuple[dict[str, str], str]:
    """The environment that the cluster needs, and its address. Raises Unavailable if a local
    cluster was requested and there is none: a cluster that Ray would find instead belongs to
    others."""
    named = os.environ.get("RAY_ADDRESS") or None
    # For "auto" too, Ray looks there first.
    wanted = (named or address) if address == "auto" else (address or named)
    if wanted is not None:
        _require_usable(wanted)
    local = LocalCluster.find(directory)
    if local is not None and local.running and wanted in (None, local.address):
        return local.state.settings.auth.environment(), local.address
    absent = failure.absence(directory) if wanted is None else None
    if absent is not None:
        raise NoCluster(absent)
    return {}, wanted or "auto"


def _require_usable(address: str) -> None:
    if address.startswith("ray://"):
        raise InvalidArgument(
            f"{address!r} is an address of Ray Client, which ebla does not use; give the address of the cluster's head, such "
            "as 'host:6379', or run the program in the cluster with `ray job submit`"
        )
    if address == "local":  # Ray would start a cluster inside this process
        raise InvalidArgument(
            "'local' is not the address of a cluster that runs; to start one on this machine, use ebla.local() or "
            "`ebla up --local 4`"
        )
    if address != "auto" and "/" not in address and not _is_place(address):
        problem = "is not HOST:PORT" if ":" in address else "has no port"
        raise InvalidArgument(
            f"the address {address!r} {problem}: give host and port of the cluster's head as HOST:PORT, such as 'host:6379'"
        )


def _found_here() -> str:
    """The address of the cluster that Ray finds on this machine. Ray may remember one that has ended."""
    found = ray_private.found_here()
    if found is None:
        raise NoCluster(f"no Ray cluster runs on this machine: {REMEDY}")
    try:
        _require_listener(found)
    except NoCluster as error:
        raise NoCluster(f"no Ray cluster runs on this machine (none answers at {found}): {REMEDY}") from error
    return found


def _require_listener(address: str) -> None:
    """Refuse an address without a listener at once; Ray itself would try it for ten minutes."""
    host, _, port = address.rpartition(":")
    if not _is_place(address):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()
    except OSError as error:
        raise NoCluster(
            f"no Ray cluster answers at {address} ({error.strerror or error}): is it the address of its head, as "
            "`ray status` shows it?"
        ) from error


def _require_head(address: str) -> None:
    """Refuse an address at which no head answers, or one that refuses this process; Ray itself would try it for minutes."""
    if not _is_place(address):
        return
    found = answer(address, ANSWER_S)
    if found is Answer.other:
        raise NoCluster(
            f"something listens at {address}, but it does not answer as the head of a Ray cluster: give the head's own port, "
            "Ray's default is 6379 (8265 is the dashboard's, 10001 is Ray Client's)"
        )
    if found is Answer.refusal:
        raise Unavailable(
            f"the Ray cluster at {address!r} refuses this process: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the "
            "file with the cluster's token (`ebla up --local` prints both)"
        )


def _is_place(address: str) -> bool:
    """Whether the address is a host and a port, and not `auto` or a scheme that Ray knows."""
    host, _, port = address.rpartition(":")
    return "/" not in address and bool(host) and port.isdecimal() and 0 < int(port) <= PORT_MAX


def _init(address: str, namespace: str | None) -> None:
    try:
        with own_handler_of_sigterm():
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
    except ConnectionError as error:
        raise NoCluster(f"no Ray cluster answers at {address!r} ({_first_line(error)}); {REMEDY}") from error
    except (RuntimeError, ValueError) as error:
        raise Unavailable(
            f"cannot connect to the Ray cluster at {address!r}: {_first_line(error)}; {REMEDY}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
