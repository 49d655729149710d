"""Recalls: tokens are added to a table that is dropped and recalled repeatedly.

An add that meets the dropped table is refused. If the answer says that the add surely did not take place, then no late copy of it
may take place after the recall. Judged as a set: see tokens.py.
"""

from __future__ import annotations

from contextlib import suppress

from ebla import aio
from ebla.chaos.workloads.base import Client, NoAnswer, make_table, persist, until_stopped
from ebla.chaos.workloads.tokens import SCHEMA, Tokens

KEPT_S = 3600.0
DROPS = 0.15  # of the steps
REFUSED_S = 1.0  # the longest pause of a client after a refusal
DROPPED = ("TableDropped",)
EXPLAINED = {
    **dict.fromkeys(("add", "remove", "read-set", "count", "beside-table"), DROPPED),
    "beside-recall": (
        "NotFound",
        "StaleRequest",
    ),  # another client has recalled the table, or dropped it again since
}


class Recalls(Tokens):
    name = "recalls"
    explained = EXPLAINED

    def __init__(self) -> None:
        super().__init__()
        self._id = ""

    async def prepare(self, client: Client) -> None:
        table = await make_table(client, self.name, SCHEMA, "token")
        self._id = table._routes.info.table

    async def _ask(self, client: Client) -> None:
        tables: list[aio.Table] = []
        mine: list[int] = []

        async def step() -> None:
            if not tables:
                tables.append(await self._open(client))
            if client.random.random() < DROPS:
                await self._drop(client)
                return
            try:
                await self._step(client, tables[0], mine)
            except NoAnswer:  # pause: after a later write of this client, late copies of this one are refused
                await client.clock.sleep(client.random.uniform(0.0, REFUSED_S))
                raise

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        with suppress(NoAnswer):  # it is not dropped
            await self._recall(client)
        table = await persist(client, lambda: self._open(client))
        await persist(client, lambda: self._read(client, table))

    async def _open(self, client: Client) -> aio.Table:
        call = client.db.table(self.name, deadline_s=client.deadline_s())
        return await client.beside("table", self.name, call)

    async def _drop(self, client: Client) -> None:
        """Drop the table for a moment, in which other clients find it dropped."""
        call = client.db.drop_table(self.name, reserve_s=KEPT_S, deadline_s=client.deadline_s())
        with suppress(NoAnswer):  # another client has dropped it, or the drop is under way
            await client.order("drop_table", self.name, call)
        await client.pause()
        await self._recall(client)

    async def _recall(self, client: Client) -> None:
        call = client.db.recall_table(self._id, deadline_s=client.deadline_s())
        await client.beside("recall", self._id, call)
