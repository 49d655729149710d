"""The pulse of a deployment: one writer per tablet of a side table, one small row after the other.

Each tablet holds one row with a growing number. The time between two acknowledgements shows how long the tablet was unavailable.
The last read must show the last acknowledged number, or one with an unknown outcome.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pyarrow as pa

import ebla
from ebla import aio
from ebla.chaos.checkers.verdict import Verdict, broken, by_key, passed
from ebla.chaos.history import History
from ebla.chaos.workloads.base import PREPARE_S, Client, NoAnswer, Workload, persist

SCHEMA = pa.schema([pa.field("tablet", pa.int32(), nullable=False), ("n", pa.int64())])
PERIOD_S = 0.05
WRITE_S_MAX = 30.0


class Pulse(Workload):
    """A workload (chaos/workloads/base.py) with one client, which writes to all tablets at the same time."""

    name = "pulse"

    def __init__(self, tablets: int = 6, period_s: float = PERIOD_S) -> None:
        self.tablets = tablets
        self.period_s = period_s

    async def prepare(self, client: Client) -> None:
        await client.db.create_table(
            self.name,
            schema=SCHEMA,
            primary_key=["tablet"],
            partition_by=ebla.range("tablet", splits=list(range(1, self.tablets))),
            replication=client.stage.replication,
            wait_s=PREPARE_S,
        )

    async def run(self, client: Client) -> None:
        table = await client.db.table(self.name)
        await asyncio.gather(*(self._write(client, table, tablet) for tablet in range(self.tablets)))

    async def conclude(self, client: Client) -> None:
        table = await client.db.table(self.name)
        for tablet in range(self.tablets):
            await persist(client, lambda tablet=tablet: self._read(client, table, tablet))  # type: ignore[misc]

    def judge(self, history: History) -> Verdict:
        return check_pulse(history)

    async def _write(self, client: Client, table: aio.Table, tablet: int) -> None:
        writer, number = client.another(), 0
        while not client.stopping:
            number += 1
            call = table.upsert({"tablet": tablet, "n": number}, deadline_s=WRITE_S_MAX)
            with suppress(NoAnswer):
                await writer.ask("write", tablet, number, call)
            await client.clock.sleep(self.period_s)

    async def _read(self, client: Client, table: aio.Table, tablet: int) -> None:
        call = table.get({"tablet": tablet}, deadline_s=client.deadline_s())
        await client.ask("read", tablet, None, call, _number, reads=True)


def _number(row: dict[str, Any] | None) -> int:
    return 0 if row is None else int(row["n"])


def check_pulse(history: History) -> Verdict:
    """Compare every tablet's last reads with its writes, of which no two overlapped."""
    judged = 0
    for tablet, operations in by_key(history.operations("write", "read")).items():
        last, unknown = 0, list[int]()
        for operation in operations:
            judged += operation.known
            if operation.name == "read":
                if operation.known and operation.answer not in (last, *unknown):
                    problem = f"tablet {tablet} holds {operation.answer}, neither {last} nor any of {unknown}"
                    return broken(problem, [operation], judged)
            elif operation.known:
                last = operation.argument
            elif not operation.failed:
                unknown.append(operation.argument)  # may still take place, also after a later one
    return passed(judged, "nothing was written")
