"""The verdict on a deployment from the reports of masters and replicas."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from ebla.actors import messages as m
from ebla.actors.errors import NotActive, NotRunning
from ebla.actors.incarnations import old_copy
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from ebla.actors.tablet.raft.forced import GIVEN_UP
from ebla.cli.nodes import check
from ebla.health.survey import survey, unanswered
from ebla.health.tablets import LAG_ENTRIES_MAX, judge, may_pass, worst
from ebla.health.verdicts import STATUSES, ClusterHealth, Digests, Survey, Unanswered
from ebla.storage.errors import EblaError
from ebla.wording import brief
from tests.cli.surveys import (
    GONE,
    HOSTS,
    MASTER,
    address,
    configuration,
    replace,
    report,
    seen,
    status_of,
    statuses,
    table,
    tablet,
    uuid,
    with_room,
)

WELL = seen(report("a"), report("b"), report("c"))


def test_three_replicas_that_agree_are_healthy() -> None:
    health = judge(WELL)
    assert (health.status, health.healthy, health.reasons) == ("HEALTHY", True, ())
    assert tablet(WELL).leader == uuid("a")
    assert statuses(tablet(WELL)) == ["HEALTHY"] * 3
    assert health.tables[0].tablets == {"HEALTHY": 1}
    assert not may_pass(health)


def test_a_replica_whose_server_is_gone_leaves_the_tablet_under_replicated() -> None:
    survey = with_room(seen(report("a"), report("b"), GONE))
    judged = tablet(survey)
    assert judged.status == "UNDER_REPLICATED"
    assert statuses(judged) == ["HEALTHY", "HEALTHY", "UNREACHABLE"]
    assert judged.reasons == ("replica at tablet-server/c is UNREACHABLE",)
    health = judge(survey)
    assert not may_pass(health), "a dead server does not come back within a second"
    assert "tablet-server/c is UNREACHABLE: no answer" in health.reasons


CANCELLED = "the copy of tablet t1 was cancelled"


@pytest.mark.parametrize(
    ("third", "status", "reason"),
    [
        (report("c", state="failed", error="record 7 is damaged"), "FAILED", ": record 7 is damaged"),
        (report("c", error=GIVEN_UP), "FAILED", f": {GIVEN_UP}"),
        (None, "MISSING", ": its server does not have it"),
        (
            report("c", leader=None, state="deleted", error=CANCELLED),
            "TOMBSTONE",
            f": its leader is to have it copied; {CANCELLED}",
        ),
    ],
)
def test_a_replica_that_does_not_serve_leaves_the_tablet_under_replicated(
    third: m.ReplicaReport | None, status: str, reason: str
) -> None:
    judged = tablet(with_room(seen(report("a"), report("b"), third)))
    assert (judged.status, judged.healthy, judged.replicas[2].status) == ("UNDER_REPLICATED", 2, status)
    assert judged.reasons == (f"replica at tablet-server/c is {status}{reason}",)
    if status == "FAILED":
        assert judged.replicas[2].error == reason.removeprefix(": ")


def test_a_server_on_an_old_copy_is_shown_with_the_remedy() -> None:
    shown, known = m.ServerInstance(uuid("c"), 7, "s"), m.ServerInstance(uuid("c"), 5007, "t")
    error = old_copy(shown, known, MASTER)
    health = judge(seen(report("a"), report("b"), unanswered(error)))
    (reason,) = [reason for reason in health.reasons if address("c") in reason]
    assert reason == f"{address('c')} is UNREACHABLE: {error.message}"
    assert brief(error.message, 60) == "older copy of its directory, set it aside and start again..."
    assert "shows number 7" in reason and "seen 5007" in reason


def test_another_server_at_the_address_is_not_the_replica() -> None:
    judged = tablet(with_state("c", instance=m.ServerInstance("f" * 32, 1, "s"), replicas=()))
    assert (judged.status, judged.replicas[2].status) == ("UNDER_REPLICATED", "WRONG_SERVER")


def test_a_tablet_without_a_leader_is_unreadable_and_may_recover() -> None:
    survey = seen(*(report(host, None, role="candidate") for host in HOSTS), info=table(leader=None))
    assert tablet(survey).status == "UNREADABLE"
    assert "none of its replicas leads" in tablet(survey).reasons
    assert may_pass(judge(survey))


def test_a_tablet_that_is_being_created_is_unavailable() -> None:
    info = table()
    waiting = replace(info.tablets[0], state="creating", replicas=(), leader=None)
    judged = tablet(seen(None, None, None, info=replace(info, tablets=(waiting,))))
    assert (judged.status, judged.reasons) == ("UNREADABLE", ("it is being created: no server has it yet",))
    assert may_pass(judge(seen(None, None, None, info=replace(info, tablets=(waiting,)))))


def disagreeing(leader: str | None = "a", **other: Any) -> Survey:
    return seen(report("a"), report("b"), report("c", leader, **other))


ANOTHER = "tablet-server/c has another configuration than the leader"
DEMOTED = Configuration((*configuration().peers[:2], replace(configuration().peers[2], member=NON_VOTER)))


@pytest.mark.parametrize(
    ("survey", "reason"),
    [
        (disagreeing("b"), "tablet-server/c takes tablet-server/b for the leader, not tablet-server/a"),
        (disagreeing(None), "tablet-server/c takes no replica for the leader, not tablet-server/a"),
        (disagreeing(term=2), "tablet-server/c is in term 2, the leader in 3"),
        (disagreeing("c", term=2), "tablet-server/c says that it leads in term 2, the leader is in 3"),
        (disagreeing("c"), "tablet-server/c says that it leads in term 3, the leader is in 3"),
        (disagreeing(configuration=configuration(("a", "b"))), ANOTHER),
        (disagreeing(configuration=DEMOTED), ANOTHER),
        (
            seen(report("a"), report("b"), report("c"), info=table(leader="b")),
            "the master takes tablet-server/b for the leader, not tablet-server/a",
        ),
    ],
)
def test_a_disagreement_about_the_leader_is_a_consensus_mismatch(survey: Survey, reason: str) -> None:
    judged = tablet(survey)
    assert (judged.status, judged.leader) == ("CONSENSUS_MISMATCH", uuid("a"))
    assert reason in judged.reasons
    assert may_pass(judge(survey))


def test_a_tablet_with_a_starting_or_lagging_replica_is_recovering() -> None:
    starting = seen(report("a"), report("b"), report("c", state="bootstrapping", leader=None))
    assert (tablet(starting).status, statuses(tablet(starting))[2]) == ("RECOVERING", "BOOTSTRAPPING")
    behind = LAG_ENTRIES_MAX + 1
    lagging = seen(
        report("a", commit_index=behind, applied_index=behind, last_index=behind),
        report("b", applied_index=behind),
        report("c", applied_index=0),
    )
    assert (tablet(lagging).status, statuses(tablet(lagging))) == (
        "RECOVERING",
        ["HEALTHY", "HEALTHY", "LAGGING"],
    )
    assert [replica.lag for replica in tablet(lagging).replicas] == [0, 0, behind]
    assert may_pass(judge(lagging))


def test_the_status_is_the_worst_of_several_findings() -> None:
    judged = tablet(seen(report("a"), report("b", term=2), report("c", state="failed", error="damaged")))
    assert judged.status == "CONSENSUS_MISMATCH"
    assert len(judged.reasons) == 2
    assert [worst(list(pair)) for pair in pairwise(STATUSES)] == list(STATUSES[1:])


def test_one_replica_of_one_is_healthy_and_two_of_three_wanted_are_not() -> None:
    alone = report("a", configuration=configuration(("a",)))
    assert tablet(seen(alone, None, None, info=table(("a",), replicas=1))).status == "HEALTHY"
    few = [report(host, configuration=configuration(("a", "b"))) for host in ("a", "b")]
    judged = tablet(seen(*few, None, info=table(("a", "b"))))
    assert (judged.status, judged.reasons) == ("UNDER_REPLICATED", ("it has 2 of 3 replicas",))


def with_state(host: str, **changes: Any) -> Survey:
    """All is well, but one server reports something else of itself."""
    return replace(
        WELL, states={**WELL.states, address(host): replace(WELL.states[address(host)], **changes)}
    )


@pytest.mark.parametrize(
    ("survey", "found", "status"),
    [
        (replace(WELL, servers=(*WELL.servers[:2], status_of("c", alive=False))), ["SILENT"], "DEGRADED"),
        (with_state("c", lost_disks={"/data/2": "Input/output error"}), ["DISK_LOST"], "DEGRADED"),
        (with_state("c", instance=m.ServerInstance("f" * 32, 1, "s")), ["WRONG_SERVER"], "UNDER_REPLICATED"),
        (
            replace(WELL, slots=(address("d"),), states={**WELL.states, address("d"): GONE}),
            ["HEALTHY", "UNREACHABLE"],
            "DEGRADED",
        ),
    ],
    ids=[
        "without heartbeats",
        "a lost disk",
        "another server at its address",
        "a slot without a known server",
    ],
)
def test_a_server_that_is_not_well_is_shown(survey: Survey, found: list[str], status: str) -> None:
    health = judge(survey)
    assert [server.status for server in health.servers] == ["HEALTHY", "HEALTHY", *found]
    assert (health.status, health.healthy) == (status, False)


def test_without_a_master_the_deployment_is_unavailable_and_servers_are_still_shown() -> None:
    survey = replace(WELL, masters={MASTER: GONE}, servers=(), tables=())
    health = judge(survey)
    assert (health.status, health.healthy) == ("UNAVAILABLE", False)
    assert [server.status for server in health.servers] == ["HEALTHY"] * 3
    assert health.reasons == ("master/0: no answer",)


def digested(*values: str | Unanswered) -> dict[str, Digests]:
    replies = {
        uuid(host): value if isinstance(value, Unanswered) else m.Digest("t1", 101, 7, value)
        for host, value in zip(HOSTS, values, strict=True)
    }
    return {"t1": Digests(101, replies)}


def test_equal_digests_are_healthy_and_shown() -> None:
    judged = tablet(WELL, digested("x", "x", "x"))
    assert (judged.status, judged.checksum_index) == ("HEALTHY", 101)
    assert [(replica.rows, replica.digest) for replica in judged.replicas] == [(7, "x")] * 3


def test_different_digests_are_a_checksum_mismatch() -> None:
    judged = tablet(WELL, digested("x", "x", "y"))
    assert judged.status == "CHECKSUM_MISMATCH"
    assert "different rows as of index 101" in judged.reasons[0]
    assert not may_pass(judge(WELL, digested("x", "x", "y")))


def test_a_replica_without_a_digest_is_not_called_healthy() -> None:
    judged = tablet(WELL, digested("x", "x", Unanswered("Unavailable", "it has applied 90")))
    assert judged.status == "UNDER_REPLICATED"
    assert judged.reasons == ("replica at tablet-server/c: no digest: it has applied 90",)


def test_a_tablet_whose_checkpoint_cannot_be_written_is_unwritable() -> None:
    refused = {"t1": Digests(0, {}, Unanswered("NotLeader", "no leader"))}
    judged = tablet(WELL, refused)
    assert (judged.status, judged.checksum_index) == ("UNWRITABLE", None)


@pytest.mark.parametrize(
    "late",
    [
        {"t1": Digests(0, {}, Unanswered("TimedOut", "its turn did not come within 600 s"))},
        digested("x", "x", Unanswered("AlreadyInProgress", "it still reads its rows")),
    ],
)
def test_a_tablet_that_is_not_compared_in_time_is_no_worse_for_that(late: dict[str, Digests]) -> None:
    health = judge(WELL, late)
    assert (health.status, health.tablets[0].status) == ("DEGRADED", "HEALTHY")
    assert health.reasons == ("1 tablet not compared in time; use a longer `--timeout`",)


def test_the_verdict_survives_json() -> None:
    health = judge(seen(report("a"), report("b"), GONE), digested("x", "x", GONE))
    assert msgspec.json.decode(msgspec.json.encode(health), type=ClusterHealth) == health


def test_a_lost_disk_is_named_with_the_remedy() -> None:
    health = judge(with_state("c", lost_disks={"/data/2": "Input/output error"}))
    assert "/data/2 (Input/output error); replace the disk" in (health.servers[2].error or "")


def test_directories_set_aside_and_forced_tablets_are_named_in_full() -> None:
    path = "/mnt/data-of-this-host/ebla/host-4/tablet-server.set-aside of server 82875e17: it was forgotten"
    health = judge(with_state("b", set_aside=path))
    assert (health.servers[1].set_aside, health.healthy) == (path, True)
    assert check._set_aside(health) == [
        f"  {address('b')} is a new server; the old directory was set aside as {path}"
    ]
    forced = [replace(health.tablets[0], unsafe=1, tablet=f"{number}" * 32) for number in range(7)]
    (line,) = check._forced(replace(health, tablets=tuple(forced)))
    named = ", ".join(f"flights {f'{number}' * 8}" for number in range(5))
    assert line.endswith(f"may be missing: {named}, and 2 more")


def test_a_draining_replica_without_another_host_needs_a_host() -> None:
    stuck = "; no other host that is up can take it: add one"
    goes = "replica at tablet-server/c is to go: its server drains"
    three = (status_of("a"), status_of("b"), status_of("c", draining=True))
    for servers, reason in (
        (three, goes + stuck),
        ((*three, status_of("d", alive=False)), goes + stuck),
        ((*three, status_of("d", draining=True)), goes + stuck),
        ((*three, replace(status_of("d"), host="a")), goes + stuck),
        ((*three, status_of("d")), goes),
    ):
        judged = tablet(replace(WELL, servers=servers))
        assert (judged.status, judged.reasons) == ("RECOVERING", (reason,))


def test_a_dead_replica_without_another_host_needs_a_host() -> None:
    three = seen(report("a"), report("b"), GONE)
    dead = "replica at tablet-server/c is UNREACHABLE"
    assert tablet(three).reasons == (
        f"{dead}; no other host that is up can take it: bring it back, or add one",
    )
    assert tablet(with_room(three)).reasons == (dead,)
    maintained = replace(three, servers=(status_of("a"), status_of("b"), status_of("c", maintained=True)))
    assert tablet(maintained).reasons == (f"{dead}: its server is in maintenance",)
    alone = tablet(seen(report("a", leader=None), GONE, GONE))
    assert alone.reasons[:2] == ("replica at tablet-server/b is UNREACHABLE", dead), (
        "another host would not help"
    )
    two = Configuration((Peer(uuid("a"), address("a")), Peer(uuid("b"), address("b"))), 5)
    few = seen(*(report(host, configuration=two) for host in "ab"), None, info=table(("a", "b")))
    few = replace(few, servers=few.servers[:2])
    assert tablet(few).reasons == ("it has 2 of 3 replicas; no other host that is up can take it: add one",)


def test_a_non_voter_needs_no_other_host() -> None:
    members = (*configuration().peers[:2], Peer(uuid("c"), address("c"), NON_VOTER))
    reports = [report(host, configuration=Configuration(members, 5)) for host in "ab"]
    info = table(replicas=2)
    (only,) = info.tablets
    places = (*only.replicas[:2], replace(only.replicas[2], role="learner"))
    info = replace(info, tablets=(replace(only, replicas=places),))
    dead = tablet(seen(*reports, GONE, info=info))
    assert dead.reasons == ("non-voter at tablet-server/c is UNREACHABLE",)
    third = report("c", configuration=Configuration(members, 5))
    drains = replace(
        seen(*reports, third, info=info),
        servers=(status_of("a"), status_of("b"), status_of("c", draining=True)),
    )
    assert "replica at tablet-server/c is to go: its server drains" in tablet(drains).reasons


@pytest.mark.parametrize("error", [NotActive("a standby by now"), NotRunning("stopping", state="starting")])
def test_a_master_that_stops_during_a_survey_is_unanswered(error: EblaError) -> None:
    """A hand-over or a stop ends the master between two requests of one survey."""

    class Ending:
        async def call(self, address: str, method: str, *_: object) -> object:
            if method == "status":
                instance = m.ServerInstance("u", 1, "s")
                return m.MasterStatus(instance, address, 0, 0, 0, 0, role="active")
            raise error

    found = asyncio.run(survey(Ending(), ("master/0",)))
    assert found.masters == {"master/0": Unanswered(type(error).__name__, error.message)}
