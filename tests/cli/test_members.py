"""`ebla tablet add-replica | remove-replica | move-replica` and `ebla nodes drain`, as they are typed."""

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
from ebla.cli.frame import ui
from ebla.cli.frame.problems import Refused
from ebla.cli.nodes import draining
from ebla.cli.tablets import members
from ebla.placement import launch
from tests.cli.repair_stage import Repairing, RepairStage, first_tablet
from tests.master.healed import asked, configuration, hosts_of, silence, spare, well

# -- replicas ------------------------------------------------------------------------------------------------


def test_a_replica_moves_and_the_command_tells_the_members_and_what_shows_the_copy(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    source, target = places["follower"], places["spare"]
    done = repairing("tablet", "move-replica", tablet[:8], source, target)
    assert done.status == 0, done.err
    assert f"{target} (pre-voter)" in done.out
    assert f"{source} (voter, goes when its replacement has caught up)" in done.out
    assert "`ebla tablet copies --watch` shows the copy" in done.out
    document = repairing("tablet", "move-replica", tablet, source, target, "--json").json
    roles = {each["address"]: (each["role"], each["replace"]) for each in document["members"]}
    assert roles[f"tablet-server/{target}"] == ("pre-voter", False)
    assert roles[f"tablet-server/{source}"] == ("voter", True)
    assert (document["tablet"], document["waited"]) == (tablet, False)


def test_what_a_removal_or_a_further_replica_has_copied_is_shown_by_the_same_command(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    """A move said so, and these said nothing of a copy."""
    shows = "`ebla tablet copies --watch` shows the copy"
    assert shows in repairing("tablet", "remove-replica", tablet, places["follower"]).out
    further = ("tablet", "add-replica", tablet, places["spare"], "--role", "non-voter")
    assert shows in repairing(*further).out


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_with_wait_a_move_is_over_when_the_command_is(
    repairing: Repairing, tablet: str, places: dict[str, str], who: str
) -> None:
    source, target = places[who], places["spare"]

    async def looked(stage: RepairStage) -> None:
        assert target in hosts_of(stage, tablet) and source not in hosts_of(stage, tablet)

    done = repairing("tablet", "move-replica", tablet, source, target, "--wait", "--json", looked=looked)
    assert done.status == 0, done.err
    assert sorted(each["role"] for each in done.json["members"]) == ["voter"] * 3


def test_a_move_that_is_given_up_says_so(repairing: Repairing, tablet: str, places: dict[str, str]) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.fairy.copies = False
        stage.fairy.words[stage.server(places["spare"]).uuid] = UNHEALTHY
        heard = stage.scripts[places["spare"]]

        async def go_silent() -> None:
            heard.silent = True

        stage.points.acts["master.repair_tablet.before_rpc"] = go_silent

    words = ("tablet", "move-replica", tablet, places["follower"], places["spare"], "--wait")
    given_up = repairing(*words, prepare=prepare)
    assert given_up.status == 1
    assert "the move was given up" in given_up.err and "choose another server" in given_up.err


def test_a_move_that_ends_elsewhere_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet, held = first_tablet("abcde"), list[str]()

    async def prepare(stage: RepairStage) -> None:
        held[:] = hosts_of(stage, tablet)
        target = spare(stage, tablet)
        stage.fairy.words[stage.server(target).uuid] = UNHEALTHY

    five = Repairing(monkeypatch, "abcde")
    five("check", prepare=prepare)
    source, target = held[1], next(name for name in "abcde" if name not in held)
    moved = five("tablet", "move-replica", tablet, source, target, "--wait", prepare=prepare)
    assert moved.status == 1, moved.out
    told = " ".join(moved.err.split())
    assert f"the replica left {source}, but {target} could not take it: the tablet is at " in told, told


def test_a_replica_is_removed_and_another_server_gets_it(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    async def looked(stage: RepairStage) -> None:
        assert places["leader"] not in hosts_of(stage, tablet) and len(hosts_of(stage, tablet)) == 3

    done = repairing("tablet", "remove-replica", tablet, places["leader"], "--wait", looked=looked)
    assert done.status == 0, done.err
    assert places["spare"] in done.out


def test_who_is_to_give_up_a_replica_that_it_does_not_have_has_nothing_to_do(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    out, held = places["spare"], places["follower"]
    for words in (("move-replica", tablet, out, held), ("remove-replica", tablet, out, "--wait")):
        swapped = repairing("tablet", *words)
        assert (swapped.status, swapped.lines[-1]) == (
            0,
            f"nothing to do: {out} has no replica of it",
        )
    assert repairing("tablet", "remove-replica", tablet, out, "--json").json["needless"] is True
    assert repairing("tablet", "remove-replica", tablet, held, "--json").json["needless"] is False


def test_with_wait_a_removal_at_once_is_over_when_another_has_the_replica(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    async def looked(stage: RepairStage) -> None:
        assert places["follower"] not in hosts_of(stage, tablet) and well(stage)

    words = ("tablet", "remove-replica", tablet, places["follower"], "--at-once", "--wait")
    assert repairing(*words, looked=looked).status == 0


def test_of_two_members_at_one_address_one_is_named_by_its_uuid() -> None:
    places = [("aaaa1", "tablet-server/a"), ("bbbb1", "tablet-server/b"), ("aaaa2", "tablet-server/a")]
    with pytest.raises(Refused, match=r"'a' may mean a \(aaaa1\) or a \(aaaa2\)"):
        members.meant("a", places)
    assert [members.meant(word, places) for word in ("aaaa2", "b", "c")] == ["aaaa2", "bbbb1", None]
    found = members.find(Configuration(tuple(Peer(*place) for place in places)), "a")
    assert found is not None and found.uuid == "aaaa2", "it came last"


@pytest.mark.parametrize(
    ("words", "told", "status"),
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
def test_what_cannot_be_says_why_and_what_to_do(
    repairing: Repairing, tablet: str, places: dict[str, str], words: tuple[str, ...], told: str, status: int
) -> None:
    given = [word.format(tablet=tablet, **places) for word in words]
    refused = repairing("tablet", *given)
    assert (refused.status, told in " ".join(refused.err.split())) == (status, True), refused.err


def test_what_is_refused_for_as_long_as_it_is_asked_is_told_in_full_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it waits the command says why in a few words, and how long."""
    monkeypatch.setattr(ui, "LINE_EVERY_S", 0.0)
    three, tablet = Repairing(monkeypatch, "abc"), first_tablet("abc")
    refused = three("tablet", "remove-replica", tablet, "a")
    told = " ".join(refused.err.split())
    assert refused.status == 1 and told.count("asking for 15 s in all: no live server could take") == 1, told
    assert (
        told.count("to have fewer replicas, drain its host first, and then remove the replica at once") == 1
    ), told


def test_a_further_non_voter_is_added_and_shown(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    done = repairing("tablet", "add-replica", tablet, places["spare"], "--role", "non-voter", "--wait")
    assert done.status == 0, done.err
    assert f"{places['spare']} (non-voter)" in done.out


async def nothing(stage: RepairStage) -> None:
    stage.fairy.copies = False


def test_show_and_check_tell_roles_marks_health_and_draining(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.fairy.copies = False
        silence(stage, places["follower"])
        stage.scripts[places["follower"]].silent = False
        await stage.ask("drain", DrainRequest(places["leader"]), DrainReply)
        await stage.until(lambda: len(hosts_of(stage, tablet)) == 4)

    shown = repairing("tablet", "show", tablet, prepare=prepare)
    line = {row.split()[0]: row for row in shown.lines if row.startswith("  ") and row.split()}
    assert "pre-voter" in line[places["spare"]] and "MISSING" in line[places["spare"]]
    assert "silent to its leader" in line[places["follower"]]
    assert "draining" in line[places["leader"]]
    check = repairing("check", "--json", prepare=prepare)
    assert check.status == 1
    found = next(each for each in check.json["tablets"] if each["tablet"] == tablet)
    assert found["status"] == "RECOVERING"
    assert {each["member"] for each in found["replicas"]} == {"voter", "pre-voter"}
    assert f"replica at tablet-server/{places['leader']} is to go: its server drains" in found["reasons"]
    nodes = repairing("nodes", prepare=prepare)
    assert [row.split()[0] for row in nodes.lines if "draining" in row] == [places["leader"]]


# -- draining ------------------------------------------------------------------------------------------------


def test_a_host_is_drained_and_its_server_stopped(
    repairing: Repairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[list[str]] = []

    def stop(name: str, addresses: list[str], *, timeout_s: float) -> tuple[str, ...]:
        stopped.append(addresses)
        return tuple(addresses)

    async def looked(stage: RepairStage) -> None:
        assert well(stage) and list(stage.master.catalog.draining) == ["tablet-server/b"]
        assert all("b" not in hosts_of(stage, tablet) for tablet in stage.tablets)

    monkeypatch.setattr(launch, "stop", stop)
    done = repairing("nodes", "drain", "b", "--wait", looked=looked)
    assert (done.status, done.lines, stopped) == (0, ["b is drained"], [])
    gone = repairing("nodes", "drain", "b", "--stop", "--json").json
    assert gone["stopped"] == ["tablet-server/b"] and stopped == [["tablet-server/b"]]
    assert gone["servers"][0]["replicas"] == 0
    begun = repairing("nodes", "drain", "b", prepare=nothing)
    assert begun.status == 0 and begun.lines[0].startswith("b is draining: ")
    back = repairing("nodes", "drain", "b", "--off")
    assert back.status == 0 and back.lines[0].startswith("b may have replicas again")


def test_a_server_is_stopped_when_what_it_had_is_set_aside(
    repairing: Repairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped as soon as it was a member of nothing, and came back with the replica that it had left last."""
    monkeypatch.setattr(launch, "stop", lambda name, addresses, *, timeout_s: tuple(addresses))

    async def slowly(stage: RepairStage) -> None:
        server = stage.server("b")
        honest = server._bury

        async def bury(request: m.DeleteTabletRequest) -> m.Empty:
            await asyncio.sleep(3.0)
            return await honest(request)

        monkeypatch.setattr(server, "_bury", bury)

    async def looked(stage: RepairStage) -> None:
        held = [replica.state for replica in stage.server("b").replicas.values()]
        assert held and set(held) == {m.DELETED}

    done = repairing("nodes", "drain", "b", "--stop", prepare=slowly, looked=looked)
    assert (done.status, done.lines) == (0, ["b is drained; its tablet server has stopped"]), done.err


def test_a_drain_says_which_non_voters_are_not_made_elsewhere(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    extra = places["spare"]

    async def prepare(stage: RepairStage) -> None:
        await asked(stage, "add_replica", AddReplicaRequest(tablet, extra, "non_voter"))
        await stage.until(lambda: extra in hosts_of(stage, tablet))

    async def looked(stage: RepairStage) -> None:
        assert extra not in hosts_of(stage, tablet) and len(hosts_of(stage, tablet)) == 3

    drain = ("nodes", "drain", extra)
    done = repairing(*drain, "--wait", prepare=prepare, looked=looked)
    assert (done.status, done.lines) == (0, [f"{extra} is drained"])
    told = f"warning: the non-voter of tablet {tablet[:8]} on {extra} will not be created on another host"
    assert told in " ".join(done.err.split()), done.err
    document = repairing(*drain, "--json", prepare=prepare).json
    assert document["non_voters"] == {f"tablet-server/{extra}": [tablet]}
    assert "warning" not in repairing("nodes", "drain", places["follower"], prepare=prepare).err
    assert "warning" not in repairing(*drain, "--off", prepare=prepare).err


def test_a_drain_names_the_masters_and_journal_nodes_that_stay(
    repairing: Repairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    async def hosts(cluster: object, addresses: list[str]) -> dict[str, str | None]:
        asked.append(addresses)
        return {"journal/1": "b", "journal/2": None, **dict.fromkeys(addresses, "b")}

    monkeypatch.setattr(draining, "hosts", hosts)
    done = repairing("nodes", "drain", "b", "--wait")
    assert done.lines == [
        "b is drained",
        "  master/m (active), journal/1 stay there: a drain moves tablets only",
        "  `ebla master failover` makes another master active, if there is one",
    ]
    assert asked == [["master/m"]]
    begun = repairing("nodes", "drain", "b", "--json").json
    assert begun["staying"] == {"tablet-server/b": ["master/m (active)", "journal/1"]}
    assert repairing("nodes", "drain", "c").lines[-1].startswith("c is draining: ")


def test_a_host_that_is_gone_for_good_is_forgotten(
    repairing: Repairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def forget(name: str, address: str) -> bool:
        ended.append(address)
        return True

    async def drained(stage: RepairStage) -> None:
        await stage.persist(lambda: stage.ask("drain", DrainRequest("b"), DrainReply))
        await stage.until(lambda: well(stage) and all("b" not in hosts_of(stage, t) for t in stage.tablets))
        stage.cluster.crash("tablet-server/b")

    async def looked(stage: RepairStage) -> None:
        assert list(stage.master.catalog.forgotten.values()) == ["tablet-server/b"]

    monkeypatch.setattr(launch, "forget", forget)
    shown = repairing("check", prepare=drained)
    assert shown.status == 0, shown.out
    line = next(row for row in shown.lines if row.startswith("b "))
    assert line.split()[1:3] == ["STOPPED", "0"]
    assert "draining; it gives no answer, and nobody needs it" in line
    done = repairing("nodes", "forget", "b", prepare=drained, looked=looked)
    assert (done.status, done.lines, ended) == (0, ["b is forgotten"], ["tablet-server/b"])
    document = repairing("nodes", "forget", "tablet-server/b", "--json", prepare=drained).json
    assert (document["address"], len(document["uuids"]), document["ended"]) == ("tablet-server/b", 1, True)
    refused = repairing("nodes", "forget", "b")
    assert (refused.status, "the server at tablet-server/b answers" in " ".join(refused.err.split())) == (
        1,
        True,
    )
    unknown = repairing("nodes", "forget", "z")
    assert (unknown.status, "there is no server 'z'" in unknown.err) == (1, True)
    assert len(ended) == 2


def test_a_drain_that_cannot_end_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Repairing(monkeypatch, "abc")
    stuck = few("nodes", "drain", "b", "--wait")
    assert stuck.status == 1
    told = " ".join(stuck.err.split())
    assert "2 replicas on b cannot move" in told and "`ebla nodes drain --off`" in told
    assert "2 of them cannot move now: add a host" in few("nodes", "drain", "b").out
    assert "there is no server 'z'; there are tablet-server/a" in few("nodes", "drain", "z").err
    wrong = few("nodes", "drain", "b", "--off", "--wait")
    assert (wrong.status, "there is nothing to wait for" in wrong.err) == (2, True)


def test_a_command_that_waits_no_longer_says_that_it_goes_on(
    repairing: Repairing, tablet: str, places: dict[str, str]
) -> None:
    async def looked(stage: RepairStage) -> None:
        assert configuration(stage, tablet)

    words = (
        "tablet",
        "move-replica",
        tablet,
        places["follower"],
        places["spare"],
        "--wait",
        "--timeout",
        "1",
    )
    late = repairing(*words, prepare=nothing, looked=looked)
    assert (late.status, "goes on without this command" in late.err) == (1, True), late.err
