"""All servers of a PacificA tablet end at once, and start again one shortly after another, while the master runs on."""

from __future__ import annotations

from random import Random

import pytest

from tests.tablet.appointing import PacificaGroup
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, address, play, row

PAUSES_S = (0.0, 0.005, 0.02, 0.05, 0.1)  # at most between two starts
SEEDS = (
    27,
    42,
    43,
    45,
    52,
    55,
    79,
    103,
)  # of restarts during which a process reports while its ballot is being made durable


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_restart_of_all_servers_a_primary_comes(seed: int) -> None:
    chance = Random(seed)

    async def restart(group: PacificaGroup) -> None:
        await group.upsert(row(1))
        await group.settle()
        await group.sleep(chance.uniform(0, 3))
        group.crash_all()
        group.leader_hint = None
        order = list(HOSTS)
        chance.shuffle(order)
        for host in order:
            group.cluster.launch(address(host), group.make(host))
            await group.sleep(chance.choice(PAUSES_S) * chance.random())
        await until(group, lambda: any(leads(group, host) for host in HOSTS), "a primary comes", seconds=20.0)

    play(restart, seed=seed, kind=PacificaGroup)


def leads(group: PacificaGroup, host: str) -> bool:
    known = group.server(host).replicas.get(TABLET) if group.alive(host) else None
    return known is not None and known.leads
