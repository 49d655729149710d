"""`ebla up`, `down` and `status` without a cluster: settings, data directories and messages."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import structs

from ebla.cli.data.sources import reader_options
from ebla.cli.frame import places
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Common, Ui
from ebla.cli.nodes import deployment
from ebla.cli.nodes.again import directories, up_command
from ebla.cli.nodes.deployment import _configured, _down_parts, _role_count, _up_parts
from ebla.cli.nodes.local import exposure
from ebla.errors import NoCluster
from ebla.placement import state
from ebla.placement.asking import RoleStatus
from ebla.placement.config import DeploymentConfig
from ebla.placement.connection import REMEDY, choose, local_directory
from ebla.placement.deploy.slots import Survey
from ebla.placement.launch import DownReport, StatusReport, UpReport, _troubles
from ebla.placement.local.cluster import LocalCluster, LocalClusterError, LocalState
from ebla.placement.local.node import Auth, NodeSettings
from ebla.placement.state import Deployment
from tests.cli.stage import Act, Cli, Stage, invoke


def configured(
    name: str | None = None,
    file: Path | None = None,
    data_dir: str | None = None,
    slots: list[str] | None = None,
    assigned: list[str] | None = None,
    masters: int | None = None,
    journals: int | None = None,
) -> DeploymentConfig:
    flags = {"data_dir": data_dir, "slots": slots, "masters": masters, "journals": journals}
    return _configured(Ui(Common(name=name)), file, flags, assigned)[1]


def test_by_default_everything_is_under_the_home_directory(home: Path) -> None:
    assert configured().data_dir == str(home / ".ebla" / "ebla")
    assert configured(name="other").data_dir == str(home / ".ebla" / "other")


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ebla.yaml"
    file.write_text(
        "name: a\ndata_dir: /x\nslots: [h1]\ntablet_server: {memtable_bytes: 1000, heartbeat_s: 2.0}\n"
    )
    found = configured(file=file, data_dir="/y", assigned=["tablet_server.memtable_bytes=2000", "masters=1"])
    assert (found.name, found.data_dir, found.slots) == ("a", "/y", ("h1",))
    assert found.tablet_server == {"memtable_bytes": 2000, "heartbeat_s": 2.0}
    assert configured(name="b", file=file, slots=["h2", "h3"]).slots == ("h2", "h3")
    several = configured(file=file, slots=["h1", "h2", "h3"], masters=2, journals=3)
    assert (several.masters, several.journals) == (2, 3)


def test_earlier_settings_remain_until_they_are_set_again(tmp_path: Path) -> None:
    first = configured(data_dir=str(tmp_path / "d"), assigned=["tablet_server.heartbeat_s=2.0"])
    state.save(first.data_dir, state.encode(Deployment(uuid="u", revision=1, config=first)))
    again = configured(data_dir=str(tmp_path / "d"), assigned=["tablet_server.memtable_bytes=1000"])
    assert again.tablet_server == {"heartbeat_s": 2.0, "memtable_bytes": 1000}


def test_the_data_directory_of_the_last_up_is_found_again(tmp_path: Path) -> None:
    places.remember("ebla", "/elsewhere")
    places.remember("other", "/somewhere")
    assert (configured().data_dir, configured(name="other").data_dir) == ("/elsewhere", "/somewhere")
    assert configured(data_dir="/third").data_dir == "/third"


def test_an_unreadable_record_of_data_directories_is_replaced(home: Path) -> None:
    places.remember("ebla", "/elsewhere")
    (home / ".ebla" / "data-dirs.json").write_text("{")
    assert places.known() == {}
    places.remember("ebla", "/elsewhere")
    assert places.known() == {"ebla": "/elsewhere"}


def test_commands_that_remember_at_the_same_time_keep_each_others_entries(home: Path) -> None:
    places.remember("first", "/1")
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        list(pool.map(places.remember, [f"n{number}" for number in range(200)], ["/d"] * 200))
    assert len(places.known()) == 201


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("masters", "not key=value"),
        ("a.b.c=1", "not key=value"),
        ("=1", "not key=value"),
        ("masters=[", "is not YAML"),
        ("name.x=1", "not a table of settings"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(Usage, match=words):
        configured(assigned=["name=a", text])


def test_an_unknown_setting_gets_a_suggestion(ebla: Cli) -> None:
    ebla("up --set mastres=1").require(2, "did you mean masters")


def test_after_a_failed_up_local_every_command_names_the_failure_until_down(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command connects to another Ray cluster of the machine."""

    def fails(*given: object, **more: object) -> None:
        raise LocalClusterError("node 2 was not up after 120 s; see its log")

    monkeypatch.setattr(LocalCluster, "start", fails)
    assert "node 2 was not up" in invoke("up", "--local", "4").err
    for words in (("status",), ("check",), ("tablet", "list"), ("up",)):
        invoke(*words).require(1, "of 4 nodes did not come up (node 2 was not up")
    down = invoke("down", "--yes")
    assert (down.status, "deployment ebla was not up" in down.out) == (0, True), down.err
    assert choose(None, local_directory())[1] == "auto"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--local 100", "nodes must be between 1 and 64"),
        ("--local 1 --auth foo", "auth must be token or disabled"),
        ("--local 1 --address 127.0.0.1:1", "leave out --address"),
        ("--local 2 --slot host-9", "none of 2 local nodes has a slot of host-9; they have host-1, host-2"),
    ],
)
def test_a_refused_up_local_is_no_failed_start(home: Path, words: str, problem: str) -> None:
    invoke("up", *words.split()).require(2, problem)
    assert choose(None, local_directory())[1] == "auto", "later commands find another Ray cluster"


def test_a_data_directory_that_cannot_be_used_is_refused_in_a_sentence_before_anything_is_started(
    home: Path,
) -> None:
    (home / "file").write_text("")
    for place in (f"{home}/file", "/proc/nothing"):
        refused = invoke("up", "--local", "2", "--data-dir", place)
        refused.require(1, place)
        assert "next: name a place" in refused.err and "Traceback" not in refused.err
        assert len(refused.err.splitlines()) == 2


def test_another_authentication_than_that_of_the_running_local_cluster_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = SimpleNamespace(mode="disabled")
    running = SimpleNamespace(
        running=True, slots=["host-1"] * 3, state=SimpleNamespace(settings=SimpleNamespace(auth=auth))
    )
    monkeypatch.setattr(LocalCluster, "find", lambda *given: running)
    refused = invoke("up", "--local", "3", "--auth", "token")
    refused.require(1, "the local cluster that runs has --auth disabled, not token")
    assert "`ebla down`, then `ebla up --local 3 --auth token`" in refused.err


def test_the_command_that_starts_a_deployment_again_is_remembered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a stop, when the state of the local cluster is gone."""

    def nowhere(address: str | None) -> str:
        raise NoCluster(f"no Ray cluster runs on this machine: {REMEDY}")

    monkeypatch.setattr("ebla.placement.connection.connect_ray", nowhere)
    assert REMEDY in invoke("status").message
    command = "ebla up --local 3 --auth disabled"
    places.remember_up("ebla", command)
    for words in (("status",), ("table", "list"), ("feed", __file__, "t", "-f", "csv", "-q")):
        assert invoke(*words).message == (
            f"ebla: no Ray cluster runs on this machine: `{command}` starts deployment ebla again"
        )
    assert command in invoke("down", "-y").out
    assert invoke("down", "-y", "--json").json["up_command"] == command
    assert "--local 4" in invoke("status", "--name", "other").message


def test_an_up_remembers_its_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "reach", lambda ui: "127.0.0.1:6379")
    monkeypatch.setattr(deployment, "exposure", lambda cluster, address: [])
    given: list[object] = []

    def up(settings: object, **more: object) -> UpReport:
        given.append(settings)
        return structs.replace(report((), ("master/0",)), data_dir=data)

    monkeypatch.setattr("ebla.placement.launch.up", up)
    data = str(home / "d")
    assert invoke("up", "--data-dir", data).status == 0
    assert given == [{"name": "ebla", "data_dir": data}], "all others stay as they are saved"
    assert places.up_command("ebla") == f"ebla up --data-dir {data}"
    (home / ".ebla" / "data-dirs.json").unlink()
    assert invoke("up").status == 0
    assert given[1] == {"name": "ebla"}, "roles that run know their directory"
    assert places.known() == {"ebla": data}


def role(address: str, state: str = "running", error: str | None = None) -> RoleStatus:
    return RoleStatus(address, address.partition("/")[2], state, error=error)


MASTER, SERVER = role("master/0"), role("tablet-server/a")
DAMAGED = role("tablet-server/a", "failed", "damaged")
BOTH = "1 master, 1 tablet server"


def report(launched: tuple[str, ...], adopted: tuple[str, ...], server: RoleStatus = SERVER) -> UpReport:
    return UpReport("ebla", "ebla-ebla", "/data", launched, adopted, (MASTER, server), {}, ())


@pytest.mark.parametrize(
    ("outcome", "started", "words"),
    [
        (report((), ("master/0",)), [], f"nothing changed: deployment ebla is up already ({BOTH})"),
        (report(("master/0", "tablet-server/a"), ()), [], f"deployment ebla is up: {BOTH}"),
        (
            report(("tablet-server/a",), ("master/0",)),
            [],
            f"deployment ebla is up: {BOTH}; launched tablet-server/a",
        ),
        (
            report((), ("master/0",), DAMAGED),
            ["host-2"],
            "deployment ebla is up only in part (1 master running); started again: host-2",
        ),
    ],
)
def test_up_says_what_it_did(outcome: UpReport, started: list[str], words: str) -> None:
    assert _up_parts(outcome, "127.0.0.1:6379", None, started)[0] == words


def test_up_prints_each_setting_for_rays_commands_in_a_line_of_its_own() -> None:
    settings = {"RAY_ADDRESS": "127.0.1.1:6379", "RAY_AUTH_TOKEN_PATH": "/a b/auth_token"}
    local = SimpleNamespace(
        slots=("host-1",), state=SimpleNamespace(dashboard_url=None), environment=lambda: settings
    )
    fresh = report(("master/0",), (), MASTER)
    assert _up_parts(fresh, "127.0.1.1:6379", cast(LocalCluster, local), ["host-1"])[-2:] == [
        "  export RAY_ADDRESS=127.0.1.1:6379",
        "  export RAY_AUTH_TOKEN_PATH='/a b/auth_token'",
    ]


def test_up_warns_of_a_cluster_that_others_can_use_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["10.1.2.3", "172.17.0.1"]
    monkeypatch.setattr("ebla.placement.connection.exposed_at", lambda address: addresses)
    local = SimpleNamespace(slots=("host-1", "host-2"))
    (warning,) = exposure(cast(LocalCluster, local), "127.0.1.1:6379")
    assert "10.1.2.3, 172.17.0.1" in warning and "`ebla up --local 2 --auth token`" in warning
    (warning,) = exposure(None, "10.1.2.3:6379")
    assert "--local" not in warning and "RAY_AUTH_MODE=token" in warning
    addresses.clear()
    assert exposure(None, "10.1.2.3:6379") == []


def test_up_names_each_trouble_once_and_counts_the_roles_that_run() -> None:
    why = "slot host-2 has no alive node; the role comes back when a node with this label joins"
    away = tuple(role(f"{kind}/host-2", "away", why) for kind in ("tablet-server", "ledger-store"))
    roles = (role("master/0"), role("tablet-server/host-1"), *away)
    (trouble,) = _troubles(roles)
    assert trouble == f"tablet-server/host-2, ledger-store/host-2 are away: {why}"
    report = UpReport("x", "ebla-x", "/data", (), ("master/0",), roles, {}, (trouble,))
    head, *_, table = _up_parts(report, "127.0.0.1:6379", None, [])
    assert head == "deployment x is up only in part (1 master, 1 tablet server running)"
    assert [column.header for column in table.columns] == ["ROLE", "HOST", "STATE", "PID", "UP FOR"]


def test_down_says_what_it_did_and_where_the_data_is() -> None:
    gone = DownReport("ebla", ("master/0",), ("tablet-server/a",), (), ("/data",))
    assert _down_parts("ebla", gone, True, [], gone.data_dirs, "ebla up --local 4") == [
        "deployment ebla is down: 1 role stopped, tablet-server/a had to be ended",
        "the local Ray cluster has ended",
        "the data stays in /data on every host; this starts it again:",
        "  ebla up --local 4",
    ]
    assert _down_parts("x", None, False, [], (), None) == [
        "deployment x was not up: no local Ray cluster runs",
        "it has no data here; `ebla up --local 4` starts it on this machine",
    ]


def test_down_names_the_directory_that_the_roles_said_and_not_that_of_the_user_who_ends_them(
    home: Path,
) -> None:
    places.remember("ebla", "/mine")
    theirs, both = (DownReport("ebla", ("master/0",), (), (), dirs) for dirs in (("/theirs",), ("/a", "/b")))
    assert directories("ebla", theirs) == ("/theirs",)
    assert "roles had data in /a and /b; with the right one as DIR" in str(
        _down_parts("ebla", both, False, [], directories("ebla", both), "ebla up --data-dir DIR")
    )
    silent = structs.replace(theirs, data_dirs=())
    assert directories("ebla", silent) == ("/mine",)
    (home / ".ebla" / "other").mkdir()
    assert directories("other", silent) == (), "an `ebla up` elsewhere has not used the default directory"
    assert directories("other", None) == (str(home / ".ebla" / "other"),)
    assert "no role said where" in str(_down_parts("other", silent, False, [], (), "ebla up --data-dir DIR"))


@pytest.mark.parametrize(
    ("cpus", "dashboard", "options"),
    [(4, True, ""), (2, True, " --cpus 2"), (4, False, " --no-dashboard")],
)
def test_the_command_that_starts_a_local_deployment_again_has_its_options(
    home: Path, tmp_path: Path, cpus: int, dashboard: bool, options: str
) -> None:
    default = str(home / ".ebla" / "ebla")
    settings = NodeSettings(cpus, 1 << 28, dashboard, Auth("token", "/secret"))
    local = LocalCluster(tmp_path, LocalState("c", settings, str(tmp_path), size=3))
    assert up_command("ebla", None, local, default) == f"ebla up --local 3 --auth token{options}"
    assert up_command("ebla", None, local, "/fast disk").endswith(f"{options} --data-dir '/fast disk'")
    assert up_command("ebla", None, local, None).endswith(f"{options} --data-dir DIR")
    places.remember("ebla", "/fast disk")
    named = f"{options} --data-dir {default}"
    assert up_command("ebla", None, local, default).endswith(named), "`ebla up` would take the other one"
    (tmp_path / "auth_token").write_text("secret")
    assert " --auth token" in up_command("ebla", None, local, default), "also where a token is the default"
    assert (
        up_command("a b", "10.0.0.1:6379", None, str(home / ".ebla" / "a b"))
        == "ebla up --address 10.0.0.1:6379 --name 'a b'"
    )


def test_the_command_that_starts_a_local_deployment_again_names_disabled_only_beside_a_token(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    local = LocalCluster(
        home, LocalState("c", NodeSettings(4, 1 << 28, True, Auth("disabled")), str(home), size=3)
    )
    default = str(home / ".ebla" / "ebla")
    assert up_command("ebla", None, local, default) == "ebla up --local 3"
    (home / "auth_token").write_text("secret")
    assert up_command("ebla", None, local, default) == "ebla up --local 3 --auth disabled"


async def server_down(stage: Stage) -> None:
    await stage.table()
    stage.cluster.crash("tablet-server/host-c")


@pytest.mark.parametrize(("prepare", "ends"), [(None, 0), (server_down, 1)])
def test_status_ends_with_1_if_not_healthy_and_names_each_trouble_once(
    ebla: Cli, monkeypatch: pytest.MonkeyPatch, prepare: Act | None, ends: int
) -> None:
    why = "its process restarts, or its host cannot be reached"
    last = role("tablet-server/host-c", "unreachable", why) if ends else role("tablet-server/host-c")
    roles = [role("master/0"), last]
    report = StatusReport("ebla", "ebla-ebla", Survey((), ()), {}, tuple(roles))
    monkeypatch.setattr("ebla.cli.nodes.deployment.reach", lambda ui: "127.0.0.1:6379")
    monkeypatch.setattr("ebla.placement.launch.status", lambda name: report)
    shown = ebla("status", prepare=prepare)
    assert shown.status == ends
    assert all(len(line) <= 80 for line in shown.lines)
    if ends:
        assert shown.lines[2].split() == ["ROLE", "HOST", "STATE", "PID", "UP", "FOR"]
        assert shown.out.count("tablet-server/host-c is UNREACHABLE") == 1
        assert "flights 2 UNDER_REPLICATED 2 3" in shown.text and "next: bring the host back" in shown.text


def test_without_a_terminal_down_needs_the_flag_yes(ebla: Cli) -> None:
    outcome = ebla("down --json")
    assert (outcome.status, outcome.json["error"]["kind"]) == (1, "Refused")


def test_reader_options_are_pairs() -> None:
    assert reader_options(["sep=;", "x=a=b"]) == {"sep": ";", "x": "a=b"}
    with pytest.raises(Usage, match="not key=value"):
        reader_options(["sep"])


@pytest.mark.parametrize(
    ("source", "words"),
    [("flight", "did you mean 'flights'?"), ("/nowhere/x.csv", "there is no file /nowhere/x.csv")],
)
def test_a_missing_source_is_refused_before_spark_starts(ebla: Cli, source: str, words: str) -> None:
    for verb in ("feed", "verify"):
        ebla(f"{verb} {source} t").require(2, words)


def test_the_journal_node_in_the_process_of_a_master_is_counted() -> None:
    def shown(*addresses: str) -> str:
        return _role_count([role(each) for each in addresses])

    assert shown("master/0", "tablet-server/a") == "1 master, 1 tablet server"
    assert shown("master/0", "master/1", "journal/1", "journal/2") == "2 masters, 3 journal nodes"
    assert shown("master/0", "journal/0", "journal/1", "journal/2") == "1 master, 3 journal nodes"
