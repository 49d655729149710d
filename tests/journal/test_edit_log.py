"""The master's edit log on a quorum: appended edits are read by the next master only."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.journal.errors import EditsGone, QuorumFailed
from ebla.actors.journal.records import first_digest
from ebla.actors.journal.writer.reader import Position
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.checkpoint import DATABASE, Checkpoints
from ebla.actors.master.catalog.edits import Edit, TableDropped, TabletRunning, TabletsForgotten
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.options import MasterOptions
from ebla.storage.errors import Corruption
from tests.journal.line import DROP, Line
from tests.journal.stage import Stage, play
from tests.master.builders import Story
from tests.staged import staged

A, B, C = "journal/a", "journal/b", "journal/c"


def edit(number: int) -> Edit:
    return TabletRunning(f"tablet {number}")


def log_of(stage: Stage, line: Line | None = None) -> QuorumEditLog:
    return QuorumEditLog(stage.line_world(line), stage.options)


async def opened(log: QuorumEditLog, after: int) -> list[Edit]:
    digest = None if after else first_digest(log.writer.options.journal)
    return await log.recover(Position(after, digest))


async def filled(stage: Stage, first: int, last: int) -> QuorumEditLog:
    log = log_of(stage)
    await opened(log, 0)
    for number in range(first, last + 1):
        await log.append([edit(number), edit(-number)])
    return log


def pairs(first: int, last: int) -> list[Edit]:
    return [each for number in range(first, last + 1) for each in (edit(number), edit(-number))]


@staged(play)
async def test_appended_edits_are_read_in_order_and_appending_continues(stage: Stage) -> None:
    await filled(stage, 1, 3)
    log = await filled(stage, 4, 5)
    assert log.last_txid == 7  # five transactions and two markers
    assert await opened(log_of(stage), 0) == pairs(1, 5)
    assert await opened(log_of(stage), 4) == pairs(4, 5)
    assert await opened(log_of(stage), 7) == []


@staged(play)
async def test_a_writer_paused_after_its_recovery_is_only_superseded(stage: Stage) -> None:
    """Two others have written when it reads the recovered edits; that is no contradiction in the journal."""
    await filled(stage, 1, 3)
    asleep, awake = asyncio.Event(), asyncio.Event()

    async def stand_still(node: str, method: str) -> None:
        if method == "manifest":
            asleep.set()
            await awake.wait()

    late = log_of(stage, Line(before=stand_still))
    opening = asyncio.ensure_future(opened(late, 0))
    await asleep.wait()
    await filled(stage, 4, 5)
    await filled(stage, 6, 7)
    awake.set()
    with pytest.raises(QuorumFailed, match="StaleEpoch"):
        await opening
    assert await opened(log_of(stage), 0) == pairs(1, 7)


@staged(play, segment_txns=4)
async def test_the_rest_of_a_purged_log_can_be_read(stage: Stage) -> None:
    log = await filled(stage, 1, 10)
    checkpointed = log.last_txid
    await log.purge(checkpointed)
    await log.append([edit(11)])
    assert await opened(log_of(stage), checkpointed) == [edit(11)]
    with pytest.raises(EditsGone, match="newer checkpoint"):
        await opened(log_of(stage), 0)


@staged(play)
async def test_a_log_that_ends_before_its_checkpoint_is_corrupt(stage: Stage) -> None:
    await filled(stage, 1, 2)
    with pytest.raises(Corruption, match="before the checkpoint"):
        await opened(log_of(stage), 50)


@pytest.mark.parametrize("number", range(1, 9))
def test_an_append_with_an_unknown_outcome_is_decided_once(number: int):
    """The request with it reaches only c; the next master gets c's answer, or not."""

    async def scenario(stage: Stage) -> None:
        line = Line()
        log = log_of(stage, line)
        await opened(log, 0)
        await log.append([edit(1)])
        for node in (A, B):
            line.faults[node, len(line.trace[node]) + 1] = DROP
        with pytest.raises(QuorumFailed):
            await log.append([edit(2)])
        found = await opened(log_of(stage), 0)
        assert found in ([edit(1)], [edit(1), edit(2)])
        for node in stage.nodes:
            await stage.cluster.restart(node)
            assert await opened(log_of(stage), 0) == found

    play(scenario, seed=number)


@staged(play)
async def test_a_transaction_without_edits_is_corrupt(stage: Stage) -> None:
    log = await filled(stage, 1, 1)
    await log.writer.append(b"\xff not edits")
    with pytest.raises(Corruption, match="no edits"):
        await opened(log_of(stage), 0)


@staged(play, segment_txns=5)
async def test_a_scribe_keeps_its_catalog_through_checkpoints_purges_and_restarts(stage: Stage) -> None:
    world, story = stage.world(), Story()
    await world.disk.open_instance("master")
    checkpoints = Checkpoints(await world.disk.open_environment("catalog", (DATABASE,), create=True))
    for life in range(3):
        log, catalog = QuorumEditLog(world, stage.options), Catalog()
        saved = checkpoints.load()
        if saved is not None:
            catalog.load(saved.image)
        txid = saved.txid if saved is not None else 0
        catalog.apply(await opened(log, txid))
        scribe = Scribe(world, log, checkpoints, catalog, MasterOptions(checkpoint_edits=6), txid)
        assert catalog.image() == story.catalog.image()
        running = world.spawn(scribe.run(), "scribe")
        for number in range(10):
            story.create(name := f"table {life} {number}")
            await scribe.change("create_table", lambda: story.edits[-1:], lambda: None)
            if number % 3:
                gone = story.catalog.named(name)
                assert gone is not None
                story.apply(TableDropped(name, 1, gone.table, 2), TabletsForgotten(gone.tablets))
                await scribe.change("drop_table", lambda: story.edits[-2:], lambda: None)
            await log.purge(scribe.checkpointed)
        assert catalog.image() == story.catalog.image()
        running.cancel()
        log.writer.close()
    assert scribe.checkpointed > 0
    assert stage.view(A).all()[0].start > 1, "no edit was purged"
