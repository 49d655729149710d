"""The calls about members of tablets: a check of the addressed server, then raft/members.py."""

from __future__ import annotations

import logging

from ebla.actors import messages as m
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.raft import members
from ebla.actors.world import World, rpc

log = logging.getLogger(__name__)


class MemberVerbs:
    world: World
    identity: Identity
    rounds: Rounds

    def _replica(self, tablet: str) -> Replica:
        raise AssertionError("the tablet server implements it")

    def _require(self, uuid: str) -> None:
        raise AssertionError("the tablet server implements it")

    @rpc
    async def change_members(self, request: m.ChangeMembersRequest) -> m.MembersReply:
        self._require(request.dest_uuid)
        return await members.change(self.world, self.rounds, self._replica(request.tablet), request)

    @rpc
    async def unsafe_change(self, request: m.UnsafeChangeRequest) -> m.MembersReply:
        self._require(request.dest_uuid)
        replica = self._replica(request.tablet)
        reply = await members.force(self.world, self.rounds, self.identity, replica, request)
        log.warning(
            "the configuration of tablet %s was forced to %s: %s",
            request.tablet,
            [peer.address for peer in reply.configuration.peers],
            request.reason,
        )
        return reply
