"""After any faults exactly the acknowledged tables exist."""

from __future__ import annotations

import asyncio

import pytest

from tests.master.stage import MASTER, Stage, play
from tests.master.test_crashes import OPTIONS
from tests.staged import staged


@pytest.mark.parametrize("seed", range(12))
@staged(play, options=OPTIONS)
async def test_tables_converge_under_random_faults(stage: Stage, seed: int) -> None:
    """Two acts. In the first, messages are lost and repeated, all roles crash, and clients create and drop with retries.
    Then all faults are removed, and exactly the acknowledged tables must exist."""
    hosts = ["a", "b", "c", "d", "e"]
    await stage.open(*hosts)
    network, chance = stage.cluster.network, stage.client.random
    network.drop_probability, network.repeat_probability = 0.05, 0.05
    done = False

    async def nemesis() -> None:
        addresses = [MASTER, *(f"tablet-server/{host}" for host in hosts)]
        while not done:
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            address = chance.choice(addresses)
            stage.cluster.crash(address)
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            await stage.cluster.restart(address)

    async def client(number: int) -> dict[str, str]:
        mine: dict[str, str] = {}
        for step in range(6):
            name = f"table {number} {step % 3}"
            request_id = f"{number} {step}"
            if name in mine:
                await stage.persist(lambda n=name, r=request_id: stage.drop(n, r))
                del mine[name]
            else:
                make = lambda n=name, r=request_id: stage.create(n, request_id=r, buckets=3)  # noqa: E731
                mine[name] = (await stage.persist(make)).table
        return mine

    breaking = asyncio.ensure_future(nemesis())
    answers = await asyncio.gather(*(client(number) for number in range(3)))
    done = True
    await breaking
    network.drop_probability = network.repeat_probability = 0.0
    expected = {name: table for mine in answers for name, table in mine.items()}
    for name in expected:
        assert (await stage.running(name)).table == expected[name]
    assert {t.name: t.table for t in stage.master.catalog.running_tables()} == expected
    await stage.until(lambda: stage.replicas() == len(expected) * 9, timeout_s=400.0)
    await stage.until(lambda: len(stage.master.catalog.ended) == 0, timeout_s=400.0)
    live = {t for record in stage.master.catalog.tables.values() for t in record.tablets}
    assert all(set(stage.server(host).replicas) <= live for host in hosts)
    assert stage.master.views.leader_conflicts == 0
    stage.master.catalog.check()
