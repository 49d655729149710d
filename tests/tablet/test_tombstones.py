"""A deleted replica leaves a tombstone, which votes. It is removed only with its table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.lifecycle.tombstones import MARKED, Tombstone
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import DiskFull, StorageError
from tests.tablet.copies import copied, copying, deleted, entomb, fill, filled, quarantined, start, until
from tests.tablet.harness import TABLET, Group, row, simulated
from tests.tablet.test_members import adds, change, spare


@simulated()
async def test_a_forced_configuration_is_newer_than_every_configuration_of_lost_members(group: Group) -> None:
    target, other = await group.followers()
    await exclude(group, other)
    await until(group, lambda: committed(group, target) > 0, "the follower has the entry, too")
    with pytest.raises(errors.ConfigurationMoved):
        await group.delete(target, committed(group, target) - 1)
    await group.delete(target, committed(group, target) - 1, unsafe=1)
    assert group.state_of(target) == m.DELETED


def committed(group: Group, host: str) -> int:
    return group.replica(host).core.committed_configuration.index


async def exclude(group: Group, host: str) -> int:
    """Remove the host from the group; return the index of the new configuration."""
    leader = await group.leader()
    core = group.replica(leader).core
    index = group.propose_without(leader, host)
    await until(group, lambda: core.committed_configuration.index >= index, "the change is committed")
    return core.committed_configuration.index


async def excluded(group: Group) -> tuple[str, int]:
    """Write rows, and remove a follower; return it, and the index of the configuration without it."""
    await fill(group, 50)
    target, _ = await group.followers()
    return target, await exclude(group, target)


@simulated(shared_log_bytes=1000)
async def test_a_replica_that_stops_comes_back_unless_its_tombstone_is_on_disk(group: Group) -> None:
    """The shared log is trimmed between the two."""
    for k in range(20):
        await group.upsert(row(k))
    await group.settle()
    target, index = await excluded(group)
    server = group.server(target)
    group.disk(target).commit_s = (0.3, 0.31)
    deleting = asyncio.ensure_future(group.delete(target, index))
    await until(group, lambda: TABLET in server.lifecycle.tombstones, "the replica has stopped")
    before = server.shared.first_seq
    await server.maintenance._trim_shared()
    assert not server.lifecycle.tombstones[TABLET].durable, "the test is too slow for its disk"
    assert server.shared.first_seq == before
    deleting.cancel()
    await group.restart(target)
    assert TABLET in group.server(target).replicas


@simulated()
async def test_a_tombstones_vote_elects_a_candidate_with_all_entries(group: Group) -> None:
    leader, target, other = await filled(group, 10)
    await group.settle()
    await entomb(group, target)
    group.crash(leader)
    await until(group, lambda: group.replica(other).leads, "the other is elected with the tombstone's vote")
    assert group.hard_state(target).vote == group.uuid(other)


@simulated()
async def test_a_tombstone_with_more_entries_than_the_candidate_prevents_its_election(group: Group) -> None:
    leader, target, other = await filled(group, 10)
    await group.settle()
    group.isolate(other)
    await group.upsert(row(1, "only on two"))
    await until(
        group,
        lambda: group.replica(target).log.last_index == group.replica(leader).log.last_index,
        "the follower has the entry, too",
    )
    await entomb(group, target)
    group.crash(leader)
    group.heal()
    await group.sleep(20.0)
    assert not group.replica(other).leads
    await group.restart(leader)
    await until(group, lambda: group.replica(leader).leads, "the voter with all entries leads again")


@simulated()
async def test_only_a_newer_configuration_without_it_makes_a_replica_a_tombstone(group: Group) -> None:
    """S17: the deletion is a compare-and-set, and a repeated one is no error."""
    await fill(group, 10)
    target, _ = await group.followers()
    for index in (None, -2, -1):
        with pytest.raises(errors.ConfigurationMoved):
            await group.delete(target, index)
    assert group.replica(target).state == m.RUNNING
    index = await exclude(group, target)
    for _ in range(2):
        await group.delete(target, index)
    assert group.state_of(target) == m.DELETED
    assert await group.reported(target) == {TABLET: m.DELETED}


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_repeated_deletions_leave_a_tombstone_as_it_is_and_a_start_writes_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S17."""
    target, index = await excluded(group)
    await group.delete(target, index)
    before = group.tombstone(target).superblock
    for older in (None, -2, -1, index - 1):
        await group.delete(target, older)
    assert group.tombstone(target).superblock == before
    saved: list[str] = []
    save = RecordStore.save

    async def counted(self: RecordStore[Any], key: str, record: Any) -> None:
        saved.append(key)
        await save(self, key, record)

    monkeypatch.setattr(RecordStore, "save", counted)
    await group.restart(target)
    assert group.tombstone(target).superblock == before
    await group.sleep(1.0)
    assert TABLET not in saved


@pytest.mark.usefixtures("unmended")
@simulated(copy_bytes_per_s=20_000)
async def test_a_deletion_with_an_old_configuration_leaves_a_copy_alone(group: Group) -> None:
    _, target, _ = await copying(group, 400)
    with pytest.raises(errors.ConfigurationMoved):
        await group.delete(target, -2)
    copies = group.server(target).copies
    assert list(copies.jobs) == [TABLET]
    await until(group, lambda: copies.done == 1, "the copy ends")


@simulated()
async def test_a_tombstone_is_removed_with_its_table_and_does_not_come_back(group: Group) -> None:
    """S13: a leader that does not know of a final deletion does not create the tablet again."""
    leader, target, _ = await deleted(group, 10)
    await group.drop(target)
    server = group.server(target)
    assert server.lifecycle.state_of(TABLET) == m.DOES_NOT_EXIST
    assert server.consensus.get(TABLET) is None
    with pytest.raises(errors.TabletRemoved):
        await start(group, target, leader)
    await group.restart(target)
    await copied(group, target, leader)


@simulated(copy_bytes_per_s=20_000)
async def test_a_deletion_ends_a_copy_and_removes_its_data(group: Group) -> None:
    _, target, _ = await copying(group, 600)
    await group.drop(target)
    disk = group.server(target).world.disk
    assert not disk.exists(f"data/{TABLET}") and not disk.exists(f"wals/{TABLET}")
    assert not group.server(target).copies.jobs


POINTS = ("tablet.entomb.before_mark", "tablet.entomb.after_mark", "tablet.entomb.after_data")


@pytest.mark.parametrize("point", POINTS)
@simulated()
async def test_a_deletion_that_crashed_is_carried_out_when_it_is_repeated(group: Group, point: str) -> None:
    target, index = await excluded(group)
    group.crash_at(target, point)
    with pytest.raises(errors.NetworkError):
        await group.delete(target, index)
    await group.restart(target)
    await group.delete(target, index)
    server = group.server(target)
    assert server.lifecycle.state_of(TABLET) == m.DELETED
    assert not server.world.disk.exists(f"data/{TABLET}")
    (entry,) = await quarantined(group, target)
    assert entry.tablet == TABLET
    assert await group.get(1) == [row(1, "x" * 100)]


@pytest.mark.parametrize("point", POINTS[:2])
@simulated()
async def test_data_that_a_full_disk_kept_from_quarantine_goes_there_when_there_is_space(
    group: Group, point: str
) -> None:
    """It can be purged afterwards."""
    target, index = await excluded(group)
    state, server = group.disk(target), group.server(target)
    group.fill_at(target, point)
    with pytest.raises(DiskFull):
        await group.delete(target, index)
    await group.sleep(20.0)
    assert server.world.disk.exists(f"data/{TABLET}")
    state.free()
    await until(group, lambda: not server.world.disk.exists(f"data/{TABLET}"), "the data is in quarantine")
    (entry,) = await quarantined(group, target)
    assert entry.tablet == TABLET and entry.bytes > 0
    purge = m.QuarantineRequest(server.instance.uuid, (entry.name,))
    await group.ask(target, "quarantine_purge", purge, m.Empty)
    await group.restart(target)
    assert group.state_of(target) == m.DELETED


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_data_that_cannot_be_moved_to_quarantine_is_logged_once_for_each_reason(
    group: Group, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logged() -> list[str]:
        marks = [each.getMessage() for each in caplog.records if "is not set aside yet" in each.getMessage()]
        return [message.partition("yet: ")[2] for message in marks]

    target, index = await excluded(group)
    server = group.server(target)
    original, tries, reasons = server.lifecycle.finish, [0], ["data/a and quarantine/a are both there"]

    async def finish(tombstone: Tombstone) -> None:
        tries[0] += 1
        if reasons:
            raise StorageError(reasons[-1])
        await original(tombstone)

    monkeypatch.setattr(server.lifecycle, "finish", finish)
    with pytest.raises(StorageError, match="both there"):
        await group.delete(target, index)
    await until(group, lambda: tries[0] >= 5, "there is another attempt")
    assert logged() == ["data/a and quarantine/a are both there"]
    reasons.append("the data directory is read-only")
    await until(group, lambda: tries[0] >= 8, "there is another attempt")
    assert logged()[1:] == ["the data directory is read-only"]
    reasons.clear()
    await until(group, lambda: group.tombstone(target).finished, "the data is in quarantine")
    assert len(logged()) == 2


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_data_that_could_not_be_moved_to_quarantine_can_be_purged_after_its_removal(
    group: Group,
) -> None:
    target, index = await excluded(group)
    server = group.server(target)
    quarantine = server.lifecycle.quarantine
    original = server.world.disk.move

    async def move(path: str, to: str) -> None:
        raise StorageError(f"{path} and {to} are both there")

    server.world.disk.move = move  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="both there"):
        await group.delete(target, index)
    server.world.disk.move = original  # type: ignore[method-assign]
    (held,) = quarantine.list()
    with pytest.raises(StorageError, match="being moved"):
        await quarantine.purge([held.record.name])
    await group.drop(target)
    await quarantine.purge([held.record.name])
    assert quarantine.list() == []


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_a_tombstone_removed_while_another_is_being_finished_is_left_alone(group: Group) -> None:
    second, over = "1" * 32, asyncio.Event()
    target, _ = await group.followers()
    await group.create(second)
    lifecycle = group.server(target).lifecycle
    for tablet in (second, TABLET):
        await entomb(group, target, tablet)
        lifecycle.tombstones[tablet].phase = MARKED
    original, asked = lifecycle.finish, []

    async def finish(tombstone: Tombstone) -> None:
        asked.append(tombstone.tablet)
        await over.wait()
        await original(tombstone)

    lifecycle.finish = finish  # type: ignore[method-assign]
    await until(group, lambda: asked == [second], "the first tombstone is being finished")
    await group.drop(target)
    over.set()
    await until(group, lambda: lifecycle.tombstones[second].finished, "the second tombstone is finished")
    await group.sleep(1.0)
    assert asked == [second] and lifecycle.state_of(TABLET) == m.DOES_NOT_EXIST
    assert group.alive(target)


@simulated()
async def test_a_deletion_judges_a_copy_completed_meanwhile_by_its_committed_configuration(
    group: Group,
) -> None:
    leader, target, _ = await copying(group, 50)
    server, new = group.server(target), await spare(group)
    ahead = committed(group, leader) + 1

    async def too_late(tablet: str) -> None:
        await until(group, lambda: tablet in server.replicas, "the copy is complete")
        index = (await change(group, leader, adds(new))).index
        await until(group, lambda: committed(group, target) >= index, "the replica follows")

    server.deletion.cancel_copy = too_late
    with pytest.raises(errors.ConfigurationMoved):
        await group.delete(target, ahead)
    assert server.lifecycle.state_of(TABLET) == m.RUNNING


@simulated()
async def test_a_replica_being_added_stays_unless_a_later_leader_removes_it(group: Group) -> None:
    leader, target, other = await group.roles()
    group.cut(leader, other)
    for host in (leader, target):
        group.disk(host).commit_s = (0.5, 0.5)
    await exclude(group, other)
    core = group.replica(target).core
    await until(
        group, lambda: core.configuration != core.committed_configuration, "the change is not committed"
    )
    pending, term = core.configuration, core.term
    group.isolate(target)
    assert committed(group, target) < pending.index
    uuid = group.uuid(target)
    for said_in in (0, term, term + 1):
        request = m.DeleteTabletRequest(uuid, TABLET, "late", True, pending.index - 1, 0, said_in)
        if said_in <= term:
            with pytest.raises(errors.ConfigurationMoved):
                await group.server(target).deletion.delete(request)
        else:
            await group.server(target).deletion.delete(request)
    assert group.state_of(target) == m.DELETED
