"""Requests of operators to change the members of a tablet.

Each request is one change at the tablet's leader, by compare-and-set on the configuration in the catalog;
no other state is kept. The remaining steps follow from the configuration (a replace flag, a
pre-voter) by the rules of rules/healing.py, also on a later active master. So a request may be repeated at
any time; if its change is already in force or under way, the answer is the configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import ConfigurationMoved, NotFound, NotLeader, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import RUNNING
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Server, Servers, gets_new, is_unlisted
from ebla.actors.master.messages import (
    AddReplicaRequest,
    MoveReplicaRequest,
    RemoveReplicaRequest,
)
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.repair.hosts import Hosts
from ebla.actors.master.repair.naming import (
    addresses,
    ambiguous,
    member_named,
)
from ebla.actors.master.repair.repairs import Repairs
from ebla.actors.master.rules import healing
from ebla.actors.messages.repair import ADD, MODIFY, REMOVE, MemberChange, MembersReply
from ebla.actors.replication.configuration import NON_VOTER, VOTER, Configuration, Peer, names
from ebla.actors.world import World, rpc
from ebla.storage.errors import InvalidArgument

PRE_VOTER = "pre_voter"
FEWER_REPLICAS = "to have fewer replicas, drain its host first, and then remove the replica at once"


@dataclass(eq=False)
class Members:
    """`wake` starts the background work now."""

    _world: World
    _options: MasterOptions
    _catalog: Catalog
    _views: Views
    _servers: Servers
    _repairs: Repairs
    _hosts: Hosts
    _wake: Callable[[], None]

    # -- replicas --------------------------------------------------------------------------------------------

    @rpc
    async def add_replica(self, request: AddReplicaRequest) -> MembersReply:
        if request.role not in (VOTER, PRE_VOTER, NON_VOTER):
            raise InvalidArgument(f"role is {VOTER}, {PRE_VOTER} or {NON_VOTER}, not {request.role!r}")
        situation = self._situation(request.tablet)
        votes = request.role != NON_VOTER
        member = member_named(situation.configuration, request.server)
        if member is not None:
            return await self._keep(request.tablet, situation, member, votes)
        server = self._free_server(situation.configuration, request.server)
        if votes:
            _require_need(request.tablet, situation)
        peer = Peer(server.uuid, server.address, NON_VOTER, promote=votes)
        return await self._change(request.tablet, situation, MemberChange(ADD, peer))

    async def _keep(
        self, tablet: str, situation: healing.Situation, member: Peer, votes: bool
    ) -> MembersReply:
        """Let a member stay, with or without a vote."""
        if member.member == VOTER and not votes:
            raise InvalidArgument(
                f"{member.address} has a voter of tablet {tablet}, which cannot become a non-voter; remove it, then add it "
                "again"
            )
        wanted = Peer(member.uuid, member.address, member.member, votes and member.member == NON_VOTER)
        if wanted == member:
            return MembersReply(tablet, situation.configuration)
        if wanted.promote:
            _require_need(tablet, situation)
        return await self._change(tablet, situation, MemberChange(MODIFY, wanted))

    @rpc
    async def remove_replica(self, request: RemoveReplicaRequest) -> MembersReply:
        situation = self._situation(request.tablet)
        configuration = situation.configuration
        member = member_named(configuration, request.server)
        if member is None:
            if not self._is_or_was(request.tablet, request.server):
                raise self._hosts.unknown(request.server)
            return MembersReply(request.tablet, configuration)
        if member.member == VOTER and len(configuration.voters()) == 1:
            raise InvalidArgument(
                f"{member.address} has the only voter of tablet {request.tablet}; move it, or drop the table"
            )
        if not request.at_once and healing.is_needed(situation, member.uuid):
            return await self._replace(request.tablet, situation, member)
        leads = member.uuid == situation.leader
        if member.member == VOTER and not leads and not healing.can_lose(situation, member.uuid):
            raise _too_few_without(request.tablet, situation, member)
        if request.at_once and (member.member == VOTER or member.promote):
            self._require_that_it_stays_away(request.tablet, situation, member)
            _require_enough_without(request.tablet, situation, member)
        if leads:
            await self._hand_over(request.tablet, member)
        return await self._change(request.tablet, situation, MemberChange(REMOVE, member))

    async def _replace(self, tablet: str, situation: healing.Situation, member: Peer) -> MembersReply:
        """Add before evict: with one voter less the next loss would take the majority."""
        if member.replace:
            return MembersReply(tablet, situation.configuration)
        if not self._repairs.has_room(self._catalog, self._servers, tablet, self._world.now()):
            raise Unavailable(
                f"no live server could take the place of {member.address} in tablet {tablet}; start another one, or, "
                f"{FEWER_REPLICAS}"
            )
        marked = Peer(member.uuid, member.address, VOTER, replace=True)
        return await self._change(tablet, situation, MemberChange(MODIFY, marked))

    def _require_that_it_stays_away(self, tablet: str, situation: healing.Situation, member: Peer) -> None:
        """Refuse a removal after which the rules would add a replica at the same server again."""
        before, server = situation.configuration, self._servers.get(member.uuid)
        without = replace(before, peers=tuple(peer for peer in before.peers if peer is not member))
        if not healing.wants_more(situation._replace(configuration=without)):
            return
        if server is None or not server.takes_data or not gets_new(self._catalog, server.address):
            return
        now = self._world.now()
        if self._servers.is_alive(server.uuid, now) and not self._repairs.has_room(
            self._catalog, self._servers, tablet, now
        ):
            raise Unavailable(
                f"the replica of tablet {tablet} would be made again at {member.address} at once, since no other live server "
                f"could take it; start another one, or, {FEWER_REPLICAS}"
            )

    @rpc
    async def move_replica(self, request: MoveReplicaRequest) -> MembersReply:
        situation = self._situation(request.tablet)
        configuration = situation.configuration
        source = member_named(configuration, request.source)
        target = member_named(configuration, request.target)
        if source is None:
            if target is not None and self._is_or_was(request.tablet, request.source):
                return MembersReply(request.tablet, configuration)
            raise NotFound(
                f"tablet {request.tablet} has no replica at {request.source!r}; it has replicas at "
                f"{addresses(configuration)}",
                what=request.source,
            )
        if target is not None:
            if source.replace and target.uuid != source.uuid:
                return MembersReply(request.tablet, configuration)
            raise InvalidArgument(f"{target.address} has a replica of tablet {request.tablet} already")
        others = Configuration(tuple(peer for peer in configuration.peers if peer is not source))
        server = self._free_server(others, request.target)
        promote = source.member == VOTER or source.promote
        arrives = MemberChange(ADD, Peer(server.uuid, server.address, NON_VOTER, promote))
        if source.member == VOTER:
            marked = Peer(source.uuid, source.address, VOTER, replace=True)
            return await self._change(request.tablet, situation, MemberChange(MODIFY, marked), arrives)
        return await self._change(request.tablet, situation, MemberChange(REMOVE, source), arrives)

    # -- at the leader ---------------------------------------------------------------------------------------

    def _situation(self, tablet: str) -> healing.Situation:
        record = self._catalog.tablets.get(tablet)
        if record is None or tablet in self._catalog.ended:
            raise NotFound(f"there is no tablet {tablet!r}", what=tablet)
        if record.state != RUNNING:
            raise Unavailable(f"tablet {tablet} is {record.state}; try again when it is running")
        situation = self._views.situation(self._catalog, tablet)
        if situation is None:
            raise Unavailable(f"the leader of tablet {tablet} has not reported yet; try again in a moment")
        return situation

    async def _change(
        self, tablet: str, situation: healing.Situation, *changes: MemberChange
    ) -> MembersReply:
        leader = situation.configuration.peer(situation.leader)
        assert leader is not None, tablet
        (unsafe, index), timeout_s = situation.configuration.order, self._options.rpc_timeout_s / 2
        request = m.ChangeMembersRequest(leader.uuid, tablet, changes, index, timeout_s, unsafe)
        try:
            return await self._world.network.call(
                leader.address, "change_members", request, MembersReply, self._options.rpc_timeout_s
            )
        except (ConfigurationMoved, NotLeader) as error:
            raise Unavailable(
                f"the members of tablet {tablet}, or its leader, have just changed; try again ({error.message})"
            ) from error
        finally:
            self._wake()

    async def _hand_over(self, tablet: str, leader: Peer) -> None:
        timeout_s = self._options.rpc_timeout_s / 2
        request = m.StepDownRequest(tablet, None, timeout_s)
        with contextlib.suppress(NotLeader):  # the leader has already lost leadership
            await self._world.network.call(
                leader.address, "step_down", request, m.StepDownReply, self._options.rpc_timeout_s
            )
        raise Unavailable(
            f"{leader.address} led tablet {tablet} and has handed over; try again in a moment to remove its replica"
        )

    # -- servers ---------------------------------------------------------------------------------------------

    def _is_or_was(self, tablet: str, name: str) -> bool:
        """Whether the name matches a known server or one that left the tablet.

        A new master may have no heartbeat of a server that left.
        """
        left = [(peer.uuid, peer.address) for peer in self._catalog.tablets[tablet].holders()]
        left += self._catalog.forgotten.items()
        return bool(self._hosts.known(name)) or any(names(name, *each) for each in left)

    def _free_server(self, configuration: Configuration, name: str) -> Server:
        """Return a live server that may get a replica, besides these members."""
        found = self._hosts.known(name)
        if len(found) != 1:
            raise (
                self._hosts.unknown(name) if not found else ambiguous(name, [each.address for each in found])
            )
        server = found[0]
        if not self._servers.is_alive(server.uuid, self._world.now()):
            raise Unavailable(f"{server.address} has sent no heartbeat of late; choose another, or start it")
        if not server.takes_data:
            raise InvalidArgument(
                f"{server.address} has no disk with space for a replica: it is full, or lost its data directories; choose another, "
                "or free space there, or replace its disks"
            )
        if server.address in self._catalog.draining:
            raise InvalidArgument(
                f"{server.address} drains and gets nothing new; choose another, or `ebla nodes drain --off`"
            )
        if server.address in self._catalog.maintained:
            raise InvalidArgument(
                f"{server.address} is in maintenance and gets nothing new; choose another, or `ebla nodes maintain --off`"
            )
        if server.address in self._catalog.suspended:
            raise InvalidArgument(
                f"{server.address} is suspended and gets nothing new; choose another, or `ebla nodes suspend --off`"
            )
        if is_unlisted(self._catalog, server.address):
            raise InvalidArgument(
                f"{server.address} is not on the allow list and gets nothing new; choose another, or `ebla nodes allow-only`"
            )
        if any(peer.address == server.address for peer in configuration.peers):
            raise InvalidArgument(
                f"a member of the tablet was at {server.address} before its directory was lost; wait until it has been "
                "evicted"
            )
        return server


def _too_few_without(tablet: str, situation: healing.Situation, member: Peer) -> Unavailable:
    if situation.is_appointed:
        return Unavailable(
            f"without {member.address} tablet {tablet} would have fewer than the {situation.least} voters that take writes; "
            "remove it without `--at-once`, which waits until another has caught up"
        )
    return Unavailable(
        f"without {member.address} no majority of the voters of tablet {tablet} would be healthy; bring the others back "
        "first"
    )


def _require_enough_without(tablet: str, situation: healing.Situation, member: Peer) -> None:
    """Require enough healthy voters besides this member.

    Otherwise removals one after the other, each with a healthy majority of the rest, could leave one disk.
    """
    left, least = healing.healthy_without(situation, member.uuid), situation.least
    if left < least and healing.is_needed(situation, member.uuid):
        raise Unavailable(
            f"without {member.address} tablet {tablet} would have {left} healthy {'voter' if left == 1 else 'voters'}, and a "
            f"table of {situation.replicas} replicas keeps {least}; remove it without `--at-once`, which waits until another "
            "has caught up"
        )


def _require_need(tablet: str, situation: healing.Situation) -> None:
    if not healing.wants_more(situation):
        raise InvalidArgument(
            f"tablet {tablet} has the {situation.replicas} replicas that its table wants, at "
            f"{addresses(situation.configuration)}; move one of them, or add a non-voter"
        )
