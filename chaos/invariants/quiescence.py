"""Quiescent replicas rely on each other.

quiescent_followers_have_leaders   a replica may follow a leader that has ended, or leads no more, for as long as messages may be
                                   late; but not for ever, although nothing wakes it but messages between servers
quiescent_leaders_have_a_majority  or step down
first_awake                        some time after the last request and the last fault, every tablet has a leader, and time wakes no
                                   replica any more
leaders_learn_who_woke             a leader relies on a follower that is awake only as long as it has not learned of that,
                                   or of the server's restart; until then no answer of the server counts for the follower
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.simulation.world import SimulatedCluster

LEADERLESS_S_MAX = 8.0
OVERDUE_S_MAX = 2.0


@dataclass
class Leaderless:
    """Since when quiescent followers have no leader, and quiescent leaders no majority."""

    since: dict[Replica, float] = field(default_factory=dict)
    overdue: dict[Replica, float] = field(default_factory=dict)


def quiescent_followers_have_leaders(
    cluster: SimulatedCluster, servers: Iterable[TabletServer], memory: Leaderless
) -> None:
    before, memory.since = memory.since, {}
    by_uuid = {server.instance.uuid: server for server in servers}
    now = cluster.loop.time()
    for server in by_uuid.values():
        if cluster.paused(server.world.address):
            continue
        for replica in server.replicas.values():
            follows = replica.core.stance.follows
            if replica.state != RUNNING or follows is None or _leads(by_uuid.get(follows), replica):
                continue
            since = memory.since[replica] = before.get(replica, now)
            assert now - since <= LEADERLESS_S_MAX, (
                f"{server.world.address} is quiescent in tablet {replica.tablet}, term {replica.core.term}, whose leader "
                f"{follows} has not led it for {now - since:g} s"
            )


def quiescent_leaders_have_a_majority(
    cluster: SimulatedCluster, servers: Iterable[TabletServer], memory: Leaderless
) -> None:
    before, memory.overdue = memory.overdue, {}
    now = cluster.loop.time()
    for server in servers:
        if cluster.paused(server.world.address):
            continue
        for replica in server.replicas.values():
            core = replica.core
            if replica.state != RUNNING or not (core.stance.quiescent and core.role == LEADER):
                continue
            if core.next_wake(server.world.now()) <= server.world.now():
                since = memory.overdue[replica] = before.get(replica, now)
                assert now - since <= OVERDUE_S_MAX, (
                    f"{server.world.address} has led the quiescent tablet {replica.tablet} without a majority for {now - since:g} s"
                )


def leaders_learn_who_woke(servers: Iterable[TabletServer]) -> None:
    by_uuid = {server.instance.uuid: server for server in servers}
    for server in by_uuid.values():
        for replica in server.replicas.values():
            stance = replica.core.stance
            if replica.state != RUNNING or not stance.quiescent:
                continue
            for uuid in stance.relying:
                other = by_uuid.get(uuid)
                assert other is None or _quiescent_or_reported(server, replica, other), (
                    f"{server.world.address} relies on {other.world.address} in tablet {replica.tablet}, which is awake there"
                )


def _quiescent_or_reported(server: TabletServer, leader: Replica, other: TabletServer) -> bool:
    if server.rounds.liveness.met(other.instance.uuid) != other.instance.start:
        return True  # it will learn of the restart
    follower = other.replicas.get(leader.tablet)
    quiescent = (
        follower is not None
        and follower.state == RUNNING
        and follower.core.stance.follows == server.instance.uuid
        and follower.core.term == leader.core.term
    )
    return quiescent or leader.tablet in other.rounds.liveness.changes_for(server.instance.uuid)


def _leads(server: TabletServer | None, follower: Replica) -> bool:
    leader = None if server is None else server.replicas.get(follower.tablet)
    return leader is not None and leader.leads and leader.core.term == follower.core.term


def first_awake(servers: Iterable[TabletServer]) -> str:
    """A replica that time wakes, or that its group rests without; or a tablet without a leader. Empty: there is none."""
    led: dict[str, bool] = {}
    for server in servers:
        for tablet, replica in server.replicas.items():
            rests = replica.state == RUNNING and replica.core.next_wake(server.world.now()) == float("inf")
            if not rests or replica.core.stance.absent:
                return f"{server.world.address} has tablet {tablet}, {replica.state}, {replica.core.stance}"
            led[tablet] = led.get(tablet, False) or replica.leads
    return next((f"tablet {tablet} has no leader" for tablet, leads in led.items() if not leads), "")
