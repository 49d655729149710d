"""Histories in which a node loses its directory and rejoins. Each is a scenario of three nodes a, b, c, in which a loses
its directory; test_recovery.py plays them, and test_mutants.py names the mistake that each finds.
"""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import OutOfSync, Rejoining, StaleEpoch
from ebla.actors.journal.node.rejoin import rejoin_journal
from tests.journal.line import without
from tests.journal.raw import FIRST, Raw, digest, edits_of
from tests.journal.recoveries import fails
from tests.journal.stage import JOURNAL, A, B, C, Hand, Stage, scenarios_of


async def lose(stage: Stage, node: str = A) -> None:
    """End the process, and replace its directory by an empty one."""
    stage.cluster.crash(node)
    stage.cluster.lose_disk(node)
    await stage.cluster.restart(node)


async def replace(stage: Stage, node: str = A) -> None:
    await lose(stage, node)
    await rejoin_journal(stage.outside, stage.options, node)


def rejoins(stage: Stage, node: str = A) -> bool:
    return bool(stage.view(node).state.token)


async def catch_up(stage: Stage, node: str = A) -> None:
    await stage.role(node).sync.all()


def keep_from_peers(stage: Stage) -> None:
    """Only its writer reaches it."""
    for peer in (B, C):
        stage.cluster.network.cut(A, peer)


async def next_segment(hand: Hand) -> None:
    """The first edits show that the node is out of sync, with the next ones it gets a heartbeat, and the next start knows
    its answer."""
    await asyncio.sleep(1.5)
    for _ in range(2):
        await hand.send(1)
        await asyncio.sleep(1.0)
    await hand.finalize()
    await hand.start()
    await hand.send(2)


async def a_lost_directory_does_not_lose_a_committed_edit(stage: Stage) -> None:
    """a and b have it, c does not; a loses it, and b is out of reach."""
    hand = await stage.wrote(3, without(C))
    hand.session.close()
    await replace(stage)
    await fails(stage, without(B))
    assert (await stage.finish()).txid == 3


async def a_lost_directory_does_not_lose_a_promise(stage: Stage) -> None:
    """Epoch 2 was promised by a and b. The writer of epoch 1 must not find a majority in a and c."""
    older = Raw(stage, 1)
    await older.promise(A, B, C)
    await Raw(stage, 2).promise(A, B)
    await replace(stage)
    token = stage.view(A).state.token
    start = m.StartSegment(older.stamp(A), 1, FIRST, token)
    with pytest.raises(StaleEpoch, match="promised epoch 2"):
        await stage.ask(A, "start_segment", start, m.Done)


async def a_segment_start_from_before_the_loss_is_ignored(stage: Stage) -> None:
    """It would make the empty copy at a one that counts, though a had acknowledged edits of this very segment."""
    writer = Raw(stage, 1)
    await writer.promise(A, B, C)
    late = m.StartSegment(writer.stamp(A), 1, FIRST)
    await writer.start((A, B))
    for node in (A, B):
        await writer.edits(node, 3)
    stage.note(enumerate(edits_of(1, 1, 3), 1))
    await replace(stage)
    with pytest.raises(OutOfSync, match="lost its directory, and the writer did not know"):
        await stage.ask(A, "start_segment", late, m.Done)
    await fails(stage, without(B))
    assert (await stage.finish()).txid == 3


async def a_node_without_earlier_edits_does_not_count(stage: Stage) -> None:
    """It takes the edits of the segment that was started since, and is asked for nothing else until it has the rest."""
    hand = await stage.wrote(3)
    await replace(stage)
    keep_from_peers(stage)
    await next_segment(hand)
    assert rejoins(stage) and stage.view(A).state.joined == 6
    assert (await stage.status(A)).journals[0].rejoining
    epoch = stage.view(A).state.promised
    for method, request, reply in (
        ("new_epoch", m.NewEpochRequest(JOURNAL, epoch + 1), m.NewEpochReply),
        ("prepare_recovery", m.PrepareRequest(m.Stamp(JOURNAL, epoch, 99), 1), m.Prepared),
        (
            "accept_recovery",
            m.AcceptRequest(
                m.Stamp(JOURNAL, epoch, 99), m.SegmentState(1, 3, False, 1, FIRST, digest(1, 1, 3)), ()
            ),
            m.Done,
        ),
        ("manifest", m.ManifestRequest(JOURNAL), m.Manifest),
    ):
        with pytest.raises(Rejoining, match="it counts again when it has caught up"):
            await stage.ask(A, method, request, reply)
    hand.session.close()


async def a_node_is_complete_when_it_has_all_edits(stage: Stage) -> None:
    """Then it counts again: a and c have everything, b is out of reach."""
    hand = await stage.wrote(3, without(C))
    hand.session.close()
    await stage.finish()
    hand = await stage.wrote(2)
    await replace(stage)
    await next_segment(hand)
    await catch_up(stage)
    assert not rejoins(stage)
    hand.session.close()
    clean = stage.hand(without(B))
    end = await clean.recover()
    assert end.txid == max(stage.acked)
    clean.session.close()
    await stage.finish()


SCENARIOS = scenarios_of(__name__)
