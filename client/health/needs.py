"""Judges which tablets need another replica, and which of them can get one. Await-free.

The rules are the master's (actors/master/rules/healing.py), as far as a survey shows what the master knows.
"""

from __future__ import annotations

from collections.abc import Collection

from ebla.actors.replication.health import LOST, SILENT, UNHEALTHY
from ebla.health import verdicts as v


def needs_replica(tablet: v.TabletHealth) -> bool:
    """Whether fewer replicas stay or are coming than its table wants."""
    return sum(map(_stays, tablet.replicas)) < tablet.wanted


def _stays(replica: v.ReplicaHealth) -> bool:
    """Whether it is a voter, or will be one, that stays and works. Silence is tolerated during maintenance."""
    if replica.member == v.NON_VOTER or replica.replace or replica.draining:
        return False
    if replica.status == v.WRONG_SERVER or replica.health in (UNHEALTHY, LOST):
        return False
    silent = replica.status == v.UNREACHABLE or replica.health == SILENT
    return replica.maintained or not silent


def can_get_one(tablet: v.TabletHealth, survey: v.Survey) -> bool:
    """Whether a leader can change its members, and a host has room, as far as that is known."""
    changes = tablet.leader is not None and tablet.status not in (v.UNREADABLE, v.DEAD)
    return changes and has_room([replica.address for replica in tablet.replicas], survey)


def has_room(places: Collection[str], survey: v.Survey) -> bool:
    """Whether another host could take a further replica of the tablet at `places`, as far as servers are known."""
    taken = [server.host for server in survey.servers if server.address in places]
    return not survey.servers or any(
        server.alive
        and not (server.draining or server.maintained or server.suspended)
        and server.address not in places
        and server.host not in taken
        for server in survey.servers
    )
