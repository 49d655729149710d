"""A server that answers without progress is replaced like a silent one; a slow start is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors.replication.health import SILENT
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import Job
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from tests.master.real_servers import (
    HOSTS,
    OPTIONS,
    healed,
    members_of,
    open_stage,
    role,
    server,
    voters,
    with_a_tablet,
)
from tests.master.stage import MASTER, Stage, play
from tests.master.test_maintenance import words
from tests.staged import staged

FAILED_S = 6.0  # as in with_a_tablet
Waits = dict[str, asyncio.Event]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """By address: the start of the server waits for this event, as it may wait for space or for its directory."""
    held: Waits = {}
    honest = TabletServer.start

    async def start(self: TabletServer) -> None:
        if self.world.address in held:
            await held[self.world.address].wait()
        await honest(self)

    monkeypatch.setattr(TabletServer, "start", start)
    return held


async def starts(stage: Stage, waits: Waits, host: str) -> None:
    """Restart the server; its start then waits."""
    address = server(host)
    stage.cluster.crash(address)
    waits[address] = asyncio.Event()
    asyncio.get_running_loop().create_task(stage.cluster.restart(address))
    await stage.until(lambda: stage.cluster.alive(address))


@staged(play, 0, OPTIONS)
async def test_a_server_with_an_endless_start_is_replaced(stage: Stage, waits: Waits) -> None:
    tablet, stuck = await with_a_tablet(stage)
    await starts(stage, waits, stuck)
    await stage.until(
        lambda: len(voters(stage, tablet)) == 3 and stuck not in members_of(stage, tablet), 200.0
    )
    waits[server(stuck)].set()
    await stage.until(lambda: healed(stage))
    assert stuck not in voters(stage, tablet)


@staged(play, 0, OPTIONS)
async def test_a_slow_start_is_waited_for(stage: Stage, waits: Waits) -> None:
    tablet, slow = await with_a_tablet(stage)
    index = stage.master.catalog.tablets[tablet].configuration.index
    await starts(stage, waits, slow)
    await asyncio.sleep(8 * FAILED_S)
    waits[server(slow)].set()
    await stage.until(lambda: healed(stage) and role(stage, slow).running)
    assert stage.master.catalog.tablets[tablet].configuration.index == index, "no member was changed"


@staged(play, 0, OPTIONS)
async def test_an_endless_start_is_tolerated_in_maintenance(stage: Stage, waits: Waits) -> None:
    tablet, stuck = await with_a_tablet(stage)
    before = members_of(stage, tablet)
    await stage.maintain(stuck)
    await starts(stage, waits, stuck)
    await stage.until(lambda: SILENT in words(stage, tablet), 200.0)
    await asyncio.sleep(20 * FAILED_S)
    assert members_of(stage, tablet) == before
    await stage.maintain(stuck, False)
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and stuck not in voters(stage, tablet))


@staged(play, 0, OPTIONS)
async def test_a_pre_voter_on_a_server_that_never_starts_is_replaced(stage: Stage, waits: Waits) -> None:
    tablet, dead = await with_a_tablet(stage, (*HOSTS, "e"), copy_bytes_per_s=1_000)
    stage.cluster.crash(server(dead))
    await stage.until(lambda: "pre_voter" in members_of(stage, tablet).values())
    chosen = next(host for host, kind in members_of(stage, tablet).items() if kind == "pre_voter")
    await starts(stage, waits, chosen)
    await stage.until(
        lambda: len(voters(stage, tablet)) == 3 and not {dead, chosen} & set(members_of(stage, tablet)),
        200.0,
    )


@staged(play, 0, OPTIONS)
async def test_a_pre_voter_with_a_hanging_copy_is_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Job._finish_data
    hung: list[str] = []

    async def finish(self: Job) -> None:
        """The disk of the first server that copies hangs."""
        if not hung or self.world.address in hung:
            hung.append(self.world.address)
            await asyncio.Event().wait()
        await honest(self)

    monkeypatch.setattr(Job, "_finish_data", finish)
    tablet, dead = await with_a_tablet(stage, (*HOSTS, "e"), copy_idle_s=4.0)
    stage.cluster.crash(server(dead))
    await stage.until(
        lambda: len(voters(stage, tablet)) == 3 and dead not in members_of(stage, tablet), 200.0
    )
    assert len(hung) == 1 and hung[0].rpartition("/")[2] not in members_of(stage, tablet)


@pytest.mark.parametrize(("where", "step"), [(Job, "_finish_data"), (Copies, "_reserve")])
@staged(play, 0, OPTIONS)
async def test_a_tablet_queued_behind_hanging_copies_is_copied_elsewhere(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: type[Job] | type[Copies], step: str
) -> None:
    """More tablets than are copied at a time; the disk of their only other host hangs, until another host joins."""
    honest = getattr(where, step)

    async def hangs(self: Job | Copies, *given: Any) -> Any:
        if self.world.address == server("d"):
            await asyncio.Event().wait()
        return await honest(self, *given)

    monkeypatch.setattr(where, step, hangs)
    given = {"follower_failed_s": FAILED_S, "copy_idle_s": 4.0}
    await open_stage(stage, FAILED_S, "abc", copy_idle_s=4.0)
    tablets = await stage.tablets("flights", buckets=5)
    await stage.until(lambda: not stage.master.catalog.unseen)

    async def joins(host: str) -> None:
        options = TabletServerOptions(masters=(MASTER,), host=host, **given)
        await stage.cluster.start(server(host), lambda world: TabletServer(world, options))

    await joins("d")
    stage.cluster.crash(server("c"))
    await stage.until(lambda: all(members_of(stage, each).get("d") for each in tablets))
    await joins("e")
    await stage.until(lambda: all(voters(stage, each) == ["a", "b", "e"] for each in tablets), 300.0)
