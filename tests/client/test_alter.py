"""Tables are altered and recalled while clients use them, through handles with the new schema and with the old one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla import aio
from ebla.errors import AlreadyPresent, InvalidArgument, NotFound, RequestReused, TableDropped, TimedOut
from ebla.options import WriteId, Written
from ebla.storage.columns import FIELDS_MAX
from ebla.transport import client
from ebla.write.alter import Changes
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import SCHEMA, arrow, row, rows
from tests.client.toy import HOSTS, address


async def everything(table: aio.Table) -> list[dict[str, Any]]:
    return sorted((await table.scan().to_arrow()).to_pylist(), key=lambda each: each["id"])


@pytest.mark.parametrize("flushed", [False, True])
@on_real_roles
async def test_old_rows_show_the_defaults_and_new_rows_their_own_values(stage: Stage, flushed: bool) -> None:
    table = await stage.table()
    await table.insert(rows(1, 2))
    if flushed:
        await table.flush()
    info = await (
        table.alter()
        .add_column("x", pa.int64(), default=7)
        .add_column("y", pa.string())
        .rename_column("v", "w")
        .drop_column("n")
        .apply()
    )
    assert (info.schema.version, info.applied_version) == (1, 1)
    assert table.schema.names == ["id", "w", "x", "y"]
    await table.insert([{"id": 3, "w": "v3", "y": "new"}, {"id": 4, "w": None, "x": None}])
    await table.upsert({"id": 5, "w": "v5"})
    await table.update({"id": 1, "y": "set"})
    expected = [
        {"id": 1, "w": "v1", "x": 7, "y": "set"},
        {"id": 2, "w": "v2", "x": 7, "y": None},
        {"id": 3, "w": "v3", "x": 7, "y": "new"},
        {"id": 4, "w": None, "x": None, "y": None},
        {"id": 5, "w": "v5", "x": 7, "y": None},
    ]
    assert await everything(table) == expected
    assert await table.get_many([{"id": each["id"]} for each in expected]) == expected
    assert [await table.get({"id": each["id"]}) for each in expected] == expected
    found = await table.scan(columns=["id"], where=ebla.col("x") == 7).to_arrow()
    assert sorted(found["id"].to_pylist()) == [1, 2, 3, 5]
    with pytest.raises(InvalidArgument, match="'n'"):
        await table.upsert({"id": 6, "n": 1})
    for host in HOSTS:
        stage.cluster.crash(address(host))
    for host in HOSTS:
        await stage.cluster.restart(address(host))
    assert await everything(table) == expected
    await table.flush()
    assert await everything(table) == expected


@on_real_roles
async def test_a_reused_column_name_shows_no_old_value(stage: Stage) -> None:
    table = await stage.table()
    stale = await stage.client().table("t")
    await table.insert(rows(1))
    await table.alter().drop_column("v").apply()
    await table.alter().add_column("v", pa.int64()).apply()
    await stale.insert(rows(2))  # encoded with the old schema
    await stale.update({"id": 1, "v": "late"})
    assert await everything(table) == [{"id": k, "n": k, "v": None} for k in (1, 2)]
    assert await stale.get({"id": 1}) == {"id": 1, "n": 1, "v": None}
    assert stale.schema.field("v").type == pa.int64(), "the handle has the new schema"
    await stale.update({"id": 1, "v": 5})
    assert await table.get({"id": 1}) == {"id": 1, "n": 1, "v": 5}


@on_real_roles
async def test_handles_with_an_old_schema_keep_working_and_learn_the_new_one(stage: Stage) -> None:
    table = await stage.table()
    await table.insert(rows(*range(10)))
    handles = [await stage.client().table("t") for _ in range(4)]
    scan = handles[2].scan(columns=["id"], where=ebla.col("n") < 5)
    gone = handles[3].scan(columns=["id", "v"])
    await table.alter().rename_column("v", "w").add_column("x", pa.int8(), default=1).apply()
    assert await handles[0].update([{"id": 1, "v": "patched"}]) == Written(1)
    assert await handles[0].upsert(arrow(50, start=100)) == Written(50)
    assert (await handles[1].get({"id": 1})) == {"id": 1, "w": "patched", "n": 1, "x": 1}
    assert sorted((await scan.to_arrow())["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert await handles[2].scan().count() == 60
    with pytest.raises(InvalidArgument, match="'v' was renamed to 'w' since this scan was made"):
        await gone.to_arrow()
    for handle in handles[1:]:
        assert handle.schema.names == ["id", "w", "n", "x"]


@on_real_roles
async def test_key_columns_are_renamed_with_their_partitioning(stage: Stage) -> None:
    table = await stage.table()
    stale = await stage.client().table("t")
    await table.insert(rows(*range(20)))
    await table.alter().rename_column("id", "number").apply()
    assert table.primary_key == ("number",)
    assert await table.get({"number": 7}) == {"number": 7, "v": "v7", "n": 7}
    assert await stale.delete([{"id": 7}]) == Written(1)
    assert await table.get({"number": 7}) is None
    assert await table.scan(where=ebla.col("number") == 8).count() == 1


@on_real_roles
async def test_a_call_repeated_after_an_alteration_is_refused_and_changes_nothing(stage: Stage) -> None:
    table, data, own = await stage.table(buckets=2), arrow(5000, width=50), WriteId(b"j" * 16, 0)
    assert await table.upsert(data, write_id=own) == Written(5000)
    await table.update(pa.table({"id": data["id"], "n": pa.array([-7] * 5000, SCHEMA.field("n").type)}))
    await table.alter().add_column("x", pa.int64(), default=1).apply()
    again = await stage.client("retry").table("t")
    with pytest.raises(RequestReused) as refused:
        await again.upsert(data, write_id=own)
    assert "0 rows of the call were applied" in str(refused.value.__notes__)
    assert {row["n"] for row in await everything(again)} == {-7}


@on_real_roles
async def test_a_table_is_renamed_and_handles_follow_it(stage: Stage) -> None:
    table = await stage.table()
    await stage.db.create_table("other", schema=SCHEMA, primary_key=["id"])
    with pytest.raises(AlreadyPresent):
        await table.alter().rename("other").apply()
    stale = await stage.client().table("t")
    await table.alter().rename("u").apply()
    assert table.name == "u" and sorted(each.name for each in await stage.db.tables()) == ["other", "u"]
    await stale.insert(rows(1))
    assert (await stale.info()).name == stale.name == "u"
    with pytest.raises(NotFound):
        await stage.db.table("t")
    assert await (await stage.db.table("u")).get({"id": 1}) == row(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a, "nothing to alter"),
        (lambda a: a.drop_column("id"), "part of the key"),
        (lambda a: a.drop_column("nope"), "no column 'nope'"),
        (lambda a: a.add_column("v", pa.int8()), "already"),
        (lambda a: a.add_column("x", pa.int8(), nullable=False), "give a default"),
        (lambda a: a.add_column("x", pa.int8(), default=300), "'x'"),
        (lambda a: a.add_column("x", "int8"), r"pa\.int64\(\)"),
        (lambda a: a.add_column("x", pa.float16()), "does not store"),
        (lambda a: a.rename_column("v", "n"), "already"),
        (lambda a: a.rename("bad\nname"), "control characters"),
    ],
)
@on_real_roles
async def test_a_refused_alteration_changes_nothing(
    stage: Stage, change: Callable[[Any], Any], words: str
) -> None:
    table = await stage.table(buckets=2)
    with pytest.raises(InvalidArgument, match=words):
        await change(table.alter()).apply()
    if words != "nothing to alter":
        with pytest.raises(InvalidArgument, match=words):
            await change(table.alter().add_column("fine", pa.int8())).apply()
    assert (await table.info()).schema.version == 0


def test_a_column_of_an_invalid_type_is_refused_before_it_is_sent() -> None:
    wide = pa.struct([(f"f{place}", pa.int8()) for place in range(FIELDS_MAX + 1)])
    with pytest.raises(InvalidArgument, match="more than 300 fields"):
        Changes("t").add_column("x", wide)


@on_real_roles
async def test_waiting_for_an_alteration_times_out_and_the_alteration_remains(stage: Stage) -> None:
    table = await stage.table(buckets=2)
    for host in HOSTS[1:]:
        stage.cluster.crash(address(host))
    with pytest.raises(TimedOut, match="was altered, but not all of its tablets"):
        await table.alter().add_column("x", pa.int8()).apply(wait_s=2.0)
    info = await table.info()
    assert (info.schema.version, info.applied_version) == (1, 0)
    for host in HOSTS[1:]:
        await stage.cluster.restart(address(host))
    await table.insert({"id": 1, "x": 3})
    while (await table.info()).applied_version == 0:
        await stage.session.world.clock.sleep(0.1)
    assert await table.get({"id": 1}) == {"id": 1, "v": None, "n": None, "x": 3}


@pytest.mark.parametrize("seed", range(4))
@on_real_roles
async def test_every_insert_is_applied_once_while_columns_come_and_go_and_servers_crash(
    stage: Stage, seed: int
) -> None:
    """Two clients insert rows, counted exactly."""
    table = await stage.table()
    stale = await stage.client().table("t")
    over = asyncio.Event()
    done: dict[int, int] = {}

    async def insert(handle: aio.Table, worker: int) -> None:
        for at in range(10_000):
            if over.is_set():
                return
            number = worker * 10_000 + at
            if at % 5 == 4:
                block = [{"id": number * 100 + k, "n": number} for k in range(20)]
                assert await handle.insert(block) == Written(20)
                done.update({each["id"]: number for each in block})
            else:
                assert await handle.insert({"id": number * 100, "n": number}) == Written(1)
                done[number * 100] = number
            await stage.session.world.clock.sleep(0.03)

    async def crash() -> None:
        for turn in range(4):
            victim = address(HOSTS[turn % 3])
            stage.cluster.crash(victim)
            await stage.session.world.clock.sleep(0.7)
            await stage.cluster.restart(victim)
            await stage.session.world.clock.sleep(0.5)

    async def alter() -> None:
        for turn in range(4):
            await table.alter().add_column("x", pa.int64(), default=turn).apply()
            await table.alter().rename_column("v", f"v{turn}").rename_column(f"v{turn}", "v").apply()
            await table.alter().drop_column("x").apply()
        over.set()

    await asyncio.gather(alter(), crash(), *(insert(h, w) for w, h in enumerate((table, stale, table))))
    for handle in (table, stale):
        assert {each["id"]: each["n"] for each in await everything(handle)} == done


@pytest.mark.parametrize("seed", range(3))
@on_real_roles
async def test_readers_with_an_old_schema_are_served_during_an_alteration_on_slow_disks(
    stage: Stage, seed: int
) -> None:
    table = await stage.table(buckets=2)
    await table.insert(rows(1, 2))
    writer, *handles = [await stage.client().table("t") for _ in range(7)]
    for leader in await stage.leaders(table):
        stage.cluster.state(leader).commit_s = (0.3, 0.3)
    over = asyncio.Event()
    seen: set[Any] = set()  # values of "n", which changes from a number to a text

    async def read(handle: aio.Table, way: int) -> None:
        while not over.is_set():
            if way == 0:
                found = await handle.get({"id": 1})
            elif way == 1:
                found = (await handle.get_many([{"id": 1}, {"id": 2}]))[0]
            else:
                found = (await everything(handle))[0]
            assert found is not None
            seen.add(found["n"])
            await stage.session.world.clock.sleep(0.02)

    async def write() -> None:
        while not over.is_set():
            await writer.update({"id": 1, "v": "again"})

    async def change() -> None:
        await stage.session.world.clock.sleep(0.5)
        await table.alter().drop_column("n").add_column("n", pa.string(), default="new").apply()
        await stage.session.world.clock.sleep(1.0)
        over.set()

    await asyncio.gather(
        change(), write(), write(), *(read(handle, at % 3) for at, handle in enumerate(handles))
    )
    assert seen == {1, "new"}


# -- recall ------------------------------------------------------------------------------------------------


async def until_refused(stage: Stage, table: object) -> TableDropped:
    for _ in range(200):
        try:
            await table.get({"id": 1})  # type: ignore[attr-defined]
        except TableDropped as error:
            return error
        await stage.session.world.clock.sleep(0.05)
    raise AssertionError("the table can still be read")


@pytest.mark.parametrize("seed", range(3))
@on_real_roles
async def test_a_handle_is_refused_while_the_table_is_dropped_and_works_again_after_the_recall(
    stage: Stage, seed: int
) -> None:
    table = await stage.table()
    assert await table.insert(rows(1, 2, 3)) == Written(3)
    await stage.db.drop_table("t", reserve_s=3600.0)
    assert "`ebla table recall`" in str(await until_refused(stage, table))
    for act in (
        table.upsert(rows(4)),
        table.get_many([{"id": 1}]),
        table.scan().to_arrow(),
        table.info(),
    ):
        with pytest.raises(TableDropped):
            await act
    with pytest.raises(TableDropped):
        await stage.db.table("t")
    assert await stage.db.tables() == []
    (kept,) = await stage.db.tables(deleted=True)
    assert (kept.name, kept.state) == ("t", "dropped")

    back = await stage.db.recall_table("t", "t again")
    assert back.name == "t again"
    assert await back.scan().count() == 3
    assert await table.insert(rows(4)) == Written(1)
    assert await back.get({"id": 4}) == rows(4)[0]
    assert [each.name for each in await stage.db.tables()] == ["t again"]
    assert await stage.db.tables(deleted=True) == []


@on_real_roles
async def test_a_table_that_was_dropped_for_good_is_not_recalled(stage: Stage) -> None:
    await stage.table()
    await stage.db.drop_table("t", reserve_s=0)
    with pytest.raises(NotFound, match=r"tables\(deleted=True\)"):
        await stage.db.recall_table("t")
    for wrong in (-1, "3d", float("nan"), True):
        with pytest.raises(InvalidArgument, match="reserve_s is a number of seconds"):
            await stage.db.drop_table("t", reserve_s=wrong)


async def renamed(stage: Stage, table: aio.Table) -> aio.Table:
    await table.alter().rename("u").apply()
    return await stage.db.table("u")


async def recalled(stage: Stage, table: aio.Table) -> aio.Table:
    await stage.db.drop_table("t", reserve_s=3600.0)
    return await stage.db.recall_table("t")


async def recalled_as_another(stage: Stage, table: aio.Table) -> aio.Table:
    await stage.db.drop_table("t", reserve_s=3600.0)
    return await stage.db.recall_table("t", "u")


async def until_served(stage: Stage, table: aio.Table) -> None:
    """Servers refuse a recalled table for a moment."""
    for _ in range(200):
        with suppress(TableDropped):
            await table.count()
            return
        await stage.session.world.clock.sleep(0.05)
    raise AssertionError("the table is refused still")


@pytest.mark.parametrize("change", [renamed, recalled, recalled_as_another])
@on_real_roles
async def test_older_and_newer_handles_of_one_table_write_at_the_same_time(
    stage: Stage, change: Callable[[Stage, aio.Table], Awaitable[aio.Table]]
) -> None:
    older = await stage.table(buckets=2)
    await older.insert(row(0))
    newer = await change(stage, older)
    await until_served(stage, older)

    async def singles(start: int) -> None:
        for number in range(start, start + 100):
            assert await newer.upsert(row(number)) == Written(1)

    async def bulk() -> None:
        for start in range(100_000, 106_000, 1000):
            assert await older.upsert(arrow(1000, width=50, start=start)) == Written(1000)

    await asyncio.gather(bulk(), *(singles(start) for start in (1000, 2000, 3000, 4000)))
    assert await newer.count() == await older.count() == 1 + 6000 + 400


@on_real_roles
async def test_a_new_table_of_an_old_name_is_another_table(stage: Stage) -> None:
    first = await stage.table(buckets=2)
    await first.alter().rename("u").apply()
    second = await stage.table(buckets=2)
    await first.insert(rows(1))
    await second.insert(rows(2, 3))
    assert (await first.count(), await second.count()) == (1, 2)
    assert (first.name, second.name) == ("u", "t")
    await stage.db.drop_table("t", reserve_s=0)
    third = await stage.table(buckets=2)
    assert await third.count() == 0 and await first.get({"id": 1}) == row(1)
    with pytest.raises(NotFound, match="was dropped"):
        await second.count()


@on_real_roles
async def test_a_connection_keeps_few_of_the_tables_that_were_dropped(stage: Stage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "DROPPED_MAX", 2)
        used = await stage.table(buckets=2)
        await used.alter().rename("used").apply()
        for _ in range(5):
            await stage.table(buckets=2)
            await stage.db.drop_table("t", reserve_s=0)
        assert len(stage.session._tables) == 3
        assert (await stage.db.table("used"))._routes is used._routes
