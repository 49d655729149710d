"""The five health classes of a tablet, and the leases of servers."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.cli.frame import views
from ebla.health.servers import leases
from ebla.health.tablets import judge, may_pass
from ebla.health.verdicts import STATUSES, Survey, health_class
from tests.cli.surveys import (
    GONE,
    HOSTS,
    address,
    pacifica_report,
    pacifica_table,
    replace,
    report,
    seen,
    state,
    statuses,
    tablet,
    with_leases,
    with_room,
)

WELL = with_leases(seen(*map(pacifica_report, HOSTS), info=pacifica_table()))
STARTING = pacifica_report("b", None, state="starting")


def lost(*gone: str, primary: str | None = "a", **options: int) -> Survey:
    """The servers `gone` do not answer; the others have leases."""
    reports = [GONE if host in gone else pacifica_report(host, primary) for host in HOSTS]
    return with_leases(seen(*reports, info=pacifica_table(primary, **options)))


def first_report(**seen_by_it: Any) -> Survey:
    """All servers have leases; `a` reports something else."""
    return with_leases(
        replace(WELL, states={**WELL.states, address("a"): state("a", pacifica_report("a", **seen_by_it))})
    )


CLASSES = {
    "HEALTHY": "fully healthy",
    "UNDER_REPLICATED": "writable but unhealthy",
    "UNWRITABLE": "readable but unwritable",
    "UNREADABLE": "unreadable",
    "DEAD": "dead",
}
ALONE = "1 of 3 voters run and keep up, it takes writes with 2"
NO_LEASE = "the server of its primary has no lease: no master has acknowledged a beacon lately"
PACIFICA = [
    (WELL, "HEALTHY", None),
    (with_room(lost("c")), "UNDER_REPLICATED", "replica at tablet-server/c is UNREACHABLE"),
    (lost("b", "c"), "UNWRITABLE", ALONE),
    (lost("b", "c", min_members=1), "UNDER_REPLICATED", None),
    (lost("a", primary=None), "UNREADABLE", "no primary leads it, 2 of 3 voters run"),
    (lost("a", "c", primary=None), "UNREADABLE", "no primary leads it, 1 of 3 voters run"),
    (lost("a", "b", "c"), "DEAD", "0 of 3 voters run: a, b, c"),
    (
        with_leases(seen(GONE, STARTING, GONE, info=pacifica_table(None))),
        "UNREADABLE",
        "no primary leads it, 0 of 3 voters run",
    ),
    (with_leases(WELL, a=0.0), "UNREADABLE", NO_LEASE),
    (
        first_report(commit_index=80),
        "UNREADABLE",
        "its primary has committed 80 of the 90 entries that it began with",
    ),
    (first_report(health={"b" * 32: "silent", "c" * 32: "lost"}), "UNWRITABLE", ALONE),
]
RAFT = [
    (seen(*map(report, HOSTS)), "HEALTHY", None),
    (with_room(seen(report("a"), report("b"), GONE)), "UNDER_REPLICATED", None),
    (seen(report("a"), GONE, GONE), "UNREADABLE", "1 of 3 voters run, no majority"),
    (seen(GONE, GONE, GONE), "DEAD", "0 of 3 voters run: a, b, c"),
]


@pytest.mark.parametrize(("survey", "status", "reason"), PACIFICA + RAFT)
def test_the_class_of_a_tablet_follows_from_what_its_replicas_report(
    survey: Survey, status: str, reason: str | None
) -> None:
    judged = tablet(survey)
    assert (judged.status, judged.health_class) == (status, CLASSES[status])
    assert reason is None or reason in judged.reasons
    health = judge(survey)
    assert health.tables[0].classes == {CLASSES[status]: 1}
    assert (health.status, health.healthy) == (status, status == "HEALTHY")


def test_every_status_of_a_tablet_has_a_class_and_a_next_step() -> None:
    assert {health_class(status) for status in STATUSES} == set(CLASSES.values())
    assert set(views.NEXT_STEPS) == set(STATUSES) - {"HEALTHY"}


def test_a_secondary_that_lost_its_vote_is_called_a_learner() -> None:
    """The primary's configuration and the master's say so; its server is away."""
    known = pacifica_report("a").configuration
    learner = replace(known.peers[2], member="non_voter", promote=True)
    known = replace(known, peers=(*known.peers[:2], learner))
    info = pacifica_table()
    (place,) = info.tablets
    places = (*place.replicas[:2], replace(place.replicas[2], role="learner"))
    info = replace(info, tablets=(replace(place, replicas=places),))
    reports = pacifica_report("a", configuration=known), pacifica_report("b", configuration=known), GONE
    judged = tablet(with_leases(seen(*reports, info=info)))
    assert judged.status == "UNDER_REPLICATED"
    assert judged.reasons[0].startswith("learner at tablet-server/c is UNREACHABLE; no other host")
    assert statuses(judged) == ["HEALTHY", "HEALTHY", "UNREACHABLE"]


def test_a_server_without_a_lease_is_a_finding_that_may_pass() -> None:
    health = judge(with_leases(WELL, c=0.0))
    assert [server.status for server in health.servers] == ["HEALTHY", "HEALTHY", "NO_LEASE"]
    assert (health.status, health.healthy) == ("DEGRADED", False)
    assert may_pass(health)
    assert health.reasons == (
        "tablet-server/c is NO_LEASE: its PacificA replicas do not lead: no master has acknowledged a beacon lately",
    )
    refused = with_leases(WELL, c=0.0)
    why = {"lease_refused": "the server restarts too often"}
    refused.states[address("c")] = replace(refused.states[address("c")], **why)
    assert judge(refused).reasons[0].endswith(": the server restarts too often")


def test_an_operator_who_suspends_a_server_takes_its_lease_away_and_that_is_no_finding() -> None:
    servers = (*WELL.servers[:2], replace(WELL.servers[2], suspended=True))
    assert judge(with_leases(replace(WELL, servers=servers), c=0.0)).healthy


def test_a_server_of_raft_tables_needs_no_lease() -> None:
    survey = seen(*map(report, HOSTS))
    assert judge(survey).healthy
    assert leases(survey) == ()


def test_leases_are_listed_with_the_members_of_each_server() -> None:
    servers = (
        replace(WELL.servers[0], lease="alive", lease_number=2, beacon_age_s=0.4),
        replace(WELL.servers[1], lease="ended", lease_number=7, beacon_age_s=61.0),
        WELL.servers[2],
    )
    listed = leases(with_room(replace(WELL, servers=servers)))
    members = [(each.primaries, each.secondaries, each.learners) for each in listed]
    assert [(each.lease, each.number, each.beacon_age_s) for each in listed] == [
        ("alive", 2, 0.4),
        ("ended", 7, 61.0),
        ("unknown", 0, None),
        ("", 0, None),
    ]
    assert members == [(1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 0)]


def test_a_mixed_list_names_terms_and_ballots() -> None:
    assert views.era(["raft", "raft"]) == "TERM>"
    assert views.era(["pacifica"]) == "BALLOT>"
    assert views.era(["pacifica", "raft"]) == "TERM/\nBALLOT>"
