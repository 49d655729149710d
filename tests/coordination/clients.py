"""Clients of the namespace beside masters that fail over: simulated processes with the real client library, and requests sent
by hand, which a test may repeat by their number."""

from __future__ import annotations

from typing import Any, TypeVar

from ebla import aio
from ebla.actors.coordination import messages as c
from ebla.actors.messages import Empty
from ebla.coordination.awaited import Session
from ebla.transport.client import DeploymentClient
from tests.master.group_stage import GroupStage

T = TypeVar("T")


class Process:
    """One client, which can be crashed, paused and cut off by its address."""

    def __init__(self, stage: GroupStage, name: str) -> None:
        self.address = f"client/{name}"
        self.world = stage.cluster.client_world(self.address)
        self.connection = DeploymentClient(self.world, "group", stage.masters)
        self.db = aio.Database(self.connection)

    async def session(self, timeout_s: float = 3.0) -> Session:
        return await self.db.session(timeout_s, name=self.address)


async def session(stage: GroupStage, name: str, timeout_s: float = 3.0) -> Session:
    return await Process(stage, name).session(timeout_s)


class Raw:
    """One session, which sends no heartbeats by itself."""

    def __init__(self, stage: GroupStage) -> None:
        self.stage = stage
        self.session = ""
        self.number = 0

    async def _ask(self, method: str, request: Any, reply: type[T]) -> T:
        return await self.stage.persist(lambda: self.stage.ask(method, request, reply))

    async def open(self, timeout_s: float = 2.0, request_id: str = "open") -> str:
        request = c.OpenSessionRequest(request_id, int(timeout_s * 1000), "raw")
        self.session = (await self._ask("open_session", request, c.SessionReply)).session
        return self.session

    async def keep(self) -> c.SessionReply:
        return await self._ask("keep_session", c.SessionRequest(self.session), c.SessionReply)

    async def close(self) -> None:
        await self._ask("close_session", c.SessionRequest(self.session), Empty)

    async def change(
        self, *operations: c.Operation, number: int | None = None, unanswered: int = 0
    ) -> tuple[c.Result, ...]:
        if number is None:
            number = self.number
            self.number += 1
        request = c.ChangeRequest(self.session, number, unanswered, operations)
        return (await self._ask("change_nodes", request, c.ChangeReply)).results

    async def create(self, path: str, **options: Any) -> c.Result:
        (result,) = await self.change(c.Create(path, **options))
        return result

    async def read(self, path: str) -> c.NodeReply:
        return await self._ask("read_node", c.NodeRequest(path, children=True), c.NodeReply)

    async def wait(self, path: str, seen: int, poll_s: float = 1.0, children: bool = False) -> c.NodeReply:
        request = c.WaitRequest(path, seen, int(poll_s * 1000), children)
        return await self._ask("wait_node", request, c.NodeReply)

    async def sessions(self) -> list[str]:
        reported = await self._ask("list_sessions", Empty(), c.ListSessionsReply)
        return [each.session for each in reported.sessions]


async def raw(stage: GroupStage, timeout_s: float = 2.0, request_id: str = "open") -> Raw:
    made = Raw(stage)
    await made.open(timeout_s, request_id)
    return made
