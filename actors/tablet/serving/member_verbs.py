"""The calls about members of tablets: a check of the addressed server, then the protocol's own code."""

from __future__ import annotations

import logging
from typing import Protocol

from ebla.actors import messages as m
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.lifecycle.verbs import Verbs
from ebla.actors.world import rpc

log = logging.getLogger(__name__)


class MemberChanges(Protocol):
    """Changes of members, as a replication protocol makes them: see raft/members.py."""

    async def change(
        self, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest
    ) -> m.MembersReply: ...

    async def force(
        self, rounds: Rounds, identity: Identity, replica: Replica, request: m.UnsafeChangeRequest
    ) -> m.MembersReply: ...


class MemberVerbs(Verbs):
    rounds: Rounds
    member_changes: MemberChanges

    @rpc
    async def change_members(self, request: m.ChangeMembersRequest) -> m.MembersReply:
        self._require(request.dest_uuid)
        return await self.member_changes.change(self.rounds, self._replica(request.tablet), request)

    @rpc
    async def unsafe_change(self, request: m.UnsafeChangeRequest) -> m.MembersReply:
        self._require(request.dest_uuid)
        replica = self._replica(request.tablet)
        reply = await self.member_changes.force(self.rounds, self.identity, replica, request)
        log.warning(
            "the configuration of tablet %s was forced to %s: %s",
            request.tablet,
            [peer.address for peer in reply.configuration.peers],
            request.reason,
        )
        return reply
