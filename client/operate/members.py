"""Changes of a tablet's members, repeated until the master has carried them out, and until they have taken effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ebla.actors.master.messages import AddReplicaRequest, MoveReplicaRequest, RemoveReplicaRequest
from ebla.actors.messages import MembersReply
from ebla.actors.replication.configuration import VOTER, Configuration
from ebla.health.verdicts import HEALTHY
from ebla.operate.cluster import Cluster
from ebla.operate.naming import Refused, find, meant
from ebla.operate.waiting import Progress, until
from ebla.wording import host_of

ASK_S = 15.0


class Change(NamedTuple):
    """`request` makes the message for a tablet's id. `leaves`: the server whose replica is to go. `reached` says of a committed
    configuration whether the change is in force; it gets the uuid of `leaves`, since another server may come to the address."""

    name: str
    request: Callable[[str], msgspec.Struct]
    reached: Callable[[Configuration, str], bool]
    leaves: str | None = None


def adding(server: str, role: str) -> Change:
    def reached(configuration: Configuration, _: str) -> bool:
        peer = find(configuration, server)
        return peer is not None and (peer.member == VOTER or role == "non_voter")

    return Change("add-replica", lambda tablet: AddReplicaRequest(tablet, server, role), reached)


def removing(server: str, at_once: bool) -> Change:
    def reached(configuration: Configuration, leaves: str) -> bool:
        peer = find(configuration, leaves)
        if peer is not None and peer.member == VOTER and not peer.replace and not at_once:
            raise Refused(
                f"the removal was given up: no server could take the place of {server}",
                hint="see `ebla nodes`; on a drained host `--at-once` needs no other server",
            )
        return peer is None

    def request(tablet: str) -> msgspec.Struct:
        return RemoveReplicaRequest(tablet, server, at_once)

    return Change("remove-replica", request, reached, server)


def moving(source: str, target: str) -> Change:
    def reached(configuration: Configuration, leaves: str) -> bool:
        there, here = find(configuration, target), find(configuration, leaves)
        if there is None and here is None:
            at = ", ".join(host_of(peer.address) for peer in configuration.peers)
            raise Refused(
                f"the replica left {source}, but {target} could not take it: the tablet is at {at} now",
                hint=f"see `ebla nodes` for {target}; move one of these there if it matters which",
            )
        if there is None and here is not None and not here.replace:
            raise Refused(
                f"the move was given up: {target} could not take the replica, and it stays at {source}",
                hint="see `ebla nodes`, then choose another server",
            )
        return here is None

    return Change("move-replica", lambda tablet: MoveReplicaRequest(tablet, source, target), reached, source)


async def carry_out(
    cluster: Cluster, change: Change, tablet: str, timeout_s: float, wait: bool, progress: Progress
) -> tuple[MembersReply, bool]:
    """The members, and whether there was nothing to do because the server that should lose its replica has none. With `wait`
    the change is in force and the tablet healthy by then."""
    _, location = await cluster.tablet(tablet)
    places = [(place.uuid, place.address) for place in location.replicas]
    held = None if change.leaves is None else meant(change.leaves, places)
    request, method = change.request(location.tablet), change.name.replace("-", "_")
    reply = await cluster.persist(method, request, MembersReply, min(ASK_S, timeout_s), progress)
    needless = change.leaves is not None and held is None
    if needless or not wait:
        return reply, needless
    seen = reply

    async def poll() -> str | None:
        nonlocal seen
        survey, health = await cluster.tablet_health(location.tablet)
        leading = None if health.leader is None else survey.reports(health.tablet).get(health.leader)
        if leading is None or leading.configuration.order < reply.configuration.order:
            return "it has no leader now"
        seen = MembersReply(reply.tablet, leading.configuration)
        if change.reached(leading.configuration, held or "") and health.status == HEALTHY:
            return None
        return health.reasons[0] if health.reasons else "its configuration is changing"

    await until(poll, timeout_s, progress, change.name)
    return seen, False
