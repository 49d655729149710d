"""The namespace on masters that fail over: answers are kept, sessions get their time, and watches miss nothing."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from ebla.actors.coordination import messages as c
from ebla.actors.coordination.errors import SessionExpired
from ebla.actors.coordination.limits import Limits
from ebla.actors.errors import NotActive, NotFound, StaleRequest, Throttled
from ebla.actors.fault_points import NAMESPACE_POINTS
from ebla.actors.journal.options import LeaseLimits
from ebla.actors.messages import DropTableRequest, Empty, TableInfo
from ebla.storage.errors import DiskFull, InvalidArgument
from tests.coordination.clients import Raw, raw
from tests.master.builders import create_request
from tests.master.group_stage import MASTER, GroupStage, play
from tests.staged import staged


async def other_master(stage: GroupStage) -> str:
    """Crash the active master; it returns as a standby. The next active master, when it serves."""
    first = await stage.active()
    stage.cluster.crash(first)
    await stage.until(lambda: stage.serving() == [stage.other(first)])
    await stage.cluster.restart(first)
    return stage.other(first)


def namespace(stage: GroupStage) -> Any:
    return stage.role(stage.serving()[0]).active_term.master.catalog.namespace


@pytest.mark.parametrize("seed", range(3))
@staged(play)
async def test_nodes_sessions_and_sequence_numbers_survive_masters_and_checkpoints(
    stage: GroupStage, seed: int
) -> None:
    mine = await raw(stage, timeout_s=60.0)
    await mine.create("/jobs")
    numbers = []
    for _ in range(4):
        for _ in range(6):
            numbers.append((await mine.create("/jobs/job-", sequential=True, ephemeral=True)).path)
            await mine.change(c.Delete(numbers[-1]))
        await other_master(stage)
    last = await mine.create("/jobs/job-", sequential=True, ephemeral=True)
    assert [*numbers, last.path] == sorted({*numbers, last.path})
    assert (await mine.read("/jobs")).children == (last.path.removeprefix("/jobs/"),)
    everybody = (*stage.masters, *stage.journals)
    for address in everybody:
        stage.cluster.crash(address)
    for address in everybody:
        await stage.cluster.restart(address)
    assert (await mine.read("/jobs")).node.children == 1
    assert (await mine.create("/jobs/job-", sequential=True)).version > last.version
    await mine.close()
    assert (await mine.read("/jobs")).node.children == 1
    checkpointed = [stage.role(master).standby.checkpointed for master in stage.masters]
    assert max(checkpointed) > 0


POINTS = (
    "master.checkpoint.before_save",
    "master.checkpoint.before_purge",
    "master.checkpoint.after_purge",
    "master.standby.before_save",
    "master.standby.after_save",
    "master.take_over.before_epoch",
    "master.take_over.after_epoch",
)


@pytest.mark.parametrize("point", POINTS)
@staged(play)
async def test_no_sequence_number_repeats_after_a_crash_at_any_durable_step(
    stage: GroupStage, point: str
) -> None:
    mine = await raw(stage, 60.0)
    await mine.create("/q")
    for address in stage.masters:
        stage.points.arm(address, point, lambda address=address: stage.cluster.crash(address))
    reviving = asyncio.ensure_future(revive(stage))
    numbers = []
    for round in range(30):
        made = await mine.create("/q/n-", sequential=True)
        numbers.append(made.version)
        await mine.change(c.Delete(made.path))
        if round % 10 == 9:
            stage.cluster.crash(await stage.active())
        await asyncio.sleep(0.1)
    reviving.cancel()
    assert numbers == sorted(set(numbers))
    assert stage.points.crashed[point] > 0, "no session is silent"


async def revive(stage: GroupStage) -> None:
    """Restart crashed masters, as Ray does."""
    while True:
        await asyncio.sleep(0.7)
        for address in stage.masters:
            if not stage.cluster.alive(address):
                await stage.cluster.restart(address)


REQUESTS = {
    "open_session": lambda mine: mine.open(60.0, "again"),
    "change_nodes": lambda mine: mine.change(
        c.Create("/q/n-", sequential=True, ephemeral=True, parents=True), number=7
    ),
    "close_session": lambda mine: mine.close(),
}


@pytest.mark.parametrize("point", NAMESPACE_POINTS)
@staged(play)
async def test_a_request_with_a_lost_answer_is_carried_out_once(stage: GroupStage, point: str) -> None:
    change, first = point.split(".")[1], await stage.ready()
    mine = await raw(stage, 1.0 if change == "expire_session" else 60.0)
    await mine.create("/mine", ephemeral=True)
    stage.points.arm(first, point, lambda: stage.cluster.crash(first))
    if change == "expire_session":
        await stage.until(lambda: not stage.cluster.alive(first))
        await stage.until(lambda: bool(stage.serving()) and not namespace(stage).sessions)
        assert (await mine.read("/")).children == ()
        return
    reported = await REQUESTS[change](mine)
    assert not stage.cluster.alive(first) and stage.serving() == [stage.other(first)]
    assert await REQUESTS[change](mine) == reported
    expected = {"open_session": (2, 1), "change_nodes": (1, 3), "close_session": (0, 0)}[change]
    assert (len(await mine.sessions()), len(namespace(stage).nodes) - 1) == expected


@staged(play)
async def test_a_silent_session_expires_after_its_timeout_and_gets_the_answer(stage: GroupStage) -> None:
    mine, other = await raw(stage), await raw(stage, 60.0, "other")
    await mine.create("/mine", ephemeral=True)
    loop = asyncio.get_running_loop()
    spoke_at = loop.time()
    seen = (await other.read("/mine")).revision
    while not (await other.wait("/mine", seen)).changed:
        assert loop.time() - spoke_at < 4.0
    assert loop.time() - spoke_at >= 2.0
    for act in (mine.keep, lambda: mine.create("/more")):
        with pytest.raises(SessionExpired):
            await act()
    await mine.close()
    assert await other.sessions() == [other.session]


@pytest.mark.parametrize("how", ["keep", "change"])
@staged(play)
async def test_a_session_with_timely_heartbeats_lives(stage: GroupStage, how: str) -> None:
    mine = await raw(stage)
    await mine.create("/mine", ephemeral=True)
    for number in range(8):
        await asyncio.sleep(1.5)
        await (mine.keep() if how == "keep" else mine.create(f"/{number}"))
    assert (await mine.read("/mine")).node is not None


@pytest.mark.parametrize("seed", range(3))
@staged(play)
async def test_a_new_master_gives_every_session_a_whole_timeout(stage: GroupStage, seed: int) -> None:
    mine = await raw(stage, 3.0)
    await mine.create("/mine", ephemeral=True)
    await asyncio.sleep(2.5)
    for _ in range(3):
        await other_master(stage)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(2.5)
        assert mine.session in namespace(stage).sessions, "the last master did not get it, this one may"
    await stage.until(lambda: not namespace(stage).sessions)
    assert asyncio.get_running_loop().time() - began >= 2.9  # `began` is the time of the test's reading
    assert (await mine.read("/")).children == ()


@staged(play, lease=LeaseLimits(lease_s=1.6, held_s=2.0))
async def test_a_pause_of_the_master_counts_for_no_session(stage: GroupStage) -> None:
    """The lease outlives the pause, so the same master continues."""
    active = await stage.ready()
    mine = await raw(stage, 1.2)
    for _ in range(4):
        stage.cluster.pause(active)
        await asyncio.sleep(1.45)
        stage.cluster.resume(active)
        await stage.until(lambda: stage.serving() == [active])
        assert (await mine.keep()).session == mine.session


@staged(play)
async def test_sessions_expire_in_time_beside_many_tables_and_slow_disks(stage: GroupStage) -> None:
    active = await stage.ready()
    for node in stage.journals:
        stage.cluster.state(node).sync_s = lambda random: 0.05

    async def tables(number: int) -> None:
        for turn in itertools.count():
            name = f"{number}-{turn}"
            await stage.ask("create_table", create_request(name), TableInfo, 300.0)
            await stage.ask("drop_table", DropTableRequest(f"drop {name}", name, None), Empty, 300.0)

    load = [asyncio.ensure_future(tables(number)) for number in range(64)]
    await asyncio.sleep(5.0)
    waits = await raw(stage, 60.0, "who waits")
    mine = await raw(stage, 2.0)
    began = asyncio.get_running_loop().time()
    await stage.until(lambda: mine.session not in namespace(stage).sessions)
    assert 2.0 <= asyncio.get_running_loop().time() - began < 3.5
    assert waits.session in namespace(stage).sessions and stage.serving() == [active]
    for each in load:
        each.cancel()
    await asyncio.gather(*load, return_exceptions=True)


@staged(play)
async def test_sessions_expire_while_changes_are_refused_and_after_a_full_disk(stage: GroupStage) -> None:
    active = await stage.ready()
    mine = await raw(stage, 2.0)
    scribe = stage.role(active).active_term.master.scribe
    scribe._options = msgspec.structs.replace(scribe._options, changes_waiting_max=0)
    honest, tries = scribe._log.append, itertools.count()

    async def full(edits: Any) -> None:
        if next(tries) < 3:
            raise DiskFull("no space left")
        await honest(edits)

    scribe._log.append = full
    await stage.until(lambda: mine.session not in namespace(stage).sessions)
    assert next(tries) == 4 and stage.serving() == [active]


@staged(play)
async def test_a_heartbeat_during_an_expiry_waits_for_its_result(stage: GroupStage) -> None:
    active = await stage.ready()
    mine = await raw(stage)
    asked: list[asyncio.Task[Any]] = []

    def late() -> None:
        asked.append(asyncio.ensure_future(mine.keep()))

    stage.points.arm(active, "master.expire_session.before_edit", late)
    await stage.until(lambda: bool(asked))
    with pytest.raises(SessionExpired):
        await asked[0]


@staged(play)
async def test_a_late_copy_of_a_refused_request_is_refused(stage: GroupStage) -> None:
    mine = await raw(stage, 60.0)
    for _ in range(2):
        with pytest.raises(NotFound):
            await mine.change(c.Create("/a/b"), number=7)
        await mine.change(c.Create("/a", parents=True), number=8)
    assert (await mine.read("/a")).children == ()
    assert [each.path for each in await mine.change(c.Create("/a/b"), number=9)] == ["/a/b"]


@staged(play)
async def test_a_late_copy_of_a_request_given_up_is_not_carried_out(stage: GroupStage) -> None:
    mine = await raw(stage, 60.0)
    with pytest.raises(NotFound):
        await mine.change(c.Create("/a/b"), number=8, unanswered=8)
    with pytest.raises(StaleRequest):
        await mine.change(c.Create("/c"), number=7)


# -- waiting


@staged(play)
async def test_a_waiting_call_is_answered_when_the_change_is_durable(stage: GroupStage) -> None:
    mine = await raw(stage, 60.0)
    made = await mine.create("/a")
    waiting = asyncio.ensure_future(mine.wait("/a", made.version, poll_s=1.4))
    await asyncio.sleep(0.3)
    for node in stage.journals:
        stage.cluster.state(node).commit_s = (0.3, 0.3)
    await mine.create("/a/child")
    assert not waiting.done()
    changing = asyncio.ensure_future(mine.change(c.Set("/a", b"new")))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    reply = await waiting
    assert (reply.changed, reply.data) == (True, b"new")
    await changing


@staged(play)
async def test_a_waiting_call_without_a_change_is_answered_in_time(stage: GroupStage) -> None:
    mine = await raw(stage, 60.0)
    reply = await mine.wait("/a", 0, poll_s=0.5)
    assert (reply.changed, reply.node) == (False, None)
    assert (await mine.wait("/a", 0, poll_s=0.0)).changed is False
    with pytest.raises(InvalidArgument, match="another deployment"):
        await mine.wait("/a", 99)


@staged(play)
async def test_earlier_changes_are_reported_at_once(stage: GroupStage) -> None:
    mine = await raw(stage, 60.0)
    made = await mine.create("/a")
    await mine.change(c.Set("/a", b"1"), c.Create("/a/b"), c.Delete("/a/b"))
    assert (await mine.wait("/a", made.version)).changed
    assert (await mine.wait("/a", made.version, children=True)).changed
    assert (await mine.wait("/a/b", made.version)).changed


@pytest.mark.parametrize("how", ["crash", "pause", "hand over"])
@staged(play)
async def test_a_waiting_client_misses_no_change_across_masters(stage: GroupStage, how: str) -> None:
    first = await stage.ready()
    mine = await raw(stage, 60.0)
    made = await mine.create("/a")
    waiting = asyncio.ensure_future(wait_long(mine, "/a", made.version))
    await asyncio.sleep(0.2)
    if how == "crash":
        stage.cluster.crash(first)
    elif how == "pause":
        stage.cluster.pause(first)
    else:
        await stage.role(first).active_term.retire(stage.other(first))
    await stage.until(lambda: stage.serving() == [stage.other(first)])
    changed = await mine.change(c.Delete("/a"), c.Create("/a"))
    assert (await waiting).node.version == changed[-1].version


async def wait_long(mine: Raw, path: str, seen: int) -> c.NodeReply:
    while not (reply := await mine.wait(path, seen)).changed:
        seen = reply.revision
    return reply


@staged(play)
async def test_a_superseded_master_ends_waiting_calls(stage: GroupStage) -> None:
    first = await stage.ready()
    waiting = asyncio.ensure_future(
        stage.at(first, "wait_node", c.WaitRequest("/a", 0, 25_000), c.NodeReply, 60.0)
    )
    await asyncio.sleep(0.1)
    stage.cut_from_journals(first)
    began = asyncio.get_running_loop().time()
    with pytest.raises(NotActive):
        await waiting
    assert asyncio.get_running_loop().time() - began < 10.0


def test_the_number_of_waiting_calls_is_limited():
    options = {"master": msgspec.structs.replace(MASTER, coordination=Limits(polls_max=3))}

    async def scenario(stage: GroupStage) -> None:
        first = await stage.ready()
        asked = [
            asyncio.ensure_future(
                stage.at(first, "wait_node", c.WaitRequest("/a", 0, 1000), c.NodeReply, 9.0)
            )
            for _ in range(5)
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(answer, Throttled) for answer in answers) == 2
        again = await stage.at(first, "wait_node", c.WaitRequest("/a", 0, 10), c.NodeReply, 9.0)
        assert not again.changed

    play(scenario, **options)
