"""Several batches of one repair are under way at once: what fails in one of them is not forgotten."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.store import records
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.ledger.worker.copying import FIRST_PART, LANES
from tests.ledger.repair_scripts import lost, unmarked
from tests.ledger.repair_stage import RepairStage, data, play, store

COUNT = 3 * LANES * FIRST_PART
LATE = [
    (number + 1) * FIRST_PART + 3 for number in range(LANES)
]  # each in the part of another lane, none in the first part


def rot(stage: RepairStage, ledger: int, entry: int, *names: str) -> None:
    for name in names:
        stage.cluster.state(store(name)).rot("ledgers", "entries", records.key_of(ledger, entry))


@pytest.mark.parametrize("entry", LATE)
def test_a_store_that_lacks_an_entry_is_not_named_whichever_batch_has_it(entry: int) -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(COUNT, "a", "b", "c")
        await stage.settled()
        await stage.lose("b")
        rot(stage, found.ledger, entry, "a", "c")
        await asyncio.sleep(8.0)
        await lost(stage, found.ledger, "b")
        await stage.work("d")
        await asyncio.sleep(20.0)
        assert await stage.client.registry.read(found.ledger) == found
        (marked,) = (await stage.survey()).marked
        assert marked.reason is not None and str(entry) in marked.reason

    play(scenario)


def test_an_error_of_a_later_batch_ends_the_repair_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, failed, calls_after = True, False, 0
    copy_entries = LedgerStore.copy_entries

    async def faulty(self: LedgerStore, request: m.CopyRequest) -> m.CopyReply:
        nonlocal failed, calls_after
        calls_after += failed
        if failing and LATE[0] in request.entries:
            failed = True
            raise Unavailable("try again")
        return await copy_entries(self, request)

    monkeypatch.setattr(LedgerStore, "copy_entries", faulty)

    async def scenario(stage: RepairStage) -> None:
        nonlocal failing
        found = await stage.client.written(1000, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await lost(stage, found.ledger, "b")
        await stage.work("d")
        await asyncio.sleep(3.0)
        assert failed and calls_after < 3 * LANES, "the other lanes end, too"
        assert await stage.client.registry.read(found.ledger) == found
        failing = False
        await unmarked(stage, found.ledger, 60.0)
        await stage.judge_whole(found.ledger, data(1000))

    play(scenario, worker={"batch_entries": FIRST_PART})


def test_what_can_be_mended_is_mended_beside_lost_entries_of_several_batches() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(COUNT, "a", "b", "c")
        await stage.settled()
        mended = [entry + 1 for entry in LATE]
        for entry in LATE:
            rot(stage, found.ledger, entry, "a", "b", "c")
        for entry in mended:
            rot(stage, found.ledger, entry, "b")
        await stage.client.registry.mark(found.ledger, stage.uuids["b"])
        await stage.work("a")
        await asyncio.sleep(20.0)
        assert all(stage.uuids["b"] in stage.copies(found, entry) for entry in mended)
        assert all(stage.copies(found, entry) == [] for entry in LATE)
        assert [each.ledger for each in (await stage.survey()).marked] == [found.ledger]

    play(scenario, count=3)


def test_a_store_that_has_nearly_all_entries_is_asked_in_batches_that_grow() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(2000, "a", "b", "c")
        await stage.settled()
        rot(stage, found.ledger, 1999, "b")
        await stage.client.registry.mark(found.ledger, stage.uuids["b"])
        await stage.work("a")
        await unmarked(stage, found.ledger)
        await stage.judge_whole(found.ledger, data(2000))
        assert len(calls) <= 20

    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        copy_entries = LedgerStore.copy_entries

        async def counted(self: LedgerStore, request: m.CopyRequest) -> m.CopyReply:
            calls.append(len(request.entries))
            return await copy_entries(self, request)

        patch.setattr(LedgerStore, "copy_entries", counted)
        play(scenario, count=3)
