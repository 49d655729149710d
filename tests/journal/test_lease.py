"""The lease at the journal nodes: when a node grants and promises, and when its holder relies on it."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import InvalidArgument, Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import LeaseHeld, QuorumFailed, StaleEpoch
from ebla.actors.journal.options import LeaseLimits
from ebla.actors.journal.writer.holder import Holder, lease_states
from ebla.actors.journal.writer.session import Session
from tests.journal.stage import JOURNAL, A, B, C, Stage, play
from tests.staged import staged

HELD_S = 2.0
CLAIM = m.Claim("master/0", "a token", int(HELD_S * 1000))
OTHER = m.Claim("master/1", "another token", int(HELD_S * 1000))


async def promise(stage: Stage, epoch: int, claim: m.Claim | None = None, node: str = A) -> None:
    await stage.ask(node, "new_epoch", m.NewEpochRequest(JOURNAL, epoch, claim), m.NewEpochReply)


async def renew(stage: Stage, epoch: int, claim: m.Claim = CLAIM, node: str = A) -> None:
    await stage.ask(node, "renew_lease", m.RenewRequest(JOURNAL, epoch, claim), m.Done)


async def state(stage: Stage, node: str = A) -> m.LeaseState:
    found: m.LeaseState = await stage.ask(node, "lease_state", JOURNAL, m.LeaseState)
    return found


def hold(stage: Stage) -> tuple[Session, Holder]:
    world = stage.world()
    holder = Holder(world, stage.options, LeaseLimits())
    return Session(world, stage.options, holder), holder


async def begun(stage: Stage, epoch: int) -> Holder:
    session, holder = hold(stage)
    await session.new_epoch(epoch)
    return holder


# -- a node --------------------------------------------------------------------------------------------------


@staged(play)
async def test_a_node_promises_no_later_epoch_during_a_lease(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    for claim in (None, OTHER, CLAIM):
        with pytest.raises(LeaseHeld) as refused:
            await promise(stage, 2, claim)
        assert refused.value.holder == "master/0"
    assert stage.view(A).state.promised == 1
    await asyncio.sleep(HELD_S / 2)
    await renew(stage, 1)
    await asyncio.sleep(0.9 * HELD_S)
    with pytest.raises(LeaseHeld):
        await promise(stage, 2, OTHER)
    await asyncio.sleep(0.2 * HELD_S)
    await promise(stage, 2, OTHER)
    assert (await state(stage)).holder == "master/1"


@staged(play)
async def test_a_node_without_leases_promises_at_once_also_after_a_restart(stage: Stage) -> None:
    await promise(stage, 1)
    await promise(stage, 2)
    await stage.cluster.restart(A)
    assert await state(stage) == m.LeaseState(None, 0, 0.0)
    await promise(stage, 3)


@staged(play)
async def test_a_restarted_node_waits_for_the_longest_lease_it_granted(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    await stage.cluster.restart(A)
    with pytest.raises(LeaseHeld, match="before this node was started"):
        await promise(stage, 2, OTHER)
    await renew(stage, 1)
    await asyncio.sleep(1.1 * HELD_S)
    await promise(stage, 2, OTHER)


@staged(play)
async def test_a_longer_lease_is_durable_before_it_is_granted(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    stage.crash_at(A, "journal.lease.after_commit")
    with pytest.raises(Exception, match="journal/a"):
        await renew(stage, 1, m.Claim("master/0", "a token", 60_000))
    await stage.cluster.restart(A)
    await asyncio.sleep(50.0)
    with pytest.raises(LeaseHeld):
        await promise(stage, 2, OTHER)
    await asyncio.sleep(15.0)
    await promise(stage, 2, OTHER)


@staged(play)
async def test_an_older_epoch_gets_no_lease_while_a_promise_is_being_synced(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    await asyncio.sleep(1.1 * HELD_S)
    stage.cluster.state(A).commit_s = (0.5, 0.5)
    promising = asyncio.ensure_future(promise(stage, 2, OTHER))
    await asyncio.sleep(0.2)
    assert stage.view(A).state.promised == 1
    with pytest.raises(StaleEpoch, match="knows of epoch 2"):
        await renew(stage, 1)
    await promising
    with pytest.raises(StaleEpoch):
        await renew(stage, 1)
    await renew(stage, 2, OTHER)


@staged(play)
async def test_a_late_renewal_does_not_replace_a_later_holder(stage: Stage) -> None:
    """Otherwise a late release of the older holder lets another begin beside the later one."""
    await promise(stage, 1, CLAIM)
    await asyncio.sleep(1.1 * HELD_S)
    await renew(stage, 2, OTHER)
    assert stage.view(A).state.promised == 1
    with pytest.raises(StaleEpoch, match="knows of epoch 2"):
        await renew(stage, 1)
    await stage.ask(A, "release_lease", m.ReleaseRequest(JOURNAL, CLAIM.token), m.Done)
    with pytest.raises(LeaseHeld) as refused:
        await promise(stage, 3, m.Claim("master/2", "a third token", int(HELD_S * 1000)))
    assert refused.value.holder == "master/1"
    await renew(stage, 2, OTHER)


@staged(play)
async def test_a_failed_promise_does_not_stop_renewals(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    await asyncio.sleep(1.1 * HELD_S)
    stage.cluster.state(A).fill()
    with pytest.raises(Exception, match="no space"):
        await promise(stage, 2, OTHER)
    await renew(stage, 1)
    assert (await state(stage)).holder == "master/0"


@staged(play)
async def test_a_lease_is_released_by_its_holder_only(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    await stage.ask(A, "release_lease", m.ReleaseRequest(JOURNAL, OTHER.token), m.Done)
    with pytest.raises(LeaseHeld):
        await promise(stage, 2, OTHER)
    await stage.ask(A, "release_lease", m.ReleaseRequest(JOURNAL, CLAIM.token), m.Done)
    assert (await state(stage)).left_s == 0.0
    await promise(stage, 2, OTHER)


@staged(play)
async def test_a_released_lease_is_reserved_for_its_successor_for_a_while(stage: Stage) -> None:
    await promise(stage, 1, CLAIM)
    release = m.ReleaseRequest(JOURNAL, CLAIM.token, "master/1")
    await stage.ask(A, "release_lease", release, m.Done)
    third = m.Claim("master/2", "a third token", 2000)
    for claim in (None, third, CLAIM):
        with pytest.raises(LeaseHeld):
            await promise(stage, 2, claim)
    assert (await state(stage)).is_free("master/1")
    await promise(stage, 2, OTHER)
    await stage.ask(A, "release_lease", m.ReleaseRequest(JOURNAL, OTHER.token, "master/1"), m.Done)
    await asyncio.sleep(1.1 * HELD_S)
    await promise(stage, 3, third)


# -- its holder ----------------------------------------------------------------------------------------------


@staged(play)
async def test_a_lease_begins_with_the_promises_and_lasts_while_a_majority_renews(stage: Stage) -> None:
    session, holder = hold(stage)
    assert not holder.holds()
    await session.new_epoch(1)
    assert holder.holds()
    stage.cluster.crash(C)
    for _ in range(100):
        await asyncio.sleep(0.1)
        assert holder.holds()
    states = await lease_states(stage.outside, stage.options, 1.0)
    assert {each.holder for each in states.values()} == {holder.claim.holder}
    stage.cluster.crash(B)
    await asyncio.sleep(2.0)
    assert not holder.holds()
    assert holder.lost is None, "it may return"
    await stage.cluster.restart(B)
    await asyncio.sleep(1.0)
    assert holder.holds()


@staged(play)
async def test_a_holder_stops_before_a_node_promises_to_another(stage: Stage) -> None:
    holder = await begun(stage, 1)
    for node in stage.nodes:
        stage.cluster.network.cut(holder.claim.holder, node)
    for _ in range(1000):
        believes = holder.holds()
        states = await lease_states(stage.outside, stage.options, 1.0)
        if all(each.left_s == 0.0 for each in states.values()):
            break
        await asyncio.sleep(0.01)
    assert not believes
    await begun(stage, 2)


@staged(play)
async def test_a_lease_counts_from_its_request_not_from_the_answer(stage: Stage) -> None:
    network = stage.cluster.network
    network.latency_s = (0.5, 0.5)
    session, holder = hold(stage)
    await session.new_epoch(1)  # one second under way, of the 1.2 s of the lease
    await asyncio.sleep(0.7)
    assert not holder.holds()
    await asyncio.sleep(0.8)  # the first renewal was answered one second after its request
    assert holder.holds()
    network.isolate(holder.claim.holder)
    await asyncio.sleep(0.7)
    assert not holder.holds()


@staged(play)
async def test_a_superseded_holder_loses_its_lease_for_good(stage: Stage) -> None:
    holder = await begun(stage, 1)
    stage.cluster.network.isolate(holder.claim.holder)
    await asyncio.sleep(1.8)
    await begun(stage, 2)
    stage.cluster.network.heal()
    assert isinstance(await holder.ended(), StaleEpoch)
    assert not holder.holds()


@staged(play)
async def test_a_holder_keeps_its_lease_while_its_writer_raises_its_epoch(stage: Stage) -> None:
    session, holder = hold(stage)
    await session.new_epoch(1)
    held: list[bool] = []

    async def look() -> None:
        while True:
            held.append(holder.holds())
            await asyncio.sleep(0.01)

    looking = asyncio.ensure_future(look())
    for node in (A, B):
        stage.cluster.state(node).commit_s = (0.5, 0.5)
    await asyncio.sleep(1.0)
    moving = asyncio.ensure_future(session.new_epoch(3))
    await asyncio.sleep(0.1)
    with pytest.raises(LeaseHeld):
        await promise(stage, 4, OTHER)
    await moving
    await asyncio.sleep(2.0)
    looking.cancel()
    assert all(held) and (holder.epoch, holder.lost) == (3, None)
    for node in stage.nodes:
        assert (await state(stage, node)).epoch == 3
        with pytest.raises(LeaseHeld):
            await promise(stage, 4, OTHER, node)


@staged(play)
async def test_one_later_promise_does_not_end_a_lease(stage: Stage) -> None:
    """A contender that reached no other node had its promise."""
    holder = await begun(stage, 1)
    stage.cluster.network.cut(holder.claim.holder, A)
    await asyncio.sleep(2.0)
    await promise(stage, 2)
    stage.cluster.network.heal()
    await asyncio.sleep(1.0)
    assert holder.holds()
    stage.cluster.crash(C)
    await asyncio.sleep(2.0)
    assert not holder.holds()
    assert holder.lost is None
    await stage.cluster.restart(C)
    await asyncio.sleep(1.0)
    assert holder.holds()


@staged(play)
async def test_a_holder_without_a_majority_gives_up(stage: Stage) -> None:
    """It still reaches one node, and would block a contender that reaches this node and another."""
    holder = await begun(stage, 1)
    stage.cluster.network.cut(holder.claim.holder, B)
    stage.cluster.crash(C)
    assert isinstance(await asyncio.wait_for(holder.ended(), 60.0), Unavailable)
    await asyncio.sleep(2.5)
    await begun(stage, 2)


@staged(play)
async def test_after_a_release_another_holder_can_begin_at_once(stage: Stage) -> None:
    holder = await begun(stage, 1)
    with pytest.raises(QuorumFailed, match="LeaseHeld"):
        await begun(stage, 2)
    await holder.release()
    assert not holder.holds()
    await begun(stage, 2)


@pytest.mark.parametrize("limits", [{"lease_s": 2.0, "held_s": 2.0}, {"renew_s": 1.0}, {"held_s": 0.0}])
def test_impossible_limits_are_refused(limits: dict[str, float]):
    with pytest.raises(InvalidArgument):
        LeaseLimits(**limits).validate()
