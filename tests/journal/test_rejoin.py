"""A journal node with a lost directory rejoins, breaks no promise, and is complete in the end."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from ebla.actors.errors import AlreadyPresent, NotDelivered
from ebla.actors.journal.errors import NotFormatted, QuorumFailed
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.storage.errors import EblaError, InvalidArgument
from tests.journal.line import Line, Shaky
from tests.journal.rejoining import catch_up, lose, next_segment, rejoins, replace
from tests.journal.stage import A, B, Stage, play, writer_of
from tests.staged import staged

# -- refusals


@staged(play)
async def test_only_a_node_without_the_journal_rejoins(stage: Stage) -> None:
    with pytest.raises(AlreadyPresent, match="only a node that has lost its directory"):
        await rejoin_journal(stage.outside, stage.options, A)
    with pytest.raises(InvalidArgument, match="is not one of the journal's nodes"):
        await rejoin_journal(stage.outside, stage.options, "journal/x")
    await replace(stage)
    token = stage.view(A).state.token
    await rejoin_journal(stage.outside, stage.options, A)
    assert stage.view(A).state.token == token  # a repetition changes nothing


@staged(play)
async def test_two_nodes_that_lost_their_directories_cannot_help_each_other(stage: Stage) -> None:
    hand = await stage.wrote(2)
    hand.session.close()
    await lose(stage, A)
    await lose(stage, B)
    for node in (A, B):
        with pytest.raises(QuorumFailed, match=r"learn what journal/. had promised"):
            await rejoin_journal(stage.outside, stage.options, node)
        with pytest.raises(NotFormatted):
            await stage.manifest(node)


def test_a_node_that_rejoins_is_no_witness_for_another() -> None:
    async def scenario(stage: Stage) -> None:
        await replace(stage, A)
        await lose(stage, B)
        with pytest.raises(QuorumFailed, match="journal/a has lost its directory and rejoins"):
            await rejoin_journal(stage.outside, stage.options, B)
        await replace_again(stage)

    async def replace_again(stage: Stage) -> None:
        """Not even with the third node: only a writer's segment completes a, and it has no majority."""
        hand = stage.hand()
        with pytest.raises(QuorumFailed):
            await hand.recover()

    play(scenario)


@staged(play, count=1)
async def test_a_single_node_that_lost_its_directory_cannot_rejoin(stage: Stage) -> None:
    await lose(stage)
    with pytest.raises(InvalidArgument, match="has one node: no other has its edits"):
        await rejoin_journal(stage.outside, stage.options, A)


# -- crashes


@pytest.mark.parametrize("side", ["before", "after"])
@staged(play)
async def test_a_crash_around_the_first_commit_is_repeated(stage: Stage, side: str) -> None:
    hand = await stage.wrote(3)
    await lose(stage)
    stage.crash_at(A, f"journal.rejoin.{side}_commit")
    with pytest.raises(EblaError):
        await rejoin_journal(stage.outside, stage.options, A)
    await stage.cluster.restart(A)
    assert (JOURNAL in stage.role(A).journals) is (side == "after")
    await rejoin_journal(stage.outside, stage.options, A)
    assert rejoins(stage)
    await next_segment(hand)
    await catch_up(stage)
    assert not rejoins(stage)
    hand.session.close()
    await stage.finish()


@pytest.mark.parametrize("side", ["before", "after"])
@staged(play)
async def test_a_crash_around_the_last_commit_loses_nothing(stage: Stage, side: str) -> None:
    hand = await stage.wrote(3)
    await replace(stage)
    await next_segment(hand)
    stage.crash_at(A, f"journal.whole.{side}_commit")
    syncing = asyncio.ensure_future(catch_up(stage))
    await asyncio.sleep(1.0)
    assert not stage.cluster.alive(A)
    syncing.cancel()
    await stage.cluster.restart(A)
    await catch_up(stage)
    assert not rejoins(stage)
    hand.session.close()
    await stage.finish()


@staged(play)
async def test_a_rejoining_node_does_not_wait_for_purged_segments(stage: Stage) -> None:
    hand = stage.hand()
    await hand.recover()
    for _ in range(3):
        await hand.write(2)
        await hand.finalize()
    await hand.write(2)
    await replace(stage)
    await next_segment(hand)
    await hand.session.purge(7)
    await asyncio.sleep(0.5)
    await catch_up(stage)
    assert not rejoins(stage)
    hand.session.close()
    end = await stage.hand().recover()
    assert end.txid == max(stage.acked)
    stage.judge_copies()


# -- random histories

JOURNAL = "edits"


@pytest.mark.parametrize("count", [3, 5])
def test_random_writers_and_lost_directories_lose_nothing(count: int) -> None:
    """At most a minority is lost at a time. In the end all edits exist and every node is complete."""

    async def scenario(stage: Stage) -> None:
        chance = random.Random(count)
        lost, able = 0, 0
        for _ in range(60):
            hand = stage.hand(Shaky(chance, 0.08) if chance.random() < 0.7 else None)
            if chance.random() < 0.3:
                stage.cluster.crash(chance.choice(stage.nodes))
            try:
                await hand.recover()
                assert hand.end.txid >= max(stage.acked, default=0)
                for _ in range(chance.randint(1, 3)):
                    await hand.write(3, (1, 1, 1))
                    if chance.random() < 0.4:
                        lost += await lose_one(stage, chance)
                    for _ in range(2):
                        await asyncio.sleep(1.2)
                        await hand.send(1)
                    await hand.finalize()
                able += 1
            except QuorumFailed:
                pass  # too many links were down; the next writer finds the outcome
            hand.session.close()
            for node in stage.nodes:
                if not stage.cluster.alive(node):
                    await stage.cluster.restart(node)
                if chance.random() < 0.5:
                    await catch_up(stage, node)
            await asyncio.sleep(4.0)
        assert lost >= 5 and able >= 10, (lost, able)
        await stage.finish()
        last = await stage.wrote(1)
        await next_segment(last)
        for node in stage.nodes:
            await catch_up(stage, node)
        assert [node for node in stage.nodes if rejoins(stage, node)] == []
        last.session.close()
        await stage.finish()

    async def lose_one(stage: Stage, chance: random.Random) -> int:
        busy = [n for n in stage.nodes if not stage.cluster.alive(n) or rejoins(stage, n)]
        if len(busy) >= (count - 1) // 2 or not all(map(stage.cluster.alive, stage.nodes)):
            return 0
        await replace(stage, chance.choice([node for node in stage.nodes if node not in busy]))
        return 1

    for seed in range(4):
        play(scenario, seed, count)


# -- without writes


async def whole_again(stage: Stage, timeout_s: float) -> None:
    for _ in range(int(timeout_s)):
        await asyncio.sleep(1.0)
        if not rejoins(stage):
            return
    raise AssertionError(f"after {timeout_s:g} s {A} does not count yet")


@pytest.mark.parametrize("edits", [0, 3])
@staged(play)
async def test_a_node_rejoins_without_writes(stage: Stage, edits: int) -> None:
    writer = await writer_of(stage)
    for number in range(edits):
        await writer.append(b"%d" % number)
    await asyncio.sleep(1000.0)
    await replace(stage)
    await whole_again(stage, 60.0)
    stage.cluster.crash(B)
    writer.close()
    assert (await stage.hand().recover()).txid >= edits + 1


@staged(play)
async def test_a_healthy_node_causes_no_new_segment(stage: Stage) -> None:
    writer = await writer_of(stage)
    await asyncio.sleep(1000.0)
    assert writer.segment == 1
    await replace(stage)
    await whole_again(stage, 60.0)
    after = writer.segment
    await asyncio.sleep(1000.0)
    assert writer.segment == after


@staged(play)
async def test_a_node_rejoins_across_idle_writers(stage: Stage) -> None:
    await replace(stage)
    for _ in range(4):
        writer = await writer_of(stage)
        await asyncio.sleep(2.5)
        writer.close()
    assert not rejoins(stage)


@staged(play, segment_s=50.0)
async def test_a_missed_segment_start_is_repeated_later(stage: Stage) -> None:
    starts: list[float] = []

    async def lose_the_first(node: str, method: str) -> None:
        if node == A and method == "start_segment" and rejoins(stage):
            starts.append(stage.cluster.loop.time())
            if len(starts) < 3:
                raise NotDelivered("injected: lost", address=node)

    writer = await writer_of(stage, Line(before=lose_the_first))
    await replace(stage)
    await whole_again(stage, 200.0)
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert len(starts) == 3 and all(50.0 <= pause <= 60.0 for pause in pauses), starts
    writer.close()
