"""`ebla master`, `journal`, `check` and `metrics` with two masters and three journal nodes."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ebla import figure_docs
from ebla.actors.journal import records
from ebla.actors.journal.messages import Done, RejoinRequest
from ebla.cli.frame import connection as seam
from ebla.cli.frame.ui import Common, Ui
from ebla.operate.cluster import Cluster
from ebla.storage.environment import Put
from tests.cli.stage import SERVERS, STORES, Act, Cli, LogStage, repaired, start_with_logs, terminal
from tests.master.group_stage import GroupStage


async def a_table(stage: GroupStage) -> None:
    await stage.create("flights", buckets=2)
    await stage.running("flights")


async def one_master_down(stage: GroupStage) -> None:
    stage.cluster.crash(stage.other(await stage.ready()))


async def no_master_up(stage: GroupStage) -> None:
    for master in stage.masters:
        stage.cluster.crash(master)


async def one_node_down(stage: GroupStage) -> None:
    await a_table(stage)
    stage.cluster.crash("journal/1")


async def no_majority(stage: GroupStage) -> None:
    for node in stage.journals[1:]:
        stage.cluster.crash(node)
    await stage.until(lambda: not stage.serving())


async def standby_cut(stage: GroupStage) -> None:
    """The standby answers, and cannot read the journal."""
    standby = stage.other(await stage.ready())
    for node in stage.journals:
        stage.cluster.network.cut(standby, node)
    await stage.until(lambda: stage.role(standby).standby.read_error != "")


# -- masters -------------------------------------------------------------------------------------------------


def test_master_list_shows_the_active_master_and_the_lag_of_the_standby(several: Cli) -> None:
    found = several("master list --json", prepare=a_table).json["masters"]
    assert [each["address"] for each in found] == ["master/0", "master/1"]
    active = next(each for each in found if each["role"] == "active")
    standby = next(each for each in found if each["role"] == "standby")
    assert active["epoch"] == 1 and active["lag"] == 0 and active["txid"] > 3
    assert standby["epoch"] is None and standby["txid"] + standby["lag"] == active["txid"]
    shown = several("master list")
    assert [line.split()[0] for line in shown.lines] == ["MASTER", "master/0", "master/1"]


def test_a_master_without_an_answer_is_listed_with_the_reason(several: Cli) -> None:
    outcome = several("master list", prepare=one_master_down)
    line = next(line for line in outcome.lines if "UNREACHABLE" in line)
    assert line.startswith("master/") and line.split("UNREACHABLE")[1].strip("- ")


def test_a_standby_that_cannot_take_over_is_listed_with_the_reason(several: Cli) -> None:
    found = several("master list --json", prepare=standby_cut).json["masters"]
    errors = {each["role"]: each["error"] for each in found}
    assert errors["active"] is None and errors["standby"].startswith("it could not take over: ")


def test_masters_are_listed_as_standbys_while_none_is_active(several: Cli) -> None:
    found = several("master list --json", prepare=no_majority).json["masters"]
    assert [each["role"] for each in found] == ["standby", "standby"]
    assert several("check", prepare=no_majority).lines[0].startswith("UNAVAILABLE: tables not known, 3 of 3")


def test_a_failover_names_the_new_active_master_and_its_duration(several: Cli) -> None:
    async def after(stage: GroupStage) -> int:
        await stage.until(lambda: len(stage.served) > 1 and stage.served[-2] != stage.served[-1])
        return len(stage.serving())

    done = several("master failover --json", prepare=a_table, after=after)
    assert ({done.json["before"], done.json["active"]}, done.seen) == ({"master/0", "master/1"}, 1)
    assert done.json["seconds"] >= 0
    assert "is the active master now, after" in several("master failover").out


def test_a_failover_to_an_unknown_or_the_active_master_is_refused(several: Cli) -> None:
    several("master failover --to master/7").require(1, "the masters are master/0, master/1")
    found = several("master list --json").json["masters"]
    already = next(each["address"] for each in found if each["role"] == "active")
    several(f"master failover --to {already}").require(1, "is the active master already")


def test_a_failover_without_a_standby_says_so(several: Cli, ebla: Cli) -> None:
    several("master failover", prepare=one_master_down).require(1, "no standby answers")
    several("master failover", prepare=no_master_up).require(1, "no master is active now")
    ebla("master failover").require(1, "`ebla up --masters 2`")


@pytest.mark.parametrize("words", [("coord", "ls"), ("table", "list")])
def test_a_command_without_an_active_master_says_so_once(several: Cli, words: tuple[str, ...]) -> None:
    outcome = several(*words, prepare=no_majority)
    assert outcome.status == 1 and outcome.err.count("no answer yet (no master is active)") == 1, outcome.err
    assert "no answer yet" not in several(*words, "--json", prepare=no_majority).err
    assert several(*words).err == ""


# -- the journal ---------------------------------------------------------------------------------------------


def test_journal_status_shows_each_node_and_the_writers_view_of_it(several: Cli) -> None:
    document = several("journal status --json", prepare=a_table).json
    assert [node["address"] for node in document["nodes"]] == ["journal/0", "journal/1", "journal/2"]
    assert document["active"] in ("master/0", "master/1")
    assert document["writer"]["epoch"] == 1
    for node in document["nodes"]:
        assert node["status"] == "HEALTHY" and node["journal"]["promised"] == 1
        assert node["writer"]["queue_txns"] == 0 and node["writer"]["out_of_sync"] is False
        assert node["journal"]["last"] == document["writer"]["committed"]
        written = node["journal"]["segments"][-1]
        assert (written["end"], written["epoch"]) == (node["journal"]["last"], 1)
        assert int(written["digest"], 16) and len(written["digest"]) == len(written["before"]) == 16
    assert "nodes" not in document["writer"]
    assert len({tuple(node["journal"]["segments"][-1].values()) for node in document["nodes"]}) == 1


def test_an_unreachable_journal_node_is_shown_with_its_lag(several: Cli) -> None:
    async def away(stage: GroupStage) -> None:
        stage.cluster.crash("journal/1")
        await a_table(stage)

    document = several("journal status --json", prepare=away).json
    node = document["nodes"][1]
    assert (node["status"], node["journal"], node["writer"]["out_of_sync"]) == ("UNREACHABLE", None, True)
    assert node["writer"]["lag_txns"] > 0
    shown = several("journal status", prepare=away)
    line = next(line for line in shown.lines if line.strip().startswith("1 "))
    assert "UNREACHABLE" in line and "out of sync" not in line
    assert any(line.startswith("  journal/1: ") for line in shown.lines)


def test_journal_status_works_without_a_majority(several: Cli) -> None:
    outcome = several("journal status", prepare=no_majority)
    assert outcome.status == 0
    assert any("writer" in line and "no master is active" in line for line in outcome.lines)


async def one_directory_lost(stage: GroupStage) -> None:
    await a_table(stage)
    stage.cluster.crash("journal/1")
    stage.cluster.lose_disk("journal/1")
    await stage.cluster.restart("journal/1")


def test_a_node_that_lost_its_directory_rejoins(several: Cli) -> None:
    missing = several("check", prepare=one_directory_lost).text
    assert "journal/1 is MISSING" in missing and "ebla journal rejoin journal/1" in missing, missing[-300:]
    for node in ("journal/1", "1"):
        again = several(f"journal rejoin {node} --json", prepare=one_directory_lost, after=rejoining)
        assert again.json == {"node": "journal/1", "learned_from": ["journal/0", "journal/2"]}
        assert again.seen == [True]

    async def rejoined(stage: GroupStage) -> None:
        await one_directory_lost(stage)
        await stage.cluster.client_world("operator").network.call(
            "journal/1", "rejoin", RejoinRequest(stage.options.journal.journal, stage.journals), Done, 5.0
        )

    assert several("journal status --json", prepare=rejoined).json["nodes"][1]["status"] == "REJOINING"


def test_a_node_on_an_older_copy_of_its_directory_is_named_with_the_remedy_and_rejoins(several: Cli) -> None:
    async def one_older_copy(stage: GroupStage) -> None:
        await stage.ready()
        copy = stage.cluster.state("journal/1").copy()
        await a_table(stage)
        await asyncio.sleep(1.0)
        stage.cluster.crash("journal/1")
        stage.cluster.put_disk("journal/1", copy)
        await stage.cluster.restart("journal/1")
        await asyncio.sleep(12.0)

    found = several("check", prepare=one_older_copy).text
    assert "journal/1 is FAILED: its directory is an older copy; `ebla journal rejoin journal/1`" in found
    again = several("journal rejoin 1 --json", prepare=one_older_copy, after=rejoining)
    assert again.json == {"node": "journal/1", "learned_from": ["journal/0", "journal/2"]}
    assert again.seen == [True]


def test_the_remedy_of_a_missing_directory_is_shown_before_the_writers_view(several: Cli) -> None:
    async def lost_and_left_out(stage: GroupStage) -> None:
        await one_directory_lost(stage)
        await stage.create("more", buckets=1)

    outcome = several("journal status", prepare=lost_and_left_out)
    assert next(line for line in outcome.lines if line.strip().startswith("1 ")).split()[2] == "MISSING"
    assert any("`ebla journal rejoin journal/1`" in line for line in outcome.lines)


def test_a_healthy_node_that_the_writer_left_out_is_out_of_sync(several: Cli) -> None:
    async def left_out(stage: GroupStage) -> None:
        await a_table(stage)
        active = await stage.ready()
        stage.cluster.network.cut(active, "journal/1")
        await stage.create("more", buckets=1)
        active_term = stage.role(active).active_term
        await stage.until(lambda: active_term.writer_status().nodes[1].out_of_sync)
        stage.cluster.network.mend(active, "journal/1")

    outcome = several("journal status", prepare=left_out)
    assert "out of sync" in next(line for line in outcome.lines if line.strip().startswith("1 "))


async def one_disk_full(stage: GroupStage) -> None:
    await a_table(stage)
    stage.cluster.state("journal/1").fill()
    await stage.create("more", buckets=1)
    await asyncio.sleep(30.0)


def test_a_node_with_a_full_disk_is_not_healthy(several: Cli) -> None:
    checked = several("check --json", prepare=one_disk_full)
    (reason,) = checked.json["reasons"]
    assert (checked.status, checked.json["status"]) == (1, "DISK_FULL")
    assert reason.startswith("journal/1 is DISK_FULL: it takes no edits until space is freed: 0 B of")
    shown = several("journal status", prepare=one_disk_full)
    assert "2 of 3 healthy" in shown.out and "DISK_FULL" in shown.out
    assert "  journal/1: it takes no edits until space is freed: 0 B of 1.0 TiB left under /" in shown.lines
    node = several("journal status --json", prepare=one_disk_full).json["nodes"][1]
    assert node["writer"]["error"].startswith("DiskFull: ")


@pytest.mark.parametrize("epoch", [1, 7])
@pytest.mark.parametrize("serving", [True, False])
def test_a_foreign_journal_node_is_failed_and_the_other_nodes_are_healthy(
    several: Cli, epoch: int, serving: bool
) -> None:
    async def foreign(stage: GroupStage) -> None:
        await a_table(stage)
        (journal,) = stage.cluster.role("journal/0").journals.values()
        form = replace(journal.form, journal=replace(journal.form.journal, id="another"))
        state = replace(journal.view.state, promised=epoch, writer=epoch, committed=5000)
        puts = [records.seal(records.FORMAT_KEY, form), records.seal(records.STATE_KEY, state)]
        await journal._environment.commit([Put(records.STATE, puts)])
        stage.cluster.crash("journal/0")
        await stage.cluster.restart("journal/0")
        await asyncio.sleep(30.0)
        if not serving:
            await no_master_up(stage)

    found = several("check --json", prepare=foreign).json
    nodes = {node["address"]: node for node in found["journals"]}
    assert [nodes[f"journal/{n}"]["status"] for n in range(3)] == ["FAILED", "HEALTHY", "HEALTHY"]
    assert "it holds the journal of another deployment (id another, not " in nodes["journal/0"]["error"]
    head = several("journal status", prepare=foreign).out
    assert "2 of 3 healthy" in head and "(another)" not in head


def rejoining(stage: GroupStage) -> list[bool]:
    node = stage.cluster.role("journal/1")
    return [bool(journal.view.state.token) for journal in node.journals.values()]


def test_an_unknown_or_healthy_node_cannot_rejoin(several: Cli) -> None:
    several("journal rejoin journal/9").require(1, "the nodes are journal/0, journal/1, journal/2")
    several("journal rejoin journal/1").require(1, "only a node that has lost its directory can rejoin")


def test_the_only_node_of_a_journal_is_the_masters(ebla: Cli) -> None:
    (node,) = ebla("journal status --json").json["nodes"]
    assert (node["address"], node["status"]) == ("master/0", "HEALTHY")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_tables_fit_their_terminal(monkeypatch: pytest.MonkeyPatch, several: Cli, columns: int) -> None:
    printed = terminal(monkeypatch, columns)
    several("master list", prepare=a_table)
    several("journal status", prepare=one_node_down)
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    rows = [line for line in lines if line.lstrip().startswith(("master/", "0 ", "1 ", "2 "))]
    assert len(rows) == 5, lines
    assert all(len(line) <= columns for line in lines)


# -- check ---------------------------------------------------------------------------------------------------


def test_check_covers_masters_and_journal_nodes(several: Cli) -> None:
    well = several("check", prepare=a_table)
    assert well.status == 0
    assert well.lines[-2].endswith("3 of 3 servers up, 2 of 2 masters,")
    assert well.lines[-1] == "  3 of 3 journal nodes"


@pytest.mark.parametrize(
    ("prepare", "status", "words"),
    [
        (one_master_down, "DEGRADED", "no standby could take over"),
        (standby_cut, "DEGRADED", "no standby could take over"),
        (standby_cut, "DEGRADED", "it could not take over: "),
        (one_node_down, "DEGRADED", "journal/1 is UNREACHABLE"),
        (no_majority, "UNAVAILABLE", "1 of 3 journal nodes take edits, no majority"),
        (no_majority, "UNAVAILABLE", "no master is active"),
        (no_master_up, "UNAVAILABLE", "master/1: "),
    ],
)
def test_check_finds_losses_that_the_next_one_would_make_an_outage(
    several: Cli, prepare: Act, status: str, words: str
) -> None:
    outcome = several("check --json", prepare=prepare)
    assert outcome.status == 1
    assert outcome.json["status"] == status
    assert any(words in reason for reason in outcome.json["reasons"]), outcome.json["reasons"]


# -- metrics -------------------------------------------------------------------------------------------------


def test_every_role_reports_its_figures(several: Cli) -> None:
    roles = {each["role"]: each for each in several("metrics --json", prepare=a_table).json["roles"]}
    assert list(roles) == [
        *("master/0", "master/1"),
        *("journal/0", "journal/1", "journal/2"),
        *("tablet-server/a", "tablet-server/b", "tablet-server/c"),
    ]
    figures = [figure for role in roles.values() for figure in role["figures"]]
    of_logs = {each.name for sheet in figure_docs.LOGS for each in sheet.definitions}
    wanted = {each.name for each in figure_docs.definitions()} - of_logs
    assert {figure["name"] for figure in figures} == wanted
    active = [figure["value"] for figure in figures if figure["name"] == "master_active"]
    assert sorted(active) == [0, 1]
    replicas = [figure for figure in figures if figure["name"] == "tablet_replicas"]
    assert sum(figure["value"] for figure in replicas if figure["tags"]["state"] == "leader") == 2


def test_metrics_of_one_kind_of_role_or_of_one_role(several: Cli) -> None:
    document = several("metrics journal --json").json
    assert [each["role"] for each in document["roles"]] == ["journal/0", "journal/1", "journal/2"]
    shown = several("metrics journal/1", prepare=a_table).lines
    assert shown[0] == "journal/1" and shown[1].split() == ["FIGURE", "OF", "VALUE", "UNIT"]
    promised = next(line for line in shown if "journal_promised_epoch" in line)
    assert promised.split() == ["journal_promised_epoch", "catalog", "1"]
    assert any(line.split()[0] == "journal_sync_p99_ms" and line.endswith("ms") for line in shown[2:])


def test_a_role_without_an_answer_is_shown_with_the_reason(several: Cli) -> None:
    document = several("metrics journal --json", prepare=one_node_down).json
    answered = {each["role"]: each["error"] is None for each in document["roles"]}
    assert answered == {"journal/0": True, "journal/1": False, "journal/2": True}
    silent = document["roles"][1]
    assert [(figure["name"], figure["value"]) for figure in silent["figures"]] == [("role_running", 0)]
    shown = several("metrics journal/1", prepare=one_node_down)
    assert "  no answer: " in shown.out and shown.status == 1
    assert several("metrics journal/2", prepare=one_node_down).status == 0


def test_workers_and_auditors_report_their_figures_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> tuple[LogStage, Cluster]:
        stage, _ = await start_with_logs()
        repairers = ("auditor/0", "replication-worker/host-a")
        return stage, Cluster(stage.session, SERVERS, stores=STORES, repairers=repairers)

    ebla = Cli(monkeypatch, start, prepare=repaired)
    every = ebla("metrics --json")
    assert [each["role"] for each in every.json["roles"]][-2:] == ["auditor/0", "replication-worker/host-a"]
    assert every.status == 0 and all(each["figures"] for each in every.json["roles"])
    assert "repair_marked" in ebla("metrics replication-worker").out
    assert "audit_elected" in ebla("metrics auditor/0").out


def test_a_connection_names_the_roles_that_ray_knows_by_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = (
        "auditor/0",
        "journal/0",
        "ledger-store/a",
        "master/0",
        "replication-worker/a",
        "tablet-server/a",
    )
    client = SimpleNamespace(
        world=SimpleNamespace(network=None), master=SimpleNamespace(addresses=()), close=lambda: None
    )
    monkeypatch.setattr(seam, "reach", lambda ui: "")
    monkeypatch.setattr("ebla.deployment.reach", lambda name, address: SimpleNamespace(roles=roles))
    monkeypatch.setattr("ebla.deployment.make_client", lambda *given: client)

    async def kinds(cluster: Cluster) -> list[tuple[str, ...]]:
        return [cluster.slots, cluster.journals, cluster.stores, cluster.repairers]

    assert seam.connected(Ui(Common()), kinds) == [
        ("tablet-server/a",),
        ("journal/0",),
        ("ledger-store/a",),
        ("auditor/0", "replication-worker/a"),
    ]


def test_an_unknown_role_is_refused_with_the_known_ones(ebla: Cli) -> None:
    outcome = ebla("metrics ledger")
    assert outcome.status != 0 and "there is no role 'ledger'" in outcome.err
    assert "tablet-server/host-a" in outcome.err


def test_the_dashboard_is_printed_without_a_deployment(ebla: Cli) -> None:
    outcome = ebla("metrics --dashboard")
    assert outcome.status == 0 and outcome.out == figure_docs.dashboard()
    assert json.loads(outcome.out)["title"] == "ebla"
