"""What is written while a tablet is copied: the source's log holds it for the new replica, within bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.repair import REMOVE
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import CopyEnded
from ebla.actors.tablet.copy.log_retention import CATCHING_UP, SENDING
from tests.tablet.copies import copying, entomb, fill, same_rows, until
from tests.tablet.harness import TABLET, Group, address, row, simulate
from tests.tablet.test_forgotten_votes import as_peer, change

RETAINED = 40
SHORT: dict[str, Any] = {"log_retained_entries_max": RETAINED, "copy_idle_s": 5.0}


async def flush(group: Group, *hosts: str) -> None:
    for host in hosts:
        await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)


async def opened(group: Group) -> tuple[str, str, str]:
    """The leader, who is copied to, and the third; with some rows."""
    leader = await group.leader()
    target, other = await group.followers()
    await fill(group, 100)
    return leader, target, other


async def written(group: Group, entries: int, *hosts: str) -> None:
    """One entry each, flushed at `hosts`."""
    for turn in range(entries):
        await group.upsert(row(turn % 7))
    await flush(group, *hosts)


@pytest.mark.parametrize("checked_s", [0.0, 15.0])
def test_a_replica_catches_up_although_more_was_written_during_its_copy_than_the_log_retains(
    monkeypatch: pytest.MonkeyPatch, checked_s: float
) -> None:
    """Also if what was copied is checked for longer than an idle session lives."""
    honest = Copies._ready

    async def scenario(group: Group) -> None:
        leader, target, other = await opened(group)

        async def ready(self: Copies, job: Any) -> None:
            await self.world.clock.sleep(checked_s)
            await written(group, 2 * RETAINED, leader, other)
            await honest(self, job)

        monkeypatch.setattr(Copies, "_ready", ready)
        await entomb(group, target)
        replica, uuid = group.replica(leader), group.server(target).instance.uuid
        copies = group.server(target).copies
        await until(group, lambda: copies.done > 0, "it is copied")
        await until(group, lambda: replica.health.get(uuid) == "healthy", "it follows")
        assert (copies.done, copies.failed) == (1, 0)
        await same_rows(group, target, other)
        await until(group, lambda: not len(group.server(leader).retention), "nothing is held any more")
        await written(group, 1, leader)
        entries = replica.log
        await until(group, lambda: entries.last_index - entries.dropped.index <= RETAINED, "it is trimmed")

    simulate(scenario, **SHORT)


def test_after_a_copy_in_vain_the_next_one_may_hold_more_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Copies._ready

    async def scenario(group: Group) -> None:
        leader, target, other = await opened(group)

        async def ready(self: Copies, job: Any) -> None:
            await written(group, (CATCHING_UP + 1) * RETAINED, leader, other)
            await self.world.clock.sleep(2.0)
            await honest(self, job)

        monkeypatch.setattr(Copies, "_ready", ready)
        await entomb(group, target)
        replica, uuid = group.replica(leader), group.server(target).instance.uuid
        copies, holds = group.server(target).copies, group.server(leader).retention
        await until(group, lambda: copies.done > 0, "it is copied")
        assert holds.granted(TABLET, uuid) == 2
        await until(group, lambda: copies.done > 1, "in vain, so it is copied again")
        await until(group, lambda: replica.health.get(uuid) == "healthy", "it follows")
        await until(group, lambda: not len(holds), "nothing is held any more")
        assert holds.granted(TABLET, uuid) == 1 and copies.done == 2
        await same_rows(group, target, other)

    simulate(scenario, **SHORT)


@pytest.mark.parametrize("outgrown", [False, True])
def test_nothing_is_held_for_long_for_a_replica_that_stands_still(
    monkeypatch: pytest.MonkeyPatch, outgrown: bool
) -> None:
    honest = Copies._ready

    async def scenario(group: Group) -> None:
        leader, target, other = await opened(group)

        async def ready(self: Copies, job: Any) -> None:
            await written(group, 2 * RETAINED, leader, other)
            await honest(self, job)
            group.cluster.pause(address(target))

        monkeypatch.setattr(Copies, "_ready", ready)
        replica, holds = group.replica(leader), group.server(leader).retention
        await entomb(group, target)
        await until(group, lambda: group.cluster.paused(address(target)), "it is copied, and stands still")
        held = holds.anchor(TABLET)
        assert replica.log.dropped.index <= held < replica.log.last_index - RETAINED
        if outgrown:
            await written(group, (CATCHING_UP - 2) * RETAINED + 10, leader, other)
        await until(group, lambda: not len(holds), "it is given up", 2.0 if outgrown else 10.0)
        await until(
            group, lambda: replica.log.last_index - replica.log.dropped.index <= RETAINED, "it is trimmed"
        )

    simulate(scenario, **SHORT)


def test_a_copy_whose_log_outgrows_its_limits_is_ended_and_the_log_is_trimmed() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 10)
        server, replica = group.server(leader), group.replica(leader)
        asking = group.server(target).instance.uuid
        begin = m.BeginCopyRequest(server.instance.uuid, TABLET, asking, replica.core.term)
        begun = await group.ask(leader, "begin_copy_session", begin, m.CopyBegun)
        await written(group, SENDING * RETAINED - 10, leader, target, other)
        await group.sleep(2.0)
        assert len(server.copy_sources) == 1 and replica.log.dropped.index <= begun.flushed.index
        await written(group, 20, leader, target, other)
        await until(group, lambda: not len(server.copy_sources), "the session ends", 3.0)
        with pytest.raises(errors.CopyExpired):
            await group.ask(leader, "fetch_chunk", m.FetchRequest(begun.session, 0), m.Chunk)
        await until(group, lambda: replica.log.dropped.index > begun.flushed.index, "the log is trimmed")

    simulate(scenario, log_retained_entries_max=RETAINED)


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("why", ["its copy failed", "it has left"])
def test_nothing_is_held_for_one_whose_copy_failed_or_that_has_left(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """At once: what is idle is let go of much later here."""
    over = asyncio.Event()

    async def ready(self: Copies, job: Any) -> None:
        await over.wait()
        raise CopyEnded("for a test")

    monkeypatch.setattr(Copies, "_ready", ready)

    async def scenario(group: Group) -> None:
        leader, target, _ = await copying(group, 50)
        holds = group.server(leader).retention
        await until(group, lambda: len(holds) == 1, "all is sent")
        await group.sleep(5.0)
        assert len(holds) == 1
        if why == "it has left":
            await change(group, leader, REMOVE, as_peer(group, target))
        else:
            over.set()
        await until(group, lambda: not len(holds), why, 3.0)
        over.set()

    simulate(scenario, copy_idle_s=1000.0)
