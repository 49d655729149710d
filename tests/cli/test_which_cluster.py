"""The Ray cluster that `ebla up` and `down` mean, while a local one runs and another is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebla.cli.frame import places
from ebla.cli.nodes import deployment
from ebla.placement.connection import choose, local_directory
from ebla.placement.launch import DownReport
from ebla.placement.local.cluster import LocalCluster, LocalState
from ebla.placement.local.node import Auth, NodeSettings
from tests.cli.stage import invoke
from tests.cli.test_deployment import report

HERE, ELSEWHERE = "127.0.1.1:1111", "10.9.9.9:6379"
DATA = "/theirs"  # of the deployment that another user has started


@pytest.fixture
def acts(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What commands do while a local cluster runs at HERE, and another one at ELSEWHERE."""
    found: list[str] = []
    settings = NodeSettings(4, 1 << 28, True, Auth("disabled"))
    local = LocalCluster(home, LocalState("c", settings, str(home), {}, 4, HERE, None, True))
    monkeypatch.setattr(LocalCluster, "running", property(lambda self: True))
    monkeypatch.setattr(LocalCluster, "find", lambda *given: local)
    monkeypatch.setattr(LocalCluster, "stop", lambda self: found.append("the local cluster ends"))
    monkeypatch.setattr(
        LocalCluster, "slots", property(lambda self: tuple(f"host-{number}" for number in range(1, 5)))
    )

    def connect(address: str | None) -> str:
        target = choose(address, local_directory())[1]
        found.append(f"connects to {target}")
        return target

    def down(name: str, **more: object) -> DownReport:
        found.append("the deployment stops")
        return DownReport(name, ("master/0",), (), (), (DATA,))

    monkeypatch.setattr("ebla.placement.connection.connect_ray", connect)
    monkeypatch.setattr("ebla.placement.launch.down", down)
    monkeypatch.setattr("ebla.placement.launch.up", lambda *given, **more: report((), ("master/0",)))
    monkeypatch.setattr("ray.util.list_named_actors", lambda all_namespaces: [])
    monkeypatch.setattr(deployment, "exposure", lambda cluster, address: [])
    return found


STOPS, ENDS = "the deployment stops", "the local cluster ends"


@pytest.mark.parametrize(
    ("address", "done"),
    [
        (None, [f"connects to {HERE}", STOPS, ENDS]),
        (HERE, [f"connects to {HERE}", STOPS, ENDS]),
        (ELSEWHERE, [f"connects to {ELSEWHERE}", STOPS]),
    ],
)
@pytest.mark.parametrize("by_flag", [True, False])
def test_down_ends_the_local_cluster_only_if_the_deployment_is_there(
    acts: list[str], monkeypatch: pytest.MonkeyPatch, address: str | None, done: list[str], by_flag: bool
) -> None:
    if address is not None and not by_flag:
        monkeypatch.setenv("RAY_ADDRESS", address)
    flags = ("--address", address) if address is not None and by_flag else ()
    ended = invoke("down", "-y", "--json", *flags)
    assert (ended.status, acts) == (0, done), ended.err
    assert ended.json["local_cluster_ended"] == (ENDS in done)
    again = "ebla up --local 4" if ENDS in done else "ebla up" + "".join(f" {word}" for word in flags)
    assert (ended.json["data_dir"], ended.json["up_command"]) == (DATA, f"{again} --data-dir {DATA}")


def test_up_local_is_refused_before_it_starts_anything_if_commands_would_go_elsewhere(
    acts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ELSEWHERE)
    refused = invoke("up", "--local", "4")
    refused.require(2, f"RAY_ADDRESS names {ELSEWHERE}")
    assert "`unset RAY_ADDRESS`" in refused.err and acts == []
    monkeypatch.setenv("RAY_ADDRESS", HERE)
    monkeypatch.setattr(LocalCluster, "alive", lambda self, number: True)
    assert invoke("up", "--local", "4").status == 0 and acts == [f"connects to {HERE}"]


def test_an_up_elsewhere_shows_and_remembers_nothing_of_the_local_cluster(acts: list[str]) -> None:
    done = invoke("up", "--address", ELSEWHERE, "--json")
    assert (done.status, done.json["local"]) == (0, None), done.err
    assert places.up_command("ebla") == f"ebla up --address {ELSEWHERE} --data-dir /data"


def test_down_leaves_a_local_cluster_in_which_another_deployment_runs(
    acts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that this user's `ebla up` has not started; what feeds and Spark sessions leave there is no deployment."""
    actors = [("ebla-theirs", "master/0"), ("ebla-theirs", "auditor/0"), ("ebla-feeds", "count"), ("x", "a")]
    entries = [{"namespace": namespace, "name": name} for namespace, name in actors]
    monkeypatch.setattr("ray.util.list_named_actors", lambda all_namespaces: entries)
    kept = invoke("down", "-y")
    assert "the local Ray cluster continues: theirs still runs in it" in kept.out and ENDS not in acts
