"""Random troubles of a PacificA group on whole servers, with a real master. Once all is well, a primary comes within PRIMARY_S, and
every acknowledged row is there. Repeat one seed with `survive(seed)`, or `survive_a_copy(seed)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from ebla.actors import messages as m
from ebla.actors.master.catalog.edits import TableAltered
from ebla.chaos.simulation.world import NodeCrashed
from ebla.storage.errors import EblaError
from tests.sweeps import seeds
from tests.tablet.appointing import LIMITS, MASTER, PacificaGroup
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, address, play, row
from tests.tablet.test_pacifica_recent_copies import (
    EARLIER,
    LATER,
    alter_minimum,
    hand_over,
    losing_heartbeats,
    require_everything,
    write,
)

PRIMARY_S = LIMITS.grace_s + 3.0
TROUBLES = 12
PAUSES_S = (0.0, 0.0, 0.005, 0.05, 0.3, 1.0, 3.0)
STARTS_MAX = (
    LIMITS.restarts_max - 2
)  # before the last one; a server that restarts more often gets no lease for a while


class Troubles:
    def __init__(self, group: PacificaGroup, chance: Random) -> None:
        self.group, self.chance = group, chance
        self.stopping: dict[str, asyncio.Task[None]] = {}
        self.starts = dict.fromkeys(HOSTS, 0)
        self.suspended: set[str] = set()
        self.altered, self.altering = 0, asyncio.ensure_future(asyncio.sleep(0))
        self.uuids = {host: group.uuid(host) for host in HOSTS}
        self.acknowledged: list[int] = []
        self.writing = True

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [
            *(self.hand_over, self.stop, self.crash, self.crash_all, self.start, self.take_over),
            *(self.cut, self.heal, self.hang_disk, self.hang_master, self.suspend, self.alter),
        ]

    def host(self) -> str:
        return self.chance.choice(HOSTS)

    def free(self, host: str) -> bool:
        """Whether no stop of the server is under way."""
        return host not in self.stopping or self.stopping[host].done()

    async def hand_over(self) -> None:
        successor = self.chance.choice([None, *self.uuids.values()])
        for host in HOSTS:
            if self.group.alive(host) and self.group._serves(host):
                server, replica = self.group.server(host), self.group.replica(host)
                with suppress(EblaError):
                    server.rounds.step(replica, replica.core.step_down, server.world.now(), successor)

    async def stop(self) -> None:
        host = self.host()
        if self.group.alive(host) and self.free(host) and self.starts[host] < STARTS_MAX:
            self.stopping[host] = asyncio.ensure_future(
                self._stop(host, self.chance.choice([0.0, 0.3, 3.0, 7.0]))
            )

    async def _stop(self, host: str, pause_s: float) -> None:
        with suppress(NodeCrashed):
            await self.group.cluster.stop(address(host))
        await self.group.sleep(pause_s)
        self._launch(host)

    async def crash(self) -> None:
        host = self.host()
        if self.group.alive(host) and self.free(host):
            self.group.crash(host)
        if self.chance.random() < 0.7:
            await self._start(host)

    async def crash_all(self) -> None:
        if all(map(self.free, HOSTS)):
            self.group.crash(*filter(self.group.alive, HOSTS))
            await self.group.sleep(self.chance.choice([0.0, 0.0, 2.0, 6.0]))
            for host in self.chance.sample(HOSTS, len(HOSTS)):
                await self._start(host)
                await self.group.sleep(self.chance.choice([0.0, 0.05, 0.7]))

    async def start(self) -> None:
        await self._start(self.host())

    async def _start(self, host: str) -> None:
        if self.starts[host] < STARTS_MAX and self.free(host):
            self._launch(host)

    def _launch(self, host: str) -> None:
        if not self.group.alive(host):
            self.starts[host] += 1
            self.group.cluster.launch(address(host), self.group.make(host))

    async def take_over(self) -> None:
        if self.group.cluster.alive(MASTER):
            self.group.stop_master()
        await self.group.sleep(self.chance.choice([0.0, 0.5, 3.0]))
        await self.group.start_master()
        await until(self.group, lambda: self.group.cluster.role(MASTER).active_term is not None, "it serves")
        self._allow()

    async def cut(self) -> None:
        host = self.host()
        other = self.chance.choice([MASTER, *(address(each) for each in HOSTS if each != host)])
        self.group.cluster.network.cut(address(host), other, one_way=self.chance.random() < 0.3)

    async def heal(self) -> None:
        self.group.heal()

    async def hang_disk(self) -> None:
        self.group.disk(self.host()).hang(self.chance.choice([0.3, 2.0, 4.5]))

    async def hang_master(self) -> None:
        self.group.cluster.state(MASTER).hang(self.chance.choice([0.1, 0.5, 2.0, 7.0]))

    async def suspend(self) -> None:
        self.suspended ^= {self.uuids[self.host()]}
        self._allow()

    def _allow(self) -> None:
        suspended = set(self.suspended)
        self.group.detector.allowed = lambda uuid: uuid not in suspended

    async def alter(self) -> None:
        if self.group.cluster.alive(MASTER):
            self.altered += 1
            least = self.chance.randint(1, len(HOSTS))
            self.altering = asyncio.ensure_future(self._alter(f"alteration {self.altered}", least))

    async def _alter(self, name: str, least: int) -> None:
        master = self.group.master
        known = next(iter(master.catalog.tables.values()))
        edit = TableAltered(name, 0, known.table, known.name, known.schema, least)
        tablets = list(known.tablets)
        with suppress(EblaError):  # the master ends meanwhile
            await master.scribe.change("alter", lambda: [edit], lambda: master.appointer.altered(tablets))

    # -- a client, and the end

    async def write(self) -> None:
        number = 0
        while self.writing:
            number += 1
            await self.group.write_bytes(
                self.group.batch(m.UPSERT, [row(number)], self.group.next_sequence()), deadline_s=400.0
            )
            self.acknowledged.append(number)
            await self.group.sleep(0.05)

    async def mend(self) -> None:
        self.group.heal()
        self.suspended.clear()
        if not self.group.cluster.alive(MASTER):
            await self.group.start_master()
        self._allow()
        for host in filter(self.free, HOSTS):
            self._launch(host)


def survive(seed: int) -> None:
    chance = Random(seed)

    async def scenario(group: PacificaGroup) -> None:
        troubles = Troubles(group, chance)
        writing = asyncio.ensure_future(troubles.write())
        await group.sleep(chance.choice([0.2, 8.0, LIMITS.stable_s + 1.0]))
        for _ in range(TROUBLES):
            await chance.choice(troubles.all())()
            await group.sleep(chance.choice(PAUSES_S))
        await troubles.mend()
        serves = lambda: any(group.alive(host) and group._serves(host) for host in HOSTS)  # noqa: E731
        await until(group, serves, "a primary serves", seconds=PRIMARY_S)
        await asyncio.gather(*troubles.stopping.values())
        await troubles.mend()
        troubles.writing = False
        group.leader_hint = None
        await writing
        rows = troubles.acknowledged
        assert await group.get(*rows) == [row(number) for number in rows]

    play(scenario, seed=seed, kind=PacificaGroup)


@pytest.mark.parametrize("seed", seeds(24))
def test_after_random_troubles_a_primary_comes_and_no_acknowledged_row_is_lost(seed: int) -> None:
    survive(seed)


def survive_a_copy(seed: int) -> None:
    """All servers end, and one of them returns on a copy that lacks rows. The others are back before its time is over, though slow
    commits of the catalog, lost heartbeats and another master delay their leases."""
    chance = Random(seed)

    async def scenario(group: PacificaGroup) -> None:
        stale, successor = chance.choice(HOSTS), chance.choice(HOSTS)
        await write(group, *EARLIER)
        await alter_minimum(group, chance.choice([2, 3]))
        await group.sleep(LIMITS.stable_s)
        copy = group.disk(stale).copy()
        if chance.random() < 0.5 and await group.leader() != successor:
            await hand_over(group, successor)
        await write(group, *LATER)
        group.crash_all()
        group.leader_hint = None
        group.cluster.put_disk(address(stale), copy)
        await group.sleep(chance.choice([0.0, 2.0, 8.0, 20.0]))
        lost = dict.fromkeys(HOSTS, 1) if chance.random() < 0.3 else {}
        with losing_heartbeats(lost):
            for host in chance.sample(HOSTS, len(HOSTS)):
                group.cluster.launch(address(host), group.make(host))
                await group.sleep(chance.choice([0.0, 0.3, 1.5]))
                if chance.random() < 0.4:
                    group.cluster.state(MASTER).hang(chance.choice([0.3, 2.0, 6.0, 10.0]))
            if chance.random() < 0.3:
                group.stop_master()
                await group.start_master()
            await group.sleep(4 * LIMITS.grace_s)
        await require_everything(group)

    play(scenario, seed=seed, kind=PacificaGroup)


@pytest.mark.parametrize("seed", seeds(12, first=12))
def test_no_acknowledged_row_is_lost_if_one_of_the_servers_returns_on_a_copy(seed: int) -> None:
    survive_a_copy(seed)
