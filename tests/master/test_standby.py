"""A standby follows the journal, writes checkpoints, and catches up after a long absence."""

from __future__ import annotations

import asyncio

import pytest
import xxhash

from ebla.actors import messages as m
from ebla.actors.journal.errors import ForeignJournal, JournalBroken
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.checkpoint import Mark, image_of
from ebla.actors.master.catalog.records import encode_image
from ebla.actors.master.leadership.standby import Standby
from ebla.actors.master.messages import CheckpointChunk
from ebla.actors.master.options import GroupOptions
from ebla.storage.errors import InvalidArgument
from tests.master.group_stage import JOURNAL, GroupStage, play
from tests.staged import staged


async def fill(stage: GroupStage, first: int, last: int) -> None:
    """Create and drop tables: many edits, a small catalog."""
    for number in range(first, last + 1):
        await stage.create(f"table {number}", request_id=f"create {number}")
        await stage.running(f"table {number}")
        await stage.drop(f"table {number}", f"drop {number}")


def same(stage: GroupStage, active: str, standby: str) -> bool:
    return (
        stage.role(standby).standby.catalog.image() == stage.role(active).active_term.master.catalog.image()
    )


def oldest(stage: GroupStage) -> int:
    """The first edit that a node still has."""
    views = [stage.role(node).journals[JOURNAL.name].view for node in stage.journals]
    return min(view.all()[0].start for view in views)


@staged(play)
async def test_edits_are_purged_when_two_masters_have_them_in_a_checkpoint(stage: GroupStage) -> None:
    active = await stage.ready()
    standby = stage.other(active)
    stage.cluster.crash(standby)
    await fill(stage, 1, 20)
    await asyncio.sleep(5.0)
    assert oldest(stage) == 1
    await stage.cluster.restart(standby)
    await stage.until(lambda: stage.role(standby).standby.checkpointed > 0)
    await fill(stage, 21, 40)
    await stage.until(lambda: oldest(stage) > 1)
    checkpoints = (
        stage.role(active).active_term.master.scribe.checkpointed,
        stage.role(standby).standby.checkpointed,
    )
    assert oldest(stage) <= min(checkpoints) + 1


async def with_a_checkpoint(stage: GroupStage) -> tuple[str, str]:
    """The active master, and a standby that has written a checkpoint."""
    active = await stage.ready()
    standby = stage.other(active)
    await fill(stage, 1, 20)
    await stage.until(lambda: stage.role(standby).standby.checkpointed > 0)
    return active, standby


@staged(play)
async def test_a_standby_starts_from_its_own_checkpoint(stage: GroupStage) -> None:
    active, standby = await with_a_checkpoint(stage)
    checkpointed = stage.role(standby).standby.checkpointed
    await stage.cluster.restart(standby)
    assert stage.role(standby).standby.checkpointed == checkpointed
    assert stage.role(standby).standby.txid >= checkpointed
    await stage.until(lambda: same(stage, active, standby))


@pytest.mark.parametrize("lost", [False, True])
@staged(play, masters=3)
async def test_a_standby_that_was_away_for_too_long_copies_a_checkpoint(
    stage: GroupStage, lost: bool
) -> None:
    active = await stage.ready()
    away = next(master for master in stage.masters if master != active)
    stage.cluster.crash(away)
    if lost:
        stage.cluster.lose_disk(away)
    await stage.create("kept")
    await fill(stage, 1, 30)
    await stage.until(lambda: oldest(stage) > 1)
    await stage.cluster.restart(away)
    await stage.until(lambda: stage.role(away).standby.caught_up and same(stage, active, away))
    for master in stage.masters:
        if master != away:
            stage.cluster.crash(master)
    assert "kept" in await stage.names()
    assert stage.served[-1] == away


@staged(play, masters=3)
async def test_a_standby_that_lacks_purged_edits_does_not_take_over(stage: GroupStage) -> None:
    active = await stage.ready()
    behind, ahead = (master for master in stage.masters if master != active)
    await stage.until(lambda: stage.role(behind).standby.caught_up)
    stage.cluster.pause(behind)
    await stage.create("kept")
    await fill(stage, 1, 30)
    await stage.until(lambda: oldest(stage) > 1)
    stage.cluster.crash(active)
    stage.cluster.crash(ahead)
    await asyncio.sleep(3.0)
    stage.cluster.resume(behind)
    await asyncio.sleep(5.0)
    assert not stage.serving(), "it lacks edits, and no other role has them"
    await stage.cluster.restart(ahead)
    assert await stage.names() == ["kept"]
    await stage.until(lambda: stage.served[-1] == behind or same(stage, ahead, behind))


@pytest.mark.parametrize("point", ["before_save", "after_save"])
@staged(play)
async def test_a_crash_around_a_checkpoint_loses_nothing_of_a_standby(stage: GroupStage, point: str) -> None:
    active = await stage.ready()
    standby = stage.other(active)
    stage.points.arm(standby, f"master.standby.{point}", lambda: stage.cluster.crash(standby))
    await fill(stage, 1, 30)
    await stage.until(lambda: not stage.cluster.alive(standby))
    await stage.cluster.restart(standby)
    await stage.until(lambda: same(stage, active, standby))
    stage.cluster.crash(active)
    await stage.create("flights")


@pytest.mark.parametrize("masters", [(), ("master/0", "master/0"), ("master/1", "master/2")])
@staged(play, hosts="")
async def test_an_invalid_group_is_refused(stage: GroupStage, masters: tuple[str, ...]) -> None:
    stage.options = GroupOptions(masters=masters, journal=stage.journal)
    with pytest.raises(InvalidArgument):
        stage.make_master(stage.cluster.client_world("master/0"))


@staged(play, masters=1)
async def test_a_single_master_with_a_journal_survives_the_loss_of_its_directory(stage: GroupStage) -> None:
    for number in range(12):
        await stage.create(f"table-{number:02}")
    before = await stage.names()
    stage.cluster.crash("master/0")
    stage.cluster.lose_disk("master/0")
    await stage.cluster.restart("master/0")
    assert await stage.names() == before


@staged(play)
async def test_a_standby_reports_why_it_could_not_take_over(stage: GroupStage) -> None:
    standby = stage.other(await stage.ready())

    async def status() -> m.MasterStatus:
        return await stage.at(standby, "status", m.Empty(), m.MasterStatus)

    await stage.until(lambda: stage.role(standby).standby.caught_up)
    assert ((await status()).caught_up, (await status()).read_error) == (True, "")
    stage.cut_from_journals(standby)
    await stage.until(lambda: stage.role(standby).standby.read_error != "")
    reported = await status()
    assert not reported.caught_up and "journal/0" in reported.read_error
    stage.mend_to_journals(standby)
    await stage.until(lambda: stage.role(standby).standby.read_error == "")
    assert (await status()).caught_up


@staged(play)
async def test_the_directory_of_another_deployment_is_refused(stage: GroupStage) -> None:
    active, standby = await with_a_checkpoint(stage)
    stage.role(standby)._following.cancel()
    checkpoints = stage.role(standby).directory.checkpoints
    await checkpoints.save(1000, checkpoints.load().image, Mark("two", 7))
    with pytest.raises(ForeignJournal, match="journal with the id two, not of one"):
        await stage.cluster.restart(standby)
    assert stage.serving() == [active]


@pytest.mark.parametrize("of_the_active", [True, False])
@staged(play, purge_s=1000.0)
async def test_a_checkpoint_fits_the_continuation_of_its_journal(
    stage: GroupStage, of_the_active: bool
) -> None:
    active = await stage.ready()
    master = active if of_the_active else stage.other(active)
    role = stage.role(master)
    await fill(stage, 1, 20)
    checkpoints = role.directory.checkpoints
    await stage.until(lambda: checkpoints.load() is not None)
    saved = checkpoints.load()
    assert saved.mark.journal == JOURNAL.id and saved.mark.history
    await stage.cluster.restart(master)
    await stage.create("kept")
    await stage.until(lambda: stage.role(master).active_term or stage.role(master).standby.caught_up)

    checkpoints = stage.role(master).directory.checkpoints
    saved = checkpoints.load()
    await checkpoints.save(saved.txid, saved.image, Mark(JOURNAL.id, saved.mark.history ^ 1))
    stage.cluster.expect_failure(master)
    await stage.cluster.restart(master)
    await stage.until(lambda: not stage.cluster.alive(master))
    failure = stage.cluster.failures[-1]
    assert isinstance(failure.error, JournalBroken) and "is not what journal/" in str(failure.error)


@staged(play)
async def test_a_checkpoint_of_another_journal_is_refused(stage: GroupStage) -> None:
    active = await stage.ready()
    await stage.create("flights")
    await stage.until(lambda: same(stage, active, stage.other(active)))
    standby: Standby = stage.role(stage.other(active)).standby
    position, image = standby.position, encode_image(Catalog().image())

    async def offered(txid: int, journal: str) -> None:
        async def fetch(master: str) -> list[CheckpointChunk]:
            digest = xxhash.xxh3_64_intdigest(txid.to_bytes(8, "big") + image)
            return [CheckpointChunk(txid, 1, digest, image, journal)]

        standby._fetch = fetch  # type: ignore[method-assign]
        await standby._take_checkpoint()

    await offered(position.txid + 100, "another")
    await offered(position.txid - 1, JOURNAL.id)
    assert standby.position == position and standby.catalog.named("flights") is not None
    await offered(position.txid + 100, JOURNAL.id)
    assert standby.position.txid == position.txid + 100 and standby.catalog.named("flights") is None


def test_chunks_of_two_checkpoints_are_refused():
    """The other master may have written the next checkpoint during the copy of this one."""
    image = encode_image(Catalog().image())

    def chunk(txid: int, data: bytes, digest_of: int = 7) -> CheckpointChunk:
        digest = xxhash.xxh3_64_intdigest(digest_of.to_bytes(8, "big") + image)
        return CheckpointChunk(txid, 2, digest, data, JOURNAL.id)

    first, last = image[:3], image[3:]
    assert image_of([chunk(7, first), chunk(7, last)]) is not None
    assert image_of([chunk(7, first), chunk(8, last)]) is None
    assert image_of([chunk(7, first), chunk(7, last, digest_of=8)]) is None
    assert image_of([chunk(7, first)]) is None
    assert image_of([chunk(7, first), chunk(7, b"?" + last[1:])]) is None
    assert image_of([chunk(8, first), chunk(8, last)]) is None
