"""Tables are altered exactly once, and every tablet gets the alteration, despite lost messages and crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import (
    AlreadyPresent,
    NotFound,
    OutcomeUnknown,
    RequestReused,
    StaleRequest,
    TableDropped,
)
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.options import MasterOptions
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.alteration import AddColumn, DropColumn, RenameColumn
from ebla.storage.schema import Column
from tests.master import group_stage
from tests.master.builders import create_request, schema
from tests.master.group_stage import GroupStage
from tests.master.stage import MASTER, OPTIONS, Stage, play
from tests.staged import staged

ADD = AddColumn(Column("x", "int64"))


def names(info: m.TableInfo) -> list[str]:
    return [column.name for column in info.schema.columns]


@staged(play, options=OPTIONS, hosts="abc")
async def test_an_answered_alteration_is_durable_and_reaches_every_tablet(stage: Stage) -> None:
    await stage.made("flights", buckets=3)
    for script in stage.scripts.values():
        script.deaf = True
    info = await stage.alter(ADD, RenameColumn("note", "remark"))
    assert (names(info), info.schema.version, info.applied_version) == (["id", "remark", "x"], 1, 0)
    await asyncio.sleep(3.0)
    await stage.cluster.restart(MASTER)
    assert (await stage.table()).applied_version == 0
    for script in stage.scripts.values():
        script.deaf = False
    await stage.until(lambda: bool(stage.master.views.tablets) and not stage.master.views.behind)
    info = await stage.table()
    assert (info.schema.version, info.applied_version) == (1, 1)
    replicas = [r for host in stage.scripts for r in stage.server(host).replicas.values()]
    assert {r.request.schema.version for r in replicas} == {0}
    sent = [len(script.alters) for script in stage.scripts.values()]
    await asyncio.sleep(5.0)
    assert [len(script.alters) for script in stage.scripts.values()] == sent, "no errand after the report"
    require_sound(stage.master.catalog)


@staged(play, options=replace(OPTIONS, rpc_backoff_max_s=1e6), hosts="abc")
async def test_a_new_alteration_is_sent_at_once(stage: Stage) -> None:
    """Found on Ray: each alteration and recall reached its tablets ten seconds after the previous one."""
    await stage.made("flights", buckets=3)
    for version, change in enumerate((ADD, RenameColumn("x", "y"), DropColumn("y")), 1):
        await stage.alter(change, request_id=f"change {version}")
        await stage.until(lambda: not stage.master.views.behind)
        assert (await stage.table()).applied_version == version


@staged(play, hosts="abc")
async def test_a_retry_is_answered_but_not_repeated_also_after_a_restart(stage: Stage) -> None:
    await stage.create("flights")
    stage.cluster.network.cut(MASTER, "client", one_way=True)
    with pytest.raises(OutcomeUnknown):
        await stage.alter(ADD)
    stage.cluster.network.heal()
    assert (await stage.alter(ADD)).schema.version == 1
    await stage.alter(DropColumn("x"), request_id="another")
    await stage.cluster.restart(MASTER)
    again = await stage.alter(ADD)
    assert (names(again), again.schema.version) == (["id", "note"], 2), "the present table"
    with pytest.raises(RequestReused):
        await stage.alter(DropColumn("note"))
    await stage.drop("flights")
    with pytest.raises(StaleRequest, match="the table dropped since"):
        await stage.alter(ADD)


@staged(play, hosts="abc")
async def test_an_impossible_alteration_is_refused_and_changes_nothing(stage: Stage) -> None:
    await stage.create("flights")
    await stage.create("weather")
    refusals: list[tuple[type[Exception], tuple[Any, ...], dict[str, str]]] = [
        (InvalidArgument, (ADD, DropColumn("id")), {}),
        (InvalidArgument, (ADD, ADD), {}),
        (InvalidArgument, (), {}),
        (InvalidArgument, (ADD,) * 301, {}),
        (InvalidArgument, (), {"rename": "a\tb"}),
        (AlreadyPresent, (ADD,), {"rename": "weather"}),
        (NotFound, (ADD,), {"name": "nobody"}),
    ]
    for number, (kind, changes, more) in enumerate(refusals):
        with pytest.raises(kind):
            await stage.alter(*changes, request_id=f"refused {number}", **more)
    assert (await stage.table()).schema == schema()
    await stage.drop("flights", reserve_s=60.0)
    with pytest.raises(TableDropped):
        await stage.alter(ADD)
    altered = (await stage.alter(ADD, name="weather")).schema
    with pytest.raises(InvalidArgument, match="a new table has version 0"):
        await stage.ask("create_table", create_request("more", schema=altered), m.TableInfo)


@staged(play, hosts="abc")
async def test_a_renamed_table_frees_its_old_name(stage: Stage) -> None:
    made = await stage.create("flights")
    info = await stage.alter(rename="flown")
    assert (info.name, info.schema.version, info.applied_version) == ("flown", 0, 0)
    assert not await stage.exists("flights")
    found = await stage.ask("get_table", m.TableName("flights", made.table), m.TableInfo)
    assert found.name == "flown"
    await stage.create("flights", request_id="the name is free")
    with pytest.raises(AlreadyPresent):
        await stage.alter(name="flown", rename="flights", request_id="back")
    await stage.cluster.restart(MASTER)
    assert (await stage.table("flown")).table == made.table
    require_sound(stage.master.catalog)


@staged(group_stage.play, master=MasterOptions())
async def test_consecutive_alterations_do_not_wait_for_pauses(stage: GroupStage) -> None:
    await stage.create("flights", buckets=4)
    await stage.running()
    await asyncio.sleep(30.0)

    async def heard() -> None:
        began = stage.cluster.loop.time()
        while (info := await stage.table()).applied_version < info.schema.version:
            await asyncio.sleep(0.02)
        assert stage.cluster.loop.time() - began < 3.0

    for number in range(3):
        await stage.alter(AddColumn(Column(f"c{number}", "int64")), request_id=f"alter {number}")
        await heard()
    table = (await stage.table()).table
    await asyncio.sleep(30.0)
    await stage.drop(reserve_s=3600.0)
    await stage.recall(table)
    await heard()
