"""A dropped table is kept for its reserve time, can be recalled completely, and is then deleted."""

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
from ebla.storage.errors import InvalidArgument
from tests.master.stage import MASTER, OPTIONS, Stage, play
from tests.staged import staged


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_table_dropped_with_a_reserve_is_hidden_but_keeps_its_replicas(stage: Stage) -> None:
    info = await stage.create("flights", buckets=2)
    await stage.running("flights")
    await stage.drop("flights", reserve_s=3600.0)
    assert (await stage.status()).tables == 0
    assert (await stage.ask("list_tables", m.ListTablesRequest(), m.ListTablesReply)).tables == ()
    for asked in (m.TableName("flights"), m.TableName("", info.table)):
        with pytest.raises(
            TableDropped, match=rf"'flights' \(id {info.table}\) was dropped.*recall"
        ) as caught:
            await stage.ask("get_table", asked, m.TableInfo)
        assert (caught.value.table, caught.value.what) == (info.table, "flights")
    (kept,) = await stage.kept()
    assert (kept.table, kept.name, kept.state) == (info.table, "flights", "dropped")
    assert kept.until_us - kept.dropped_us == 3_600_000_000
    await asyncio.sleep(60.0)
    assert stage.replicas() == 6 and (await stage.status()).tables_kept == 1
    replicas = [replica for host in stage.scripts for replica in stage.server(host).replicas.values()]
    assert sum(replica.version for replica in replicas) == 2, "the leader of each tablet knows of the drop"
    require_sound(stage.master.catalog)


@staged(play, hosts="abc")
async def test_a_recalled_table_may_get_another_name(stage: Stage) -> None:
    old = await stage.create("flights")
    await stage.drop("flights", reserve_s=3600.0)
    await stage.create("flights", request_id="the name is free")
    with pytest.raises(AlreadyPresent, match="under another name"):
        await stage.recall("flights")
    back = await stage.recall(old.table, "flights before")
    assert (back.table, back.name) == (old.table, "flights before")
    assert {"flights", "flights before"} == set(stage.master.catalog.names)
    assert await stage.kept() == []
    require_sound(stage.master.catalog)


@staged(play, hosts="abc")
async def test_an_impossible_recall_names_the_kept_tables(stage: Stage) -> None:
    with pytest.raises(NotFound, match="no table 'flights' is kept for recall; see"):
        await stage.recall("flights")
    first = await stage.create("flights")
    with pytest.raises(NotFound, match="there is one, which was not dropped"):
        await stage.recall("flights")
    await stage.drop("flights", "one", reserve_s=3600.0)
    second = await stage.create("flights", request_id="second")
    await asyncio.sleep(1.0)
    await stage.drop("flights", "two", reserve_s=3600.0)
    with pytest.raises(InvalidArgument, match=f"2 dropped tables.*: {second.table}, {first.table}"):
        await stage.recall("flights")
    with pytest.raises(InvalidArgument, match="control"):
        await stage.recall(first.table, "a\tb")
    with pytest.raises(InvalidArgument, match="reserve_s"):
        await stage.drop("flights", "three", reserve_s=-1.0)
    with pytest.raises(InvalidArgument, match="was dropped already"):
        await stage.drop(first.table, "four", reserve_s=60.0)
    with pytest.raises(TableDropped, match=second.table):
        await stage.drop("flights", "five")


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_kept_table_is_deleted_after_its_reserve_or_by_its_id(stage: Stage) -> None:
    for name in ("flights", "weather"):
        await stage.made(name)
        await stage.drop(name, reserve_s=30.0)
    weather = next(kept for kept in await stage.kept() if kept.name == "weather")
    await stage.drop(weather.table, reserve_s=0.0)
    await stage.until(lambda: stage.replicas() == 3)
    await asyncio.sleep(20.0)
    assert stage.replicas() == 3
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.replicas() == 0)
    await stage.until(lambda: len(stage.master.catalog.tables) == 0)
    assert await stage.kept() == []
    with pytest.raises(NotFound):
        await stage.recall("flights", request_id="too late")


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_jump_of_the_wall_clock_ends_no_reserve(stage: Stage) -> None:
    info = await stage.create("flights")
    await stage.running("flights")
    await stage.drop("flights", reserve_s=3600.0)
    stage.cluster.clock(MASTER).wall_offset_us += 7_200_000_000
    await asyncio.sleep(60.0)
    assert [kept.table for kept in await stage.kept()] == [info.table]
    await stage.recall("flights")


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_reserve_counts_only_time_with_an_active_master(stage: Stage) -> None:
    await stage.made("flights")
    await asyncio.sleep(100.0)  # time before the drop does not count
    await stage.drop("flights", reserve_s=300.0)
    await asyncio.sleep(200.0)
    stage.cluster.crash(MASTER)
    await asyncio.sleep(1000.0)
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(90.0)
    assert len(await stage.kept()) == 1
    await asyncio.sleep(80.0)  # at most a minute is lost at the end of a master
    assert await stage.kept() == []


@staged(play, options=replace(OPTIONS, reserve_s=100.0), hosts="abc")
async def test_the_default_reserve_is_an_option_and_a_drop_may_override_it(stage: Stage) -> None:
    for name, reserve_s in (("as set", None), ("longer", 200.0), ("not at all", 0.0)):
        await stage.create(name)
        await stage.drop(name, reserve_s=reserve_s)
    kept = {each.name: (each.until_us - each.dropped_us) // 1_000_000 for each in await stage.kept()}
    assert kept == {"as set": 100, "longer": 200}


@pytest.mark.parametrize("restart", [False, True])
@staged(play)
async def test_retries_of_drop_and_recall_get_the_first_answer(stage: Stage, restart: bool) -> None:
    async def lost(act: Any) -> None:
        stage.cluster.network.cut(MASTER, "client", one_way=True)
        with pytest.raises(OutcomeUnknown):
            await act()
        stage.cluster.network.heal()
        if restart:
            await stage.cluster.restart(MASTER)

    await stage.open("a", "b", "c")
    info = await stage.create("flights")
    await lost(lambda: stage.drop("flights", reserve_s=3600.0))
    await stage.drop("flights", reserve_s=3600.0)
    with pytest.raises(RequestReused):
        await stage.drop("flights", reserve_s=60.0)
    await lost(lambda: stage.recall("flights"))
    await stage.drop("flights", reserve_s=3600.0)
    assert (await stage.table("flights")).table == info.table, "the old drop is not repeated"
    assert (await stage.recall("flights")).table == info.table
    await stage.drop("flights", "once more", reserve_s=3600.0)
    with pytest.raises(StaleRequest, match="the table dropped since"):
        await stage.recall("flights")
    assert len(await stage.kept()) == 1


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_table_whose_tablets_are_still_being_created_can_be_dropped_and_recalled(
    stage: Stage,
) -> None:
    stage.raft.elects = False
    await stage.create("flights", buckets=3)
    await stage.until(lambda: stage.replicas() == 9)
    await stage.drop("flights", reserve_s=3600.0)
    await asyncio.sleep(12.0)  # meanwhile its tablets are replaced
    stage.raft.elects = True
    await stage.recall("flights")
    info = await stage.running("flights")
    await stage.until(lambda: not stage.master.views.behind)
    live = {tablet.tablet for tablet in info.tablets}
    await stage.until(lambda: stage.replicas() == 9)
    requests = [r.request for host in stage.scripts for r in stage.server(host).replicas.values()]
    assert {request.tablet for request in requests} == live
    assert {request.schema.version for request in requests} == {0}, "all replicas start equal"
    require_sound(stage.master.catalog)
