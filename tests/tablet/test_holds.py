"""The source's log retains the entries written during a copy for the new replica, within limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import CopyEnded
from ebla.actors.tablet.copy.log_retention import CATCHING_UP, SENDING
from tests.tablet.copies import before_ready, copying, entomb, filled, same_rows, until
from tests.tablet.harness import TABLET, Group, address, row, simulated
from tests.tablet.test_members import change, peer_of, removes

RETAINED = 40
SHORT: dict[str, Any] = {"log_retained_entries_max": RETAINED, "copy_idle_s": 5.0}


async def written(group: Group, entries: int, *hosts: str) -> None:
    """Write this number of entries, and flush them on `hosts`."""
    for turn in range(entries):
        await group.upsert(row(turn % 7))
    await group.flush(*hosts)


@pytest.mark.parametrize("checked_s", [0.0, 15.0])
@simulated(**SHORT)
async def test_a_copied_replica_catches_up_after_more_writes_than_the_log_retains(
    group: Group, monkeypatch: pytest.MonkeyPatch, checked_s: float
) -> None:
    """Also if the target checks the copied data for longer than an idle session lives."""
    leader, target, other = await filled(group, 100)

    async def slowly(*_: Any) -> None:
        await group.sleep(checked_s)
        await written(group, 2 * RETAINED, leader, other)

    before_ready(monkeypatch, slowly)
    await entomb(group, target)
    replica, uuid = group.replica(leader), group.uuid(target)
    copies = group.server(target).copies
    await until(group, lambda: copies.done > 0, "the tablet is copied")
    await until(group, lambda: replica.health.get(uuid) == "healthy", "the replica follows")
    assert (copies.done, copies.failed) == (1, 0)
    await same_rows(group, target, other)
    await until(group, lambda: not len(group.server(leader).retention), "nothing is held any more")
    await written(group, 1, leader)
    entries = replica.log
    await until(group, lambda: entries.last_index - entries.dropped.index <= RETAINED, "the log is trimmed")


@simulated(**SHORT)
async def test_after_an_outdated_copy_the_next_one_may_retain_more_of_the_log(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, target, other = await filled(group, 100)

    async def outdate(*_: Any) -> None:
        await written(group, (CATCHING_UP + 1) * RETAINED, leader, other)
        await group.sleep(2.0)

    before_ready(monkeypatch, outdate)
    await entomb(group, target)
    replica, uuid = group.replica(leader), group.uuid(target)
    copies, holds = group.server(target).copies, group.server(leader).retention
    await until(group, lambda: copies.done > 0, "the tablet is copied")
    assert holds.granted(TABLET, uuid) == 2
    await until(group, lambda: copies.done > 1, "the copy was too old, so the tablet is copied again")
    await until(group, lambda: replica.health.get(uuid) == "healthy", "the replica follows")
    await until(group, lambda: not len(holds), "nothing is held any more")
    assert holds.granted(TABLET, uuid) == 1 and copies.done == 2
    await same_rows(group, target, other)


@pytest.mark.parametrize("outgrown", [False, True])
@simulated(**SHORT)
async def test_the_log_is_not_retained_for_long_for_a_paused_replica(
    group: Group, monkeypatch: pytest.MonkeyPatch, outgrown: bool
) -> None:
    original = Copies._ready
    leader, target, other = await filled(group, 100)

    async def ready(self: Copies, job: Any) -> None:
        await written(group, 2 * RETAINED, leader, other)
        await original(self, job)
        group.cluster.pause(address(target))

    monkeypatch.setattr(Copies, "_ready", ready)
    replica, holds = group.replica(leader), group.server(leader).retention
    await entomb(group, target)
    await until(group, lambda: group.cluster.paused(address(target)), "the target is copied and paused")
    held = holds.anchor(TABLET)
    assert replica.log.dropped.index <= held < replica.log.last_index - RETAINED
    if outgrown:
        await written(group, (CATCHING_UP - 2) * RETAINED + 10, leader, other)
    await until(group, lambda: not len(holds), "the hold ends", 2.0 if outgrown else 10.0)
    await until(
        group, lambda: replica.log.last_index - replica.log.dropped.index <= RETAINED, "the log is trimmed"
    )


@simulated(log_retained_entries_max=RETAINED)
async def test_a_copy_whose_log_exceeds_its_limit_ends_and_the_log_is_trimmed(group: Group) -> None:
    leader, target, other = await filled(group, 10)
    server, replica = group.server(leader), group.replica(leader)
    begun = await group.begin_session(leader, target)
    await written(group, SENDING * RETAINED - 10, leader, target, other)
    await group.sleep(2.0)
    assert len(server.copy_sources) == 1 and replica.log.dropped.index <= begun.flushed.index
    await written(group, 20, leader, target, other)
    await until(group, lambda: not len(server.copy_sources), "the session ends", 3.0)
    with pytest.raises(errors.CopyExpired):
        await group.ask(leader, "fetch_chunk", m.FetchRequest(begun.session, 0), m.Chunk)
    await until(group, lambda: replica.log.dropped.index > begun.flushed.index, "the log is trimmed")


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("why", ["its copy failed", "it has left"])
@simulated(copy_idle_s=1000.0)
async def test_the_log_is_not_retained_for_a_failed_copy_or_a_removed_member(
    group: Group, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The hold ends at once; in this test idle holds end much later."""
    over = asyncio.Event()

    async def fail(*_: Any) -> None:
        await over.wait()
        raise CopyEnded("for a test")

    before_ready(monkeypatch, fail)
    leader, target, _ = await copying(group, 50)
    holds = group.server(leader).retention
    await until(group, lambda: len(holds) == 1, "all chunks are sent")
    await group.sleep(5.0)
    assert len(holds) == 1
    if why == "it has left":
        await change(group, leader, removes(peer_of(group, target)))
    else:
        over.set()
    await until(group, lambda: not len(holds), why, 3.0)
    over.set()
