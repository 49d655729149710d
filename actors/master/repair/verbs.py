"""The calls of operators about the members of tablets, which the active master carries out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ebla.actors.master.messages import (
    AddReplicaRequest,
    DrainReply,
    DrainRequest,
    ForgetReply,
    ForgetRequest,
    MaintainReply,
    MaintainRequest,
    MoveReplicaRequest,
    RemoveReplicaRequest,
)
from ebla.actors.master.repair.members import Members
from ebla.actors.messages.repair import MembersReply
from ebla.actors.world import rpc

Answer = TypeVar("Answer")


class MembershipVerbs:
    async def _govern(self, act: Callable[[Members], Awaitable[Answer]]) -> Answer:
        """Carry out a request with the state of the active master."""
        raise AssertionError("the active master overrides this")

    @rpc
    async def add_replica(self, request: AddReplicaRequest) -> MembersReply:
        return await self._govern(lambda members: members.add(request))

    @rpc
    async def remove_replica(self, request: RemoveReplicaRequest) -> MembersReply:
        return await self._govern(lambda members: members.remove(request))

    @rpc
    async def move_replica(self, request: MoveReplicaRequest) -> MembersReply:
        return await self._govern(lambda members: members.move(request))

    @rpc
    async def drain(self, request: DrainRequest) -> DrainReply:
        return await self._govern(lambda members: members.drain(request))

    @rpc
    async def maintain(self, request: MaintainRequest) -> MaintainReply:
        return await self._govern(lambda members: members.maintain(request))

    @rpc
    async def forget_server(self, request: ForgetRequest) -> ForgetReply:
        return await self._govern(lambda members: members.forget(request))
