"""Which tablets need another replica, and which can get one."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.actors.replication.configuration import NON_VOTER, Configuration
from ebla.health.needs import can_get_one, needs_replica
from ebla.health.verdicts import Survey
from tests.cli.surveys import (
    GONE,
    address,
    configuration,
    replace,
    report,
    seen,
    status_of,
    tablet,
    uuid,
    with_room,
)


def led(*others: Any, **told: Any) -> Survey:
    return seen(report("a", **told), *(others or (report("b"), report("c"))))


def changed(**marks: Any) -> Configuration:
    """The member `c` is marked."""
    *others, last = configuration().peers
    return Configuration((*others, replace(last, **marks)), -1)


def marked(survey: Survey, **marks: bool) -> Survey:
    """The server `c` is marked."""
    servers = (*(each for each in survey.servers if each.host != "c"), status_of("c", **marks))
    return replace(survey, servers=servers)


@pytest.mark.parametrize(
    ("survey", "needs"),
    [
        (led(), False),
        (led(report("b"), GONE), True),
        (marked(led(report("b"), GONE), maintained=True), False),
        (led(health={uuid("c"): "silent"}), True),
        (marked(led(health={uuid("c"): "silent"}), maintained=True), False),
        (marked(led(health={uuid("c"): "unhealthy"}), maintained=True), True),
        (led(health={uuid("c"): "lost"}), True),
        (led(health={uuid("c"): "unknown"}), False),
        (marked(led(), draining=True), True),
        (led(configuration=changed(replace=True)), True),
        (led(configuration=changed(member=NON_VOTER)), True),
        (led(configuration=changed(member=NON_VOTER, promote=True)), False),
    ],
)
def test_a_tablet_needs_a_replica_if_too_few_stay_or_are_coming(survey: Survey, needs: bool) -> None:
    assert needs_replica(tablet(survey)) is needs


def test_a_tablet_can_get_a_replica_if_it_is_led_and_a_host_has_room() -> None:
    lost = led(report("b"), GONE)
    assert not can_get_one(tablet(lost), lost)
    roomy = with_room(lost)
    assert can_get_one(tablet(roomy), roomy)
    leaderless = with_room(seen(report("a", None), report("b", None), GONE))
    assert not can_get_one(tablet(leaderless), leaderless)
    no_majority = with_room(led(GONE, GONE))
    assert not can_get_one(tablet(no_majority), no_majority)
    draining = replace(roomy, servers=(*lost.servers, status_of("d", draining=True)))
    assert address("d") == draining.servers[-1].address
    assert not can_get_one(tablet(draining), draining)
