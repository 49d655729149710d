"""One raylet of a local cluster: the command that starts it, its environment, and its log lines
when it is up.

Every port is chosen by the process that binds it, and every node has its own directory for
temporary files, so that a local cluster disturbs no other Ray on the machine and two local clusters
do not clash. Every node also has its own address in the loopback network: as on real hosts, an
address names one node.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ebla.placement import java
from ebla.placement.deploy.slots import SLOT_LABEL
from ebla.placement.local.processes import MARK, mark_of
from ebla.storage.errors import InvalidArgument

MIB = 1 << 20
OBJECT_STORE_BYTES = 256 * MIB
OBJECT_STORE_BYTES_MIN = 80 * MIB  # Ray refuses less than 75 MiB

# A killed raylet refuses its health checks at once: it counts as dead after 7 x 0.5 s. A slow
# raylet has 2 s for each answer, 17 s in all, so that a busy machine does not count as dead. Calls
# in flight to a dead actor fail in 0.1 s, not in 2 s. By default workers run at nice 15, and a
# tablet server would starve beside a busy client on the same machine. A raylet ends if its agents
# do not answer in time, by default in half a minute. When a driver connects, Ray would start an idle
# worker for each CPU of a node, and all nodes are on this machine: each takes 1 to 2 s of CPU, and
# 80 MB.
DEFAULTS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "7",
    "RAY_timeout_ms_task_wait_for_death_info": "50",
    "RAY_core_worker_internal_heartbeat_ms": "50",
    "RAY_worker_niceness": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_prestart_worker_first_driver": "0",
}
FIXED = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# Variables of another cluster, if this process belongs to one.
DROPPED = (
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    "RAY_REDIS_ADDRESS",
    "RAY_NAMESPACE",
    "RAY_JOB_ID",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_RAYLET_PID",
    "RAY_NODE_ID",
    "RAY_SESSION_DIR",
    "RAY_TMPDIR",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
)

STARTED = re.compile(r"Ray runtime started\.")
LATE = re.compile(r"The current node timed out during startup")
ADDRESS = re.compile(r"ray start --address='([^']+)'")
DASHBOARD = re.compile(r"RAY_API_SERVER_ADDRESS='([^']+)'")


class Auth(msgspec.Struct, frozen=True):
    """Ray's authentication. `mode` is RAY_AUTH_MODE: disabled or token."""

    mode: str
    token_path: str | None = None

    def environment(self) -> dict[str, str]:
        found = {"RAY_AUTH_MODE": self.mode}
        if self.token_path is not None:
            found["RAY_AUTH_TOKEN_PATH"] = self.token_path
        return found


class NodeSettings(msgspec.Struct, frozen=True):
    """The settings that all nodes of a cluster share."""

    num_cpus: int
    object_store_bytes: int
    dashboard: bool
    auth: Auth
    extra: dict[str, str] = {}


def slot_of(number: int) -> str:
    return f"host-{number}"


def address_of(number: int) -> str:
    """The loopback address of a node. Not 127.0.0.1: Ray replaces that by the machine's address in
    its network."""
    return f"127.0.1.{number}"


def command(
    settings: NodeSettings, number: int, temporary: Path, head_address: str | None, own_address: str
) -> list[str]:
    """The `ray start` command of node `number` at `own_address`; the head's if there is no
    `head_address` to join."""
    words = [
        sys.executable,
        "-m",
        "ebla.placement.local.ray_start",
        "start",
        "--block",
        "--log-color",
        "false",
    ]
    words += ["--temp-dir", str(temporary), "--labels", f"{SLOT_LABEL}={slot_of(number)}"]
    words += ["--node-ip-address", own_address]
    words += ["--num-cpus", str(settings.num_cpus), "--object-store-memory", str(settings.object_store_bytes)]
    words += ["--disable-usage-stats"]
    words += ["--min-worker-port", "0", "--max-worker-port", "0"]  # by default, every raylet starts at 10002
    if head_address is not None:
        return [*words, "--address", head_address]
    include = "true" if settings.dashboard else "false"
    return [*words, "--head", "--port", "0", "--dashboard-port", "0", "--include-dashboard", include]


def environment(settings: NodeSettings, cluster: str, number: int, base: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment. Values of `DEFAULTS` that the user has set are kept; the
    user's `ebla` is first in the path."""
    inherited = {name: value for name, value in base.items() if name not in DROPPED}
    with contextlib.suppress(java.NoJava):  # only Spark needs Java, and reports the lack
        inherited.update(java.environment(base))
    return {
        **DEFAULTS,
        **inherited,
        **FIXED,
        **settings.auth.environment(),
        "RAY_START_HOOK": "ebla.placement.ray_private.of_local_node",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        MARK: mark_of(cluster, number),
        **settings.extra,
    }


def choose_auth(wanted: str | None, directory: Path, base: Mapping[str, str]) -> Auth:
    """The requested mode, else the default. A missing token is created."""
    mode = wanted or default_auth(directory, base)
    if mode not in ("token", "disabled"):
        raise InvalidArgument(f"auth must be token or disabled, not {mode!r} (RAY_AUTH_MODE)")
    if mode == "disabled":
        return Auth("disabled")
    found = _existing_token(directory, base)
    if found is None:
        found = directory / "auth_token"
        _write_secret(found, base.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    return Auth("token", str(found))


def default_auth(directory: Path, base: Mapping[str, str]) -> str:
    """The mode if none is requested, as of `ray start`: token if a token exists, else disabled."""
    token = base.get("RAY_AUTH_TOKEN") or _existing_token(directory, base)
    return base.get("RAY_AUTH_MODE") or ("token" if token else "disabled")


def _existing_token(directory: Path, base: Mapping[str, str]) -> Path | None:
    """The file with the token; None if there is none, or RAY_AUTH_TOKEN replaces it."""
    if base.get("RAY_AUTH_TOKEN_PATH"):
        return Path(base["RAY_AUTH_TOKEN_PATH"])
    if base.get("RAY_AUTH_TOKEN"):
        return None
    for path in (directory / "auth_token", Path.home() / ".ray" / "auth_token"):
        if path.exists():
            return path
    return None


def _write_secret(path: Path, token: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(token)


def object_store_bytes(nodes: int, shared_memory: Path = Path("/dev/shm")) -> int:
    """The object store's size per node: 256 MiB, or less if shared memory is small."""
    try:
        free = shutil.disk_usage(shared_memory).free
    except OSError:
        return OBJECT_STORE_BYTES_MIN
    return max(OBJECT_STORE_BYTES_MIN, min(OBJECT_STORE_BYTES, free * 8 // 10 // nodes))
