"""`ebla tablet diagnose` as typed, on a real master and three real tablet servers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebla.actors.messages import ReplicaReport, ServerInstance, ServerState
from ebla.actors.messages.diagnosis import HolderEvidence, TabletEvidence
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.health.verdicts import Survey, TabletHealth, Unanswered
from ebla.operate import diagnosis
from ebla.operate.cluster import Cluster
from ebla.operate.diagnosis import Holder, _candidates, planned
from ebla.operate.naming import Refused
from ebla.operate.waiting import Progress
from tests.cli.stage import SERVERS, Act, Cli, Stage
from tests.cli.test_pacifica import all_lost, both, one_lost, seconds_after, settled, two_lost


@pytest.fixture
def tablet(ebla: Cli) -> str:
    """A tablet of the PacificA table: its id is the same in every run."""
    return str(ebla("tablet list -t t --json", prepare=both).json["tablets"][0]["tablet"])


def server(host: str) -> str:
    return f"tablet-server/host-{host}"


async def a_learner_left(stage: Stage) -> None:
    """host-c becomes a learner, rows follow, both voters are lost, and host-c returns."""
    await settled(stage)
    table = await stage.db.table("t")
    await table.upsert([{"k": k} for k in range(8)])
    stage.cluster.crash(server("c"))
    await seconds_after(stage, 12.0)
    await table.upsert([{"k": k} for k in range(8, 40)])
    await seconds_after(stage, 1.0)
    for host in "ab":
        stage.cluster.crash(server(host))
    await seconds_after(stage, 12.0)
    await stage.cluster.restart(server("c"))
    await seconds_after(stage, 4.0)


def test_a_healthy_tablet_has_nothing_to_wait_for(ebla: Cli, tablet: str) -> None:
    shown = ebla(f"tablet diagnose {tablet[:8]}", prepare=settled)
    assert shown.lines[:2] == [
        f"HEALTHY  t tablet {tablet[:8]}: fully healthy",
        f"  id:             {tablet}",
    ]
    assert "pacifica, ballot 1, primary host-c: host-c, host-a, host-b; 3 replicas wanted" in shown.text
    assert "by itself: nothing has to happen" in shown.text and "by force" not in shown.text
    assert ebla("tablet diagnose", prepare=settled).lines == ["4 tablets, all fully healthy"]
    document = ebla(f"tablet diagnose {tablet} --json", prepare=settled).json
    assert [each["part"] for each in document["holders"]] == ["voter"] * 3
    assert {
        (each["server"], each["lease"], each["state"], each["ballot"]) for each in document["holders"]
    } == {("up", "alive", "running", 1)}


@pytest.mark.parametrize(
    ("prepare", "title", "words"),
    [
        (one_lost, "writable but unhealthy", "replace what is missing, if a host has room"),
        (two_lost, "readable but unwritable", "it waits until host-c returns, or a learner has caught up"),
        (all_lost, "dead", "each of host-c, host-a has every acknowledged write. One that returns"),
        (all_lost, "dead", "by force: nothing: no other server that is up has a running replica"),
        (a_learner_left, "dead", "start the servers that do not answer, with their disks"),
        (
            a_learner_left,
            "dead",
            "--accept-loss` makes host-c the primary and gives up every other member. LOST: entry 3",
        ),
    ],
)
def test_a_diagnosis_says_what_happens_and_what_can_be_done(
    ebla: Cli, tablet: str, prepare: Act, title: str, words: str
) -> None:
    shown = ebla(f"tablet diagnose {tablet}", prepare=prepare)
    assert shown.status == 0 and shown.lines[0].endswith(f"t tablet {tablet[:8]}: {title}")
    assert words in shown.text, shown.out
    assert all(len(line) <= 80 for line in shown.lines), shown.out


def test_a_raft_tablet_is_diagnosed_in_the_same_words(ebla: Cli) -> None:
    raft = ebla("tablet list -t flights --json", prepare=both).json["tablets"][0]["tablet"]
    shown = ebla(f"tablet diagnose {raft}", prepare=two_lost)
    assert shown.lines[0].endswith(": unreadable") and "LEASE" not in shown.out
    assert "it works again as soon as 1 of host-c, host-b returned" in shown.text
    assert f"`ebla tablet unsafe-change-config {raft[:8]} --keep host-a` gives up the others" in shown.text
    refused = ebla("tablet", "diagnose", raft, "--accept-loss", prepare=two_lost)
    refused.require(1, "uses Raft, where a majority is given up instead of a primary")
    other = ebla("tablet", "diagnose", "--json", prepare=one_lost).json
    assert (other["not_fully_healthy"], other["of"], len(other["tablets"])) == (4, 4, 4)


def test_a_loss_is_accepted_only_with_the_whole_tablet_id(ebla: Cli, tablet: str) -> None:
    force = ("tablet", "diagnose", tablet[:8], "--accept-loss")

    async def forced(stage: Stage) -> int:
        tablets = (await (await stage.db.table("t")).info()).tablets
        return len(next(each for each in tablets if each.tablet == tablet).forced)

    for words, typed in (
        (force, None),
        ((*force, "--json"), None),
        ((*force, "--yes-i-lose-data", tablet[:8]), None),
        (force, f"{tablet[:8]}\n"),
    ):
        refused = ebla(*words, prepare=a_learner_left, typed=typed)
        assert refused.status == 1, refused.err
    done = ebla(*force, prepare=a_learner_left, after=forced, typed=f"{tablet}\n")
    assert (done.status, done.seen) == (0, 1), done.err
    assert "the primary" in done.message and done.message.count("given up") == 2
    lost = "entry 3, known to be committed, and every later one: the log of host-c ends at entry 2"
    assert f"LOST: {lost}" in done.message
    assert f"tablet {tablet[:8]} has been forced onto host-c, in ballot 3" in done.text


@pytest.mark.parametrize(
    ("prepare", "options", "words"),
    [
        (settled, (), "is fully healthy, and host-c, host-a, host-b have every acknowledged write"),
        (two_lost, (), "and host-a has every acknowledged write: no configuration needs to be forced"),
        (all_lost, (), "no server that is up has a running replica of tablet"),
        (a_learner_left, ("--keep", "host-a"), "'host-a' has no running replica of tablet"),
    ],
)
def test_a_loss_is_not_accepted_without_need(
    ebla: Cli, tablet: str, prepare: Act, options: tuple[str, ...], words: str
) -> None:
    given = ("tablet", "diagnose", tablet, "--accept-loss", "--yes-i-lose-data", tablet, *options)
    ebla(*given, prepare=prepare).require(1, words)


def test_options_of_a_loss_need_the_tablet_and_the_decision(ebla: Cli, tablet: str) -> None:
    ebla("tablet diagnose --accept-loss").require(2, "--accept-loss is for one tablet")
    ebla(f"tablet diagnose {tablet} --keep host-a").require(2, "go with --accept-loss")
    keep = ("tablet", "unsafe-change-config", tablet, "--keep", "host-c", "--yes-i-lose-data", tablet)
    ebla(*keep, prepare=a_learner_left).require(1, "uses PacificA, where one voter that returns is enough")


def test_a_forced_configuration_is_shown_for_ever_and_the_tablet_serves_again(ebla: Cli, tablet: str) -> None:
    """host-c leads alone until host-b returns: its data is given up, and it gets a copy."""
    counts: list[int] = []

    async def forced(stage: Stage) -> None:
        await a_learner_left(stage)
        cluster = Cluster(stage.session, SERVERS)
        plan = planned(await diagnosis.diagnose(cluster, tablet), "host-c")
        await diagnosis.force(cluster, plan, "ann@desk", Progress())
        await stage.cluster.restart(server("b"))
        await seconds_after(stage, 60.0)
        table = await stage.db.table("t")
        await table.upsert([{"k": 100}])
        counts.append(len(await table.scan().to_arrow()))

    record = "by ann@desk: host-c became the primary with its entries up to 2 (committed as far as known: 3); host-a, host-b given up"
    for command in ("diagnose", "show"):
        shown = ebla(f"tablet {command} {tablet}", prepare=forced)
        assert record in shown.text and shown.lines[0].startswith("UNDER_REPLICATED"), shown.out
    assert set(counts) != {0}
    check = ebla("check t", prepare=forced)
    assert any("forced on these tablets" in line and tablet[:8] in line for line in check.lines), check.out


def test_the_newest_replica_is_the_first_candidate() -> None:
    """By the newest configuration in its log, then by its end. An older copy has entered the ballot that it declined."""

    def holder(name: str, configured: int, last: int, **changes: Any) -> Holder:
        made = Holder(name, f"tablet-server/{name}", "former", "up", 0.1, "alive", 0.1, "running")
        return msgspec.structs.replace(made, configured=configured, last_index=last, **changes)

    holders = [
        holder("a", 3, 90),
        holder("b", 4, 10),
        holder("c", 4, 20),
        holder("d", 9, 99, state="deleted"),
        holder("e", 9, 99, trouble="its disk failed"),
        holder("f", 9, 99, server="no answer"),
        holder("g", 9, 99, part="voter"),
        holder("h", 3, 95, ballot=9, part="voter", trouble="it lacks committed entries"),
    ]
    assert [each.uuid for each in _candidates(holders)] == ["c", "b", "h", "a"]


def test_a_voter_whose_directory_is_gone_is_not_waited_for() -> None:
    """Another server answers at its address."""
    voters = tuple(Peer(uuid, server(uuid)) for uuid in "ab")
    known = Configuration(voters, 4, primary="a", min_members=2)
    holders = tuple(
        HolderEvidence(peer.uuid, peer.address, "voter", False, 60.0, "ended", 60.0, None) for peer in voters
    )
    evidence = TabletEvidence("t1", "t", "running", "pacifica", 3, 2, known, None, 7, holders)
    other = ServerState(ServerInstance("new", 1, "s"), server("a"), "host-a", (), 0, 0, 0)
    states = {server("a"): other, server("b"): Unanswered("NotDelivered", "is down")}
    health = TabletHealth("t1", "t", 0, "DEAD", None, 4, 3, 0, (), (), health_class="dead")
    found = diagnosis.diagnosed(evidence, health, Survey({}, (), (), states), {server("a"): ("t1-1",)})
    assert [holder.gone for holder in found.holders] == [True, False]
    assert found.by_itself[0].startswith("host-b has every acknowledged write. When it returns")
    assert found.safe[0].endswith(
        "(`ebla up` starts roles and local nodes): host-b (last heartbeat 60 s ago)"
    )
    gone = Survey({}, (), (), dict.fromkeys(states, other))
    both_gone = diagnosis.diagnosed(evidence, health, gone, {})
    assert (
        both_gone.by_itself == ("nothing: no voter is left that has every acknowledged write",)
        and both_gone.safe == ()
    )


def test_a_voter_on_an_older_copy_has_lost_data_and_may_be_chosen() -> None:
    peers = tuple(Peer(uuid, server(uuid)) for uuid in "ab")
    known = Configuration(peers, 1, primary="a", min_members=2)
    holders = tuple(
        HolderEvidence(uuid, server(uuid), "voter", True, 0.1, "alive", 0.1, "running") for uuid in "ab"
    )
    evidence = TabletEvidence("t1", "t", "running", "pacifica", 2, 2, known, None, 9, holders)
    why = "its log lacks committed entries up to 9: its directory is an older copy"
    old = ReplicaReport("t1", "running", PacificaView(term=4, last_index=7), error=why)
    states = {
        server("a"): ServerState(ServerInstance("a", 1, "s"), server("a"), "a", (old,), 0, 0, 0),
        server("b"): Unanswered("NotDelivered", "is down"),
    }
    health = TabletHealth("t1", "t", 0, "DEAD", None, 4, 2, 0, (), (), health_class="dead")
    found = diagnosis.diagnosed(evidence, health, Survey({}, (), (), states), {})
    assert found.by_itself[0].startswith("host-b has every acknowledged write. When it returns")
    assert f"see why the replica at host-a failed: {why}" in found.safe
    assert "LOST: entries 8 to 9, known to be committed" in found.force
    assert planned(found).survivor.uuid == "a"


@pytest.mark.parametrize("in_doubt", ["", "the catalog is an older copy"])
def test_no_voter_is_given_up_whose_server_loads_its_replicas(in_doubt: str) -> None:
    peers = (Peer("a", server("a")),)
    known = Configuration(peers, 2, primary="a", min_members=1)
    holders = tuple(
        HolderEvidence(uuid, server(uuid), part, True, 0.1, "ended", 9.0, None)
        for uuid, part in (("a", "voter"), ("b", "former"))
    )
    evidence = TabletEvidence(
        "t1", "t", "running", "pacifica", 2, 1, known, None, 9, holders, in_doubt=in_doubt
    )
    former = ReplicaReport("t1", "running", PacificaView(term=1, last_index=7))
    states = {
        server("a"): Unanswered("NotRunning", "host-a loads its replicas, 5 are left; try again"),
        server("b"): ServerState(ServerInstance("b", 1, "s"), server("b"), "b", (former,), 0, 0, 0),
    }
    health = TabletHealth("t1", "t", 0, "DEAD", None, 4, 2, 0, (), (), health_class="dead")
    found = diagnosis.diagnosed(evidence, health, Survey({}, (), (), states), {})
    with pytest.raises(Refused, match="host-a starts, with a voter of tablet t1"):
        planned(found)


def test_an_operator_may_choose_any_replica_of_a_tablet_in_doubt() -> None:
    """Its voters run, and none of them is known to have every acknowledged write."""
    peers = tuple(Peer(uuid, server(uuid)) for uuid in "abc")
    known = Configuration(peers, 1, primary="a", min_members=2)
    holders = tuple(
        HolderEvidence(uuid, server(uuid), "voter", True, 0.1, "alive", 0.1, "running") for uuid in "abc"
    )
    evidence = TabletEvidence(
        "t1", "t", "running", "pacifica", 3, 2, known, None, 7, holders, in_doubt="one is away"
    )
    states: dict[str, Any] = {
        server(uuid): ServerState(ServerInstance(uuid, 1, "s"), server(uuid), uuid, (replica,), 0, 0, 0)
        for uuid, last in (("a", 7), ("b", 9))
        for replica in [ReplicaReport("t1", "running", PacificaView(term=4, last_index=last))]
    }
    states[server("c")] = Unanswered("NotDelivered", "is down")
    health = TabletHealth("t1", "t", 0, "UNREADABLE", None, 4, 3, 0, (), (), health_class="unreadable")
    found = diagnosis.diagnosed(evidence, health, Survey({}, (), (), states), {})
    assert found.by_itself == (
        "a primary is appointed once every member of the last ballot has shown its replica",
    )
    assert "start the servers that do not answer" in found.safe[0]
    other = ServerState(ServerInstance("new", 1, "s"), server("c"), "c", (), 0, 0, 0)
    replaced = Survey({}, (), (), {**states, server("c"): other})
    (waits,) = diagnosis.diagnosed(evidence, health, replaced, {}).by_itself
    assert waits.endswith("; host-c cannot: another server answers there")
    assert "--accept-loss` makes host-b the primary" in found.force
    assert planned(found).survivor.uuid == "b" and planned(found, "host-a").survivor.uuid == "a"
    sure = diagnosis.diagnosed(
        msgspec.structs.replace(evidence, in_doubt=""), health, Survey({}, (), (), states), {}
    )
    with pytest.raises(Refused, match="no configuration needs to be forced"):
        planned(sure)
