"""`ebla tablet add-replica | remove-replica | move-replica` on toys."""

from __future__ import annotations

import pytest

from ebla.actors.master.messages import DrainReply, DrainRequest
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.replication.health import UNHEALTHY
from ebla.operate import naming
from ebla.operate.naming import Refused
from ebla.show import progress
from tests.cli.repair_stage import RepairStage, Toys, on_toys
from tests.master.healed import hosts_of, silence, well


def test_a_move_shows_the_members_and_the_command_that_shows_the_copy(toys: Toys) -> None:
    source, target = toys.follower, toys.spare
    done = toys(f"tablet move-replica {toys.tablet[:8]} {source} {target}")
    assert done.status == 0, done.err
    assert f"{target} (pre-voter)" in done.out
    assert f"{source} (voter, goes when its replacement has caught up)" in done.out
    assert "`ebla tablet copies --watch` shows the copy" in done.out
    document = toys(f"tablet move-replica {toys.tablet} {source} {target} --json").json
    roles = {each["address"]: (each["role"], each["replace"]) for each in document["members"]}
    assert roles[f"tablet-server/{target}"] == ("pre-voter", False)
    assert roles[f"tablet-server/{source}"] == ("voter", True)
    assert (document["tablet"], document["waited"]) == (toys.tablet, False)


def test_a_removal_and_an_addition_name_the_command_that_shows_the_copy(toys: Toys) -> None:
    for words in (
        f"remove-replica {toys.tablet} {toys.follower}",
        f"add-replica {toys.tablet} {toys.spare} --role non-voter",
    ):
        assert "`ebla tablet copies --watch` shows the copy" in toys(f"tablet {words}").out


@pytest.mark.parametrize(
    ("words", "leaves"),
    [
        ("move-replica {0.tablet} {0.leader} {0.spare}", "leader"),
        ("move-replica {0.tablet} {0.follower} {0.spare}", "follower"),
        ("remove-replica {0.tablet} {0.leader}", "leader"),
    ],
)
def test_with_wait_the_command_ends_with_the_change(toys: Toys, words: str, leaves: str) -> None:
    words = f"tablet {words.format(toys)} --wait --json"
    done = toys(words, after=lambda stage: hosts_of(stage, toys.tablet))
    assert done.status == 0, done.err
    assert {*done.seen} == {*toys.held, toys.spare} - {getattr(toys, leaves)}
    assert [each["role"] for each in done.json["members"]] == ["voter"] * 3


def test_an_abandoned_move_says_so(toys: Toys) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.raft.copies = False
        stage.raft.unhealthy[stage.server(toys.spare).uuid] = UNHEALTHY

        async def go_silent() -> None:
            stage.scripts[toys.spare].silent = True

        stage.points.acts["master.repair_tablet.before_rpc"] = go_silent

    words = ("tablet", "move-replica", toys.tablet, toys.follower, toys.spare, "--wait")
    given_up = toys(*words, prepare=prepare)
    assert given_up.status == 1
    assert "the move was given up" in given_up.err and "choose another server" in given_up.err


def test_a_move_that_ends_elsewhere_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    five = on_toys(monkeypatch, "abcde")

    async def prepare(stage: RepairStage) -> None:
        stage.raft.unhealthy[stage.server(five.spare).uuid] = UNHEALTHY

    words = f"tablet move-replica {five.tablet} {five.held[1]} {five.spare} --wait"
    reason = f"the replica left {five.held[1]}, but {five.spare} could not take it: the tablet is at "
    five(words, prepare=prepare).require(1, reason)


def test_removing_a_nonmember_is_a_noop(toys: Toys) -> None:
    out, held = toys.spare, toys.follower
    for words in (f"move-replica {toys.tablet} {out} {held}", f"remove-replica {toys.tablet} {out} --wait"):
        swapped = toys(f"tablet {words}")
        assert (swapped.status, swapped.lines[-1]) == (0, f"nothing to do: {out} has no replica of it")
    assert toys(f"tablet remove-replica {toys.tablet} {out} --json").json["needless"] is True
    assert toys(f"tablet remove-replica {toys.tablet} {held} --json").json["needless"] is False


def test_with_wait_a_removal_at_once_ends_with_its_replacement(toys: Toys) -> None:
    words = f"tablet remove-replica {toys.tablet} {toys.follower} --at-once --wait"
    done = toys(words, after=lambda stage: (toys.follower in hosts_of(stage, toys.tablet), well(stage)))
    assert (done.status, done.seen) == (0, (False, True))


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
        ("add-replica {0.tablet} {0.spare}", "has the 3 replicas that its table wants", 2),
        ("add-replica {0.tablet} nowhere", "there is no server 'nowhere'; there are tablet-server/a", 1),
        ("add-replica {0.tablet} {0.spare} --role boss", "there is no role 'boss'", 2),
        ("add-replica {0.tablet} {0.leader} --role non-voter", "remove it, then add it again", 2),
        ("move-replica {0.tablet} nowhere {0.leader}", "has no replica at 'nowhere'", 1),
        ("move-replica {0.tablet} {0.leader} {0.follower}", "has a replica of tablet", 2),
        ("remove-replica feedfeed a", "there is no tablet 'feedfeed'", 1),
        ("remove-replica {0.tablet} nowhere", "there is no server 'nowhere'", 1),
    ],
)
def test_a_refused_change_of_members_says_why_and_what_to_do(
    toys: Toys, words: str, reason: str, status: int
) -> None:
    toys(f"tablet {words.format(toys)}").require(status, reason)


def test_a_refusal_that_is_repeated_is_shown_in_full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the command waits, it shows a short reason and the waiting time."""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    three = on_toys(monkeypatch, "abc")
    refused = three(f"tablet remove-replica {three.tablet} a")
    assert refused.status == 1
    for reason in (
        "asking for 15 s in all: no live server could take",
        "to have fewer replicas, drain its host first, and then remove the replica at once",
    ):
        assert refused.message.count(reason) == 1, refused.message


def test_a_non_voter_is_added_and_shown(toys: Toys) -> None:
    done = toys(f"tablet add-replica {toys.tablet} {toys.spare} --role non-voter --wait")
    assert done.status == 0, done.err
    assert f"{toys.spare} (non-voter)" in done.out


def test_show_and_check_report_roles_health_and_draining(toys: Toys) -> None:
    async def prepare(stage: RepairStage) -> None:
        stage.raft.copies = False
        silence(stage, toys.follower)
        stage.scripts[toys.follower].silent = False
        await stage.ask("drain", DrainRequest(toys.leader), DrainReply)
        await stage.until(lambda: len(hosts_of(stage, toys.tablet)) == 4)

    shown = toys(f"tablet show {toys.tablet}", prepare=prepare)
    line = {row.split()[0]: row for row in shown.lines if row.startswith("  ") and row.split()}
    assert "pre-voter" in line[toys.spare] and "MISSING" in line[toys.spare]
    assert "silent to its leader" in line[toys.follower]
    assert "draining" in line[toys.leader]
    check = toys("check --json", prepare=prepare)
    assert check.status == 1
    found = next(each for each in check.json["tablets"] if each["tablet"] == toys.tablet)
    assert found["status"] == "RECOVERING"
    assert {each["member"] for each in found["replicas"]} == {"voter", "pre-voter"}
    assert f"replica at tablet-server/{toys.leader} is to go: its server drains" in found["reasons"]
    nodes = toys("nodes", prepare=prepare)
    assert [row.split()[0] for row in nodes.lines if "draining" in row] == [toys.leader]


def test_a_command_that_times_out_says_that_the_work_continues(toys: Toys) -> None:
    async def without_copies(stage: RepairStage) -> None:
        stage.raft.copies = False

    words = f"tablet move-replica {toys.tablet} {toys.follower} {toys.spare} --wait --timeout 1"
    toys(words, prepare=without_copies).require(1, "continues without this command")
