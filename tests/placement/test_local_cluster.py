"""A local cluster of toy nodes that end while they start. tests/cluster has real nodes."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from ray._private import services

from ebla import deployment
from ebla.placement import ray_private
from ebla.placement.local.cluster import AGAIN_MAX, STATE, LocalCluster, LocalClusterError
from ebla.placement.local.processes import ProcessRecord
from ebla.storage.errors import InvalidArgument

UP = "print(\"Ray runtime started.\\n ray start --address='127.0.0.1:6379'\", flush=True); time.sleep(60)"
LATE = "print('Traceback', flush=True); sys.exit('Exception: The current node timed out during startup. This could happen.')"
BROKEN = "print('Traceback', flush=True); sys.exit('ValueError: no port is free')"


def toys(monkeypatch: pytest.MonkeyPatch, *of_node_2: str) -> None:
    """Replace the command of nodes: node 1 starts at once; node 2 runs the next of these programs at each start."""

    def command(self: LocalCluster, number: int, temporary: Path) -> list[str]:
        incarnation = int(temporary.name.partition(".")[2])
        does = UP if number == 1 else of_node_2[min(incarnation, len(of_node_2)) - 1]
        return [sys.executable, "-c", f"import sys, time; {does}"]

    monkeypatch.setattr(LocalCluster, "_command", command)


@contextmanager
def started(
    directory: Path, progress: list[str], nodes: int = 2, owned: bool = False
) -> Iterator[LocalCluster]:
    cluster = LocalCluster.start(
        nodes,
        directory=directory,
        auth="disabled",
        progress=progress.append,
        temporary_root=directory / "tmp",
        owned=owned,
    )
    try:
        yield cluster
    finally:
        cluster.kill_everything()


def test_the_only_node_of_a_cluster_is_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys(monkeypatch, BROKEN)
    with started(tmp_path, [], nodes=1) as cluster:
        assert cluster.state.complete
        assert (cluster.slots, cluster.address) == (("host-1",), "127.0.0.1:6379")


def test_a_node_that_is_too_slow_for_ray_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine must not make `up --local` fail."""
    toys(monkeypatch, LATE, UP)
    progress: list[str] = []
    with started(tmp_path, progress) as cluster:
        assert cluster.state.complete and cluster.state.nodes[2].incarnation == 2
        assert "node 2 of 2 did not come up in Ray's time, starting it again" in progress


@pytest.mark.parametrize(
    ("does", "why"),
    [(LATE, "Exception: The current node timed out during startup"), (BROKEN, "ValueError: no port is free")],
)
def test_a_node_that_never_starts_ends_the_cluster_with_its_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    toys(monkeypatch, does)
    progress: list[str] = []
    with pytest.raises(LocalClusterError) as failed, started(tmp_path, progress):
        pass
    again = AGAIN_MAX if does == LATE else 0
    assert sum("starting it again" in each for each in progress) == again
    assert f"node 2 ended while starting ({why}" in failed.value.message and failed.value.log is not None
    assert "\n" not in failed.value.message and not (tmp_path / STATE).exists()


@pytest.fixture
def running_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node is one toy, which counts as its raylet."""
    toys(monkeypatch, BROKEN)
    monkeypatch.setattr(LocalCluster, "alive", lambda self, number: bool(self.processes(number)))


def owner_is_killed(cluster: LocalCluster) -> None:
    """Its process id may have another process since."""
    assert cluster.state.owner is not None and cluster.state.owner.pid == os.getpid()
    cluster._save(msgspec.structs.replace(cluster.state, owner=ProcessRecord(os.getpid(), 0.0)))


def test_a_cluster_that_its_program_left_when_it_was_killed_is_ended_by_the_next_start_in_its_directory(
    tmp_path: Path, running_toys: None
) -> None:
    """While the program runs, a start is refused with the command that ends the cluster of this directory."""
    with started(tmp_path, [], nodes=1, owned=True) as first:
        with (
            pytest.raises(LocalClusterError, match=f"end it with `EBLA_LOCAL_DIR={tmp_path} ebla down`"),
            started(tmp_path, [], nodes=1),
        ):
            pass
        assert first.running
        owner_is_killed(first)
        with started(tmp_path, [], nodes=1) as second:
            assert second.running and not first.running
            assert not second.abandoned, "commands end it"


def test_the_next_local_call_ends_a_cluster_that_a_killed_program_left_in_a_temporary_directory(
    tmp_path: Path, running_toys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with started(tmp_path / "ebla-a" / "cluster", [], nodes=1, owned=True) as left:
        deployment._end_abandoned()
        assert left.running, "its program runs"
        owner_is_killed(left)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: -1)
            deployment._end_abandoned()
        assert left.running, "it is another user's"
        deployment._end_abandoned()
        assert not left.running and not (tmp_path / "ebla-a").exists()
        left.directory.mkdir(parents=True)  # for its end


def test_the_agents_of_a_node_get_ports_that_are_free_and_its_raylet_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(
        services, "start_ray_process", lambda command, kind, fate_share: commands.append(command)
    )
    with socket.socket() as taken:
        taken.bind(("", 0))
        first = taken.getsockname()[1]
        monkeypatch.setattr(ray_private, "PORTS", range(first, min(first + 64, 65_536)))
        parameters = SimpleNamespace(ray_client_server_port=10001)
        ray_private.of_local_node(parameters, head=False)
        ports = {getattr(parameters, name) for name in ray_private.AGENT_PORTS}
        assert len(ports) == len(ray_private.AGENT_PORTS) and first not in ports
        for kind in ("raylet", "gcs_server"):
            services.start_ray_process([kind], kind, fate_share=True)
        told = f"--dashboard_agent_listen_port={parameters.dashboard_agent_listen_port}"
        assert commands == [["raylet", told], ["gcs_server"]]
        monkeypatch.setattr(ray_private, "PORTS", range(first, first + 1))
        with pytest.raises(InvalidArgument, match=f"no 4 ports of {first} to {first} are free"):
            ray_private.of_local_node(parameters, head=False)
