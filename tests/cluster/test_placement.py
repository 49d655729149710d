"""Roles on real Ray: each is launched once, stays on its host, restarts after every failure, and ends with `down`.

The tests run in this order on one cluster. Each of them leaves the deployment up for the next one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import ray

from ebla.actors.errors import Internal, NotDelivered, NotRunning, OutcomeUnknown, Throttled, Unavailable
from ebla.actors.messages import Empty
from ebla.actors.ray_shell import FAILED, dotted
from ebla.actors.ray_world import RayNetwork, remote_class
from ebla.actors.world import decode_answer
from ebla.placement import launch
from ebla.placement.asking import RoleStatus, find_actor, named_actors
from ebla.placement.config import DeploymentConfig
from ebla.placement.connection import disconnect_ray
from ebla.placement.deploy import groups, memory
from ebla.placement.deploy.roles import TABLET_SERVER_ROLE, RoleSpec, plan_roles
from ebla.placement.deploy.slots import Seats
from ebla.placement.local import processes
from ebla.placement.local.cluster import STATE, LocalCluster, LocalClusterError, LocalState
from ebla.storage.errors import InvalidArgument
from tests.cluster.conftest import THREE_HOSTS, Caller, eventually
from tests.cluster.toy import Number, Relay, State, Toy, ToyOptions

pytestmark = pytest.mark.cluster

TOY = dotted(Toy)


def plan(config: DeploymentConfig, seats: Seats, journal: str) -> Sequence[RoleSpec]:
    """Place the masters and journal nodes of ebla, and a toy in place of each tablet server."""
    real = [spec for spec in plan_roles(config, seats, journal) if spec.role != TABLET_SERVER_ROLE]
    return real + [RoleSpec(f"toy/{slot}", slot, TOY, ToyOptions(), "toy") for slot in seats.tablet_servers]


@pytest.fixture(scope="module")
def call(config: DeploymentConfig) -> Caller:
    return Caller(config.namespace)


def pids(report: launch.UpReport) -> dict[str, int | None]:
    return {role.address: role.pid for role in report.roles}


def alive_nodes() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def role(name: str, address: str) -> RoleStatus:
    return next(role for role in launch.status(name).roles if role.address == address)


# -- up ------------------------------------------------------------------------------------------------------


def test_up_names_the_hosts_whose_workers_do_not_answer(
    cluster: LocalCluster, config: DeploymentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "TASKS_S", 0.0)
    with pytest.raises(Unavailable, match=r"no worker process of Ray answered .* on host-1, host-2, host-3"):
        launch.up(config, plan=plan)


def test_up_places_every_role_on_its_host(
    cluster: LocalCluster, config: DeploymentConfig, call: Caller
) -> None:
    report = launch.up(config, plan=plan)
    assert report.ready, report.warnings
    assert report.warnings == ()
    assert set(report.launched) == {"master/0", "toy/host-1", "toy/host-2", "toy/host-3"}
    nodes = {node["Labels"]["ebla.slot"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    assert {role.address: role.node_id for role in report.roles if role.address.startswith("toy")} == {
        f"toy/{slot}": nodes[slot] for slot in THREE_HOSTS
    }
    assert report.groups == {"ebla-test-1": ("host-1", "host-2", "host-3")}
    for slot in THREE_HOSTS:
        assert call(f"toy/{slot}", "add", Number(5), Number) == Number(5)
        assert (Path(config.data_dir) / slot / "toy" / "instance").exists()


def test_up_again_changes_nothing(cluster: LocalCluster, config: DeploymentConfig) -> None:
    first, second = launch.up(config, plan=plan), launch.up(config, plan=plan)
    assert first.launched == second.launched == ()
    assert pids(first) == pids(second)
    assert [group.name for group in groups.present("test")] == ["ebla-test-1"]


def test_up_launches_only_what_is_missing(
    cluster: LocalCluster, config: DeploymentConfig, call: Caller
) -> None:
    before = launch.up(config, plan=plan)
    ray.kill(find_actor(config.namespace, "toy/host-2"), no_restart=True)
    eventually(lambda: "toy/host-2" not in named_actors(config.namespace), "Ray forgets the actor")
    report = launch.up(config, plan=plan)
    assert report.launched == ("toy/host-2",) and report.ready
    old, new = pids(before), pids(report)
    assert [address for address in old if old[address] != new[address]] == ["toy/host-2"]
    # The cached handle of the old actor fails once, and is then replaced.
    with pytest.raises(OutcomeUnknown):
        call("toy/host-2", "show", Empty(), State)
    assert call("toy/host-2", "show", Empty(), State).count == 5


# -- calls ---------------------------------------------------------------------------------------------------


def test_typed_errors_of_a_role_reach_the_caller(cluster: LocalCluster, call: Caller) -> None:
    with pytest.raises(Throttled, match="hands are full") as caught:
        call("toy/host-1", "refuse", Empty(), Empty)
    assert (caught.value.limit, caught.value.retry_after_s) == ("hands", 0.5)
    with pytest.raises(Internal, match="a defect of the toy"):
        call("toy/host-1", "stumble", Empty(), Empty)
    with pytest.raises(InvalidArgument, match="has no method 'dance'"):
        call("toy/host-1", "dance", Empty(), Empty)
    with pytest.raises(InvalidArgument, match="malformed add request"):
        asyncio.run(_raw(call.network, "toy/host-1", "add", b"\xc1"))


async def _raw(network: RayNetwork, address: str, method: str, data: bytes) -> Number:
    return decode_answer(await network.call_raw(address, method, data, 10.0), Number)


def test_roles_call_roles(cluster: LocalCluster, call: Caller) -> None:
    others = Relay(("toy/host-2", "toy/host-3"))
    assert call("toy/host-1", "relay", others, Number) == Number(2)


def test_an_unknown_address_is_not_delivered(cluster: LocalCluster, call: Caller) -> None:
    with pytest.raises(NotDelivered, match="toy/none was not found"):
        call("toy/none", "echo", Number(1), Number)


def test_a_call_that_times_out_has_an_unknown_outcome(cluster: LocalCluster, call: Caller) -> None:
    with pytest.raises(OutcomeUnknown, match=r"did not answer hang within 0\.2 s"):
        call("toy/host-1", "hang", Empty(), Empty, timeout_s=0.2)


def test_a_call_to_an_actor_that_is_killed_has_an_unknown_outcome(
    cluster: LocalCluster, call: Caller
) -> None:
    pid = role("test", "toy/host-2").pid
    assert pid is not None

    async def kill_in_mid_call() -> None:
        network = RayNetwork("ebla-test")
        waiting = asyncio.ensure_future(network.call("toy/host-2", "hang", Empty(), Empty, 60.0))
        while not (await network.call("toy/host-2", "hanging", Empty(), Number, 10.0)).value:
            pass
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OutcomeUnknown, match="hang at toy/host-2"):
            await waiting

    asyncio.run(kill_in_mid_call())
    assert call.when_back("toy/host-2", "show", Empty(), State).count == 5


@pytest.mark.parametrize("method", ["lose_disk", "fail_beside"])
def test_a_failed_role_restarts_from_its_disk(cluster: LocalCluster, call: Caller, method: str) -> None:
    before = call.when_back("toy/host-3", "show", Empty(), State)
    try:
        call("toy/host-3", method, Empty(), Empty)
    except OutcomeUnknown:
        pass  # the process may end before it sends the answer
    after = eventually(
        lambda: (now := call.when_back("toy/host-3", "show", Empty(), State)).seqno > before.seqno and now,
        "a new incarnation answers",
    )
    assert (after.uuid, after.count) == (before.uuid, before.count)
    assert role("test", "toy/host-3").restarted


def test_a_second_incarnation_is_refused_while_the_first_lives(
    cluster: LocalCluster, config: DeploymentConfig, call: Caller
) -> None:
    """Ray can run two incarnations of one actor; the lock of the directory allows one."""
    spec = RoleSpec("zombie/host-1", "host-1", TOY, ToyOptions(), "toy")
    held = call("toy/host-1", "show", Empty(), State)
    options = {"name": spec.address, "namespace": config.namespace, "label_selector": {"ebla.slot": "host-1"}}
    second = remote_class(Toy).options(**options).remote(msgspec.msgpack.encode(spec.assignment(config)))
    eventually(
        lambda: "DirectoryLocked" in (role("test", spec.address).error or ""), "the second finds the lock"
    )
    with pytest.raises(NotRunning, match="never run two"):
        call(spec.address, "add", Number(1), Number)
    assert call("toy/host-1", "show", Empty(), State) == held
    ray.kill(second, no_restart=True)


# -- death and return ----------------------------------------------------------------------------------------


def test_a_role_returns_with_its_host(cluster: LocalCluster, config: DeploymentConfig, call: Caller) -> None:
    before = launch.up(config, plan=plan)
    state = call.when_back("toy/host-3", "show", Empty(), State)
    alive = alive_nodes()
    cluster.kill_node(3)
    eventually(lambda: alive_nodes() == alive - 1, "Ray declares the node dead")
    away = launch.up(config, plan=plan)
    assert [role.address for role in away.roles if role.state == "away"] == ["toy/host-3"]
    assert away.launched == () and "slot host-3 has no alive node" in away.warnings[0]
    assert call("toy/host-2", "show", Empty(), State).count == 5

    cluster.start_node(3)
    back = call.when_back("toy/host-3", "show", Empty(), State)
    assert (back.uuid, back.count) == (state.uuid, state.count) and back.seqno > state.seqno
    after = launch.up(config, plan=plan)
    assert after.launched == () and after.ready
    old, new = pids(before), pids(after)
    assert [address for address in old if old[address] != new[address]] == ["toy/host-3"]


def test_down_leaves_only_the_data_and_up_uses_it(
    cluster: LocalCluster, config: DeploymentConfig, call: Caller
) -> None:
    report = launch.down("test")
    assert report.killed == () and len(report.stopped) == 4 and report.data_dirs == (config.data_dir,)
    assert named_actors(config.namespace) == [] and groups.present("test") == []
    assert launch.status("test").roles == ()
    instance = Path(config.data_dir) / "host-2" / "toy" / "instance"
    instance.rename(instance.with_name("away"))
    damaged = launch.up(config, plan=plan)
    assert len(damaged.launched) == 4 and role("test", "toy/host-2").state == FAILED
    instance.with_name("away").rename(instance)
    again = launch.up(config, plan=plan)
    assert again.launched == ("toy/host-2",) and again.ready, "a role that could not start is started again"
    assert call.when_back("toy/host-1", "show", Empty(), State).count == 5


def test_a_cluster_that_is_killed_leaves_nothing_behind(cluster: LocalCluster) -> None:
    """The last test on the shared cluster. test_cli.py starts a new cluster on old data."""
    marks = [processes.mark_of(cluster.state.cluster, number) for number in cluster.state.nodes]
    disconnect_ray()
    cluster.kill_everything()
    assert processes.belonging(marks) == []
    assert not Path(cluster.state.temporary).exists()
    assert LocalCluster.find(cluster.directory) is None


# -- interrupted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_start_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C the process itself cleans up; after a kill another process does, from the record."""
    script = (
        "import sys; from pathlib import Path; from ebla.placement.local.cluster import LocalCluster; "
        "LocalCluster.start(3, directory=Path(sys.argv[1]), auth='disabled')"
    )
    starting = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    state_file = tmp_path / STATE

    def under_way() -> LocalState | None:
        assert starting.poll() is None, "the start has ended"
        state = msgspec.json.decode(state_file.read_bytes(), type=LocalState) if state_file.exists() else None
        return state if state and state.nodes and _runs(state, "gcs_server") else None

    state = eventually(under_way, "the head is being started")
    starting.send_signal(number)
    _, printed = starting.communicate(timeout=600)
    if number == signal.SIGKILL:
        with pytest.raises(LocalClusterError, match="runs only in part"):
            LocalCluster.attach(tmp_path)
        left = LocalCluster.find(tmp_path)
        assert left is not None and not left.running
        left.stop()
    else:
        assert "KeyboardInterrupt" in printed
    marks = [processes.mark_of(state.cluster, number) for number in (1, 2, 3)]
    assert processes.belonging(marks, [node.launcher for node in state.nodes.values()]) == []
    assert not state_file.exists() and not Path(state.temporary).exists()


def _runs(state: LocalState, name: str) -> bool:
    running = processes.belonging([processes.mark_of(state.cluster, 1)])
    return any(name in process.name for process in processes.record_all(running))
