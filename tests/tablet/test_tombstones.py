"""A replica that was deleted remembers and votes; it goes for good only with its table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.raft import HardState
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.lifecycle.tombstones import MARKED, Tombstone
from ebla.actors.world import Faults
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import DiskFull, StorageError
from tests.tablet.copies import copied, copying, entomb, fill, start, until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulate
from tests.tablet.test_members import adds, change, spare
from tests.tablet.test_replicas import CrashAt


async def delete(
    group: Group, host: str, index: int | None = None, *, unsafe: int = 0, tombstone: bool = True
) -> None:
    uuid = group.server(host).instance.uuid
    request = m.DeleteTabletRequest(uuid, TABLET, "for a test", tombstone, index, unsafe)
    await group.ask(host, "delete_tablet", request, m.Empty)


def test_a_forced_configuration_is_newer_than_what_those_who_were_lost_have() -> None:
    async def scenario(group: Group) -> None:
        target, other = await group.followers()
        await exclude(group, other)
        await until(group, lambda: committed(group, target) > 0, "it has it, too")
        with pytest.raises(errors.ConfigurationMoved):
            await delete(group, target, committed(group, target) - 1)
        await delete(group, target, committed(group, target) - 1, unsafe=1)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED

    simulate(scenario)


def committed(group: Group, host: str) -> int:
    return group.replica(host).core.committed_configuration.index


async def exclude(group: Group, host: str) -> int:
    """The group removes the host's replica; the index of the configuration that does."""
    leader = await group.leader()
    core = group.replica(leader).core
    out = group.server(host).instance.uuid
    stay = tuple(peer for peer in core.configuration.peers if peer.uuid != out)
    replica, now = group.replica(leader), group.server(leader).world.clock.monotonic()
    wanted = Configuration(stay, core.configuration.index)
    group.server(leader).rounds.step(replica, core.propose_configuration, now, wanted)
    await until(
        group,
        lambda: len(core.committed_configuration.peers) == len(stay),
        "the configuration is committed",
    )
    return core.committed_configuration.index


def test_a_tombstone_votes_for_who_has_everything_and_for_nobody_else() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 10)
        await group.settle()
        await entomb(group, target)
        group.cluster.crash(address(leader))
        await until(
            group, lambda: group.replica(other).leads, "the other is elected with the tombstone's vote"
        )
        voted = group.server(target).consensus.get(TABLET)
        assert voted is not None
        assert voted.record.vote == group.server(other).instance.uuid

    simulate(scenario)


def test_a_tombstone_that_has_more_than_the_candidate_keeps_it_from_leading() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 10)
        await group.settle()
        group.cluster.network.isolate(address(other))
        await group.upsert(row(1, "only on two"))
        await until(
            group,
            lambda: group.replica(target).log.last_index == group.replica(leader).log.last_index,
            "it has it, too",
        )
        await entomb(group, target)
        group.cluster.crash(address(leader))
        group.cluster.network.heal()
        await group.sleep(20.0)
        assert not group.replica(other).leads
        await group.restart(leader)
        await until(group, lambda: group.replica(leader).leads, "who has it leads again")

    simulate(scenario)


def test_a_vote_of_a_tombstone_outlives_a_restart() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 10)
        await entomb(group, target)
        tombstone = group.server(target).lifecycle.tombstones[TABLET]
        last = tombstone.superblock.last
        tombstone.voter.hard_state = HardState(40, "somebody")
        async with tombstone.turn:
            await tombstone.save(group.server(target).consensus)
        await group.restart(target)
        tombstone = group.server(target).lifecycle.tombstones[TABLET]
        assert tombstone.hard_state == HardState(40, "somebody")
        assert tombstone.superblock.last == last
        assert leader in HOSTS

    simulate(scenario)


def test_only_a_newer_configuration_without_it_turns_a_replica_into_a_tombstone() -> None:
    """S17: compare-and-set; and a repeat is no error."""

    async def scenario(group: Group) -> None:
        await fill(group, 10)
        target, _ = await group.followers()
        for index in (None, -2, -1):
            with pytest.raises(errors.ConfigurationMoved):
                await delete(group, target, index)
        assert group.replica(target).state == m.RUNNING
        index = await exclude(group, target)
        for _ in range(2):
            await delete(group, target, index)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED
        state = await group.ask(target, "status", m.Empty(), m.ServerState)
        assert [(r.tablet, r.state) for r in state.replicas] == [(TABLET, m.DELETED)]

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_a_tombstone_stays_one_whatever_a_repeated_request_stands_on_and_a_start_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S17."""

    async def scenario(group: Group) -> None:
        await fill(group, 10)
        target, _ = await group.followers()
        index = await exclude(group, target)
        await delete(group, target, index)
        before = group.server(target).lifecycle.tombstones[TABLET].superblock
        for older in (None, -2, -1, index - 1):
            await delete(group, target, older)
        assert group.server(target).lifecycle.tombstones[TABLET].superblock == before
        saved: list[str] = []
        save = RecordStore.save

        async def counted(self: RecordStore[Any], key: str, record: Any) -> None:
            saved.append(key)
            await save(self, key, record)

        monkeypatch.setattr(RecordStore, "save", counted)
        await group.restart(target)
        assert group.server(target).lifecycle.tombstones[TABLET].superblock == before
        await group.sleep(1.0)
        assert TABLET not in saved

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_a_deletion_without_evidence_leaves_a_copy_alone() -> None:
    async def scenario(group: Group) -> None:
        _, target, _ = await copying(group, 400)
        with pytest.raises(errors.ConfigurationMoved):
            await delete(group, target, -2)
        copies = group.server(target).copies
        assert list(copies.jobs) == [TABLET]
        await until(group, lambda: copies.done == 1, "it comes to its end")

    simulate(scenario, copy_bytes_per_s=20_000)


def test_a_tombstone_goes_for_good_with_its_table_and_does_not_come_back() -> None:
    """S13: a tablet that was deleted for good is not made anew by a leader that has not heard of it."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 10)
        await entomb(group, target)
        await delete(group, target, tombstone=False)
        server = group.server(target)
        assert server.lifecycle.state_of(TABLET) == m.DOES_NOT_EXIST
        assert server.consensus.get(TABLET) is None
        with pytest.raises(errors.TabletRemoved):
            await start(group, target, leader)
        await group.restart(target)
        await copied(group, target, leader)

    simulate(scenario)


def test_a_deletion_ends_a_copy_and_takes_what_it_brought() -> None:
    async def scenario(group: Group) -> None:
        _, target, _ = await copying(group, 600)
        await delete(group, target, tombstone=False)
        disk = group.server(target).world.disk
        assert not disk.exists(f"data/{TABLET}") and not disk.exists(f"wals/{TABLET}")
        assert not group.server(target).copies.jobs

    simulate(scenario, copy_bytes_per_s=20_000)


POINTS = ("tablet.entomb.before_mark", "tablet.entomb.after_mark", "tablet.entomb.after_data")


@pytest.mark.parametrize("point", POINTS)
def test_a_deletion_that_crashed_is_carried_out_when_it_is_asked_for_again(point: str) -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        await fill(group, 50)
        target, _ = await group.followers()
        index = await exclude(group, target)
        plan.armed[address(target), point] = 1
        with pytest.raises(errors.NetworkError):
            await delete(group, target, index)
        await group.restart(target)
        await delete(group, target, index)
        server = group.server(target)
        assert server.lifecycle.state_of(TABLET) == m.DELETED
        assert not server.world.disk.exists(f"data/{TABLET}")
        (entry,) = (await group.ask(target, "quarantine_list", m.Empty(), m.QuarantineEntries)).entries
        assert entry.tablet == TABLET
        assert await group.get(1) == [row(1, "x" * 100)]

    simulate(scenario, faults=plan.of)


def test_a_deletion_that_met_a_full_disk_has_stopped_the_replica_and_succeeds_when_it_is_repeated() -> None:
    async def scenario(group: Group) -> None:
        await fill(group, 50)
        target, _ = await group.followers()
        index = await exclude(group, target)
        group.cluster.state(address(target)).fill()
        with pytest.raises(DiskFull):
            await delete(group, target, index)
        group.cluster.state(address(target)).free()
        await delete(group, target, index)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED

    simulate(scenario)


@pytest.mark.parametrize("point", POINTS[:2])
def test_what_a_full_disk_kept_from_quarantine_goes_there_once_there_is_space_although_nobody_asks(
    point: str,
) -> None:
    """It can be purged then: by whoever is short of space."""

    async def scenario(group: Group) -> None:
        await fill(group, 50)
        target, _ = await group.followers()
        index = await exclude(group, target)
        state, server = group.cluster.state(address(target)), group.server(target)
        plan.full_at = point, state
        with pytest.raises(DiskFull):
            await delete(group, target, index)
        await group.sleep(20.0)
        assert server.world.disk.exists(f"data/{TABLET}")
        state.free()
        await until(group, lambda: not server.world.disk.exists(f"data/{TABLET}"), "it is set aside")
        (entry,) = (await group.ask(target, "quarantine_list", m.Empty(), m.QuarantineEntries)).entries
        assert entry.tablet == TABLET and entry.bytes > 0
        purge = m.QuarantineRequest(server.instance.uuid, (entry.name,))
        await group.ask(target, "quarantine_purge", purge, m.Empty)
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED

    plan = FullAt()
    simulate(scenario, faults=lambda _: plan)


class FullAt(Faults):
    """A disk that is full from a fault point on."""

    full_at: tuple[str, DurableState] | None = None

    async def here(self, name: str) -> None:
        if self.full_at is not None and self.full_at[0] == name:
            self.full_at[1].fill()
            self.full_at = None

    def reached(self, name: str) -> None:
        """Nothing to count."""


@pytest.mark.usefixtures("unmended")
def test_what_cannot_be_set_aside_is_told_once_and_not_at_every_try(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until something else is in the way."""

    async def scenario(group: Group) -> None:
        target, _ = await group.followers()
        index = await exclude(group, target)
        server = group.server(target)
        honest, tries, both = server.lifecycle.finish, [0], ["data/a and quarantine/a are both there"]

        async def finish(tombstone: Tombstone) -> None:
            tries[0] += 1
            if both:
                raise StorageError(both[-1])
            await honest(tombstone)

        monkeypatch.setattr(server.lifecycle, "finish", finish)
        with pytest.raises(StorageError, match="both there"):
            await delete(group, target, index)
        await until(group, lambda: tries[0] >= 5, "it is tried again")
        assert told() == ["data/a and quarantine/a are both there"]
        both.append("the data directory is read-only")
        await until(group, lambda: tries[0] >= 8, "it is tried again")
        assert told()[1:] == ["the data directory is read-only"]
        both.clear()
        await until(group, lambda: server.lifecycle.tombstones[TABLET].finished, "it is set aside")
        assert len(told()) == 2

    def told() -> list[str]:
        marks = [each.getMessage() for each in caplog.records if "is not set aside yet" in each.getMessage()]
        return [message.partition("yet: ")[2] for message in marks]

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_what_could_not_be_set_aside_and_goes_for_good_can_be_purged() -> None:
    async def scenario(group: Group) -> None:
        target, _ = await group.followers()
        index = await exclude(group, target)
        server = group.server(target)
        quarantine = server.lifecycle.quarantine
        honest = server.world.disk.move

        async def move(path: str, to: str) -> None:
            raise StorageError(f"{path} and {to} are both there")

        server.world.disk.move = move  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="both there"):
            await delete(group, target, index)
        server.world.disk.move = honest  # type: ignore[method-assign]
        (held,) = quarantine.list()
        with pytest.raises(StorageError, match="being moved"):
            await quarantine.purge([held.record.name])
        await delete(group, target, tombstone=False)
        await quarantine.purge([held.record.name])
        assert quarantine.list() == []

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_a_tombstone_that_goes_for_good_while_another_is_being_finished_is_left_alone() -> None:
    second, over = "1" * 32, asyncio.Event()

    async def scenario(group: Group) -> None:
        target, _ = await group.followers()
        await group.create(second)
        lifecycle = group.server(target).lifecycle
        for tablet in (second, TABLET):
            await entomb(group, target, tablet)
            lifecycle.tombstones[tablet].phase = MARKED
        honest, asked = lifecycle.finish, []

        async def finish(tombstone: Tombstone) -> None:
            asked.append(tombstone.tablet)
            await over.wait()
            await honest(tombstone)

        lifecycle.finish = finish  # type: ignore[method-assign]
        await until(group, lambda: asked == [second], "it is the first one's turn")
        await delete(group, target, tombstone=False)
        over.set()
        await until(group, lambda: lifecycle.tombstones[second].finished, "it is finished")
        await group.sleep(1.0)
        assert asked == [second] and lifecycle.state_of(TABLET) == m.DOES_NOT_EXIST
        assert group.cluster.alive(address(target))

    simulate(scenario)


def test_a_copy_that_is_complete_before_it_could_be_ended_is_judged_by_what_it_has_committed_by_then() -> (
    None
):
    async def scenario(group: Group) -> None:
        leader, target, _ = await copying(group, 50)
        server, new = group.server(target), await spare(group)
        ahead = committed(group, leader) + 1

        async def too_late(tablet: str) -> None:
            await until(group, lambda: tablet in server.replicas, "it is complete")
            index = (await change(group, leader, adds(new))).index
            await until(group, lambda: committed(group, target) >= index, "it follows")

        server.deletion.cancel_copy = too_late
        with pytest.raises(errors.ConfigurationMoved):
            await delete(group, target, ahead)
        assert server.lifecycle.state_of(TABLET) == m.RUNNING

    simulate(scenario)


def test_a_replica_that_is_being_added_stays_unless_a_later_leader_says_that_it_is_not() -> None:
    async def scenario(group: Group) -> None:
        leader, target, other = await group.leader(), *await group.followers()
        group.cluster.network.cut(address(leader), address(other))
        for host in (leader, target):
            group.cluster.state(address(host)).commit_s = (0.5, 0.5)
        await exclude(group, other)
        core = group.replica(target).core
        await until(group, lambda: core.configuration != core.committed_configuration, "it is not committed")
        pending, term = core.configuration, core.term
        group.cluster.network.isolate(address(target))
        assert committed(group, target) < pending.index
        uuid = group.server(target).instance.uuid
        for said_in in (0, term, term + 1):
            request = m.DeleteTabletRequest(uuid, TABLET, "late", True, pending.index - 1, 0, said_in)
            if said_in <= term:
                with pytest.raises(errors.ConfigurationMoved):
                    await group.server(target).deletion.delete(request)
            else:
                await group.server(target).deletion.delete(request)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED

    simulate(scenario)
