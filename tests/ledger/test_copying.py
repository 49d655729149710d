"""A store copies entries from the other stores of a ledger, as a worker asks."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import EntryLost, LedgerFenced, WrongToken
from ebla.actors.ledger.metadata import Metadata, replace
from ebla.actors.ledger.store import records
from ebla.storage.errors import EblaError
from tests.ledger.repair_stage import RepairStage, data, play, store


async def copy(
    stage: RepairStage,
    name: str,
    found: Metadata,
    *entries: int,
    bytes_max: int = 1 << 20,
    timeout_s: float = 5.0,
) -> m.CopyReply:
    request = m.CopyRequest(stage.uuids[name], found, entries, bytes_max)
    return await stage.client.stores.call(stage.uuids[name], "copy_entries", request, m.CopyReply, timeout_s)


def rot(stage: RepairStage, name: str, ledger: int, entry: int) -> None:
    stage.cluster.state(store(name)).rot("ledgers", "entries", records.key_of(ledger, entry))


def test_a_store_copies_what_it_lacks_in_batches_and_then_has_nothing_to_copy() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        assert list(stage.role("d").entries.numbers(found.ledger)) == []
        first = await copy(stage, "d", found, *range(20), bytes_max=100)
        assert 0 < first.copied == first.done < 20, "as many as fit"
        assert list(stage.role("d").entries.numbers(found.ledger)) == list(range(first.done))
        rest = await copy(stage, "d", found, *range(20))
        assert (rest.done, rest.copied) == (20, 20 - first.copied)
        assert rest.copied_bytes == sum(map(len, data(20)[first.copied :]))
        assert await copy(stage, "d", found, *range(20)) == m.CopyReply(20)
        await stage.restart("d")
        assert await copy(stage, "d", found, *range(20)) == m.CopyReply(20), "copies are synced"

    play(scenario)


def test_a_store_mends_its_damaged_copy_and_passes_over_damaged_sources() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(5, "a", "b", "c")
        await stage.settled()
        for name in ("a", "b"):
            rot(stage, name, found.ledger, 3)
        assert (await copy(stage, "a", found, *range(5))).copied == 1
        assert await copy(stage, "a", found, *range(5)) == m.CopyReply(5)
        assert stage.copies(found, 3) == [stage.uuids["a"], stage.uuids["c"]]

    play(scenario)


def test_an_entry_without_a_sound_copy_is_lost_only_when_every_store_has_answered() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(5, "a", "b", "c")
        await stage.settled()
        rot(stage, "a", found.ledger, 3)
        rot(stage, "b", found.ledger, 3)
        stage.cluster.crash(store("c"))
        with pytest.raises(Unavailable):
            await copy(stage, "d", found, 3, 4)
        await stage.restart("c")
        rot(stage, "c", found.ledger, 3)
        with pytest.raises(EntryLost) as lost:
            await copy(stage, "d", found, 3, 4)
        assert lost.value.entry == 3
        assert (await copy(stage, "d", found, 4)).copied == 1

    play(scenario)


def test_one_request_copies_step_by_step_up_to_an_entry_that_is_lost() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.settled()
        for name in "abc":
            rot(stage, name, found.ledger, 12)
        copier = stage.role("d")
        copier.options = msgspec.structs.replace(copier.options, answer_bytes=40)
        assert await copy(stage, "d", found, *range(20)) == m.CopyReply(12, 12, sum(map(len, data(12))))
        with pytest.raises(EntryLost) as lost:
            await copy(stage, "d", found, *range(12, 20))
        assert lost.value.entry == 12
        assert (await copy(stage, "d", found, *range(13, 20))).done == 7

    play(scenario)


def test_a_request_ends_when_the_store_has_taken_its_time() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        copier = stage.role("d")
        copier.options = msgspec.structs.replace(copier.options, answer_bytes=40, copy_s=1e-9)
        first = await copy(stage, "d", found, *range(20))
        assert 0 < first.done == first.copied < 10
        assert (await copy(stage, "d", found, *range(first.done, 20))).done < 20 - first.done

    play(scenario)


def test_a_store_copies_nothing_of_a_deleted_ledger_or_of_another_one_with_its_number() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(5, "a", "b", "c")
        with pytest.raises(WrongToken):
            await copy(stage, "a", replace(found, token="another"), 0)
        request = m.DeleteRequest(stage.uuids["d"], found.ledger, found.token)
        await stage.client.stores.call(stage.uuids["d"], "delete_ledger", request, m.Done, 1.0)
        with pytest.raises(LedgerFenced):
            await copy(stage, "d", found, 0)
        assert stage.entries("d") == 0

    play(scenario)


def test_a_deletion_during_a_copy_leaves_nothing() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(5, "a", "b", "c")
        at = "ledger.recovery_add.before_commit"
        stage.points.arm(store("d"), at, lambda: stage.cluster.crash(store("d")))
        with pytest.raises(EblaError):
            await copy(stage, "d", found, *range(5), timeout_s=1.0)
        await stage.restart("d")
        request = m.DeleteRequest(stage.uuids["d"], found.ledger, found.token)
        copied, deleted = await asyncio.gather(
            copy(stage, "d", found, *range(5)),
            stage.client.stores.call(stage.uuids["d"], "delete_ledger", request, m.Done, 1.0),
            return_exceptions=True,
        )
        assert deleted == m.Done() and isinstance(copied, m.CopyReply | LedgerFenced)
        await asyncio.sleep(10.0)
        assert stage.entries("d") == 0

    play(scenario)
