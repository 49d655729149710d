"""The edit log and the checkpoint: what was appended comes back, what was damaged does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.checkpoint import CHUNK_BYTES, Checkpoints
from ebla.actors.master.catalog.edit_log import LocalEditLog
from ebla.actors.master.catalog.edits import Edit, TabletRunning
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.environment import Delete, Environment, Put
from ebla.storage.errors import Corruption, DiskFailed
from tests.master.builders import Story, in_memory


def edit(number: int) -> Edit:
    return TabletRunning(f"tablet {number}")


async def filled(environment: Environment, count: int) -> LocalEditLog:
    log = LocalEditLog(environment)
    await log.open(0)
    for number in range(log.last_txid + 1, log.last_txid + count + 1):
        await log.append([edit(number)])
    return log


def key(txid: int) -> bytes:
    return txid.to_bytes(8, "big")


def test_appended_edits_are_read_in_order_and_appending_continues():
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 3)
        log = await filled(environment, 2)
        assert log.last_txid == 5
        assert await LocalEditLog(environment).open(0) == [edit(n) for n in (1, 2, 3, 4, 5)]
        assert await LocalEditLog(environment).open(3) == [edit(4), edit(5)]

    in_memory(scenario)


def test_a_log_longer_than_one_page_comes_back_whole(monkeypatch):
    monkeypatch.setattr("ebla.actors.master.catalog.edit_log._PAGE", 7)

    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 30)
        assert await LocalEditLog(environment).open(0) == [edit(n) for n in range(1, 31)]

    in_memory(scenario)


def test_a_rotten_record_is_corruption_wherever_it_is():
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 5)
        for name in (key(1), key(3), key(5), b"head"):
            state.rot("catalog", "edits", name)
            with pytest.raises(Corruption):
                await LocalEditLog(environment).open(0)
            state.rot("catalog", "edits", name)
        await LocalEditLog(environment).open(0)

    in_memory(scenario)


@settings(max_examples=30, deadline=None)
@given(txid=st.integers(1, 6), position=st.integers(0, 40), bit=st.integers(0, 7))
def test_any_flipped_bit_of_any_record_is_corruption(txid: int, position: int, bit: int):
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 6)
        value = bytearray(environment.get("edits", key(txid)))
        value[position % len(value)] ^= 1 << bit
        await environment.commit([Put("edits", [(key(txid), bytes(value))])])
        with pytest.raises(Corruption):
            await LocalEditLog(environment).open(0)

    in_memory(scenario)


def test_a_missing_record_is_corruption_at_the_start_in_the_middle_and_at_the_end():
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 5)
        for missing in (1, 3, 5):
            value = environment.get("edits", key(missing))
            await environment.commit([Delete("edits", [key(missing)])])
            with pytest.raises(Corruption):
                await LocalEditLog(environment).open(0)
            await environment.commit([Put("edits", [(key(missing), value)])])
        await environment.commit([Delete("edits", [b"head"])])
        with pytest.raises(Corruption):
            await LocalEditLog(environment).open(0)

    in_memory(scenario)


def test_a_record_served_from_another_place_is_corruption():
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 5)
        two = environment.get("edits", key(2))
        await environment.commit([Put("edits", [(key(4), two)])])
        with pytest.raises(Corruption):
            await LocalEditLog(environment).open(0)

    in_memory(scenario)


def test_a_record_from_another_history_is_corruption():
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 5)
        three = environment.get("edits", key(3))
        await environment.commit([Delete("edits", [name for name, _ in environment.items("edits")])])
        log = LocalEditLog(environment)
        await log.open(0)
        for number in (11, 12, 3, 4, 5):
            await log.append([edit(number)])
        await LocalEditLog(environment).open(0)
        await environment.commit([Put("edits", [(key(3), three)])])
        with pytest.raises(Corruption, match="transaction 3"):
            await LocalEditLog(environment).open(0)

    in_memory(scenario)


def test_the_rest_of_a_purged_log_can_be_read():
    async def scenario(environment: Environment, state: DurableState) -> None:
        log = await filled(environment, 5)
        await log.purge(3)
        await log.purge(3)
        await log.append([edit(6)])
        assert environment.count("edits") == 5  # three transactions, base, head
        assert await LocalEditLog(environment).open(3) == [edit(4), edit(5), edit(6)]
        with pytest.raises(Corruption, match="no checkpoint"):
            await LocalEditLog(environment).open(2)
        await log.purge(6)
        again = LocalEditLog(environment)
        assert await again.open(6) == []
        await again.append([edit(7)])
        assert await LocalEditLog(environment).open(6) == [edit(7)]

    in_memory(scenario)


def test_a_log_that_ends_before_its_checkpoint_is_corrupt():
    async def scenario(environment: Environment, state: DurableState) -> None:
        await filled(environment, 2)
        with pytest.raises(Corruption, match="before the checkpoint"):
            await LocalEditLog(environment).open(3)

    in_memory(scenario)


def test_an_append_that_the_disk_refuses_raises():
    async def scenario(environment: Environment, state: DurableState) -> None:
        log = await filled(environment, 2)
        state.fail_next_commit("catalog")
        with pytest.raises(DiskFailed):
            await log.append([edit(3)])

    in_memory(scenario)


def test_a_checkpoint_gives_back_the_catalog_and_replaces_the_one_before():
    async def scenario(environment: Environment, state: DurableState) -> None:
        checkpoints, story = Checkpoints(environment), Story()
        assert checkpoints.load() is None
        for number in range(3):
            story.create(f"table {number}", buckets=2, properties={"note": "x" * CHUNK_BYTES})
        await checkpoints.save(3, story.catalog.image())
        story.create("one more")
        await checkpoints.save(4, story.catalog.image())
        txid, image, _ = checkpoints.load()
        loaded = Catalog()
        loaded.load(image)
        assert txid == 4 and loaded.image() == story.catalog.image()

    in_memory(scenario)


def test_a_checkpoint_with_a_rotten_or_missing_part_is_corruption():
    async def scenario(environment: Environment, state: DurableState) -> None:
        checkpoints, story = Checkpoints(environment), Story()
        story.create("flights", buckets=9, properties={"note": "x" * CHUNK_BYTES})
        await checkpoints.save(1, story.catalog.image())
        for name in (b"head", key(0), key(1)):
            value = environment.get("checkpoint", name)
            state.rot("catalog", "checkpoint", name)
            with pytest.raises(Corruption):
                checkpoints.load()
            await environment.commit([Delete("checkpoint", [name])])
            with pytest.raises(Corruption):
                checkpoints.load()
            await environment.commit([Put("checkpoint", [(name, value)])])
        assert checkpoints.load() is not None

    in_memory(scenario)
