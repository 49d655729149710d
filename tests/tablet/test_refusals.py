"""A write that a tablet refused for certain stays refused, under every leader and however late the request is repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ebla.actors import messages as m
from ebla.actors.tablet.engine import apply
from ebla.errors import InvalidArgument, TableDropped
from ebla.storage.errors import EblaError
from ebla.storage.rows.alteration import Dropped
from tests.tablet.harness import HOSTS, Group, row, simulated
from tests.tablet.test_alterations import alter

LATE = b"client-that-late"


async def refused(group: Group, batch: bytes, kind: type[EblaError]) -> EblaError:
    with pytest.raises(kind) as caught:
        await group.write_bytes(batch)
    assert not caught.value.possibly_applied
    return caught.value


async def nothing(group: Group) -> None: ...


async def another_leads(group: Group) -> None:
    await group.step_down(await group.leader())
    await group.sleep(2.0)


async def all_restart(group: Group) -> None:
    await group.flush(*HOSTS)
    await group.restart_all()


BETWEEN = pytest.mark.parametrize("between", [nothing, another_leads, all_restart])


@BETWEEN
@simulated()
async def test_a_write_refused_by_a_dropped_table_is_refused_after_the_recall(
    group: Group, between: Callable[[Group], Awaitable[None]]
) -> None:
    late = group.batch(m.UPSERT, [row(7, "late")], 1, client=LATE)
    await group.upsert(row(1))
    await alter(group, 1, Dropped("table", "t", 1))
    await refused(group, late, TableDropped)
    await alter(group, 2, None)
    await between(group)
    again = await refused(group, late, TableDropped)
    assert "take a fresh write id" in again.message
    assert await group.get(1, 7) == [row(1), None]
    await group.write_bytes(group.batch(m.UPSERT, [row(7, "fresh")], 2, client=LATE))
    assert await group.get(7) == [row(7, "fresh")]


@BETWEEN
@simulated()
async def test_an_update_refused_as_too_large_is_refused_when_there_is_room(
    group: Group, between: Callable[[Group], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "UPDATE_BYTES_MAX", 200)
    await group.upsert(row(1), row(2))
    updates = [{"k": 1, "v": "x" * 100}, {"k": 2, "v": "x" * 100}]
    late = group.batch(m.UPDATE, updates, 1, client=LATE, columns=("v",))
    await refused(group, late, InvalidArgument)
    await group.write(m.DELETE, [row(2)])
    await between(group)
    again = await refused(group, late, InvalidArgument)
    assert "take a fresh write id" in again.message
    assert await group.get(1, 2) == [row(1), None]
