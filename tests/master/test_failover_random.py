"""Clients create, drop and list tables while masters and journal nodes are killed, paused and cut off, tablet servers are killed,
and messages are lost and repeated; the result is judged.

Each client has its own names, so its answers determine what it may read: a table is listed from the answer of its create
to the request of its drop, and not after the answer of its drop. `make sweep` has more of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors.errors import Frozen, NotFound
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.messages import TableInfo
from tests.master.group_stage import GroupStage, play
from tests.sweeps import seeds

STEPS = 12


async def client(stage: GroupStage, number: int, mine: dict[str, str]) -> None:
    for step in range(STEPS):
        name = f"table {number} {step % 3}"
        if name in mine and stage.recalls and step % 2:
            await stage.drop(name, f"{number} {step} aside", 3600.0)
            assert not await _is_listed(stage, name), f"{name} was dropped, and is listed"
            back = await stage.recall(mine[name], name, f"{number} {step} back")
            assert back.table == mine[name]
            assert await _is_listed(stage, name), f"{name} was recalled, and is not listed"
        elif name in mine:
            del mine[name]
            await stage.drop(name, f"{number} {step}")
            assert not await _is_listed(stage, name), f"{name} was dropped, and is listed"
        else:
            made = await _created(stage, name, f"{number} {step}")
            mine[name] = made.table
            assert await _is_listed(stage, name), f"{name} was created, and is not listed"
        await asyncio.sleep(stage.outside.random.uniform(0.0, 1.2))


async def _created(stage: GroupStage, name: str, request_id: str) -> TableInfo:
    while True:
        try:
            return await stage.create(name, request_id=request_id, buckets=2)
        except Frozen:  # while two servers are silent
            await asyncio.sleep(0.5)


async def _is_listed(stage: GroupStage, name: str) -> bool:
    return name in await stage.persist(stage.names)


async def nemesis(stage: GroupStage, over: asyncio.Event) -> None:
    """Injects one fault after the other, sometimes two at a time."""
    chance = stage.outside.random
    while not over.is_set():
        troubles = [asyncio.ensure_future(_trouble(stage)) for _ in range(chance.choice((1, 1, 2)))]
        await asyncio.gather(*troubles)


async def _trouble(stage: GroupStage) -> None:
    cluster, chance = stage.cluster, stage.outside.random
    victim = chance.choice((*(stage.serving() or stage.masters), *stage.masters, *stage.journals))
    kind = chance.choice(("crash", "pause", "cut", "isolate", "clock", "server"))
    for_s = chance.choice((0.3, 2.0, 5.0)) * chance.uniform(0.5, 1.5)
    await asyncio.sleep(chance.uniform(0.0, 0.5))
    if kind == "server":
        kind, victim = "crash", f"tablet-server/{chance.choice(stage.hosts)}"
    if kind == "crash" and cluster.alive(victim):
        cluster.crash(victim)
        await asyncio.sleep(for_s)
        if not cluster.alive(victim):
            await cluster.restart(victim)
    elif kind == "pause" and cluster.alive(victim) and not cluster.paused(victim):
        cluster.pause(victim)
        await asyncio.sleep(for_s)
        cluster.resume(victim)
    elif kind == "cut":
        others = [node for node in stage.journals if node != victim]
        for node in others:
            cluster.network.cut(victim, node)
        await asyncio.sleep(for_s)
        for node in others:
            cluster.network.mend(victim, node)
    elif kind == "isolate":
        cluster.network.isolate(victim)
        await asyncio.sleep(for_s)
        cluster.network.rejoin(victim)
    elif kind == "clock":
        cluster.clock(victim).set_rate(chance.uniform(0.9, 1.1))


async def act_one(stage: GroupStage) -> dict[str, str]:
    """Runs clients and faults; returns the tables that must exist, by name."""
    over = asyncio.Event()
    network = stage.cluster.network
    network.drop_probability = network.repeat_probability = 0.01
    breaking = asyncio.ensure_future(nemesis(stage, over))
    mine: list[dict[str, str]] = [{} for _ in range(3)]
    await asyncio.gather(*(client(stage, number, each) for number, each in enumerate(mine)))
    over.set()
    await breaking
    network.drop_probability = network.repeat_probability = 0.0
    network.heal()
    return {name: table for each in mine for name, table in each.items()}


async def act_two(stage: GroupStage, expected: dict[str, str]) -> None:
    """Without faults: masters and servers have exactly the acknowledged tables."""
    active = await stage.ready()
    for name, table in expected.items():
        assert (await stage.running(name)).table == table
    await stage.until(lambda: stage.replicas() == len(expected) * 6, timeout_s=400.0)
    active = await stage.active()
    catalog = stage.role(active).active_term.master.catalog
    assert {table.name: table.table for table in catalog.running_tables()} == expected
    require_sound(catalog)
    for master in stage.masters:
        if master != active:
            await stage.until(lambda master=master: _follows(stage, active, master))
    try:
        await stage.drop("nobody knows it", "the last request")
    except NotFound:
        pass


def _follows(stage: GroupStage, active: str, master: str) -> bool:
    known = {t.name: t.table for t in stage.role(master).standby.catalog.running_tables()}
    return known == {t.name: t.table for t in stage.role(active).active_term.master.catalog.running_tables()}


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        *((seed, {"masters": 2 + seed % 2}) for seed in seeds(3)),
        *((seed, {"recalls": True}) for seed in seeds(2, 200)),
        *((seed, {"journals": 5}) for seed in seeds(1, 100)),
        *((seed, {"masters": 1}) for seed in seeds(1, 300)),
    ],
)
def test_acknowledged_changes_stay_and_no_answer_is_stale(seed: int, options: dict[str, Any]):
    """Also of tables that are dropped and recalled, and with five journal nodes."""

    async def both_acts(stage: GroupStage) -> None:
        await act_two(stage, await act_one(stage))

    play(both_acts, seed, **options)
