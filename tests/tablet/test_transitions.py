"""Tombstones and copies go through explicit states. These tests visit every transition, and refuse all others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ebla.actors.tablet.copy import job
from ebla.actors.tablet.copy.job import Job
from ebla.actors.tablet.copy.sources import DATA, LOG
from ebla.actors.tablet.engine.records import Superblock
from ebla.actors.tablet.lifecycle import tombstones
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.storage.errors import DiskFull, StorageError
from tests.tablet.copies import copied, copying, ended, entomb, start, until
from tests.tablet.harness import TABLET, Group, play

Step = tuple[str, str]


def steps(table: dict[str, tuple[str, ...]]) -> set[Step]:
    return {(before, after) for before, allowed in table.items() for after in allowed}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[type[Any], set[Step]]:
    """The transitions that were made, by class."""
    found: dict[type[Any], set[Step]] = {Job: set(), Tombstone: set()}
    for kind, name in ((Job, "state"), (Tombstone, "phase")):

        def move(
            self: Any, to: str, honest: Any = kind.move, kind: type[Any] = kind, name: str = name
        ) -> None:
            found[kind].add((getattr(self, name), to))
            honest(self, to)

        monkeypatch.setattr(kind, "move", move)
    return found


@pytest.mark.parametrize(
    ("kind", "name", "table"), [(Job, "state", job.TRANSITIONS), (Tombstone, "phase", tombstones.TRANSITIONS)]
)
def test_only_the_transitions_of_the_table_are_allowed(
    kind: Any, name: str, table: dict[str, tuple[str, ...]]
) -> None:
    for before in table:
        for after in table:
            made = kind.__new__(kind)
            if kind is Job:
                made.tablet = TABLET
            else:
                made.superblock = SimpleNamespace(tablet=TABLET)
            setattr(made, name, before)
            if after in table[before]:
                made.move(after)
                assert getattr(made, name) == after
            else:
                with pytest.raises(AssertionError):
                    made.move(after)


async def cancelled(group: Group, host: str) -> None:
    await group.server(host).deletion.cancel_copy(TABLET)
    await ended(group, host)


def test_every_transition_is_made(seen: dict[type[Any], set[Step]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def copy_and_delete_and_copy(group: Group) -> None:
        leader, target, _ = await copying(group, 50)
        await copied(group, target, leader)
        await entomb(group, target)
        await group.drop(target)
        await group.restart(target)
        await until(group, lambda: TABLET in group.server(target).replicas, "the leader has it copied")

    async def cancel_and_delete(group: Group) -> None:
        leader, target, _ = await copying(group, 50)
        await cancelled(group, target)
        with monkeypatch.context() as patch:
            patch.setattr(Lifecycle, "finish", fails)
            await start(group, target, leader)
            await cancelled(group, target)
            assert group.tombstone(target).phase == tombstones.MARKED
            await group.drop(target)

    async def delete_what_is_not_on_disk_yet(group: Group) -> None:
        target, _ = await group.followers()
        superblocks = group.server(target).lifecycle.superblocks
        with monkeypatch.context() as patch:
            patch.setattr(superblocks, "save", full)
            with pytest.raises(DiskFull):
                await entomb(group, target)
        assert group.tombstone(target).phase == tombstones.STOPPED
        await group.drop(target)

    async def stop_in_every_state(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await entomb(group, target)
        for state in (job.METADATA, DATA, LOG, job.FINISHING):
            with monkeypatch.context() as patch:
                patch.setattr(Job, "move", stopping(state))
                await start(group, target, leader)
                await ended(group, target)
        superblocks = group.server(target).lifecycle.superblocks
        honest = superblocks.save

        async def never_ready(name: str, superblock: Superblock) -> None:
            await (full() if superblock.state == "ready" else honest(name, superblock))

        with monkeypatch.context() as patch:
            patch.setattr(superblocks, "save", never_ready)
            await start(group, target, leader)
            await ended(group, target)
        await copied(group, target, leader)

    async def fails(self: Lifecycle, tombstone: Tombstone) -> None:
        raise StorageError("not now")

    async def full(*arguments: Any) -> None:
        raise DiskFull("full")

    def stopping(last: str) -> Any:
        honest = Job.move

        def move(self: Job, state: str) -> None:
            if self.state == last and state != job.STOPPED:
                raise DiskFull("full")
            honest(self, state)

        return move

    for scenario in (
        copy_and_delete_and_copy,
        cancel_and_delete,
        delete_what_is_not_on_disk_yet,
        stop_in_every_state,
    ):
        play(scenario)
    assert seen[Tombstone] == steps(tombstones.TRANSITIONS)
    assert seen[Job] == steps(job.TRANSITIONS)
