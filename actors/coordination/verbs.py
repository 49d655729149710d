"""The namespace's RPCs of every master. Of several masters only the active one carries them out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ebla.actors.coordination import messages as m
from ebla.actors.coordination.service import Coordination
from ebla.actors.messages import Empty
from ebla.actors.world import rpc

Answer = TypeVar("Answer")


class CoordinationVerbs:
    async def _coordinate(self, act: Callable[[Coordination], Awaitable[Answer]]) -> Answer:
        """Call `act` if this master is active. Raises NotActive or NotRunning."""
        raise AssertionError("a subclass implements it")

    @rpc
    async def open_session(self, request: m.OpenSessionRequest) -> m.SessionReply:
        return await self._coordinate(lambda coordination: coordination.open_session(request))

    @rpc
    async def keep_session(self, request: m.SessionRequest) -> m.SessionReply:
        return await self._coordinate(lambda coordination: coordination.keep_session(request))

    @rpc
    async def close_session(self, request: m.SessionRequest) -> Empty:
        return await self._coordinate(lambda coordination: coordination.close_session(request))

    @rpc
    async def list_sessions(self, request: Empty) -> m.ListSessionsReply:
        return await self._coordinate(lambda coordination: coordination.list_sessions(request))

    @rpc
    async def change_nodes(self, request: m.ChangeRequest) -> m.ChangeReply:
        return await self._coordinate(lambda coordination: coordination.change_nodes(request))

    @rpc
    async def read_node(self, request: m.NodeRequest) -> m.NodeReply:
        return await self._coordinate(lambda coordination: coordination.read_node(request))

    @rpc
    async def wait_node(self, request: m.WaitRequest) -> m.NodeReply:
        return await self._coordinate(lambda coordination: coordination.wait_node(request))
