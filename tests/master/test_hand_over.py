"""A clean hand-over: the active master ends its term by itself, and names its successor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import InvalidArgument, NotActive, OutcomeUnknown, Unavailable
from ebla.actors.master.messages import HandOverReply, HandOverRequest
from tests.master.group_stage import GroupStage, play
from tests.staged import staged


async def hand_over(stage: GroupStage, master: str, to: str | None = None) -> str:
    reply = await stage.at(master, "hand_over", HandOverRequest(to), HandOverReply, 30.0)
    return reply.active


@pytest.mark.parametrize("seed", range(3))
@staged(play, masters=3)
async def test_a_named_successor_serves_when_the_hand_over_is_answered(stage: GroupStage, seed: int) -> None:
    first = await stage.ready()
    await stage.create("flights")
    others = [master for master in stage.masters if master != first]
    for successor in (*others, first):
        before = stage.serving()[0]
        assert await hand_over(stage, before, successor) == successor
        assert stage.serving() == [successor]
        assert await stage.names() == ["flights"]
    await asyncio.sleep(20.0)
    assert stage.served == [first, *others, first], "the successor is still active"
    status = await stage.at(others[0], "status", m.Empty(), m.MasterStatus)
    assert (status.role, status.active) == ("standby", first)


@pytest.mark.parametrize("how", ["handed over", "superseded"])
@staged(play)
async def test_no_task_outlives_its_active_term(stage: GroupStage, how: str) -> None:
    """Otherwise every change of master leaves a catalog, and tasks that continue to work with it."""
    first = await stage.ready()
    active_term = stage.role(first).active_term
    tasks = list(active_term._tasks)
    assert len(tasks) > 5 and not any(task.done() for task in tasks)
    if how == "handed over":
        await hand_over(stage, first)
    else:
        stage.cluster.network.isolate(first)
        await stage.until(lambda: stage.serving() == [stage.other(first)])
        stage.cluster.network.rejoin(first)
        await stage.until(lambda: active_term.ended is not None)
    await asyncio.sleep(0.1)
    assert [task.get_name() for task in (*tasks, *active_term._tasks) if not task.done()] == []


@staged(play, masters=3)
async def test_without_a_name_the_most_advanced_standby_succeeds(stage: GroupStage) -> None:
    first = await stage.ready()
    ahead, behind = (master for master in stage.masters if master != first)
    stage.cluster.crash(behind)
    await stage.create("flights")
    await stage.until(lambda: stage.role(ahead).standby.catalog.named("flights") is not None)
    stage.cut_from_journals(behind)
    await stage.cluster.restart(behind)
    assert await hand_over(stage, first) == ahead


@staged(play)
async def test_only_the_change_under_way_is_finished_before_a_hand_over(stage: GroupStage) -> None:
    first = await stage.ready()
    names = [f"table {number:02}" for number in range(40)]
    for node in stage.journals:
        stage.cluster.state(node).sync_s = lambda random: 0.1
    active_term = stage.role(first).active_term
    scribe, begun = active_term.master.scribe, []
    honest = scribe._carry_out

    async def carry_out(change: Any) -> None:
        begun.append(active_term.serves())
        await honest(change)

    scribe._carry_out = carry_out
    creating = asyncio.gather(*(stage.create(name) for name in names))
    await stage.until(lambda: len(begun) == 5)
    assert scribe.waiting > 30
    handed = await hand_over(stage, first)
    assert all(begun) and len(begun) < 10 and stage.serving() == [handed]
    await creating
    assert await stage.names() == names


@staged(play)
async def test_an_impossible_hand_over_is_refused_and_changes_nothing(stage: GroupStage) -> None:
    first = await stage.ready()
    standby = stage.other(first)
    for to in (first, "master/7"):
        with pytest.raises(InvalidArgument, match=standby):
            await hand_over(stage, first, to)
    with pytest.raises(NotActive):
        await hand_over(stage, standby, first)
    stage.cluster.crash(standby)
    for no_successor in (None, standby):
        with pytest.raises(Unavailable, match="start it"):
            await hand_over(stage, first, no_successor)
    assert stage.serving() == [first]


@pytest.mark.parametrize("point", ["before_release", "after_release"])
@staged(play)
async def test_a_crash_during_a_hand_over_leads_to_a_new_active_master(stage: GroupStage, point: str) -> None:
    first = await stage.ready()
    await stage.create("flights")
    stage.points.arm(first, f"master.hand_over.{point}", lambda: stage.cluster.crash(first))
    with pytest.raises(Exception, match=first):
        await hand_over(stage, first)
    assert await stage.names() == ["flights"]
    assert stage.served == [first, stage.other(first)]


@staged(play)
async def test_a_dead_successor_leaves_the_active_term_to_its_predecessor(stage: GroupStage) -> None:
    first = await stage.ready()
    standby = stage.other(first)
    stage.points.arm(standby, "master.take_over.before_epoch", lambda: stage.cluster.crash(standby))
    with pytest.raises(Exception, match=standby):
        await hand_over(stage, first)
    await stage.until(lambda: stage.serving() == [first])
    await stage.create("flights")


@staged(play)
async def test_a_stopped_master_releases_its_lease(stage: GroupStage) -> None:
    first = await stage.ready()
    await stage.cluster.stop(first)
    states = [stage.role(node).journals["catalog"].lease.state() for node in stage.journals]
    assert [state.left_s for state in states] == [0.0] * 3
    await stage.until(lambda: stage.serving() == [stage.other(first)])


@pytest.mark.parametrize("patience_s", [0.0, 30.0])
@pytest.mark.parametrize("named", [True, False])
@staged(play)
async def test_a_standby_that_cannot_follow_does_not_delay_a_hand_over(
    stage: GroupStage, patience_s: float, named: bool
) -> None:
    first = await stage.ready()
    standby = stage.other(first)
    await stage.until(lambda: stage.role(standby).standby.caught_up)
    stage.cut_from_journals(standby)
    await stage.create("flights")
    await asyncio.sleep(patience_s)
    handing = asyncio.ensure_future(hand_over(stage, first, standby if named else None))
    while not handing.done():
        assert stage.serving() == [first]
        await asyncio.sleep(0.005)
    with pytest.raises(Unavailable, match=f"take over now: {standby} has read .* edits"):
        handing.result()
    stage.mend_to_journals(standby)
    assert await hand_over(stage, first) == standby


@staged(play)
async def test_a_failing_successor_reports_its_failure(stage: GroupStage) -> None:
    first = await stage.ready()
    standby = stage.other(first)
    stage.points.arm(first, "master.hand_over.before_release", lambda: stage.cut_from_journals(standby))
    with pytest.raises(
        OutcomeUnknown, match=f"{standby} has not taken over within .* and may do so later; see its log"
    ):
        await hand_over(stage, first)
