"""Copies that ended without success, by themselves or because somebody cancelled them: when the next one begins."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet import recovery
from ebla.actors.tablet.copy_job import CopyEnded
from ebla.actors.tablet.copying import CANCELLED_S, Copies
from tests.tablet.copies import copying, ended, entomb, fill, until
from tests.tablet.harness import TABLET, Group, simulate


def cancel(group: Group, host: str) -> Any:
    request = m.CancelCopyRequest(group.server(host).instance.uuid, TABLET)
    return group.ask(host, "cancel_copy", request, m.Empty, 20.0)


def test_the_pause_after_a_copy_that_failed_begins_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[float] = []
    over: list[float] = []
    undo = Copies._undo

    async def fails(self: Copies, job: Any) -> None:
        begun.append(job.began_at)
        await self.world.clock.sleep(60.0)
        raise CopyEnded("for a test")

    async def undone(self: Copies, job: Any, error: Any) -> None:
        await undo(self, job, error)
        over.append(self.world.clock.monotonic())

    monkeypatch.setattr(Copies, "_ready", fails)
    monkeypatch.setattr(Copies, "_undo", undone)

    async def scenario(group: Group) -> None:
        await fill(group, 10)
        await entomb(group, (await group.followers())[0])
        await group.sleep(500.0)
        pauses = [at - end for end, at in zip(over, begun[1:], strict=False)]
        assert len(pauses) >= 5 and pauses[0] >= recovery.RETRY_S_MIN
        assert all(later > 1.2 * before for before, later in itertools.pairwise(pauses[:5]))

    simulate(scenario)


@pytest.mark.parametrize("led_by_another", [False, True])
def test_a_copy_that_was_cancelled_begins_anew_after_a_pause(led_by_another: bool) -> None:
    async def scenario(group: Group) -> None:
        leader, target, other = await copying(group, 400)
        copies, clock = group.server(target).copies, group.client.clock
        await cancel(group, target)
        cancelled_at = clock.monotonic()
        if led_by_another:
            request = m.StepDownRequest(TABLET, group.server(other).instance.uuid)
            await group.ask(leader, "step_down", request, m.StepDownReply, 10.0)
        await until(group, lambda: bool(copies.jobs), "it is copied again")
        assert CANCELLED_S - 1.0 <= clock.monotonic() - cancelled_at <= 2 * CANCELLED_S
        await until(group, lambda: copies.done == 1, "it succeeds")

    simulate(scenario, copy_bytes_per_s=20_000)


def test_a_copy_that_is_complete_is_not_called_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Copies._ready

    async def scenario(group: Group) -> None:
        told: list[errors.NotFound] = []

        async def ready(self: Copies, job: Any) -> None:
            async def too_late() -> None:
                with pytest.raises(errors.NotFound, match="was complete before") as refused:
                    await self.cancel_for_a_while(TABLET)
                told.append(refused.value)

            save = self.lifecycle.superblocks.save

            async def slowly(*record: Any) -> None:
                self.world.spawn(too_late(), "who cancels")
                await save(*record)
                await self.world.clock.sleep(0.1)

            self.lifecycle.superblocks.save = slowly  # type: ignore[method-assign]
            await honest(self, job)

        monkeypatch.setattr(Copies, "_ready", ready)
        _, target, _ = await copying(group, 10)
        await ended(group, target)
        await until(group, lambda: bool(told), "it is told")
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING

    simulate(scenario)
