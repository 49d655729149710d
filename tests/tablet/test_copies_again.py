"""The time at which the next copy begins after one that failed or was cancelled."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy import recovery
from ebla.actors.tablet.copy.copies import CANCELLED_S, Copies
from ebla.actors.tablet.copy.job import STALLED_AFTER, CopyEnded, Job
from ebla.storage.errors import DiskFull
from tests.tablet.copies import before_ready, copying, ended, entomb, fill, filled, same_rows, until
from tests.tablet.harness import TABLET, Group, simulated

IDLE_S = 2.0


@simulated()
async def test_the_pause_after_a_failed_copy_begins_at_its_end(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []
    over: list[float] = []
    undo = Copies._undo

    async def fail(copies: Copies, job: Job) -> None:
        begun.append(job.began_at)
        await group.sleep(15.0)
        raise CopyEnded("for a test")

    async def undone(self: Copies, job: Any, error: Any) -> None:
        await undo(self, job, error)
        over.append(self.world.clock.monotonic())

    before_ready(monkeypatch, fail)
    monkeypatch.setattr(Copies, "_undo", undone)
    await fill(group, 10)
    await entomb(group, (await group.followers())[0])
    await group.sleep(180.0)
    pauses = [at - end for end, at in zip(over, begun[1:], strict=False)]
    assert len(pauses) >= 5 and pauses[0] >= recovery.RETRY_S_MIN
    assert all(later > 1.2 * before for before, later in itertools.pairwise(pauses[:5]))


@pytest.mark.parametrize("led_by_another", [False, True])
@simulated(copy_bytes_per_s=20_000)
async def test_a_cancelled_copy_begins_again_after_a_pause(group: Group, led_by_another: bool) -> None:
    leader, target, other = await copying(group, 400)
    copies, clock = group.server(target).copies, group.client.clock
    await group.cancel_copy(target)
    cancelled_at = clock.monotonic()
    if led_by_another:
        await group.step_down(leader, other)
    await until(group, lambda: bool(copies.jobs), "the tablet is copied again")
    assert CANCELLED_S - 1.0 <= clock.monotonic() - cancelled_at <= 2 * CANCELLED_S
    await until(group, lambda: copies.done == 1, "the copy succeeds")


@simulated()
async def test_a_complete_copy_is_not_reported_as_cancelled(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_with: list[errors.NotFound] = []

    async def cancel_too_late(copies: Copies, job: Job) -> None:
        async def too_late() -> None:
            with pytest.raises(errors.NotFound, match="was complete before") as refused:
                await copies.cancel_for_a_while(TABLET)
            refused_with.append(refused.value)

        superblocks = copies.lifecycle.superblocks
        save = superblocks.save

        async def slowly(*record: Any) -> None:
            superblocks.save = save  # type: ignore[method-assign]
            copies.world.spawn(too_late(), "canceller")
            await save(*record)
            await group.sleep(0.1)

        superblocks.save = slowly  # type: ignore[method-assign]

    with monkeypatch.context() as patch:
        before_ready(patch, cancel_too_late)
        _, target, _ = await copying(group, 10)
        copies = group.server(target).copies
        await ended(group, target)
        await until(group, lambda: bool(refused_with), "the cancellation is refused")
    assert group.state_of(target) == m.RUNNING
    await entomb(group, target)
    await until(group, lambda: copies.done == 2, "the next one does not wait", CANCELLED_S / 2)


@pytest.mark.parametrize("hangs", [False, True])
@simulated(copy_idle_s=IDLE_S)
async def test_a_stalled_copy_is_reported_and_a_waiting_one_is_not(
    group: Group, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    over, asked, finished = asyncio.Event(), Job._ask, Job._finish_data
    seen: dict[str, None] = {}

    async def ask(self: Job, number: int) -> m.Chunk:
        if not hangs and not over.is_set():
            raise errors.Throttled("others are copied", limit="for a test", retry_after_s=IDLE_S)
        return await asked(self, number)

    async def finish(self: Job) -> None:
        if hangs:
            await over.wait()
        await finished(self)

    monkeypatch.setattr(Job, "_ask", ask)
    monkeypatch.setattr(Job, "_finish_data", finish)
    leader, target, other = await filled(group, 50)
    uuid, core = group.uuid(target), group.replica(leader).core
    await entomb(group, target)
    await until(group, lambda: bool(group.server(target).copies.jobs), "the tablet is copied")
    for _ in range(30):
        await group.sleep(STALLED_AFTER * IDLE_S / 10)
        seen[core.progress[uuid].refusal or ""] = None
    assert list(seen)[-1] == ("copy_stalled" if hangs else "tablet_copying")
    assert hangs or "copy_stalled" not in seen
    (job,) = (await group.ask(target, "list_copies", m.Empty(), m.CopyJobs)).jobs
    assert (job.phase == "stalled") == hangs
    if hangs:
        with pytest.raises(errors.OutcomeUnknown, match="check that disk"):
            await group.cancel_copy(target)
    over.set()
    await until(group, lambda: group.server(target).copies.done == 1, "the copy continues and succeeds")
    await same_rows(group, target, other)


@simulated(copy_bytes_per_s=20_000)
async def test_a_failed_copys_data_that_a_full_disk_kept_is_removed_later(group: Group) -> None:
    _, target, other = await copying(group, 400)
    server = group.server(target)
    original, refused = server.world.disk.remove, 0

    async def remove(path: str) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise DiskFull("no space left on the device")
        await original(path)

    server.world.disk.remove = remove  # type: ignore[method-assign]
    await group.cancel_copy(target)
    assert group.alive(target) and refused == 1
    assert not group.tombstone(target).finished
    await until(group, lambda: group.tombstone(target).finished, "there is another attempt", CANCELLED_S)
    await until(group, lambda: server.copies.done == 1, "the next copy succeeds")
    await same_rows(group, target, other)
