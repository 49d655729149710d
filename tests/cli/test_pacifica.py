"""PacificA tables as typed: created, described, and refused, on a real master and three real tablet servers."""

from __future__ import annotations

import pyarrow as pa
import pytest

import ebla as api
from ebla.actors.master import messages as master
from tests.cli.stage import Act, Cli, Stage
from tests.client.toy import HOSTS

PACIFICA = ("--replication", "pacifica")
CREATE = ("table", "create", "t", "-c", "k:int64", "-k", "k", "--hash", "k:2")


def test_a_pacifica_table_is_created_with_its_least_number_of_voters(ebla: Cli) -> None:
    made = ebla(*CREATE, *PACIFICA, "--min-members", "1")
    assert made.lines == ["created table t: 1 column, 2 tablets x 3 replicas, pacifica, min_members 1"]
    document = ebla(*CREATE, *PACIFICA, "--json").json["table"]
    assert (document["replication"], document["min_members"]) == ("pacifica", 2)
    assert ebla(*CREATE, "--json").json["table"]["min_members"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replication", "paxos"), "'paxos' is not one of 'raft', 'pacifica'"),
        (("--min-members", "2"), "min_members is for tables with replication 'pacifica'"),
        ((*PACIFICA, "--min-members", "4"), "min_members must be 1 to replicas, which is 3, not 4"),
        ((*PACIFICA, "--min-members", "0"), "write 1 or more"),
    ],
)
def test_a_wrong_replication_is_refused_before_anything_is_created(
    ebla: Cli, options: tuple[str, ...], words: str
) -> None:
    ebla(*CREATE, *options).require(2, words)


def test_replication_is_chosen_once(ebla: Cli) -> None:
    """No alteration names it, and no table of another protocol counts as the same table."""
    ebla("table alter t --replication pacifica", prepare=pacifica).require(2, "No such option: --replication")
    again = ebla(*CREATE, "--replication", "raft", "--if-not-exists", prepare=pacifica)
    again.require(1, "table 't' exists already, with other replication")
    same = ebla(*CREATE, *PACIFICA, "--min-members", "2", "--if-not-exists", prepare=pacifica)
    assert same.status == 0


async def pacifica(stage: Stage) -> None:
    schema, by = pa.schema([pa.field("k", pa.int64(), False)]), api.hash("k", buckets=2)
    given = {"replication": "pacifica", "min_members": 2}
    await stage.db.create_table("t", schema=schema, primary_key=["k"], partition_by=by, **given)


async def both(stage: Stage) -> None:
    await stage.table()
    await pacifica(stage)


def test_lists_and_descriptions_show_the_protocol(ebla: Cli) -> None:
    lines = ebla("table list", prepare=both).lines
    assert [line.split()[4:-2] for line in lines[1:]] == [["raft"], ["pacifica,", "min_members", "2"]]
    assert "replicas    3, pacifica, min_members 2" in ebla("table describe t", prepare=pacifica).lines
    listed = ebla("table list --json", prepare=both).json["tables"]
    assert {each["replication"]: each["min_members"] for each in listed} == {"raft": None, "pacifica": 2}


# -- health and leases ---------------------------------------------------------------------------------------


async def seconds_after(stage: Stage, seconds: float) -> None:
    await stage.session.world.clock.sleep(seconds)


async def settled(stage: Stage) -> None:
    """A table of each protocol, and two beacons of every server."""
    await both(stage)
    await seconds_after(stage, 3.0)


async def one_lost(stage: Stage) -> None:
    await settled(stage)
    stage.cluster.crash("tablet-server/host-c")
    await seconds_after(stage, 10.0)


async def two_lost(stage: Stage) -> None:
    await settled(stage)
    stage.cluster.crash("tablet-server/host-b")
    stage.cluster.crash("tablet-server/host-c")
    await seconds_after(stage, 12.0)


async def all_lost(stage: Stage) -> None:
    await two_lost(stage)
    stage.cluster.crash("tablet-server/host-a")
    await seconds_after(stage, 12.0)


def test_nodes_shows_leases_and_the_members_of_each_server(ebla: Cli) -> None:
    lines = ebla("nodes -d", prepare=settled).lines
    at = lines.index("HOST    LEASE  NUMBER  BEACON  PRIMARIES  SECONDARIES  LEARNERS")
    rows = [line.split() for line in lines[at + 1 : at + 4]]
    assert [row[:2] for row in rows] == [["host-a", "alive"], ["host-b", "alive"], ["host-c", "alive"]]
    assert [sum(int(row[column]) for row in rows) for column in (-3, -2, -1)] == [2, 4, 0]
    shown = [node["pacifica"] for node in ebla("nodes --json", prepare=settled).json["nodes"]]
    assert {each["lease"] for each in shown} == {"alive"}
    assert all(each["number"] >= 1 and 0 <= each["beacon_age_s"] <= 1.5 for each in shown)


def test_a_lost_server_has_an_ended_lease_and_learners_only(ebla: Cli) -> None:
    nodes = ebla("nodes -d --json", prepare=one_lost).json["nodes"]
    lost = next(node["pacifica"] for node in nodes if node["address"] == "tablet-server/host-c")
    assert (lost["lease"], lost["primaries"], lost["secondaries"], lost["learners"]) == ("ended", 0, 0, 2)
    assert lost["beacon_age_s"] > 5


def test_servers_of_raft_tables_only_have_no_leases(loaded: Cli) -> None:
    outcome = loaded("nodes -d")
    assert "LEASE" not in outcome.out
    assert {node["pacifica"] for node in loaded("nodes --json").json["nodes"]} == {None}


def test_tablets_show_ballots_and_the_roles_of_their_protocol(ebla: Cli) -> None:
    mixed = ebla("tablet list", prepare=settled).lines
    assert mixed[0].split() == ["TERM/"] and "BALLOT" in mixed[1].split()
    listed = ebla("tablet list -t t --json", prepare=settled).json["tablets"]
    assert {(each["replication"], each["health_class"]) for each in listed} == {("pacifica", "fully healthy")}
    only = ebla("tablet list -t t", prepare=settled).lines[0].split()
    assert "BALLOT" in only and "TERM" not in only
    shown = ebla(f"tablet show {listed[0]['tablet']}", prepare=settled).lines
    assert "BALLOT" in shown[1].split()
    assert sorted(line.split()[2] for line in shown[2:5]) == ["primary", "secondary", "secondary"]


@pytest.mark.parametrize(
    ("prepare", "status", "classes", "title"),
    [
        (settled, "HEALTHY", {"fully healthy": 2}, None),
        (one_lost, "UNDER_REPLICATED", {"writable but unhealthy": 2}, "(part 0): writable but unhealthy"),
        (all_lost, "DEAD", {"dead": 2}, "(part 0)"),
    ],
)
def test_check_names_the_health_class_of_the_tablets(
    ebla: Cli, prepare: Act, status: str, classes: dict[str, int], title: str | None
) -> None:
    outcome = ebla("check t", prepare=prepare)
    assert outcome.status == (0 if status == "HEALTHY" else 1)
    assert title is None or title in outcome.out
    for name, tablets in classes.items():
        assert status == "HEALTHY" or f"  tablets: {tablets} {name}" in outcome.lines
    (table,) = ebla("check t --json", prepare=prepare).json["tables"]
    assert (table["status"], table["classes"]) == (status, classes)


def test_a_primary_alone_is_read_and_takes_no_writes(ebla: Cli) -> None:
    tablets = ebla("check t --json", prepare=two_lost).json["tablets"]
    assert {each["health_class"] for each in tablets} <= {"readable but unwritable", "unreadable"}
    assert not any(each["status"] in ("HEALTHY", "UNDER_REPLICATED") for each in tablets)


def test_a_primary_hands_over_to_a_secondary_in_the_next_ballot(ebla: Cli) -> None:
    tablet = ebla("tablet list -t t --json", prepare=settled).json["tablets"][0]
    other = next(each for each in tablet["replicas"] if each["uuid"] != tablet["leader"])
    host = other["address"].rpartition("/")[2]
    outcome = ebla(f"tablet step-down {tablet['tablet']} --to {host}", prepare=settled)
    assert outcome.status == 0 and f", is {host} (ballot 2)" in outcome.text


async def all_suspended(stage: Stage) -> None:
    await settled(stage)
    for host in HOSTS:
        asked = master.SuspendRequest(host, True)
        await stage.db._client.world.network.call("master/0", "suspend", asked, master.SuspendReply, 5.0)
    await seconds_after(stage, 20.0)


async def none_allowed(stage: Stage) -> None:
    await settled(stage)
    network, asked = stage.db._client.world.network, master.AllowRequest((HOSTS[0],))
    await network.call("master/0", "allow_only", asked, master.AllowReply, 5.0)
    suspended = master.SuspendRequest(HOSTS[0], True)
    await network.call("master/0", "suspend", suspended, master.SuspendReply, 5.0)
    await seconds_after(stage, 20.0)


def test_a_tablet_whose_servers_are_not_allowed_names_the_command_that_ends_that(ebla: Cli) -> None:
    remedy = (
        "host-a is suspended; `ebla nodes suspend HOST --off` ends that; "
        "host-b, host-c are not on the allow list; `ebla nodes allow-only` changes it"
    )
    assert remedy in " ".join(ebla("check", prepare=none_allowed).text.split())
    assert f"nothing: {remedy}" in " ".join(ebla("tablet diagnose", prepare=none_allowed).text.split())


def test_a_tablet_whose_servers_are_all_suspended_names_the_command_that_ends_that(ebla: Cli) -> None:
    remedy = "suspended; `ebla nodes suspend HOST --off` ends that"
    assert remedy in " ".join(ebla("check", prepare=all_suspended).text.split())
    said = " ".join(ebla("tablet diagnose", prepare=all_suspended).text.split())
    assert f"nothing: host-a, host-b, host-c are {remedy}" in said and "learner has caught up" not in said
