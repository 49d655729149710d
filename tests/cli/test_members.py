"""`ebla tablet add-replica | remove-replica | move-replica`, `ebla nodes drain` and `forget` on toys."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.master.messages import AddReplicaRequest, DrainReply, DrainRequest
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.replication.health import UNHEALTHY
from ebla.operate import naming
from ebla.operate.cluster import Cluster
from ebla.operate.naming import Refused
from ebla.placement import launch
from ebla.show import progress
from tests.cli.repair_stage import RepairStage, first_tablet, on_toys
from tests.cli.stage import Cli
from tests.master.healed import asked, configuration, hosts_of, silence, spare, well

# -- replicas ------------------------------------------------------------------------------------------------


def test_a_move_shows_the_members_and_the_command_that_shows_the_copy(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    source, target = places["follower"], places["spare"]
    done = toys(f"tablet move-replica {tablet[:8]} {source} {target}")
    assert done.status == 0, done.err
    assert f"{target} (pre-voter)" in done.out
    assert f"{source} (voter, goes when its replacement has caught up)" in done.out
    assert "`ebla tablet copies --watch` shows the copy" in done.out
    document = toys(f"tablet move-replica {tablet} {source} {target} --json").json
    roles = {each["address"]: (each["role"], each["replace"]) for each in document["members"]}
    assert roles[f"tablet-server/{target}"] == ("pre-voter", False)
    assert roles[f"tablet-server/{source}"] == ("voter", True)
    assert (document["tablet"], document["waited"]) == (tablet, False)


def test_a_removal_and_an_addition_name_the_command_that_shows_the_copy(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    shows = "`ebla tablet copies --watch` shows the copy"
    assert shows in toys(f"tablet remove-replica {tablet} {places['follower']}").out
    further = ("tablet", "add-replica", tablet, places["spare"], "--role", "non-voter")
    assert shows in toys(*further).out


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_with_wait_the_command_ends_with_the_move(
    toys: Cli, tablet: str, places: dict[str, str], who: str
) -> None:
    source, target = places[who], places["spare"]

    async def after(stage: RepairStage) -> None:
        assert target in hosts_of(stage, tablet) and source not in hosts_of(stage, tablet)

    done = toys(f"tablet move-replica {tablet} {source} {target} --wait --json", after=after)
    assert done.status == 0, done.err
    assert sorted(each["role"] for each in done.json["members"]) == ["voter"] * 3


def test_an_abandoned_move_says_so(toys: Cli, tablet: str, places: dict[str, str]) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.raft.copies = False
        stage.raft.unhealthy[stage.server(places["spare"]).uuid] = UNHEALTHY

        async def go_silent() -> None:
            stage.scripts[places["spare"]].silent = True

        stage.points.acts["master.repair_tablet.before_rpc"] = go_silent

    words = ("tablet", "move-replica", tablet, places["follower"], places["spare"], "--wait")
    given_up = toys(*words, prepare=prepare)
    assert given_up.status == 1
    assert "the move was given up" in given_up.err and "choose another server" in given_up.err


def test_a_move_that_ends_elsewhere_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet, held = first_tablet("abcde"), list[str]()

    async def prepare(stage: RepairStage) -> None:
        held[:] = hosts_of(stage, tablet)
        target = spare(stage, tablet)
        stage.raft.unhealthy[stage.server(target).uuid] = UNHEALTHY

    five = on_toys(monkeypatch, "abcde")
    five("check", prepare=prepare)
    source, target = held[1], next(name for name in "abcde" if name not in held)
    moved = five(f"tablet move-replica {tablet} {source} {target} --wait", prepare=prepare)
    assert moved.status == 1, moved.out
    reason = f"the replica left {source}, but {target} could not take it: the tablet is at "
    assert reason in moved.message, moved.message


def test_a_replica_is_removed_and_another_server_gets_it(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    async def after(stage: RepairStage) -> None:
        assert places["leader"] not in hosts_of(stage, tablet) and len(hosts_of(stage, tablet)) == 3

    done = toys(f"tablet remove-replica {tablet} {places['leader']} --wait", after=after)
    assert done.status == 0, done.err
    assert places["spare"] in done.out


def test_removing_a_nonmember_is_a_noop(toys: Cli, tablet: str, places: dict[str, str]) -> None:
    out, held = places["spare"], places["follower"]
    for words in (("move-replica", tablet, out, held), ("remove-replica", tablet, out, "--wait")):
        swapped = toys("tablet", *words)
        assert (swapped.status, swapped.lines[-1]) == (
            0,
            f"nothing to do: {out} has no replica of it",
        )
    assert toys(f"tablet remove-replica {tablet} {out} --json").json["needless"] is True
    assert toys(f"tablet remove-replica {tablet} {held} --json").json["needless"] is False


def test_with_wait_a_removal_at_once_ends_with_its_replacement(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    async def after(stage: RepairStage) -> None:
        assert places["follower"] not in hosts_of(stage, tablet) and well(stage)

    words = ("tablet", "remove-replica", tablet, places["follower"], "--at-once", "--wait")
    assert toys(*words, after=after).status == 0


def test_two_members_at_one_address_are_distinguished_by_their_uuid() -> None:
    places = [("aaaa1", "tablet-server/a"), ("bbbb1", "tablet-server/b"), ("aaaa2", "tablet-server/a")]
    with pytest.raises(Refused, match=r"'a' may mean a \(aaaa1\) or a \(aaaa2\)"):
        naming.meant("a", places)
    assert [naming.meant(word, places) for word in ("aaaa2", "b", "c")] == ["aaaa2", "bbbb1", None]
    found = naming.find(Configuration(tuple(Peer(*place) for place in places)), "a")
    assert found is not None and found.uuid == "aaaa2", "the newest member"


@pytest.mark.parametrize(
    ("words", "reason", "status"),
    [
        (("add-replica", "{tablet}", "{spare}"), "has the 3 replicas that its table wants", 2),
        (
            ("add-replica", "{tablet}", "nowhere"),
            "there is no server 'nowhere'; there are tablet-server/a",
            1,
        ),
        (("add-replica", "{tablet}", "{spare}", "--role", "boss"), "there is no role 'boss'", 2),
        (("add-replica", "{tablet}", "{leader}", "--role", "non-voter"), "remove it, then add it again", 2),
        (("move-replica", "{tablet}", "nowhere", "{leader}"), "has no replica at 'nowhere'", 1),
        (("move-replica", "{tablet}", "{leader}", "{follower}"), "has a replica of tablet", 2),
        (("remove-replica", "feedfeed", "a"), "there is no tablet 'feedfeed'", 1),
        (("remove-replica", "{tablet}", "nowhere"), "there is no server 'nowhere'", 1),
    ],
)
def test_a_refused_change_of_members_says_why_and_what_to_do(
    toys: Cli, tablet: str, places: dict[str, str], words: tuple[str, ...], reason: str, status: int
) -> None:
    given = [word.format(tablet=tablet, **places) for word in words]
    toys("tablet", *given).require(status, reason)


def test_a_refusal_that_is_repeated_is_shown_in_full_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the command waits, it shows a short reason and the waiting time."""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    three, tablet = on_toys(monkeypatch, "abc"), first_tablet("abc")
    refused = three(f"tablet remove-replica {tablet} a")
    assert refused.status == 1
    for reason in (
        "asking for 15 s in all: no live server could take",
        "to have fewer replicas, drain its host first, and then remove the replica at once",
    ):
        assert refused.message.count(reason) == 1, refused.message


def test_a_non_voter_is_added_and_shown(toys: Cli, tablet: str, places: dict[str, str]) -> None:
    done = toys(f"tablet add-replica {tablet} {places['spare']} --role non-voter --wait")
    assert done.status == 0, done.err
    assert f"{places['spare']} (non-voter)" in done.out


async def without_copies(stage: RepairStage) -> None:
    stage.raft.copies = False


def test_show_and_check_report_roles_health_and_draining(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.raft.copies = False
        silence(stage, places["follower"])
        stage.scripts[places["follower"]].silent = False
        await stage.ask("drain", DrainRequest(places["leader"]), DrainReply)
        await stage.until(lambda: len(hosts_of(stage, tablet)) == 4)

    shown = toys(f"tablet show {tablet}", prepare=prepare)
    line = {row.split()[0]: row for row in shown.lines if row.startswith("  ") and row.split()}
    assert "pre-voter" in line[places["spare"]] and "MISSING" in line[places["spare"]]
    assert "silent to its leader" in line[places["follower"]]
    assert "draining" in line[places["leader"]]
    check = toys("check --json", prepare=prepare)
    assert check.status == 1
    found = next(each for each in check.json["tablets"] if each["tablet"] == tablet)
    assert found["status"] == "RECOVERING"
    assert {each["member"] for each in found["replicas"]} == {"voter", "pre-voter"}
    assert f"replica at tablet-server/{places['leader']} is to go: its server drains" in found["reasons"]
    nodes = toys("nodes", prepare=prepare)
    assert [row.split()[0] for row in nodes.lines if "draining" in row] == [places["leader"]]


# -- draining ------------------------------------------------------------------------------------------------


def test_a_host_is_drained_and_its_server_stopped(toys: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[list[str]] = []

    def stop(name: str, addresses: list[str], *, timeout_s: float) -> tuple[str, ...]:
        stopped.append(addresses)
        return tuple(addresses)

    async def after(stage: RepairStage) -> None:
        assert well(stage) and list(stage.master.catalog.draining) == ["tablet-server/b"]
        assert all("b" not in hosts_of(stage, tablet) for tablet in stage.tablets)

    monkeypatch.setattr(launch, "stop", stop)
    done = toys("nodes drain b --wait", after=after)
    assert (done.status, done.lines, stopped) == (0, ["b is drained"], [])
    gone = toys("nodes drain b --stop --json").json
    assert gone["stopped"] == ["tablet-server/b"] and stopped == [["tablet-server/b"]]
    assert gone["servers"][0]["replicas"] == 0
    begun = toys("nodes drain b", prepare=without_copies)
    assert begun.status == 0 and begun.lines[0].startswith("b is draining: ")
    back = toys("nodes drain b --off")
    assert back.status == 0 and back.lines[0].startswith("b may have replicas again")


def test_a_drained_server_is_stopped_after_its_replicas_are_deleted(
    toys: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is stopped earlier would start again with its last replica."""
    monkeypatch.setattr(launch, "stop", lambda name, addresses, *, timeout_s: tuple(addresses))

    async def slowly(stage: RepairStage) -> None:
        server = stage.server("b")
        honest = server._bury

        async def bury(request: m.DeleteTabletRequest) -> m.Empty:
            await asyncio.sleep(3.0)
            return await honest(request)

        monkeypatch.setattr(server, "_bury", bury)

    async def after(stage: RepairStage) -> None:
        held = [replica.state for replica in stage.server("b").replicas.values()]
        assert held and set(held) == {m.DELETED}

    done = toys("nodes drain b --stop", prepare=slowly, after=after)
    assert (done.status, done.lines) == (0, ["b is drained; its tablet server has stopped"]), done.err


def test_a_drain_names_non_voters_that_will_not_be_created_elsewhere(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    extra = places["spare"]

    async def prepare(stage: RepairStage) -> None:
        await asked(stage, "add_replica", AddReplicaRequest(tablet, extra, "non_voter"))
        await stage.until(lambda: extra in hosts_of(stage, tablet))

    async def after(stage: RepairStage) -> None:
        assert extra not in hosts_of(stage, tablet) and len(hosts_of(stage, tablet)) == 3

    drain = ("nodes", "drain", extra)
    done = toys(*drain, "--wait", prepare=prepare, after=after)
    assert (done.status, done.lines) == (0, [f"{extra} is drained"])
    lost = f"the non-voter of tablet {tablet[:8]} on {extra} will not be created on another host"
    assert f"warning: {lost}" in done.message, done.err
    document = toys(*drain, "--json", prepare=prepare).json
    assert document["non_voters"] == {f"tablet-server/{extra}": [tablet]}
    assert "warning" not in toys(f"nodes drain {places['follower']}", prepare=prepare).err
    assert "warning" not in toys(*drain, "--off", prepare=prepare).err


def test_a_drain_names_the_masters_and_journal_nodes_that_stay(
    toys: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[list[str]] = []

    async def hosts(cluster: object, addresses: list[str]) -> dict[str, str | None]:
        requests.append(addresses)
        return {"journal/1": "b", "journal/2": None, **dict.fromkeys(addresses, "b")}

    monkeypatch.setattr(Cluster, "hosts", hosts)
    done = toys("nodes drain b --wait")
    assert done.lines == [
        "b is drained",
        "  master/m (active), journal/1 stay there: a drain moves tablets only",
        "  `ebla master failover` makes another master active, if there is one",
    ]
    assert requests == [["master/m"]]
    begun = toys("nodes drain b --json").json
    assert begun["staying"] == {"tablet-server/b": ["master/m (active)", "journal/1"]}
    assert toys("nodes drain c").lines[-1].startswith("c is draining: ")


def test_a_lost_host_is_forgotten(toys: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def forget(name: str, address: str) -> bool:
        ended.append(address)
        return True

    async def drained(stage: RepairStage) -> None:
        await stage.persist(lambda: stage.ask("drain", DrainRequest("b"), DrainReply))
        await stage.until(lambda: well(stage) and all("b" not in hosts_of(stage, t) for t in stage.tablets))
        stage.cluster.crash("tablet-server/b")

    async def after(stage: RepairStage) -> None:
        assert list(stage.master.catalog.forgotten.values()) == ["tablet-server/b"]

    monkeypatch.setattr(launch, "forget", forget)
    shown = toys("check", prepare=drained)
    assert shown.status == 0, shown.out
    line = next(row for row in shown.lines if row.startswith("b "))
    assert line.split()[1:3] == ["STOPPED", "0"]
    assert "draining; stopped after draining" in line
    done = toys("nodes forget b", prepare=drained, after=after)
    assert (done.status, done.lines, ended) == (0, ["b is forgotten"], ["tablet-server/b"])
    document = toys("nodes forget tablet-server/b --json", prepare=drained).json
    assert (document["address"], len(document["uuids"]), document["ended"]) == ("tablet-server/b", 1, True)
    toys("nodes forget b").require(1, "the server at tablet-server/b answers")
    toys("nodes forget z").require(1, "there is no server 'z'")
    assert len(ended) == 2


def test_a_drain_that_cannot_end_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    few = on_toys(monkeypatch, "abc")
    stuck = few("nodes drain b --wait")
    assert stuck.status == 1
    assert "2 replicas on b cannot move" in stuck.message and "`ebla nodes drain --off`" in stuck.message
    assert "2 of them cannot move now: add a host" in few("nodes drain b").out
    assert "there is no server 'z'; there are tablet-server/a" in few("nodes drain z").err
    few("nodes drain b --off --wait").require(2, "there is nothing to wait for")


def test_a_command_that_times_out_says_that_the_work_continues(
    toys: Cli, tablet: str, places: dict[str, str]
) -> None:
    async def after(stage: RepairStage) -> None:
        assert configuration(stage, tablet)

    words = ("move-replica", tablet, places["follower"], places["spare"], "--wait", "--timeout", "1")
    toys("tablet", *words, prepare=without_copies, after=after).require(1, "continues without this command")
