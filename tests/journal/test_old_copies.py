"""An older copy of a journal node's directory is put in place: the writer recognises it, and it counts for nothing."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import OldCopy
from tests.journal.line import LOST, Line, without
from tests.journal.rejoining import catch_up, keep_from_peers, next_segment, rejoins, replace
from tests.journal.stage import JOURNAL, A, B, C, Hand, Stage, play
from tests.staged import staged


def copied(stage: Stage, node: str = A) -> DurableState:
    return stage.cluster.state(node).copy()


async def put(stage: Stage, copy: DurableState, node: str = A) -> None:
    stage.cluster.crash(node)
    stage.cluster.put_disk(node, copy)
    await stage.cluster.restart(node)


async def heard(hand: Hand) -> None:
    """The nodes have got a heartbeat of the writer, which knows what each has acknowledged."""
    await asyncio.sleep(hand.session.options.quiet_s)
    hand.session.send_heartbeats()
    await asyncio.sleep(1.0)


async def with_an_old_copy(stage: Stage, hand: Hand) -> None:
    copy = copied(stage)
    await hand.send(3)
    await asyncio.sleep(0.1)  # a majority has acknowledged them, and then the third node
    await put(stage, copy)
    await heard(hand)


@staged(play)
async def test_an_older_copy_is_refused_with_the_remedy_and_stays_so(stage: Stage) -> None:
    hand = await stage.wrote(2)
    await with_an_old_copy(stage, hand)
    for _ in range(2):
        assert stage.view(A).state.old
        (status,) = (await stage.status(A)).journals
        assert status.old
        with pytest.raises(
            OldCopy, match=f"older copy of its directory, let it rejoin: .*`ebla journal rejoin {A}`"
        ):
            stage.role(A).journals["edits"].require_whole()
        await stage.cluster.restart(A)
    hand.session.close()


@staged(play)
async def test_an_older_copy_helps_no_recovery_that_would_lose_a_committed_edit(stage: Stage) -> None:
    """a and b have the last edits, c does not, a is an older copy, and b is out of reach."""
    hand = await stage.wrote(2, without(C))
    await with_an_old_copy(stage, hand)
    hand.session.close()
    with pytest.raises(QuorumFailed, match="older copy of its directory"):
        await stage.hand(without(B)).recover()
    await stage.finish()


@staged(play)
async def test_a_node_on_an_older_copy_rejoins_without_an_empty_directory(stage: Stage) -> None:
    hand = await stage.wrote(2)
    await with_an_old_copy(stage, hand)
    await rejoin_journal(stage.outside, stage.options, A)
    assert rejoins(stage) and not stage.view(A).state.old
    await next_segment(hand)
    await catch_up(stage)
    assert not rejoins(stage)
    hand.session.close()
    await stage.finish()


@staged(play)
async def test_a_copy_that_lacks_nothing_counts(stage: Stage) -> None:
    hand = await stage.wrote(2)
    await hand.send(1)
    await put(stage, copied(stage))
    await next_segment(hand)
    assert not stage.view(A).state.old
    hand.session.close()
    await stage.finish()


@staged(play)
async def test_a_node_whose_edit_a_recovery_dropped_is_no_older_copy(stage: Stage) -> None:
    """Only a had the edit. It learns from a peer that it was dropped, and has not promised the epoch that decided this."""
    hand = await stage.wrote(2)
    for node in (B, C):
        stage.cluster.network.cut(hand.session.world.address, node)
    with pytest.raises(QuorumFailed):
        await hand.send(1)
    assert stage.view(A).last == 3
    await stage.hand(without(A)).recover()
    await catch_up(stage)
    assert stage.view(A).last == 2 and stage.view(A).state.promised == hand.session.epoch
    await heard(hand)
    assert not stage.view(A).state.old
    hand.session.close()
    await stage.finish()


@staged(play)
async def test_an_older_copy_renews_no_lease(stage: Stage) -> None:
    hand = await stage.wrote(2)
    await with_an_old_copy(stage, hand)
    claim = m.Claim("a token", "the writer", 2000)
    with pytest.raises(OldCopy):
        await stage.ask(A, "renew_lease", m.RenewRequest(JOURNAL, hand.session.epoch, claim), m.Done)
    hand.session.close()


@staged(play)
async def test_a_node_that_rejoined_without_a_later_edit_is_no_older_copy(stage: Stage) -> None:
    line = Line()
    hand = await stage.wrote(3, line)
    await asyncio.sleep(0.1)
    await replace(stage)
    keep_from_peers(stage)
    await asyncio.sleep(1.5)
    for _ in range(2):
        await hand.send(1)
        await asyncio.sleep(1.0)
    await hand.finalize()
    line.faults[A, len(line.trace[A]) + 1] = LOST  # the answer to the next start
    await hand.start()
    await asyncio.sleep(0.5)
    await hand.send(2)
    await asyncio.sleep(0.5)
    await hand.session.purge(hand.segment)
    await asyncio.sleep(0.5)
    for peer in (B, C):
        stage.cluster.network.mend(A, peer)
    await catch_up(stage)
    await heard(hand)
    await heard(hand)
    assert not stage.view(A).state.old and not rejoins(stage)
    hand.session.close()
