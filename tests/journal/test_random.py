"""Hundreds of writers on one journal, in sequence and at once, while nodes and links fail and return."""

from __future__ import annotations

import asyncio
import random

import pytest

from ebla.actors.journal.errors import JournalBroken, QuorumFailed
from ebla.actors.journal.node import rules
from ebla.actors.journal.writer.reader import Position
from ebla.storage.errors import InvalidArgument
from tests.journal.line import Shaky
from tests.journal.stage import Hand, Stage, play
from tests.sweeps import seeds

WRITERS = 250
FLIP = 0.1  # before each request a node's link fails or returns
CRASH = 0.1  # before each acceptance, on either side of its commit
RESTART = 0.01


class Follower:
    """Reads the growing journal. A decided edit never changes, because every edit continues the digest of all earlier
    ones."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.reader = stage.reader()
        self.position: Position = self.reader.beginning()
        self.decided: dict[int, bytes] = {}

    async def follow(self, *, in_progress: bool = False) -> None:
        page = await self.reader.read_all(self.position, in_progress=in_progress)
        self.decided.update(page.edits)
        self.position = page.position
        for txid, edit in page.edits:
            assert self.stage.acked.get(txid, edit) == edit, (txid, edit)


class FlipFlop(Shaky):
    """All links are up for a new writer; then they fail and return at random, and nodes crash around accepts."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        super().__init__(chance, FLIP)
        self.stage = stage

    async def meddle(self, node: str, method: str) -> None:
        await super().meddle(node, method)
        if not self.stage.cluster.alive(node) or self.chance.random() < RESTART:
            await self.stage.cluster.restart(node)
        if method == "accept_recovery" and self.chance.random() < CRASH:
            side = self.chance.choice(("before", "after"))
            self.stage.crash_at(node, f"journal.accept.{side}_commit")


async def one_after_the_other(stage: Stage, writers: int, seed: int) -> int:
    """The number of writers that could write."""
    chance = random.Random(seed)
    follower, able = Follower(stage), 0
    why: list[str] = []
    for number in range(writers):
        hand = stage.hand(FlipFlop(stage, chance))
        try:
            await hand.recover()
            assert hand.end.txid >= max(stage.acked, default=0)
            for _ in range(2):
                await hand.write(4, (1, 1, 1, 1))
                await hand.finalize()
            if number % 10 == 1 and hand.end.txid > 100:
                await hand.session.purge(hand.end.txid - 100)
            able += 1
        except QuorumFailed as error:
            why.append(str(error))
        hand.session.close()
        stage.points.disarm_all()
        for node in stage.nodes:
            if not stage.cluster.alive(node):
                await stage.cluster.restart(node)
        await asyncio.sleep(0.1)  # a restart may be under way
        await follower.follow()
        if number % 10 == 0:
            stage.judge_copies()
    assert not [each for each in why if "Internal" in each or "Corruption" in each]
    clean = stage.hand()
    end = await clean.recover()
    await follower.follow()
    assert follower.position == (end.txid, end.digest)
    assert {txid: follower.decided[txid] for txid in stage.acked} == stage.acked
    await clean.write(3)
    await clean.finalize()
    await asyncio.sleep(30.0)
    copies = [
        [(s.start, s.end, s.state.digest) for s in stage.view(node).all() if s.start > end.txid - 50]
        for node in stage.nodes
    ]
    assert copies[0] == copies[1] == copies[2], "every node has fetched what it lacked"
    assert copies[0][-1][1] == end.txid + 3
    return able


@pytest.mark.parametrize("seed", seeds(1))
def test_hundreds_of_writers_on_failing_networks_lose_nothing(seed: int):
    able = play(lambda stage: one_after_the_other(stage, WRITERS, seed), seed, sync_s=0.5)
    assert 20 < able < WRITERS


async def all_at_once(stage: Stage, writers: int, together: int) -> tuple[int, int]:
    """Independent writers open the journal at any time. How many wrote, and how much."""
    chance = random.Random(stage.cluster.loop.seed)
    stage.cluster.network.slow_probability = 0.05  # late requests meet new ones
    stage.cluster.network.repeat_probability = 0.02
    follower = Follower(stage)
    begun = able = 0

    async def live() -> None:
        nonlocal begun, able
        while begun < writers:
            begun += 1
            hand = stage.hand()
            try:
                await hand.recover()
                able += 1
                await write_on(hand, chance)
            except (QuorumFailed, InvalidArgument):
                pass
            await asyncio.sleep(chance.uniform(0.0, 0.2))  # it learns late that it is superseded
            if chance.random() < 0.5:
                hand.session.close()

    async def look() -> None:
        while begun < writers:
            await asyncio.sleep(0.05)
            await follower.follow(in_progress=True)

    await asyncio.gather(*(live() for _ in range(together)), look())
    await asyncio.sleep(1.0)
    end = await stage.finish()
    await follower.follow()
    assert follower.position.txid >= end.txid
    return able, len(stage.acked)


async def write_on(hand: Hand, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        await hand.write(4, (1, 1, 1, 1))
        await hand.finalize()


@pytest.mark.parametrize("seed", seeds(1))
def test_overlapping_writers_never_both_succeed(seed: int):
    able, written = play(lambda stage: all_at_once(stage, WRITERS, 3), seed, sync_s=0.5)
    assert able > 50
    assert written > 300


def test_overlapping_writers_reveal_a_missing_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "fence", lambda view, epoch: None)
    with pytest.raises((AssertionError, JournalBroken)):
        play(lambda stage: all_at_once(stage, WRITERS, 3), sync_s=0.5)
