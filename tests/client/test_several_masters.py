"""Clients of several masters: their requests, and their writes without an active master."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from ebla import aio
from ebla.actors import messages as m
from ebla.actors.errors import TimedOut
from tests.master.group_stage import GroupStage, play
from tests.staged import staged

on_group = staged(play)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@on_group
async def test_a_client_follows_a_standby_to_the_active_master_and_stays_with_it(stage: GroupStage) -> None:
    active = await stage.ready()
    stage.session.master.address = stage.other(active)
    asked: list[str] = []
    inner = stage.session.world.network.network
    honest = inner.call

    async def noting(sender, address, *rest):
        if sender == "client":
            asked.append(address)
        return await honest(sender, address, *rest)

    inner.call = noting
    await asyncio.sleep(1.0)
    for _ in range(3):
        await stage.names()
    assert asked == [stage.other(active), active, active, active]


@on_group
async def test_a_client_times_out_when_no_master_is_active_and_says_why(stage: GroupStage) -> None:
    for node in stage.journals:
        stage.cluster.crash(node)
    await stage.until(lambda: not stage.serving())
    with pytest.raises(TimedOut, match="NotActive"):
        await stage.ask("list_tables", m.ListTablesRequest(), m.ListTablesReply, deadline_s=5.0)


@on_group
async def test_rows_are_read_and_written_while_no_master_is_active(stage: GroupStage) -> None:
    db = aio.Database(stage.session)
    table = await db.create_table("flights", schema=SCHEMA, primary_key=["k"], replicas=3)
    await table.upsert({"k": 1, "v": "one"})
    for master in stage.masters:
        stage.cluster.crash(master)
    for k in range(2, 20):
        await table.upsert({"k": k, "v": "more"}, deadline_s=5.0)
    assert await table.scan().count() == 19
    for master in stage.masters:
        await stage.cluster.restart(master)
    await stage.ready()
    assert (await table.info()).state == "running"
