"""Handles on a dropped table are refused until the table is recalled."""

from __future__ import annotations

import pytest

from ebla.errors import InvalidArgument, NotFound, TableDropped
from ebla.options import Written
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import rows


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
