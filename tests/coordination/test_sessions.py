"""The client's sessions and nodes: work of the library, and its answers to the user."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors.coordination.errors import SessionExpired
from ebla.actors.coordination.limits import UNDER_WAY_MAX, Limits
from ebla.coordination.awaited import Create
from ebla.errors import ConnectionClosed, InvalidArgument, TimedOut
from tests.coordination.clients import Process, session
from tests.master.group_stage import GroupStage, play
from tests.staged import staged


def now() -> float:
    return asyncio.get_running_loop().time()


@staged(play)
async def test_a_session_ends_one_timeout_after_its_process(stage: GroupStage) -> None:
    process = Process(stage, "one")
    mine = await process.session(2.0)
    await mine.create("/mine", ephemeral=True)
    other = await session(stage, "other")
    await asyncio.sleep(20.0)
    assert mine.is_sure and (await other.get("/mine")).owner == mine.id
    watch = await other.watch("/mine")
    stage.cluster.crash(process.address)
    crashed_at = now()
    assert await watch.change() is None
    assert now() - crashed_at < 4.0
    assert [each.session for each in await other.sessions()] == [other.id]


@pytest.mark.parametrize(
    ("trouble", "for_s"),
    [("crash", 0.0), ("pause", 1.0), ("pause", 1.2), ("pause", 1.4), ("pause", 8.0), ("no lease", 2.4)],
)
@pytest.mark.parametrize("seed", range(4))
@staged(play)
async def test_the_shortest_sessions_survive_the_trouble_of_a_master(
    stage: GroupStage, trouble: str, for_s: float, seed: int
) -> None:
    mine = await session(stage, "one", Limits().session_s_min)
    await mine.create("/mine", ephemeral=True)
    await asyncio.sleep(stage.outside.random.uniform(1.0, 4.0))
    active = await stage.active()
    if trouble == "crash":
        stage.cluster.crash(active)
    paused = {"crash": [], "pause": [active], "no lease": stage.journals[:2]}[trouble]
    for address in paused:
        stage.cluster.pause(address)
    await asyncio.sleep(for_s)
    for address in paused:
        stage.cluster.resume(address)
    await asyncio.sleep(8.0)
    assert mine.is_sure and await mine.exists("/mine")


@staged(play)
async def test_a_process_paused_for_too_long_learns_that_its_session_expired(stage: GroupStage) -> None:
    process = Process(stage, "one")
    mine = await process.session(2.0)
    other = await session(stage, "other")
    await mine.create("/mine", ephemeral=True)
    watch = await other.watch("/mine")
    stage.cluster.pause(process.address)
    await asyncio.sleep(1.7)
    assert not mine.is_sure and await other.exists("/mine"), "it is unsure before it ends"
    assert await watch.change() is None
    stage.cluster.resume(process.address)
    await stage.until(lambda: mine.expired)
    for act in (lambda: mine.create("/more"), mine.keep, mine.lock("/lock").acquire):
        with pytest.raises(SessionExpired):
            await act()
    assert await mine.get("/mine") is None, "reading needs no session"


@pytest.mark.parametrize("rates", [(0.9, 1.1), (1.1, 0.9)])
@staged(play)
async def test_a_process_that_is_sure_of_its_session_is_right_despite_clock_rates(
    stage: GroupStage, rates: tuple[float, float]
) -> None:
    process = Process(stage, "one")
    stage.cluster.clock(process.address).set_rate(rates[0])
    for master in stage.masters:
        stage.cluster.clock(master).set_rate(rates[1])
    mine = await process.session(2.0)
    await asyncio.sleep(5.0)
    stage.cluster.network.isolate(process.address)
    while mine.is_sure:
        await asyncio.sleep(0.01)
    sessions = stage.role(await stage.active()).active_term.master.catalog.namespace.sessions
    assert mine.id in sessions


@staged(play)
async def test_a_lost_answer_of_a_sequential_create_is_recovered(stage: GroupStage) -> None:
    mine = await session(stage, "one", 30.0)
    await mine.create("/q")
    for _ in range(4):
        first = await stage.active()
        stage.points.arm(
            first, "master.change_nodes.after_edit", lambda first=first: stage.cluster.crash(first)
        )
        await mine.create("/q/n-", sequential=True, ephemeral=True)
        assert not stage.cluster.alive(first)
        await stage.cluster.restart(first)
    assert len(await mine.children("/q")) == 4


@staged(play)
async def test_an_unanswered_change_is_unknown_and_the_next_one_ends_it(stage: GroupStage) -> None:
    mine = await session(stage, "one", 60.0)
    await mine.create("/first")
    for node in stage.journals:
        stage.cluster.pause(node)
    with pytest.raises(TimedOut) as unknown:
        await mine.create("/second", deadline_s=2.0)
    assert unknown.value.possibly_applied
    for node in stage.journals:
        stage.cluster.resume(node)
    await mine.create("/third")
    numbers = stage.role(await stage.active()).active_term.master.catalog.namespace.sessions[mine.id]
    assert numbers.unanswered == 2 and len(numbers.answers) == 1


@staged(play)
async def test_any_number_of_concurrent_changes_is_carried_out_in_order(stage: GroupStage) -> None:
    mine = await session(stage, "one", 30.0)
    await mine.create("/w")
    asked = [mine.create(f"/w/{number}", ephemeral=True, deadline_s=60.0) for number in range(700)]
    made = await asyncio.gather(*asked)
    assert len(await mine.children("/w")) == len(made) == 700
    await mine.delete("/w/0")


@staged(play)
async def test_changes_behind_an_unanswered_one_end_in_time_or_with_the_session(stage: GroupStage) -> None:
    mine = await session(stage, "one", 30.0)
    held = mine._request(Create("/never-sent"))
    for number in range(1, UNDER_WAY_MAX):
        await mine.create(f"/n{number}")
    with pytest.raises(TimedOut, match="500 others are under way") as late:
        await mine.create("/late", deadline_s=1.0)
    assert not late.value.possibly_applied
    waiting = asyncio.ensure_future(mine.create("/next"))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    held.give_up()
    await waiting
    held = mine._request(Create("/never-sent"))
    last = [asyncio.ensure_future(mine.create(f"/m{number}")) for number in range(UNDER_WAY_MAX)]
    await asyncio.wait(last[:-1])
    await mine.close()
    with pytest.raises(SessionExpired):
        await last[-1]
    assert not await mine.exists("/late")


# -- watching


@staged(play)
async def test_a_watch_reports_every_change_also_between_waits(stage: GroupStage) -> None:
    mine = await session(stage, "one", 60.0)
    watch = await mine.watch("/a")
    assert watch.node is None
    await mine.create("/a", b"1")
    assert (await watch.change()).data == b"1"
    await mine.delete("/a")
    await mine.create("/a", b"2")
    assert (await watch.change()).data == b"2"
    with pytest.raises(TimedOut):
        await watch.change(timeout_s=0.5)
    await mine.delete("/a")
    first = await stage.active()
    stage.cluster.crash(first)
    assert await watch.change() is None


@staged(play)
async def test_a_watch_of_children_reports_created_and_deleted_children(stage: GroupStage) -> None:
    mine = await session(stage, "one", 60.0)
    await mine.create("/group")
    watch = await mine.watch("/group", children=True)
    waiting = asyncio.ensure_future(watch.change(60.0))
    await asyncio.sleep(8.0)
    await mine.set("/group", b"no change of the list")
    await asyncio.sleep(1.0)
    assert not waiting.done()
    await mine.create("/group/a", ephemeral=True)
    assert (await waiting).children == 1 and watch.children == ["a"]
    await mine.close()
    assert (await watch.change()).children == 0 and watch.children == []


@staged(play)
async def test_a_change_is_reported_within_a_moment(stage: GroupStage) -> None:
    mine, other = await session(stage, "one", 60.0), await session(stage, "two", 60.0)
    await mine.create("/a")
    watch = await other.watch("/a")
    for number in range(10):
        waiting = asyncio.ensure_future(watch.change())
        await asyncio.sleep(0.9)
        await mine.set("/a", b"%d" % number)
        told_at = now()
        await waiting
        assert now() - told_at < 0.1


# -- refusals


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda mine: mine.create("/a", "text"), "data is bytes, not 'text'"),
        (lambda mine: mine.create(7), "path is a str"),
        (lambda mine: mine.set("/a", None), "data is bytes"),
        (lambda mine: mine.create("a"), "such as /jobs/report"),
        (lambda mine: mine.change("create"), "an operation is a Create, Set, Delete or Check"),
        (lambda mine: mine.change(), "1 to 100 operations"),
        (lambda mine: mine.get(None), "path is a str"),
        (lambda mine: mine.get("no"), "such as /jobs/report"),
        (lambda mine: mine.set("/a", b"", version="1"), "cannot be sent"),
    ],
)
@staged(play)
async def test_an_impossible_call_names_the_argument_to_change(
    stage: GroupStage, act: Any, problem: str
) -> None:
    mine = await session(stage, "one")
    with pytest.raises(InvalidArgument, match=problem):
        await act(mine)
    await mine.create("/fine")


@staged(play)
async def test_a_timeout_out_of_bounds_is_refused(stage: GroupStage) -> None:
    for timeout_s in (0.9, 7200.0):
        with pytest.raises(InvalidArgument, match="1 to 3600 s"):
            await session(stage, "one", timeout_s)
    with pytest.raises(InvalidArgument):
        await session(stage, "one", "long")  # type: ignore[arg-type]


@staged(play)
async def test_closing_a_connection_ends_its_sessions(stage: GroupStage) -> None:
    process = Process(stage, "one")
    mine = await process.session(2.0)
    await process.db.close()
    with pytest.raises(ConnectionClosed):
        await mine.create("/a")
    await mine.close()
    await asyncio.sleep(5.0)
    assert not stage.role(await stage.active()).active_term.master.catalog.namespace.sessions
