"""A sweep over the growth of a journal from one node to three: requests fail in pairs, in every way, and writers recover.

The requests are those of the growing master, of the old node that admits the new ones, and of the new nodes that fetch edits.
Afterwards a writer that knows the old set of nodes recovers, or one that knows the new set, or both at once: only one of the two
sets is in force, and every acknowledged edit is there. Then the growth is completed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

import pytest
from msgspec.structs import replace as changed

from ebla.actors.journal.errors import NodesMoved, QuorumFailed
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.journal.writer.recovery import End
from ebla.actors.master.leadership.growth import grow
from ebla.actors.master.options import GroupOptions
from ebla.actors.world import World
from ebla.chaos.defects.planted import planted
from ebla.chaos.simulation import loop
from ebla.storage.errors import EblaError, add_note
from tests.journal.line import MODES, Line
from tests.journal.stage import JOURNAL, Hand, Stage
from tests.sweeps import seeds

OLD, NEW = "journal/a", ("journal/b", "journal/c")
NODES = (OLD, *NEW)
GROWN = changed(JOURNAL, version=2)
MASTER = "master"
DRAWN = 100
KNOWS = ("the old set", "the new set", "both")

Place = tuple[str, str, int]  # sender, receiver, number of the request between them
Faults = tuple[tuple[Place, str], ...]


class Term:
    """The active term of the growing master, reduced to its journal."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.holder = self
        self.epoch = hand.session.epoch

    async def write_catalog(self) -> int:
        return (await self.finish()).txid

    async def finish(self) -> End:
        await self.hand.write(2)
        await self.hand.finalize()
        return self.hand.end

    def give_up_growing(self) -> None:
        return None

    def end(self, why: EblaError) -> None:
        self.hand.session.close()

    async def release(self) -> None:
        return None


class Growth:
    def __init__(self, faults: Faults = ()) -> None:
        self.stage = Stage(1)
        self.lines = {sender: Line() for sender in (MASTER, *NODES)}
        for (sender, receiver, number), mode in faults:
            self.lines[sender].faults[receiver, number] = mode

    async def open(self) -> None:
        self.stage.node_options = JournalNodeOptions(sync_s=1.0, admit_s=0.1)
        for node in NODES:
            await self.stage.cluster.start(node, self._make_node)
        await self.stage.afresh()

    def _make_node(self, world: World) -> JournalNode:
        return JournalNode(self._faulty(world, world.address), self.stage.node_options)

    def _faulty(self, world: World, sender: str) -> World:
        line = self.lines[sender]
        line.inner, line.restart = world.network, self.stage.cluster.restart
        return replace(world, network=line)

    async def grow(self) -> None:
        """Raises EblaError if the growth is not complete."""
        world = self._faulty(self.stage.world(), MASTER)
        hand = self.stage.hand()
        await hand.recover()
        await hand.write(2)
        await hand.finalize()
        options = GroupOptions(
            masters=(OLD,),
            journal=self.stage.options,
            rpc_timeout_s=0.5,
            grow_s=3.0,
            hand_over_s=2.0,
            look_s=0.2,
        )
        term: Any = Term(hand)
        await grow(replace(world, address=OLD), options, term, NODES)

    async def settle(self) -> None:
        """Nothing fails any more, and late requests arrive."""
        for line in self.lines.values():
            line.faults.clear()
            await line.release()
        await asyncio.sleep(5.0)

    def choose(self, *, new: bool) -> None:
        """Let the next writers of the stage know this set of nodes."""
        stage = self.stage
        stage.nodes = NODES if new else (OLD,)
        stage.options = changed(stage.options, journal=GROWN if new else JOURNAL, nodes=stage.nodes)

    async def recover(self, *, new: bool) -> bool:
        """Whether the set of nodes is in force: a writer that knows it can recover, and then also write."""
        self.choose(new=new)
        hand = self.stage.hand()
        try:
            await hand.recover()
        except (NodesMoved, QuorumFailed):
            return False
        await hand.write(3)
        await hand.finalize()
        hand.session.close()
        return True


async def outcome(faults: Faults, knows: str) -> bool:
    """Whether the growth was committed in spite of the faults."""
    growth = Growth(faults)
    await growth.open()
    try:
        await growth.grow()
    except EblaError:
        pass  # the faults are the reason
    await growth.settle()
    sets = {"the old set": (False,), "the new set": (True,), "both": (False, True)}[knows]
    held = dict(zip(sets, await asyncio.gather(*(growth.recover(new=new) for new in sets)), strict=True))
    grown = held.get(True, not held.get(False, True))
    assert len(held) == 1 or sum(held.values()) == 1, f"in force: {held}"
    growth.choose(new=False)
    if not grown:
        await growth.grow()
        await growth.settle()
    growth.choose(new=True)
    await growth.stage.finish()
    return grown


def places() -> list[Place]:
    """All requests of a growth without faults."""

    async def main() -> list[Place]:
        growth = Growth()
        await growth.open()
        await growth.grow()
        await growth.settle()
        return [
            (sender, receiver, number)
            for sender, line in growth.lines.items()
            for receiver, methods in line.trace.items()
            for number in range(1, len(methods) + 1)
        ]

    return loop.run(main(), 0)


def sweep(knows: str) -> list[bool]:
    """Whether each growth was committed."""
    pairs, modes = list(combinations_with_replacement(places(), 2)), list(product(MODES, MODES))
    random.Random(knows).shuffle(pairs)
    grown = []
    for run in seeds(DRAWN):
        turn, place = divmod(run, len(pairs))
        faults = tuple(zip(pairs[place], modes[(place + turn) % len(modes)], strict=True))
        try:
            grown.append(loop.run(outcome(faults, knows), run))
        except BaseException as error:
            add_note(error, f"run {run}: {faults}")
            raise
    return grown


@pytest.mark.parametrize("knows", KNOWS)
def test_any_two_requests_of_a_growth_may_fail(knows: str) -> None:
    """In `make sweep` every pair of requests fails, each in one pair of ways; with FACTOR=250 in every pair of ways."""
    grown = sweep(knows)
    assert True in grown and False in grown


@pytest.mark.parametrize("defect", ["old-set-served", "counted-too-early"])
def test_the_sweep_finds_a_wrong_growth(defect: str) -> None:
    with planted(defect), pytest.raises((AssertionError, EblaError)):
        sweep("both")
