"""A host that is decommissioned: its store gets no further entries, and its ledgers move elsewhere while it serves them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import NotEnoughStores, StoreLeaving
from ebla.log.reading import Ledgers
from ebla.operate import decommissioning, draining, forgetting
from tests.ledger.repair_scripts import hook
from tests.ledger.repair_stage import RepairStage, data, play, store


async def emptied(stage: RepairStage, name: str, limit_s: float = 120.0) -> None:
    """No ledger names the store, and none is marked."""

    async def so() -> bool:
        registry = stage.client.registry
        found = [await registry.read(ledger) for ledger in await registry.list()]
        named = any(stage.uuids[name] in meta.stores_in(each) for each in found)
        return not named and not await stage.client.repairs.marked()

    await stage.until(so, limit_s)


@pytest.mark.parametrize("runs", [True, False])
def test_the_ledgers_of_a_host_that_is_decommissioned_move_and_its_writers_go_on(runs: bool) -> None:
    """Also if the store has ended: there is no delay."""

    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        closed = [await client.written(50, "a", "b", "c"), await client.written(1, "a", "d", "c")]
        opened = await client.create("a", "b", "c")
        writer = client.writer(opened)
        for each in data(10):
            await writer.add(each)
        await stage.audit()
        await stage.work("b", "d")
        await client.registry.leave([store("a")], True)
        if not runs:
            await stage.lose("a")
        for each in data(10, 10):
            await writer.add(each)
            await asyncio.sleep(0.2)
        await emptied(stage, "a")
        assert (await client.registry.read(opened.ledger)).state == meta.OPEN
        await writer.close()
        assert await client.contents(opened.ledger) == data(20)
        for found in closed:
            await stage.judge_whole(found.ledger)
        assert stage.auditor().counted.audits == 1, "no ledger named the store when the audit was repeated"
        with pytest.raises(NotEnoughStores):
            await client.registry.create(5, 3, 2)
        again = await client.create(ensemble=4)
        assert stage.uuids["a"] not in meta.stores_in(again)
        await client.registry.leave([store("a")], False)
        if runs:
            await client.registry.create(5, 3, 2)

    play(scenario, count=5, auditor={"delay_s": 1000.0})


def test_a_decommission_continues_with_another_auditor_and_its_undo_ends_it() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(20, "a", "b", "c")
        await client.registry.leave([store("a")], True)
        await stage.audit(0, 1)

        async def marked() -> bool:
            return await client.repairs.marked() == [found.ledger]

        await stage.until(marked)
        stage.cluster.crash("auditor/0")
        await client.registry.leave([store("a")], False)
        await stage.work()
        await stage.until(lambda: _unmarked(stage))
        assert await client.registry.read(found.ledger) == found, "it stays where it is"
        await client.registry.leave([store("a")], True)
        await emptied(stage, "a")
        await stage.judge_whole(found.ledger, data(20))

    play(scenario)


async def _unmarked(stage: RepairStage) -> bool:
    return not await stage.client.repairs.marked()


def test_a_ledger_that_nobody_writes_is_closed_after_the_grace_period_and_moves() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.process()
        found = await client.create("a", "b", "c")
        writer = client.writer(found)
        for each in data(10):
            await writer.add(each)
        client.crash()
        await stage.client.registry.leave([store("a")], True)
        await stage.audit()
        await stage.work()
        await emptied(stage, "a")
        await stage.judge_whole(found.ledger, data(10))

    play(scenario)


def test_no_ledger_is_made_on_a_store_whose_host_was_decommissioned_meanwhile() -> None:
    """Between the choice of the stores and the creation."""

    async def scenario(stage: RepairStage) -> None:
        registry, other = stage.client.registry, stage.process().registry
        honest = registry._running

        async def late() -> object:
            found = await honest()
            await other.leave([store("a")], True)
            return found

        registry._running = late  # type: ignore[method-assign, assignment]
        for _ in range(5):
            assert stage.uuids["a"] not in meta.stores_in(await registry.create(3, 3, 2))
            await other.leave([store("a")], False)
        found = await stage.client.written(1, "b", "c", "d")
        await other.leave([store("a")], True)
        b, a = stage.uuids["b"], stage.uuids["a"]
        with pytest.raises(StoreLeaving):
            await registry.change(found.ledger, lambda now: meta.with_moved(now, 0, b, a) or now)

    play(scenario)


def test_no_ledger_names_a_store_that_has_ended_meanwhile() -> None:
    """A client stands still between the choice of the stores and its change, and an audit is made. Another one would find nothing
    new, so the ledger would wait for the check of all ledgers."""

    async def scenario(stage: RepairStage) -> None:
        await stage.audit()
        client = stage.process()
        registry, honest = client.registry, client.registry._running
        a, b = stage.uuids["a"], stage.uuids["b"]
        found = await client.written(1, "b", "c", "d")
        stood: list[float] = []

        async def slow() -> object:
            seen = await honest()
            if not stood:
                stood.append(40.0)
                await stage.lose("a")
                await asyncio.sleep(40.0)
            return seen

        registry._running = slow  # type: ignore[method-assign, assignment]
        with pytest.raises(NotEnoughStores):
            await registry.create(4, 3, 2)
        assert stage.auditor().counted.audits == 1
        with pytest.raises(StoreLeaving, match="does not run"):
            await registry.change(found.ledger, lambda now: meta.with_moved(now, 0, b, a) or now)

    play(scenario)


@pytest.mark.parametrize("point", ["ledger.audit.before_marks", "ledger.audit.after_marks"])
def test_an_auditor_that_ends_at_an_audit_of_a_leaving_store_is_followed_by_another(point: str) -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.audit(0, 1)

        async def at(reached: str) -> None:
            if reached == point:
                stage.cluster.crash("auditor/0")

        hook(stage.auditor(0), at)
        await stage.client.registry.leave([store("a")], True)
        await stage.work()
        await emptied(stage, "a")
        await stage.judge_whole(found.ledger, data(20))
        assert not stage.cluster.alive("auditor/0")

    play(scenario)


def test_a_decommission_and_a_forgetting_see_ledgers_that_were_made_after_their_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        cluster: Any = SimpleNamespace(ledgers=Ledgers(client.world, client.session))
        made = []

        async def ask(*_: object) -> None:
            made.append(await client.written(10, "a", "b", "c"))  # a log rolls meanwhile
            raise NotFound("there is no tablet server")

        monkeypatch.setattr(draining, "ask", ask)
        begun = await decommissioning.decommission(cluster, "a")
        assert begun.stores is not None and begun.stores.left == (made[0].ledger,)
        older = decommissioning.State(None, msgspec.structs.replace(begun.stores, left=()))
        with pytest.raises(decommissioning.LedgersStay):
            await forgetting.forget(cluster, older.stores)
        await stage.audit()
        await stage.work()
        await decommissioning.wait(cluster, "a", older)
        assert stage.uuids["a"] not in meta.stores_in(await client.registry.read(made[0].ledger))
        await forgetting.forget(cluster, older.stores)

    play(scenario)
