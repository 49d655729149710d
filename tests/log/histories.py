"""Random histories of one log: two producers whose processes crash, other writers, repairs that end ledgers under writers, stores
that crash at fault points, lost messages.

Promises that are checked:

    exactly once   the log has each record of a producer once, in the order of its numbers, however often it was appended
    acknowledged   a record whose append returned is in the log
    one writer     the records of a writer are next to each other: no writer goes on after another one has opened the log
    repaired       a repair alone ends no writer
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from random import Random

from ebla import aio
from ebla.actors.deadlines import timeout
from ebla.actors.errors import NotFound, TimedOut
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.actors.ledger.handles.recovery import recover
from ebla.chaos.simulation.world import NodeCrashed
from ebla.errors import LogFenced
from ebla.storage.errors import EblaError
from tests.log.stage import Stage, contents

NAME = "events"
RECORDS = 40  # of each producer
BATCH_MAX = 6
POINTS = ("ledger.add.before_commit", "ledger.add.after_commit", "ledger.fence.after_commit")
LIMIT_S = 300.0
DEADLINE_S = 5.0


class History:
    def __init__(self, stage: Stage, writers: int) -> None:
        self.stage = stage
        self.random: Random = stage.cluster.loop.derive("history")
        self.confirmed: dict[str, int] = {}
        self.producers = [f"p{number}" for number in range(writers)]
        self.opened = 0
        self.calm = False

    async def produce(self, producer: str) -> None:
        """Append the records 0 to RECORDS - 1, again and again from some record on that may be in the log."""
        db = self.stage.client()
        while self.confirmed.get(producer, 0) < RECORDS:
            work = asyncio.ensure_future(self._live(db, producer))
            dies_s = self.random.uniform(0.2, 4.0)
            done, _ = await asyncio.wait({work}, timeout=None if self.calm else dies_s)
            if not done:
                self.stage.crash(db)
                work.cancel()
                db = self.stage.client()
            elif not isinstance(work.exception(), EblaError | None):
                raise work.exception()  # type: ignore[misc]
            await asyncio.sleep(self.random.uniform(0.0, 0.6))

    async def _live(self, db: aio.Database, producer: str) -> None:
        log = await db.log(NAME)
        self.opened += 1
        tag = self.opened
        writer = await log.writer(producer, deadline_s=DEADLINE_S)
        confirmed = self.confirmed.get(producer, 0)
        assert writer.sequence >= confirmed, (producer, writer.sequence, confirmed)
        at = max(0, confirmed - self.random.choice([0, 1, BATCH_MAX]))
        while at < RECORDS:
            count = min(self.random.randint(1, BATCH_MAX), RECORDS - at)
            batch = [b"%s %d %d" % (producer.encode(), number, tag) for number in range(at, at + count)]
            deadline_s = self.random.choice([0.01, DEADLINE_S])
            try:
                await writer.append_once(batch, at, deadline_s=deadline_s)
            except TimedOut:
                continue  # the same call again
            at += count
            self.confirmed[producer] = max(self.confirmed.get(producer, 0), at)
            await asyncio.sleep(self.random.uniform(0.0, 0.1))
        await writer.close()

    async def repair(self) -> None:
        """End the newest ledger now and then, as a worker does."""
        db = self.stage.client()
        ledgers = db._logs
        while not self.calm:
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
            with suppress(EblaError):
                record = await ledgers.log(NAME)
                if record.ledgers:
                    part = record.ledgers[-1].ledger
                    await recover(
                        ledgers.world, ledgers.registry, ledgers.stores, part, ledgers.options, repair=True
                    )

    async def trouble(self) -> None:
        cluster, network = self.stage.cluster, self.stage.cluster.network
        while not self.calm:
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
            address = self.random.choice(self.stage.stores)
            kind = self.random.choice(["point", "point", "crash", "isolate", "drop"])
            for_s = self.random.uniform(0.05, 1.0)
            if kind == "point":
                point = self.random.choice(POINTS)
                self.stage.points.arm(address, point, lambda address=address: cluster.crash(address))
                await asyncio.sleep(for_s)
                self.stage.points.disarm(address, point)
            elif kind == "crash" and cluster.alive(address):
                cluster.crash(address)
                await asyncio.sleep(for_s)
            elif kind == "isolate":
                network.isolate(address)
                await asyncio.sleep(for_s)
                network.rejoin(address)
            elif kind == "drop":
                network.drop_probability = 0.05
                await asyncio.sleep(for_s)
                network.drop_probability = 0.0
            if not cluster.alive(address):
                with suppress(NodeCrashed):
                    await cluster.restart(address)

    async def run(self) -> None:
        log = await self.stage.client().create_log(NAME, roll_bytes=self.random.choice([500, 1 << 20]))
        beside = [asyncio.ensure_future(self.repair()), asyncio.ensure_future(self.trouble())]
        work = [asyncio.ensure_future(self.produce(producer)) for producer in self.producers]
        await asyncio.sleep(self.random.uniform(2.0, 12.0))
        self.calm = True
        await asyncio.gather(*beside)
        async with timeout(LIMIT_S):
            await asyncio.gather(*work)
        self.judge(await contents(log))

    def judge(self, read: list[bytes]) -> None:
        records = [data.split() for data in read]
        for producer in self.producers:
            numbers = [int(number) for name, number, _ in records if name.decode() == producer]
            assert numbers == list(range(RECORDS)), (producer, numbers)
        writers = [tag for tag, _ in groupby(tag for _, _, tag in records)]
        assert len(writers) == len(set(writers)), writers


async def history(stage: Stage) -> None:
    await History(stage, writers=2).run()


async def one_writer_through_repairs(stage: Stage) -> None:
    """Whatever a repair ends, the one writer goes on, and its records have the positions in the order of their appends."""
    db = stage.client()
    log = await db.create_log(NAME)
    random: Random = stage.cluster.loop.derive("repairs")
    ledgers = stage.client()._logs
    writer = await log.writer("p")
    appends: list[asyncio.Task[int]] = []
    for number in range(120):
        appends.append(asyncio.ensure_future(writer.append(b"%d" % number)))
        await asyncio.sleep(random.choice([0.0, 0.0005, 0.01]))
        if number % 20 == 10:
            part = (await ledgers.log(NAME)).ledgers[-1].ledger
            with suppress(NotFound):
                await recover(
                    ledgers.world, ledgers.registry, ledgers.stores, part, ledgers.options, repair=True
                )
    assert await asyncio.gather(*appends) == list(range(120))
    assert writer.sequence == 120
    await writer.close()
    assert await contents(log) == [b"%d" % number for number in range(120)]
    info = await log.info()
    assert info.ledgers >= 4, "repairs have ended ledgers"


async def an_opening_ends_the_writer_before_at_once(stage: Stage) -> None:
    """A writer that another one fences tries no further ledger, in which that one would have to fence it again."""
    log = await stage.client().create_log(NAME)
    first = await log.writer()

    async def append() -> None:
        for number in range(10_000):
            await first.append(b"%d" % number)

    appending = asyncio.ensure_future(append())
    await asyncio.sleep(0.1)
    await _opened(stage.client(), 0)
    with suppress(LogFenced):
        await appending
    assert (await log.info()).ledgers == 2


async def another_writer_after_a_repair(stage: Stage) -> None:
    """A repair hides no other writer: the writer before does not come back."""
    first_db, db = stage.client(), stage.client()
    log = await first_db.create_log(NAME)
    first = await log.writer()
    await first.append(b"first")
    for number in range(6):
        ledgers = db._logs
        part = (await ledgers.log(NAME)).ledgers[-1].ledger
        opening = asyncio.ensure_future(_opened(db, number))
        await asyncio.sleep(0.002 * number)
        with suppress(LedgerFenced, LedgerClosed, NotFound):
            await recover(ledgers.world, ledgers.registry, ledgers.stores, part, ledgers.options, repair=True)
        second = await opening
        try:
            await first.append(b"late")
        except LogFenced:
            pass
        else:
            raise AssertionError("the writer before appends after another one has opened the log")
        await second.append(b"second")
        first = second


async def _opened(db: aio.Database, number: int) -> aio.LogWriter:
    await asyncio.sleep(0.001 * number)
    return await (await db.log(NAME)).writer()
