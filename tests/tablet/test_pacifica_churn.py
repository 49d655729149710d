"""Random faults for a PacificA group on tablet servers, while clients write and read.

Act one draws crashes, pauses, cuts, hung disks, damaged replicas, hand-overs and takeovers of the master by seed; clocks run at
different speeds. A read that is served sees every write that was acknowledged before it began, and one server serves at a
time. Act two heals everything: all members vote again, and each has every acknowledged row.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from random import Random

import pytest

from ebla.actors import messages as m
from ebla.storage.errors import Corruption, EblaError
from tests.tablet.appointing import MASTER, PacificaGroup, pacifica
from tests.tablet.copies import same_rows, until
from tests.tablet.harness import CODEC, HOSTS, SCHEMA, TABLET, address, row

ACTS = 30
SEEDS = range(1, 9)


class Churn:
    def __init__(self, group: PacificaGroup, seed: int) -> None:
        self.group = group
        self.random = Random(seed)
        self.acknowledged: list[int] = []
        self.reads = 0
        self.running = True

    def hosts_up(self) -> list[str]:
        return [host for host in HOSTS if self.group.alive(host) and self.group.server(host).running]

    # -- clients

    async def write(self) -> None:
        for key in itertools.count(1):
            if not self.running:
                return
            await self.group.sleep(self.random.uniform(0.0, 0.1))
            for host in self.random.sample(HOSTS, len(HOSTS)):
                batch = self.group.batch(m.UPSERT, [row(key, f"{key}")], self.group.next_sequence())
                with contextlib.suppress(EblaError):
                    if await self.group.write_once(host, batch, 1.0) is None:
                        self.acknowledged.append(key)
                        break

    async def read(self) -> None:
        while self.running:
            await self.group.sleep(self.random.uniform(0.0, 0.05))
            wanted = self.acknowledged[-3:]
            keys = [CODEC.encode_key({"k": key}) for key in wanted]
            request = m.ReadRequest(SCHEMA.version, (m.TabletKeys(TABLET, keys),))
            with contextlib.suppress(EblaError):
                host = self.random.choice(HOSTS)
                reply = await self.group.ask(host, "read", request, m.ReadReply, 2.0)
                if reply.errors[0] is None:
                    assert None not in reply.values[0], ("acknowledged before the read", wanted, host)
                    self.reads += 1

    # -- faults

    async def act(self) -> None:
        disturb = [
            self.crash,
            self.pause,
            self.cut,
            self.hang,
            self.damage,
            self.step_down,
            self.leave_the_master,
        ]
        restore = [self.restart, self.restart, self.resume, self.heal, self.heal, self.take_over]
        await self.random.choice([*disturb, *restore])()
        await self.group.sleep(self.random.choice([0.05, 0.5, 1.5, 4.0, 7.0]))

    async def crash(self) -> None:
        if len(up := self.hosts_up()) > 1:
            self.group.crash(self.random.choice(up))

    async def restart(self) -> None:
        for host in HOSTS:
            if not self.group.alive(host):
                await self.group.restart(host)

    async def pause(self) -> None:
        up = [host for host in self.hosts_up() if not self.group.cluster.paused(address(host))]
        if len(up) > 1:
            self.group.cluster.pause(address(self.random.choice(up)))

    async def resume(self) -> None:
        for host in HOSTS:
            if self.group.cluster.paused(address(host)):
                self.group.cluster.resume(address(host))

    async def cut(self) -> None:
        one = address(self.random.choice(HOSTS))
        other = self.random.choice([MASTER, *(address(host) for host in HOSTS if address(host) != one)])
        self.group.cluster.network.cut(one, other, one_way=self.random.random() < 0.3)

    async def heal(self) -> None:
        self.group.heal()

    async def hang(self) -> None:
        self.group.disk(self.random.choice(HOSTS)).hang(self.random.choice([0.5, 3.0, 8.0]))

    async def damage(self) -> None:
        """Damage the data of a secondary, unless too few others have theirs."""
        voters = {peer.uuid for peer in self.group.stored.voters()}
        held = [h for h in self.hosts_up() if TABLET in self.group.server(h).replicas]
        sound = [h for h in held if self.group.replica(h).state == m.RUNNING and self.group.uuid(h) in voters]
        behind = [h for h in sound if self.group.uuid(h) != self.group.stored.primary]
        if behind and len(sound) == len(HOSTS):
            self.group.replica(behind[0]).fail(Corruption("for a test"))

    async def step_down(self) -> None:
        for host in self.hosts_up():
            replica = self.group.server(host).replicas.get(TABLET)
            if replica is not None and replica.leads:
                with contextlib.suppress(EblaError):
                    await self.group.ask(host, "step_down", m.StepDownRequest(TABLET), m.StepDownReply, 2.0)

    async def leave_the_master(self) -> None:
        if self.group.cluster.alive(MASTER):
            self.group.stop_master()

    async def take_over(self) -> None:
        if not self.group.cluster.alive(MASTER):
            await self.group.start_master()

    async def mend(self) -> None:
        await self.heal()
        await self.resume()
        await self.restart()
        await self.take_over()


@pytest.mark.parametrize("seed", SEEDS)
@pacifica(memtable_bytes=20_000, shared_log_bytes=60_000, log_retained_entries_max=40)
async def test_random_faults_lose_nothing_and_show_nothing_old(group: PacificaGroup, seed: int) -> None:
    churn = Churn(group, seed)
    for name in (MASTER, *map(address, HOSTS)):
        group.cluster.clock(name).set_rate(churn.random.uniform(0.93, 1.07))
    clients = [asyncio.ensure_future(client()) for client in (churn.write, churn.read, churn.read)]
    for _ in range(ACTS):
        await churn.act()
    await churn.mend()
    await until(group, lambda: set(group.kinds().values()) == {"voter"}, "all vote again", 120.0)
    count = len(churn.acknowledged)
    await until(group, lambda: len(churn.acknowledged) > count + 10, "writes are acknowledged again")
    churn.running = False
    await asyncio.gather(*clients)
    found = (await group.scan(columns=("k",)))["k"].to_pylist()
    missing = set(churn.acknowledged) - set(found)
    assert not missing and churn.reads
    await same_rows(group, *HOSTS)
