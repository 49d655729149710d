"""The only module that imports Ray's private parts, and the Ray versions with which it was tested."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
from enum import Enum
from typing import Any

import ray
import ray._private.services
import ray._private.worker
import ray.util.serialization_addons
from ray._private.authentication import authentication_token_setup
from ray._private.ray_constants import PROCESS_TYPE_RAYLET
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError

from ebla.placement.local import setup_worker
from ebla.storage.errors import InvalidArgument

VERSIONS = ("2.60.",)
PORTS = range(20_000, 32_000)
AGENT_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
CHECK_ALIVE = (
    "/ray.rpc.NodeInfoGcsService/CheckAlive"  # an empty request asks whether the GCS itself is there
)

NO_PROXY = [("grpc.enable_http_proxy", 0)]  # as Ray's own channels


def check_version() -> None:
    if not ray.__version__.startswith(VERSIONS):
        raise InvalidArgument(
            f"ebla works with Ray {', '.join(v + 'x' for v in VERSIONS)}, not {ray.__version__}; "
            "install the version that ebla's requirements name"
        )


def of_local_node(parameters: Any, head: bool) -> None:
    """RAY_START_HOOK of local nodes. It starts no Ray Client server, which takes 1 s of CPU and a
    fixed port and is not used; `ray start` has no flag that turns it off. Workers start by a cheaper
    step than Ray's. And it chooses the ports of the node's agents: where agents choose, the raylet
    waits for their choice before it joins, and ends after a fixed 15 s, which is too short beside
    processes that keep all cores busy."""
    check_version()
    parameters.ray_client_server_port = None
    parameters.setup_worker_path = setup_worker.__file__
    for name, port in zip(AGENT_PORTS, _free_ports(len(AGENT_PORTS)), strict=True):
        setattr(parameters, name, port)
    _tell_raylet(f"--dashboard_agent_listen_port={parameters.dashboard_agent_listen_port}")


def _tell_raylet(flag: str) -> None:
    """Add a flag to the command of this process's raylet. Ray tells the raylet three of its agents' four ports, and
    lets it wait for the fourth even if that was chosen."""
    services: Any = ray._private.services
    start = services.start_ray_process

    def start_with_flag(command: list[str], kind: str, *more: Any, **settings: Any) -> Any:
        return start([*command, flag] if kind == PROCESS_TYPE_RAYLET else command, kind, *more, **settings)

    services.start_ray_process = start_with_flag


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has bound, out of those that the kernel gives to no outgoing connection."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise InvalidArgument(
        f"no {count} ports of {PORTS.start} to {PORTS.stop - 1} are free; end what uses them"
    )


def reread_environment() -> None:
    """Make Ray read RAY_* variables that were set after its import. Only before ray.init."""
    check_version()
    assert not ray.is_initialized(), "a connected process keeps its settings"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def found_here() -> str | None:
    """HOST:PORT of the cluster that Ray means by the address "auto", None if there is none. As for "auto", the token in
    Ray's usual file is used from now on, if there is one and no RAY_AUTH_MODE. Only before ray.init."""
    check_version()
    services: Any = ray._private.services
    # As ray.init does: no warning that there are several clusters.
    logging.getLogger("ray").setLevel(logging.ERROR)
    services.find_gcs_addresses.cache_clear()
    try:
        found: str | None = services.canonicalize_bootstrap_address("auto")
    except ConnectionError:
        return None
    authentication_token_setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return found


class Answer(Enum):
    """`head`: of a cluster's head, also if with an error of its own. `refusal`: of a head that refuses this process's token.
    `other`: of something that is no head, or none."""

    head = "head"
    refusal = "refusal"
    other = "other"


def answer(address: str, timeout_s: float) -> Answer:
    """The kind of process at the address, for this one with its token. Ray itself tries for 20 s if the token is refused, and then
    reports that the cluster does not answer; it tries for minutes if something else is there. With TLS, only Ray can tell."""
    import grpc

    check_version()
    loader = AuthenticationTokenLoader.instance()
    try:
        shown = tuple(loader.get_token_for_http_header().items()) if loader.has_token() else ()
    except (RuntimeError, AuthenticationError):  # the mode needs a token, and there is none
        return Answer.refusal
    status = _answer(address, shown, timeout_s)
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Answer.refusal
    codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DEADLINE_EXCEEDED)
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    return Answer.other if status in codes and not encrypted else Answer.head


def serves_anybody(address: str, timeout_s: float) -> bool:
    """Whether the cluster answers calls without a token."""
    import grpc

    check_version()
    return _answer(address, (), timeout_s) is grpc.StatusCode.OK


def _answer(address: str, shown: tuple[tuple[str, str], ...], timeout_s: float) -> Any:
    """The status with which the GCS at `address` answers a caller that shows this metadata."""
    import grpc  # most commands connect without it

    try:
        with grpc.insecure_channel(address, NO_PROXY) as channel:
            channel.unary_unary(CHECK_ALIVE)(b"", timeout=timeout_s, metadata=shown)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def quiet_driver() -> None:
    """Keep the raylets' messages to drivers (a worker died, a node is gone) off our standard
    output, where they would appear inside a command's JSON; log_to_driver=False does not. They are
    in the dashboard and in Ray's logs."""
    check_version()
    ray._private.worker._worker_logs_enabled = False


def send_own_types_only() -> None:
    """Register no serializers for values of pydantic, starlette and pyarrow, whose imports take Ray 0.2 s of CPU at the first
    call of a process. Such values are pickled as usual. Only before the first call, and only in programs of ebla: a user's
    functions and Arrow tables need the serializers."""
    check_version()
    ray.util.serialization_addons.apply = lambda context: None
