"""The only module that may use Ray's private parts, and the Ray versions with which it was tested."""

from __future__ import annotations

from typing import Any

import ray
import ray._private.worker
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from ebla.storage.errors import InvalidArgument

VERSIONS = ("2.60.",)
CHECK_ALIVE = (
    "/ray.rpc.NodeInfoGcsService/CheckAlive"  # an empty request asks whether the GCS itself is there
)


def check_version() -> None:
    if not ray.__version__.startswith(VERSIONS):
        raise InvalidArgument(
            f"ebla works with Ray {', '.join(v + 'x' for v in VERSIONS)}, not {ray.__version__}; "
            "install the version that ebla's requirements name"
        )


def without_client_server(parameters: Any, head: bool) -> None:
    """RAY_START_HOOK of local nodes: start no Ray Client server, which takes 1 s of CPU and a fixed
    port and is not used. `ray start` has no flag that turns it off."""
    check_version()
    parameters.ray_client_server_port = None


def reread_environment() -> None:
    """Make Ray read RAY_* variables that were set after its import. Only before ray.init."""
    check_version()
    assert not ray.is_initialized(), "a connected process keeps its settings"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def refuses(address: str, timeout_s: float) -> bool:
    """Whether the cluster refuses this process's token. Ray itself tries for 20 s, and then reports
    that the cluster does not answer."""
    import grpc

    check_version()
    loader = AuthenticationTokenLoader.instance()
    try:
        shown = tuple(loader.get_token_for_http_header().items()) if loader.has_token() else ()
    except RuntimeError:  # the mode needs a token, and there is none
        return True
    return _answer(address, shown, timeout_s) is grpc.StatusCode.UNAUTHENTICATED


def serves_anybody(address: str, timeout_s: float) -> bool:
    """Whether the cluster answers calls without a token."""
    import grpc

    check_version()
    return _answer(address, (), timeout_s) is grpc.StatusCode.OK


def _answer(address: str, shown: tuple[tuple[str, str], ...], timeout_s: float) -> Any:
    """The status with which the GCS at `address` answers a caller that shows this metadata."""
    import grpc  # most commands connect without it

    try:
        with grpc.insecure_channel(address) as channel:
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
