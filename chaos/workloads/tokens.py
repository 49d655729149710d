"""Tokens: each client adds tokens of its own to one set, removes some of them, and reads the whole set.

Some reads are node-local, with the same promises. Every token is added once, so an insert that finds it present, or a delete that
finds it absent, was applied twice; the count is an exactly-once counter. Judged as Jepsen's set-full.
"""

from __future__ import annotations

from collections.abc import Awaitable

import pyarrow as pa

import ebla
from ebla import aio
from ebla.chaos.checkers.sets import check_set
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, Workload, make_table, persist, side_by_side, until_stopped

SCHEMA = pa.schema([("token", pa.int64()), ("v", pa.string())])
BULK_MAX = 40


class Tokens(Workload):
    """`local`: some reads are node-local. `calls` of each client are under way at once."""

    name = "tokens"

    def __init__(self, local: bool = False, calls: int = 1) -> None:
        self.local = local
        self.calls = calls
        self._next = 0

    async def prepare(self, client: Client) -> None:
        await make_table(client, self.name, SCHEMA, "token")

    async def run(self, client: Client) -> None:
        await side_by_side(client, self.calls, self._ask)

    async def _ask(self, client: Client) -> None:
        table = await client.db.table(self.name)
        mine: list[int] = []

        async def step() -> None:
            await self._step(client, table, mine)

        await until_stopped(client, step)

    async def conclude(self, client: Client) -> None:
        table = await client.db.table(self.name)
        await persist(client, lambda: self._read(client, table))

    def judge(self, history: History) -> Verdict:
        return check_set(history)

    async def _step(self, client: Client, table: aio.Table, mine: list[int]) -> None:
        verbs = ("add", "bulk", "remove", "read-set", "read-here", "count")
        what = client.random.choices(verbs, (6, 1, 2, 2, 2 if self.local else 0, 2))[0]
        if what == "add":
            await self._add(client, table, mine)
        elif what == "bulk":
            await self._bulk(client, table, mine)
        elif what == "remove" and mine:
            token = mine.pop(client.random.randrange(len(mine)))
            call = table.delete({"token": token}, if_absent="ignore", deadline_s=client.deadline_s())
            await client.ask("remove", token, None, call, lambda written: written.rows == 1)
        elif what == "count":
            await client.ask("count", None, None, table.scan(["token"]).count(), int, reads=True)
        elif what == "read-here" and client.stage.local_scan is not None:
            read = client.stage.local_scan(table, ["token"], client.random, client.deadline_s())
            await self._note_read(client, read)
        else:
            await self._read(client, table)

    async def _add(self, client: Client, table: aio.Table, mine: list[int]) -> None:
        token = self._take()
        row = {"token": token, "v": "v" * client.random.randrange(60)}
        call = table.insert(row, if_present="ignore", deadline_s=client.deadline_s())
        await client.ask("add", token, None, call, lambda written: written.rows == 1)
        mine.append(token)

    async def _bulk(self, client: Client, table: aio.Table, mine: list[int]) -> None:
        """Add many tokens in one call, another path of the client library; each is an operation of its own in the history."""
        tokens = [self._take() for _ in range(client.random.randint(2, BULK_MAX))]
        rows = [{"token": token, "v": "bulk"} for token in tokens]
        call = table.insert(rows, if_present="ignore", deadline_s=client.deadline_s())

        def added(written: ebla.Written) -> list[bool]:
            return [place not in written.rejected for place in range(len(tokens))]

        await client.ask_many("add", tokens, call, added)
        mine += tokens

    async def _read(self, client: Client, table: aio.Table) -> None:
        await self._note_read(client, table.scan(["token"], deadline_s=client.deadline_s()).to_arrow())

    async def _note_read(self, client: Client, call: Awaitable[pa.Table]) -> None:
        await client.ask(
            "read-set", None, None, call, lambda found: sorted(found["token"].to_pylist()), reads=True
        )

    def _take(self) -> int:
        self._next += 1
        return self._next
