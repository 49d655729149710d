"""The calls about members of tablets: a check of the addressed server, then the protocol's own code."""

from __future__ import annotations

import logging

from ebla.actors import messages as m
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.lifecycle.verbs import Verbs
from ebla.actors.tablet.protocols import Protocols
from ebla.actors.world import rpc

log = logging.getLogger(__name__)


class MemberVerbs(Verbs):
    rounds: Rounds
    protocols: Protocols

    @rpc
    async def change_members(self, request: m.ChangeMembersRequest) -> m.MembersReply:
        self._require(request.dest_uuid)
        replica = self._replica(request.tablet)
        return await self.protocols.of(replica.core.hard_state).change(self.rounds, replica, request)

    @rpc
    async def unsafe_change(self, request: m.UnsafeChangeRequest) -> m.MembersReply:
        self._require(request.dest_uuid)
        replica = self._replica(request.tablet)
        protocol = self.protocols.of(replica.core.hard_state)
        reply = await protocol.force(self.rounds, self.identity, replica, request)
        log.warning(
            "the configuration of tablet %s was forced to %s: %s",
            request.tablet,
            [peer.address for peer in reply.configuration.peers],
            request.reason,
        )
        return reply
