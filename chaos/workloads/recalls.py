"""Recalls: tokens are added to a table that is dropped and recalled all the time.

An add that meets the dropped table is refused. If its client was told that it surely was not carried out, no late copy of it may
be carried out after the recall. Judged as the set that it is: see tokens.py.
"""

from __future__ import annotations

from contextlib import suppress

from ebla import aio
from ebla.chaos.workloads.base import Client, NoAnswer, make_table, persist, until_stopped
from ebla.chaos.workloads.tokens import SCHEMA, Tokens

KEPT_S = 3600.0
DROPS = 0.15  # of the steps
REFUSED_S = 1.0  # at most, until who was refused goes on
DROPPED = ("TableDropped",)
EXPLAINED = {
    **dict.fromkeys(("add", "remove", "read-set", "count", "beside-table"), DROPPED),
    "beside-recall": ("NotFound",),  # somebody else has recalled it
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
            except NoAnswer:  # a later write of the same client would have late copies of this one refused
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
        """For a moment, in which others find it dropped."""
        call = client.db.drop_table(self.name, reserve_s=KEPT_S, deadline_s=client.deadline_s())
        with suppress(NoAnswer):  # somebody else has, or it is on its way
            await client.order("drop_table", self.name, call)
        await client.pause()
        await self._recall(client)

    async def _recall(self, client: Client) -> None:
        call = client.db.recall_table(self._id, deadline_s=client.deadline_s())
        await client.beside("recall", self._id, call)
