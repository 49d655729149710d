"""Single messages of an envelope are lost, doubled or late, and the others are not."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.messages import ServerInstance
from ebla.actors.messages.peers import Envelope, EnvelopeReply
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.health import NOT_RUNNING
from ebla.actors.world import Role, World, rpc
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.network import DELAY_PARTS, LOSE_PARTS, PART_LATE_S, REPEAT_PARTS
from ebla.chaos.simulation.world import SimulatedCluster

ADDRESS = "peer/host-a"
SENDER = ServerInstance("sender", 1, "start")
RECEIVER = ServerInstance("receiver", 1, "start")
TABLETS = [f"t{number}" for number in range(40)]


class Peer(Role):
    """Answers each message with its term, and notes the tablets of every envelope."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.envelopes: list[list[str]] = []

    @rpc
    async def replicate(self, envelope: Envelope) -> EnvelopeReply:
        self.envelopes.append([tablet for tablet, _ in envelope.requests])
        answers = tuple(AppendReply(request.term, True, 0, 0, 0, 0) for _, request in envelope.requests)
        return EnvelopeReply(RECEIVER, answers, (None,) * len(answers))


def exchange(shares: dict[str, float]) -> tuple[Peer, EnvelopeReply, float, dict[str, int]]:
    """Send one envelope with a message for each tablet; message n has term n."""

    async def main() -> tuple[Peer, EnvelopeReply, float, dict[str, int]]:
        cluster = SimulatedCluster()
        peer = await cluster.start(ADDRESS, Peer)
        assert isinstance(peer, Peer)
        cluster.network.parts = shares
        requests = tuple(
            (tablet, AppendRequest(term, "sender", 0, 0, (), 0)) for term, tablet in enumerate(TABLETS)
        )
        envelope, began = Envelope(SENDER, RECEIVER, requests), cluster.loop.time()
        network = cluster.client_world("client").network
        reply = await network.call(ADDRESS, "replicate", envelope, EnvelopeReply, 3.0)
        took_s = cluster.loop.time() - began
        await asyncio.sleep(2 * PART_LATE_S)
        return peer, reply, took_s, dict(cluster.network.seen)

    return run(main(), 7)


def answered(reply: EnvelopeReply) -> list[int]:
    """The places that got an answer, which must be the answer to their own message."""
    found = [place for place, answer in enumerate(reply.answers) if answer is not None]
    assert [reply.answers[place].term for place in found] == found
    assert {reply.refusals[place] for place in found} <= {None}
    return found


def test_without_faults_all_messages_travel_together() -> None:
    peer, reply, _, seen = exchange({})
    assert peer.envelopes == [TABLETS]
    assert answered(reply) == list(range(len(TABLETS)))
    assert not any(seen.values())


def test_a_lost_message_or_answer_leaves_one_tablet_without_an_answer() -> None:
    peer, reply, took_s, seen = exchange({LOSE_PARTS: 0.5})
    (arrived,) = peer.envelopes
    lost = [place for place in range(len(TABLETS)) if place not in answered(reply)]
    assert len(lost) == seen[LOSE_PARTS] > 0
    assert {reply.refusals[place] for place in lost} == {NOT_RUNNING}
    missing = [place for place in range(len(TABLETS)) if TABLETS[place] not in arrived]
    assert 0 < len(missing) < len(lost), "some messages are lost, and of others the answers"
    assert set(missing) < set(lost)
    assert took_s < 0.2


def test_a_doubled_message_arrives_again_by_itself() -> None:
    peer, reply, took_s, seen = exchange({REPEAT_PARTS: 0.5})
    whole, *again = peer.envelopes
    assert whole == TABLETS
    assert len(again) == seen[REPEAT_PARTS] > 0
    assert all(len(tablets) == 1 for tablets in again)
    assert answered(reply) == list(range(len(TABLETS)))
    assert took_s < 0.2


def test_a_late_message_arrives_once_and_the_answers_wait_for_it() -> None:
    peer, reply, took_s, seen = exchange({DELAY_PARTS: 0.5})
    others, *late = peer.envelopes
    assert len(late) == seen[DELAY_PARTS] > 0
    assert sorted([*others, *(tablet for (tablet,) in late)]) == sorted(TABLETS)
    assert others == [tablet for tablet in TABLETS if tablet in others]
    assert answered(reply) == list(range(len(TABLETS)))
    assert 0.2 < took_s < PART_LATE_S + 0.2


def test_a_message_meets_at_most_one_fault_and_each_is_counted() -> None:
    peer, reply, _, seen = exchange({LOSE_PARTS: 0.3, REPEAT_PARTS: 0.3, DELAY_PARTS: 0.3})
    arrivals = [tablet for tablets in peer.envelopes for tablet in tablets]
    assert all(0 < arrivals.count(tablet) <= 2 for tablet in set(arrivals))
    assert len(answered(reply)) == len(TABLETS) - seen[LOSE_PARTS]
    assert len(peer.envelopes) == 1 + seen[REPEAT_PARTS] + seen[DELAY_PARTS]


@pytest.mark.parametrize("kind", [LOSE_PARTS, REPEAT_PARTS, DELAY_PARTS])
def test_every_message_of_an_envelope_may_meet_the_fault(kind: str) -> None:
    _, reply, _, seen = exchange({kind: 1.0})
    assert seen[kind] == len(TABLETS)
    assert len(answered(reply)) == (0 if kind == LOSE_PARTS else len(TABLETS))
