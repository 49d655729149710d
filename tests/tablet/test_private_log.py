"""One replica's log in the shared log and its private log: a restart at any time restores it."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from ebla.actors.tablet.engine.log import TabletLog
from ebla.actors.tablet.lifecycle import bootstrap
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.environment import Disk
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.logs.entries import WRITE, Entry, Position, make_entry
from ebla.storage.logs.shared_log import SharedLog
from tests.storage.disks import in_loop, in_simulation
from tests.tablet.harness import TABLET


class Crash(Exception):
    """The process ends at this point."""


class Bench:
    """One tablet's log over both logs; the steps are those of replica.py, rounds.py and maintenance.py."""

    def __init__(self, disk: Disk, shared: SharedLog, log: TabletLog, flushed: Position) -> None:
        self.disk = disk
        self.shared = shared
        self.log = log
        self.flushed = flushed
        self.commits_left: int | None = None  # until a crash

    @staticmethod
    async def new(disk: Disk) -> Bench:
        await disk.open_instance("u" * 32)
        shared = await SharedLog.open(disk, create=True)
        log = TabletLog(TABLET, disk, shared)
        return Bench(disk, shared, log, log.dropped)

    @staticmethod
    async def again(disk: Disk, flushed: Position) -> Bench:
        """Restart; raise what the start of the replica would raise."""
        await disk.open_instance("u" * 32)
        shared = await SharedLog.open(disk, create=False)
        tail = bootstrap.Tail(TABLET)
        private = await bootstrap.open_private(disk, tail)
        bootstrap.gather(shared.recover(), {TABLET: tail})
        log, _ = bootstrap.rebuild(partial(TabletLog, TABLET, disk, shared, private), tail, flushed)
        return Bench(disk, shared, log, flushed)

    async def append(self, term: int, count: int) -> None:
        entries: list[tuple[str, Entry, Position]] = []
        first_seq = self.shared.reserve(count)
        for seq in range(first_seq, first_seq + count):
            previous = self.log.last
            entry = make_entry(TABLET, previous, term, WRITE, 1, b"payload of term %d" % term)
            self.log.append(entry).seq = seq
            entries.append((TABLET, entry, previous))
        await self.shared.append(first_seq, entries)

    def flush(self, index: int) -> None:
        """Flush up to the index, which every peer has."""
        self.flushed = self.log.position(index)
        self.log.drop_to(index)

    async def trim(self, below_seq: int) -> None:
        await self.log.move(below_seq)
        self._may_crash()
        await self.log.trim_private()
        self._may_crash()
        needed = self.log.oldest_shared_seq()
        await self.shared.trim(below_seq if needed is None else min(below_seq, needed))
        self._may_crash()

    def _may_crash(self) -> None:
        if self.commits_left is not None:
            self.commits_left -= 1
            if self.commits_left == 0:
                raise Crash

    @property
    def unflushed(self) -> tuple[int, int]:
        return self.flushed.index + 1, self.log.last_index + 1

    def positions(self) -> list[Position]:
        return [self.log.position(index) for index in range(self.log.dropped.index, self.log.last_index + 1)]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@in_loop
async def test_a_tail_replaced_after_its_move_does_not_come_back(tmp_path: Path, steps: int) -> None:
    """On LMDB, with the process ending after each step of the last trim."""
    disk = LmdbDisk(tmp_path)
    bench = await Bench.new(disk)
    await bench.append(1, 20)
    await bench.trim(bench.shared.next_seq)  # all of it moves
    bench.log.truncate(15)
    await bench.append(2, 2)
    bench.flush(16)
    bench.commits_left = steps
    try:
        await bench.trim(bench.shared.next_seq)
    except Crash:
        assert steps < 4
    await disk.close()
    disk = LmdbDisk(tmp_path)
    again = await Bench.again(disk, bench.flushed)
    assert again.log.last == bench.flushed
    await disk.close()


@in_simulation
async def test_valid_entries_stay_in_the_private_log() -> None:
    state = DurableState()
    disk = MemoryDisk(state, random.Random(1))
    bench = await Bench.new(disk)
    await bench.append(1, 20)
    await bench.trim(bench.shared.next_seq)
    bench.log.truncate(15)
    await bench.append(2, 3)
    bench.flush(5)
    before = bench.positions()
    await bench.trim(bench.shared.first_seq)
    assert bench.log.private is not None
    assert [index for index, _ in bench.log.private.recover()] == list(range(6, 15))
    disk.crash()
    again = await Bench.again(MemoryDisk(state, random.Random(1)), bench.flushed)
    assert again.positions()[-len(before) :] == before


@pytest.mark.parametrize("seed", range(40))
def test_a_restart_at_any_time_restores_the_log(seed: int) -> None:
    """Random steps; entries are also replaced during a trim."""
    chance = random.Random(seed)

    async def main() -> None:
        state = DurableState()
        disk = MemoryDisk(state, random.Random(seed))
        bench = await Bench.new(disk)
        for term in range(1, 60):
            await bench.append(3 * term, chance.randrange(1, 8))
            if chance.random() < 0.5:
                await replace(bench, chance, 3 * term + 1)
            if chance.random() < 0.5:
                bench.flush(chance.choice((bench.log.last_index, chance.randrange(*bench.unflushed))))
            shared = bench.shared
            below = chance.choice((shared.next_seq, chance.randrange(shared.first_seq, shared.next_seq + 1)))
            bench.commits_left = chance.choice((None, None, 1, 2, 3))
            beside = asyncio.ensure_future(
                replace(bench, chance, 3 * term + 2) if chance.random() < 0.3 else asyncio.sleep(0)
            )
            try:
                await bench.trim(below)
            except Crash:
                await beside
            await beside
            if bench.commits_left == 0 or chance.random() < 0.3:
                before = bench.positions()
                disk.crash()
                disk = MemoryDisk(state, random.Random(seed))
                bench = await Bench.again(disk, bench.flushed)
                log = bench.log
                assert bench.positions()[-len(before) :] == before
                assert len(log.load(log.first_index, log.last_index)) == len(log.slots)

    loop.run(main(), seed=seed)


async def replace(bench: Bench, chance: random.Random, term: int) -> None:
    """Replace the entries after the flushed ones by fewer or more entries of a newer leader."""
    await asyncio.sleep(chance.random() * 0.01)
    if bench.flushed.index < bench.log.last_index:
        bench.log.truncate(chance.randrange(*bench.unflushed))
        await bench.append(term, chance.randrange(1, 4))
