"""The simulated loop jumps in time, keeps order, ends dead domains for good, and never runs forever."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from ebla.actors.deadlines import timeout
from ebla.chaos.simulation.loop import Deadlock, Livelock, NotSimulated, run
from tests.staged import simulated


@simulated
async def test_time_jumps_to_the_next_timer() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(86_400 * 365)
    assert loop.time() == pytest.approx(86_400 * 365)


@simulated
async def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    loop, order = asyncio.get_running_loop(), []
    for name in range(50):
        loop.call_at(1.0, order.append, name)
    await asyncio.sleep(2)
    assert order == list(range(50))


def test_an_endless_wait_is_a_deadlock_and_names_the_seed():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock) as failure:
        run(main(), seed=42)
    assert "seed 42" in failure.value.__notes__[0]


def test_a_run_without_end_is_a_livelock():
    async def main():
        while True:
            await asyncio.sleep(0.001)

    with pytest.raises(Livelock, match="1000 steps"):
        run(main(), steps_max=1000)


@simulated
async def test_threads_are_refused() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(NotSimulated, match=r"environment\.run"):
        await loop.run_in_executor(None, threading.get_ident)
    with pytest.raises(NotSimulated):
        loop.call_soon_threadsafe(print)
    with pytest.raises(NotSimulated):
        await asyncio.to_thread(print)


@simulated
async def test_asyncio_as_usual_works_in_virtual_time() -> None:
    async with timeout(10):
        assert await asyncio.gather(asyncio.sleep(3, "a"), asyncio.sleep(1, "b")) == ["a", "b"]
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.sleep(5), 1)
    assert asyncio.get_running_loop().time() == pytest.approx(4)


def test_an_abort_ends_the_run_at_once_even_if_main_waits():
    async def main():
        loop = asyncio.get_running_loop()
        loop.call_later(1, loop.abort, ValueError("enough"))
        await asyncio.sleep(1000)

    with pytest.raises(ValueError, match="enough") as failure:
        run(main())
    assert "1.000000 s of virtual time" in failure.value.__notes__[0]


def test_a_dead_domain_takes_no_step_and_runs_no_cleanup():
    did: list[str] = []

    async def victim(name):
        try:
            did.append(f"{name} begins")
            await asyncio.sleep(2)
            did.append(f"{name} goes on")
        except BaseException:
            did.append(f"{name} caught")
            raise
        finally:
            did.append(f"{name} cleans up")

    async def parent():
        with contextlib.suppress(TimeoutError):
            async with timeout(1.5):
                await asyncio.gather(victim("child"), victim("second"))
        did.append("parent goes on")

    async def main():
        loop = asyncio.get_running_loop()
        domain = loop.domain("node")
        tasks = [
            domain.context.run(loop.create_task, coroutine)
            for coroutine in (victim("own"), parent(), victim("cancelled"))
        ]
        assert [task.get_name() for task in tasks] == ["node#1", "node#2", "node#3"]
        await asyncio.sleep(1)
        tasks[2].cancel()  # not delivered before the end of the domain
        domain.alive = False
        await asyncio.sleep(10)
        assert not any(task.done() for task in tasks)
        return list(did)

    assert run(main()) == [f"{name} begins" for name in ("own", "cancelled", "child", "second")]


@simulated
async def test_a_task_that_ends_its_own_domain_stops_at_its_next_wait() -> None:
    loop, did = asyncio.get_running_loop(), []
    domain = loop.domain("node")

    async def suicide():
        domain.alive = False
        did.append("still in this step")
        await asyncio.sleep(0)
        did.append("never")

    domain.context.run(loop.create_task, suicide())
    await asyncio.sleep(1)
    assert did == ["still in this step"]


def test_tasks_outside_all_domains_are_cancelled_at_the_end_as_in_asyncio():
    did: list[str] = []

    async def left():
        try:
            await asyncio.sleep(1000)
        finally:
            did.append("cleaned up")

    async def main():
        kept = asyncio.ensure_future(left())
        await asyncio.sleep(0)
        return kept

    assert run(main()).cancelled()
    assert did == ["cleaned up"]


def test_derived_random_sources_are_independent_and_repeatable():
    async def main():
        loop = asyncio.get_running_loop()
        return [loop.derive(*names).random() for names in (("a",), ("a",), ("b",), ("a", 1), ())]

    first, again, other = run(main(), 1), run(main(), 1), run(main(), 2)
    assert first == again and first[0] == first[1]
    assert len(set(first)) == 4 and not set(first) & set(other)


@simulated
async def test_a_paused_domain_does_its_overdue_work_when_it_resumes() -> None:
    loop, did = asyncio.get_running_loop(), []
    domain = loop.domain("node")

    async def ticks():
        for tick in range(4):
            await asyncio.sleep(1)
            did.append((tick, loop.time()))

    async def limited():
        try:
            async with timeout(2):
                await asyncio.sleep(1.5)
                did.append(("slept", loop.time()))
        except TimeoutError:
            did.append(("timed out", loop.time()))

    tasks = [domain.context.run(loop.create_task, each) for each in (ticks(), limited())]
    await asyncio.sleep(1.2)
    domain.pause()
    await asyncio.sleep(8.8)
    assert did == [(0, 1.0)]
    domain.resume()
    await asyncio.gather(*tasks)
    assert did == [(0, 1.0), ("timed out", 10.0), (1, 10.0), (2, 11.0), (3, 12.0)]


@simulated
async def test_a_domain_may_die_between_two_steps_of_one_moment() -> None:
    loop, did = asyncio.get_running_loop(), []
    domain = loop.domain("node")

    async def walks(name):
        for step in range(3):
            did.append((name, step, loop.time()))
            await asyncio.sleep(0)

    def kill():
        domain.alive = False

    domain.call_after(2, kill)
    for name in ("first", "second"):
        domain.context.run(loop.create_task, walks(name))
    await asyncio.sleep(1)
    assert did == [("first", 0, 0.0), ("second", 0, 0.0)]


@simulated
async def test_a_domain_may_die_while_it_is_paused() -> None:
    loop, did = asyncio.get_running_loop(), []
    domain = loop.domain("node")

    async def victim():
        try:
            await asyncio.sleep(1)
        finally:
            did.append("cleaned up")

    domain.context.run(loop.create_task, victim())
    domain.pause()
    await asyncio.sleep(2)
    domain.alive = False
    domain.resume()
    await asyncio.sleep(2)
    assert list(did) == []


def test_a_task_started_during_the_end_of_its_domain_takes_no_step():
    taken = []

    async def step():
        taken.append("a step")

    async def main():
        loop = asyncio.get_running_loop()
        domain = loop.domain("node")

        async def sleeper():
            try:
                await asyncio.sleep(1000)
            finally:
                taken.append("closed")
                domain.context.run(loop.create_task, step())

        for _ in range(3):
            domain.context.run(loop.create_task, sleeper())
        await asyncio.sleep(1)

    run(main())
    assert taken == ["closed"] * 3


def test_an_error_in_a_callback_fails_the_run():
    """Protocol code also runs in callbacks, whose errors no task awaits."""

    async def main():
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: 1 // 0)
        future.set_result(None)
        await asyncio.sleep(1.0)

    with pytest.raises(ZeroDivisionError):
        run(main())


async def fail() -> None:
    raise ValueError("unretrieved")


def test_an_unretrieved_failure_fails_the_run():
    async def main():
        lost = asyncio.ensure_future(fail())
        del lost
        await asyncio.sleep(1)
        raise AssertionError("the run has gone on")

    with pytest.raises(match="unretrieved"):
        run(main())


def test_a_failure_dropped_only_at_the_end_fails_the_run():
    async def main():
        holder: list[object] = []
        holder += [holder, asyncio.ensure_future(fail())]
        await asyncio.sleep(1)

    with pytest.raises(match="unretrieved"):
        run(main())


def test_failures_of_tasks_of_dead_domains_are_ignored(caplog: pytest.LogCaptureFixture):
    async def main():
        loop = asyncio.get_running_loop()
        domain = loop.domain("host")

        async def both() -> None:
            await asyncio.gather(fail(), asyncio.sleep(1000), return_exceptions=True)

        held = domain.context.run(loop.create_task, both())
        await asyncio.sleep(1)
        domain.alive = False
        await asyncio.sleep(1)
        assert not held.done()

    run(main())
    assert "never retrieved" not in caplog.text
