"""`ebla tablet unsafe-change-config` on toys and on real tablet servers."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.master.messages import AddReplicaRequest
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.replication.health import UNHEALTHY
from ebla.operate.forcing import planned
from ebla.operate.naming import Refused
from tests.cli import surveys
from tests.cli.repair_stage import RepairStage, Toys, on_toys
from tests.cli.stage import HOSTS, Cli, Stage
from tests.cli.surveys import GONE, address, replace, report, seen, state, uuid, with_room
from tests.master.healed import asked, configuration, hosts_of


def lose(stage: RepairStage, hosts: list[str]) -> None:
    for host in hosts:
        stage.cluster.crash(f"tablet-server/{host}")
        stage.raft.unhealthy[stage.server(host).uuid] = UNHEALTHY
    stage.raft.elects = False


async def majority_lost(stage: RepairStage) -> None:
    lose(stage, hosts_of(stage, stage.tablets[0])[1:])


def test_a_lost_majority_is_given_up_only_with_the_whole_tablet_id(toys: Toys) -> None:
    tablet, survivor = toys.tablet, toys.held[0]
    sent: list[m.UnsafeChangeRequest] = []

    def after(stage: RepairStage) -> None:
        sent.extend(stage.of(survivor).requests)

    force = ("tablet", "unsafe-change-config", tablet[:8], "--keep", survivor)
    for words, typed in (
        (force, None),
        ((*force, "--json"), None),
        ((*force, "--yes-i-lose-data", tablet[:8]), None),
        (force, "y\n"),
        (force, f"{tablet[:8]}\n"),
    ):
        refused = toys(*words, prepare=majority_lost, after=after, typed=typed)
        assert refused.status == 1 and not sent, refused.err
    done = toys(*force, prepare=majority_lost, after=after, typed=f"{tablet}\n")
    assert done.status == 0, done.err
    assert "LOST: every write that was acknowledged and is not in the log of the new leader" in done.message
    assert "the leader" in done.message and done.message.count("given up") == 2
    (request,) = sent
    assert (request.tablet, request.keep, request.configuration_index) == (tablet, (request.dest_uuid,), -1)
    again = toys(*force, "--yes-i-lose-data", tablet, "--json", prepare=majority_lost)
    assert (again.json["unsafe"], len(again.json["lost"]), len(again.json["members"])) == (1, 2, 1)


def test_forcing_is_refused_with_a_running_majority_or_a_survivor_that_does_not_run(toys: Toys) -> None:
    force = f"tablet unsafe-change-config {toys.tablet} --yes-i-lose-data {toys.tablet} --keep"
    toys(f"{force} a").require(1, "no configuration needs to be forced")
    for server, reason in (("nowhere", "has no replica at 'nowhere'"), ("b", "cannot be kept")):
        toys(f"{force} {server}", prepare=majority_lost).require(1, reason)


def test_running_non_voters_are_not_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    five = on_toys(monkeypatch, "abcde")
    tablet, survivor = five.tablet, five.held[0]

    async def lost(stage: RepairStage) -> None:
        for name in "abcde":
            if name not in five.held:
                await asked(stage, "add_replica", AddReplicaRequest(tablet, name, "non_voter"))
                await stage.until(lambda name=name: name in hosts_of(stage, tablet))
        await stage.until(lambda: stage.holders(tablet) == list("abcde"))
        assert len(configuration(stage, tablet).voters()) == 3
        lose(stage, five.held[1:])

    done = five(
        f"tablet unsafe-change-config {tablet} --keep {survivor} --yes-i-lose-data {tablet} --json",
        prepare=lost,
    )
    assert done.status == 0, done.err
    assert [each["address"] for each in done.json["members"]] == [f"tablet-server/{survivor}"]


def test_a_pending_change_of_voters_counts_for_the_majority() -> None:
    """Two of three voters run. One has a pending configuration of four, which needs three, and no other log can win an election."""
    four = surveys.configuration(("a", "b", "c", "d"), index=101)
    behind = report("c", leader=None, role="candidate", last_index=90)
    survey = seen(GONE, report("b", leader=None, role="candidate", last_index=101), behind)
    with pytest.raises(Refused, match="2 of 3 voters of tablet t1 run, a majority"):
        planned(survey, surveys.tablet(survey), ["b", "c"])
    holder = replace(survey.states[address("b")], pending={"t1": four})
    survey = replace(survey, states={**survey.states, address("b"): holder})
    plan = planned(survey, surveys.tablet(survey), ["b", "c"])
    assert plan.survivors == ((uuid("b"), address("b")), (uuid("c"), address("c")))
    assert (plan.lost, plan.configuration.index) == ((uuid("a"),), -1)
    older = replace(holder, pending={"t1": surveys.configuration(("a", "b", "c", "d"), index=-2)})
    survey = replace(survey, states={**survey.states, address("b"): older})
    with pytest.raises(Refused, match="no configuration needs to be forced"):
        planned(survey, surveys.tablet(survey), ["b", "c"])


def test_the_next_leader_must_know_all_survivors() -> None:
    """A fourth replica is being added, and the only surviving voter does not have that configuration yet."""
    added = Configuration(
        (*surveys.configuration().peers, Peer(uuid("d"), address("d"), "non_voter", promote=True)), 101
    )
    late = report("d", leader=None, configuration=added, last_index=102)
    info = surveys.table((*surveys.HOSTS, "d"), leader=None)
    survey = with_room(seen(GONE, GONE, report("c", leader=None, last_index=90), info=info))
    survey = replace(survey, states={**survey.states, address("d"): state("d", late)})
    with pytest.raises(Refused, match="c is to lead, but its configuration lacks the replica at d"):
        planned(survey, surveys.tablet(survey), ["c", "d"])
    assert planned(survey, surveys.tablet(survey), ["c"]).keep == (uuid("c"),)


# -- real tablet servers -------------------------------------------------------------------------------------


async def two_lost(stage: Stage) -> None:
    await stage.table()
    for host in HOSTS[1:]:
        stage.cluster.crash(f"tablet-server/{host}")


def test_a_real_survivor_leads_alone_and_the_forced_epoch_remains(loaded: Cli) -> None:
    tablets = [each["tablet"] for each in loaded("tablet list --json").json["tablets"]]

    async def forced_once(stage: Stage) -> None:
        await two_lost(stage)
        network = stage.cluster.client_world("operator").network
        (server,) = [status for status in await stage.db.servers() if status.host == HOSTS[0]]
        for tablet in tablets:
            request = m.UnsafeChangeRequest(server.uuid, tablet, (server.uuid,), -1, "a test")
            await asyncio.sleep(10.0)  # until no replica knows a leader
            await network.call(server.address, "unsafe_change", request, m.MembersReply, 10.0)

    keep = ("tablet", "unsafe-change-config", tablets[0], "--keep", HOSTS[0], "--yes-i-lose-data", tablets[0])
    done = loaded(*keep, "--json", prepare=two_lost)
    assert done.status == 0, done.err
    assert [each["address"] for each in done.json["members"]] == [f"tablet-server/{HOSTS[0]}"]
    assert (done.json["unsafe"], len(done.json["lost"])) == (1, 2)
    check = loaded("check", prepare=forced_once)
    assert check.status == 1, "the other replicas are missing"
    assert any("forced on these tablets without a majority" in line for line in check.lines), check.out
    shown = loaded(f"tablet show {tablets[0]}", prepare=forced_once)
    forced = "a configuration was forced on it without a majority 1 time"
    assert f"{forced}: acknowledged writes may be missing" in shown.out
