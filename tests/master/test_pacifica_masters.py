"""Two masters and PacificA tables: the one before may still get beacons, and the next one takes the tablets over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors.master.leadership.group import Master
from ebla.actors.replication.configuration import Configuration
from tests.master.group_stage import GroupStage, play
from tests.staged import staged
from tests.tablet.harness import is_readable


def readable(stage: GroupStage, tablet: str) -> Iterator[str]:
    for host in stage.hosts:
        server = stage.role(f"tablet-server/{host}")
        replica = server.replicas.get(tablet)
        if replica is not None and replica.leads and is_readable(server, replica):
            yield host


async def watch(stage: GroupStage, tablet: str, seen: list[str]) -> None:
    """At any time at most one server serves reads of the tablet. `seen`: which, without repetition."""
    while True:
        serving = list(readable(stage, tablet))
        if len(serving) > 1:
            stage.cluster.loop.abort(AssertionError(f"two replicas serve: {serving}"))
            return
        if serving and serving != seen[-1:]:
            seen += serving
        await asyncio.sleep(0.01)


async def replaced_masters(stage: GroupStage) -> list[str]:
    """The active master loses the journal, and keeps the servers. The primary reaches no one else. Return the hosts that have served
    the tablet, in order."""
    (tablet,) = await stage.tablets("pairs", buckets=1, replication="pacifica")
    seen: list[str] = []
    watching = asyncio.ensure_future(watch(stage, tablet, seen))
    await stage.until(lambda: bool(seen))
    first, primary = await stage.active(), seen[0]
    for node in (*stage.journals, stage.other(first)):
        stage.cluster.network.cut(first, node)
    others = [f"tablet-server/{host}" for host in stage.hosts if host != primary]
    for name in (stage.other(first), *others):
        stage.cluster.network.cut(name, f"tablet-server/{primary}")
    await stage.until(lambda: len(seen) > 1)
    await asyncio.sleep(5.0)
    known: Configuration = stage.role(stage.other(first)).active_term.master.catalog.tablets[tablet].appointed
    assert known.peer(known.primary or "").address == f"tablet-server/{seen[1]}"
    stage.cluster.network.heal()
    await asyncio.sleep(10.0)
    watching.cancel()
    return seen


@staged(play)
async def test_a_master_that_lost_the_journal_acknowledges_no_beacon(stage: GroupStage) -> None:
    seen = await replaced_masters(stage)
    assert len(seen) == 2


def test_two_replicas_serve_if_a_master_without_the_journal_acknowledges_beacons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, kept = Master._serve, {}

    async def serve(self: Master, method: str, request: Any) -> Any:
        if self.active_term is not None:
            kept[self.world.address] = self.active_term.master.appointer
        if method == "beacon" and self.world.address in kept:
            request = replace(request, seen=None)  # its version of the catalog would end this master
            return await kept[self.world.address].beacon(request)
        return await honest(self, method, request)

    monkeypatch.setattr(Master, "_serve", serve)

    async def scenario(stage: GroupStage) -> None:
        await replaced_masters(stage)

    with pytest.raises(AssertionError, match="two replicas serve"):
        play(scenario)
