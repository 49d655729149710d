"""The processes of a local cluster are started, marked, found and ended. Nothing here needs Ray."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ebla.placement.local import node, processes
from ebla.placement.local.cluster import LocalCluster, LocalClusterError
from ebla.placement.local.node import Auth, NodeSettings, choose_auth
from ebla.placement.local.processes import MARK, ProcessRecord
from ebla.storage.errors import InvalidArgument

SETTINGS = NodeSettings(num_cpus=2, object_store_bytes=1 << 27, dashboard=True, auth=Auth("disabled"))
# A process that starts a child, and waits. The child prints its pid, because a process that is being started has no
# environment yet.
CHILD = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
FAMILY = (
    f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}]); signal.pause()"
)


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A marked process, and the pid of its child."""
    environment = {**os.environ, MARK: "cluster:7"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FAMILY], env=environment, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())
        processes.kill(["cluster:7"])


def test_the_environment_mark_finds_a_process_and_its_children(
    family: tuple[subprocess.Popen[bytes], int],
) -> None:
    parent, child = family
    assert [process.pid for process in processes.belonging(["cluster:7"])] == sorted([parent.pid, child])
    assert processes.belonging(["cluster:8"]) == []


def test_a_child_of_an_ended_parent_is_found(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    parent.kill()
    parent.wait()
    assert [process.pid for process in processes.belonging(["cluster:7"])] == [child]
    assert processes.kill(["cluster:7"]) == []
    assert processes.belonging(["cluster:7"]) == []


def test_a_record_does_not_match_another_process_with_the_same_pid(
    family: tuple[subprocess.Popen[bytes], int],
) -> None:
    parent, child = family
    true = processes.record(psutil.Process(parent.pid))
    assert processes.find(true) is not None
    assert [process.pid for process in processes.belonging([], [true])] == sorted([parent.pid, child])
    stale = ProcessRecord(parent.pid, true.created - 3600, true.name)
    assert processes.find(stale) is None
    assert processes.belonging([], [stale]) == []


def test_this_process_never_belongs_to_a_cluster() -> None:
    me = processes.record(psutil.Process())
    assert os.getpid() not in [process.pid for process in processes.belonging([], [me])]


def test_only_the_head_opens_a_dashboard_and_ray_chooses_every_port(tmp_path: Path) -> None:
    head = node.command(SETTINGS, 1, tmp_path, None, "127.0.1.1")
    other = node.command(SETTINGS, 2, tmp_path, "127.0.1.1:999", "127.0.1.2")
    assert "--head" in head and "--dashboard-port" in head and "--address" not in head
    assert "--head" not in other and other[-2:] == ["--address", "127.0.1.1:999"]
    assert "ebla.slot=host-2" in other and other[other.index("--node-ip-address") + 1] == "127.0.1.2"
    ports = {head[i + 1] for i, word in enumerate(head) if word.endswith("port")}
    assert ports == {"0"}


def test_a_node_inherits_ray_settings_but_no_other_cluster(tmp_path: Path) -> None:
    base = {
        "PATH": "/bin",
        "RAY_ADDRESS": "else:1",
        "RAY_health_check_period_ms": "900",
        "RAY_AUTH_TOKEN": "x",
    }
    found = node.environment(SETTINGS, "c", 3, base)
    assert found[MARK] == "c:3"
    assert found["RAY_health_check_period_ms"] == "900"
    assert found["RAY_health_check_failure_threshold"] == node.DEFAULTS["RAY_health_check_failure_threshold"]
    assert found["RAY_AUTH_MODE"] == "disabled"
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & found.keys()
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_missing_token_is_created_for_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert choose_auth(None, tmp_path, {}) == Auth("disabled")
    auth = choose_auth("token", tmp_path, {})
    assert auth.mode == "token" and auth.token_path == str(tmp_path / "auth_token")
    token = tmp_path / "auth_token"
    assert len(token.read_text()) == 64 and stat.S_IMODE(token.stat().st_mode) == 0o600
    assert choose_auth(None, tmp_path, {}) == auth
    assert choose_auth("disabled", tmp_path, {}) == Auth("disabled")


def test_the_users_own_token_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("mine")
    assert choose_auth(None, tmp_path / "c", {}).token_path == str(tmp_path / ".ray" / "auth_token")
    assert choose_auth(None, tmp_path, {"RAY_AUTH_TOKEN_PATH": "/elsewhere"}).token_path == "/elsewhere"


def test_an_unknown_auth_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="must be token or disabled, not 'password'"):
        choose_auth("password", tmp_path, {})


def test_no_cluster_is_found_where_none_was_started(tmp_path: Path) -> None:
    assert LocalCluster.find(tmp_path) is None
    with pytest.raises(LocalClusterError, match="no local cluster runs in"):
        LocalCluster.attach(tmp_path)


def test_an_unreadable_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "local.json").write_text("{")
    with pytest.raises(LocalClusterError, match="unreadable"):
        LocalCluster.find(tmp_path)


@pytest.mark.parametrize("nodes", [0, 65])
def test_an_impossible_number_of_nodes_is_refused(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(InvalidArgument, match="nodes must be between 1 and 64"):
        LocalCluster.start(nodes, directory=tmp_path)
