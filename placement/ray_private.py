"""The only module that may touch what Ray keeps private, and the versions for which that was seen to work."""

from __future__ import annotations

from typing import Any

import ray
import ray._private.worker
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from ebla.storage.errors import InvalidArgument

VERSIONS = ("2.60.",)


def check_version() -> None:
    if not ray.__version__.startswith(VERSIONS):
        raise InvalidArgument(
            f"ebla works with Ray {', '.join(v + 'x' for v in VERSIONS)}, not {ray.__version__}; "
            "install the version that ebla's requirements name"
        )


def without_client_server(parameters: Any, head: bool) -> None:
    """RAY_START_HOOK of local nodes: no Ray Client server, which nobody asked for and which takes 1 s of CPU and a
    fixed port. `ray start` has no flag that turns it off."""
    check_version()
    parameters.ray_client_server_port = None


def reread_environment() -> None:
    """Make Ray look again at RAY_* variables that were set after it was imported. Only before ray.init."""
    check_version()
    assert not ray.is_initialized(), "a connected process keeps its settings"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def quiet_driver() -> None:
    """Keep what raylets tell drivers (a worker died, a node is gone) off our standard output: log_to_driver=False
    does not, and it would stand in the middle of a command's JSON. It is in the dashboard and in Ray's logs."""
    check_version()
    ray._private.worker._worker_logs_enabled = False
