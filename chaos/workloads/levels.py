"""Levels: an operator freezes the cluster again and again, and thaws it, while servers fail and the master repairs tablets.

An answer to `level` is in force: a table that is created between two answers `freezed` about the same freeze is a problem.
Members that the master changes meanwhile are an invariant (chaos/invariants/levels.py). At the end the cluster is steady, so
every table must return to its number of healthy voters, which act two of the run judges, and a table can be created.
"""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType

import pyarrow as pa

from ebla.actors.master.messages import (
    AllowReply,
    AllowRequest,
    LevelReply,
    LevelRequest,
    SuspendReply,
    SuspendRequest,
)
from ebla.chaos.checkers.refusals import Explained
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, create, persist, until_stopped
from ebla.chaos.workloads.operators import Operators

FREEZED, STEADY = "freezed", "steady"
HELD_S = (0.5, 4.0)  # frozen
SUSPENDS = 0.4  # of the steps suspend a server instead
SCHEMA = pa.schema([("k", pa.int64())])


class Levels(Operators, Workload):
    name = "levels"
    disturbs = True
    explained: Explained = MappingProxyType({"beside-create": ("Frozen",)})

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._operated = False
        self._made = self._suspended = 0

    async def run(self, client: Client) -> None:
        """One of the clients is the operator; the others do nothing."""
        first, self._operated = not self._operated, True

        async def step() -> None:
            if client.random.random() < SUSPENDS:
                await self._suspend(client)
            else:
                await self._freeze(client)

        if first:
            await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        reply = await persist(client, lambda: self._level(client, STEADY))
        if reply.level != STEADY:
            self.problems.append(f"the level is {reply.level} after it was set to {STEADY}")
        await persist(client, lambda: self._create(client))

    async def _level(self, client: Client, level: str | None) -> LevelReply:
        return await self._ask_master(client, "level", LevelRequest(level), LevelReply)

    async def _freeze(self, client: Client) -> None:
        """Freeze for a while. Only this client sets the level, so that it stays as it was answered."""
        try:
            first = await self._level(client, FREEZED)
            await client.clock.sleep(client.random.uniform(*HELD_S))
            with suppress(NoAnswer):
                created = await self._create(client)
                self.problems.append(f"table {created} was created while the cluster was frozen")
            second = await self._level(client, None)
        finally:
            await self._until_answered(client, "level", LevelRequest(STEADY), LevelReply)
        if (first.present, second.present, second.since_us) != (FREEZED, FREEZED, first.since_us):
            self.problems.append(f"the cluster was frozen: {first}, and is not any more: {second}")
        await client.clock.sleep(client.random.uniform(*HELD_S))

    async def _create(self, client: Client) -> str:
        """The name of the created table. Raises NoAnswer if it was refused, or if there was no answer."""
        self._made += 1
        name = f"{self.name}-{self._made}"
        await client.beside("create", name, create(client, name, SCHEMA, replication="raft", wait_s=0.0))
        return name

    async def _suspend(self, client: Client) -> None:
        """Suspend a server, or every second time allow only the others."""
        address = client.random.choice(client.stage.servers)
        others = tuple(each for each in client.stage.servers if each != address)
        self._suspended += 1
        if self._suspended % 2:
            await self._mark(client, address, "suspend", SuspendRequest, SuspendReply)
        else:
            await self._mark(
                client, address, "allow_only", lambda _, on: AllowRequest(others if on else ()), AllowReply
            )
