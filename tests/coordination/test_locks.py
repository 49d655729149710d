"""Locks have one holder at a time, in the order of requests, under crashes, pauses and fail-overs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors.coordination import messages as c
from ebla.actors.coordination.errors import SessionExpired
from ebla.coordination.awaited import Lock, Session
from ebla.errors import InvalidArgument, NotFound, TimedOut
from tests.coordination.clients import Process, session
from tests.master.group_stage import GroupStage, play
from tests.staged import staged
from tests.sweeps import seeds

PATH = "/locks/report"


class Protected:
    """The resource that a lock protects: it accepts a step only with the highest token so far."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.refused: list[int] = []

    def step(self, token: int) -> None:
        if self.tokens and token < self.tokens[-1]:
            self.refused.append(token)
        else:
            self.tokens.append(token)


async def waiting_in_sequence(stage: GroupStage, count: int, timeout_s: float = 30.0) -> list[Any]:
    """Processes that wait for the lock in this order; their locks and the tasks that return their tokens."""
    found = []
    for number in range(count):
        lock = (await session(stage, f"p{number}", timeout_s)).lock(PATH)
        task = asyncio.ensure_future(lock.acquire(timeout_s=60.0))
        reader = lock._session
        while len(await reader.children(PATH) if await reader.exists(PATH) else ()) <= number:
            await asyncio.sleep(0.05)
        found.append((lock, task))
    return found


@staged(play)
async def test_holders_follow_the_order_of_their_requests_and_tokens_grow(stage: GroupStage) -> None:
    line = await waiting_in_sequence(stage, 5)
    tokens = []
    for place, (lock, task) in enumerate(line):
        tokens.append(await task)
        assert lock.held and lock.token == tokens[-1]
        await asyncio.sleep(0.5)
        assert not any(later.done() for _, later in line[place + 1 :])
        await lock.release()
        assert not lock.held
    assert tokens == sorted(tokens)


@staged(play)
async def test_a_release_wakes_only_the_next_waiter(stage: GroupStage) -> None:
    line = await waiting_in_sequence(stage, 6)
    await line[0][1]
    polls = stage.role(await stage.active()).active_term.master.coordination._watchers
    woken: list[str] = []
    honest = polls.notify
    namespace = stage.role(await stage.active()).active_term.master.catalog.namespace

    def counting(path: str) -> None:
        woken.extend([path] * len(polls._futures.get(path, ())))
        honest(path)

    namespace.notify = counting
    await line[0][0].release()
    await line[1][1]
    assert len(woken) == 1


@staged(play)
async def test_a_waiter_that_gives_up_is_skipped_and_leaves_no_node(stage: GroupStage) -> None:
    line = await waiting_in_sequence(stage, 4)
    impatient = (await session(stage, "impatient")).lock(PATH)
    with pytest.raises(TimedOut):
        await impatient.acquire(timeout_s=1.0)
    await line[0][1]
    line[1][1].cancel()
    await asyncio.sleep(1.0)
    assert not line[2][1].done(), "its predecessor has gone, but not the holder"
    await line[0][0].release()
    await line[2][1]
    reader = await session(stage, "reader")
    await asyncio.sleep(1.0)
    assert len(await reader.children(PATH)) == 2
    await line[2][0].release()
    await line[3][1]
    retried = asyncio.ensure_future(impatient.acquire(timeout_s=60.0))
    await asyncio.sleep(1.0)
    await line[3][0].release()
    assert await retried > line[3][1].result()


@pytest.mark.parametrize("when", ["before", "after"])
@staged(play)
async def test_an_acquire_given_up_before_its_answer_leaves_no_node(stage: GroupStage, when: str) -> None:
    first = await stage.ready()
    mine = await session(stage, "one", 30.0)
    point = f"master.change_nodes.{when}_edit"
    stage.points.arm(first, point, lambda: stage.cluster.crash(first))
    with pytest.raises(TimedOut):
        await mine.lock(PATH).acquire(timeout_s=0.5)
    await stage.until(lambda: bool(stage.serving()))
    async with mine.lock(PATH):
        assert len(await mine.children(PATH)) <= 2
        while len(await mine.children(PATH)) > 1:
            await asyncio.sleep(0.1)
    assert await mine.children(PATH) == []


@staged(play)
async def test_a_paused_holder_knows_its_loss_and_its_token_is_refused(stage: GroupStage) -> None:
    protected = Protected()
    process = Process(stage, "pauses")
    held = (await process.session(2.0)).lock(PATH)
    token = await held.acquire()
    protected.step(token)
    other = (await session(stage, "next")).lock(PATH)
    stage.cluster.pause(process.address)
    protected.step(await other.acquire())
    assert not held.held
    protected.step(token)
    assert protected.refused == [token]
    stage.cluster.resume(process.address)
    with pytest.raises(SessionExpired):
        await held.release()
    assert other.held


@staged(play)
async def test_a_lock_reports_that_its_node_was_deleted_by_hand(stage: GroupStage) -> None:
    mine, operator = await session(stage, "one"), await session(stage, "operator")
    lock, waiting = mine.lock(PATH), mine.lock(PATH)
    await lock.acquire()
    task = asyncio.ensure_future(waiting.acquire())
    await asyncio.sleep(0.5)
    for name in reversed(await operator.children(PATH)):
        await operator.delete(f"{PATH}/{name}")
    with pytest.raises(NotFound, match="another client deleted"):
        await lock.release()
    with pytest.raises(NotFound, match="another client deleted"):
        await task


@staged(play)
async def test_the_block_of_a_lost_lock_raises_unless_it_has_its_own_error(stage: GroupStage) -> None:
    mine = await session(stage, "one")
    with pytest.raises(SessionExpired):
        async with mine.lock(PATH):
            await mine.close()
    again = await session(stage, "two")
    with pytest.raises(ZeroDivisionError):
        async with again.lock(PATH):
            await again.close()
            raise ZeroDivisionError


@staged(play)
async def test_a_handle_cannot_acquire_its_lock_twice(stage: GroupStage) -> None:
    mine = await session(stage, "one")
    lock = mine.lock(PATH)
    for act in (lock.release, lambda: lock.token):
        with pytest.raises(InvalidArgument, match="is not held"):
            await act()
    async with lock:
        with pytest.raises(InvalidArgument, match="make another one"):
            await lock.acquire()
    async with lock:
        assert lock.held
    with pytest.raises(InvalidArgument):
        mine.lock("nowhere")
    with pytest.raises(InvalidArgument, match="path is a str"):
        mine.lock(7)  # type: ignore[arg-type]


# -- faults


async def user(
    stage: GroupStage, process: Process, protected: Protected, over: asyncio.Event, got: list[int]
) -> None:
    """Acquires the lock repeatedly. While it is sure of the lock, no holder of a higher token may have taken a step."""
    mine: Session | None = None
    while not over.is_set():
        try:
            if mine is None or mine.expired:
                mine = await process.session(stage.outside.random.choice((2.0, 4.0)))
            lock = mine.lock(PATH)
            got.append(await lock.acquire(timeout_s=stage.outside.random.choice((0.5, 5.0, 60.0))))
            await hold(stage, lock, protected)
            await lock.release()
        except (TimedOut, SessionExpired):
            await process.world.clock.sleep(0.1)


async def hold(stage: GroupStage, lock: Lock, protected: Protected) -> None:
    for _ in range(3):
        if lock.held:
            protected.step(lock.token)
            assert not protected.refused, "two holders were sure"
        await lock._session._master.world.clock.sleep(stage.outside.random.uniform(0.0, 0.4))


async def nemesis(stage: GroupStage, clients: list[Process], over: asyncio.Event) -> None:
    chance, cluster = stage.outside.random, stage.cluster
    while not over.is_set():
        victim = chance.choice(
            (*stage.masters, *stage.masters, stage.journals[0], *(p.address for p in clients))
        )
        for_s = chance.choice((0.5, 2.0, 6.0)) * chance.uniform(0.5, 1.5)
        kind = chance.choice(("pause", "isolate", "clock", "crash"))
        if kind == "pause" and cluster.alive(victim) and not cluster.paused(victim):
            cluster.pause(victim)
            await asyncio.sleep(for_s)
            cluster.resume(victim)
        elif kind == "isolate":
            cluster.network.isolate(victim)
            await asyncio.sleep(for_s)
            cluster.network.rejoin(victim)
        elif kind == "clock":
            cluster.clock(victim).set_rate(chance.uniform(0.95, 1.05))
        elif kind == "crash" and victim in stage.masters and cluster.alive(victim):
            cluster.crash(victim)
            await asyncio.sleep(for_s)
            await cluster.restart(victim)


@pytest.mark.parametrize("seed", seeds(3))
@staged(play)
async def test_only_one_process_is_sure_of_a_lock_under_any_faults(stage: GroupStage, seed: int) -> None:
    protected, over, got = Protected(), asyncio.Event(), []
    clients = [Process(stage, f"u{number}") for number in range(4)]
    breaking = asyncio.ensure_future(nemesis(stage, clients, over))
    using = [asyncio.ensure_future(user(stage, each, protected, over, got)) for each in clients]
    await asyncio.sleep(40.0)
    over.set()
    await breaking
    stage.cluster.network.heal()
    for master in stage.masters:
        if not stage.cluster.alive(master):
            await stage.cluster.restart(master)
    await asyncio.wait_for(asyncio.gather(*using), 120.0)
    assert len(set(got)) == len(got) >= 10
    assert protected.tokens == sorted(protected.tokens) and len(set(protected.tokens)) >= 10
    reader = await session(stage, "reader")
    while await reader.children(PATH):
        await asyncio.sleep(0.5)


@staged(play)
async def test_a_wait_without_timeout_survives_a_minute_without_masters(stage: GroupStage) -> None:
    held, waiting = [(await session(stage, name, 600.0)).lock(PATH) for name in ("one", "two")]
    await held.acquire()
    watch = await held._session.watch("/else")
    tasks = [asyncio.ensure_future(waiting.acquire()), asyncio.ensure_future(watch.change())]
    await asyncio.sleep(1.0)
    for node in stage.journals:
        stage.cluster.pause(node)
    await asyncio.sleep(100.0)
    for node in stage.journals:
        stage.cluster.resume(node)
    assert not any(task.done() for task in tasks)
    await held._session.create("/else")
    await held.release()
    assert await asyncio.wait_for(tasks[0], 30.0) > 0
    assert (await asyncio.wait_for(tasks[1], 30.0)).path == "/else"


@staged(play)
async def test_a_waiter_registers_with_the_next_master_and_gets_the_lock(stage: GroupStage) -> None:
    line = await waiting_in_sequence(stage, 3)
    for lock, turn in line[:2]:
        await asyncio.wait_for(turn, 30.0)
        first = await stage.active()
        stage.cluster.crash(first)
        await lock.release()
        await stage.cluster.restart(first)
        await asyncio.sleep(0.1)
    assert await asyncio.wait_for(line[2][1], 30.0) > line[1][1].result() > line[0][1].result()
    reported = await stage.ask("read_node", c.NodeRequest(PATH, True), c.NodeReply)
    assert len(reported.children) == 1
