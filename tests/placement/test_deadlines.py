"""Deadlines distinguish their own cancellation from another one of the same moment, on every Python and in every loop of ebla."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ebla.actors import deadlines
from ebla.actors.deadlines import timeout
from ebla.chaos.simulation import loop as simulation
from ebla.transport.bridge import Bridge

Body = Callable[[], Coroutine[Any, Any, Any]]
Run = Callable[[Coroutine[Any, Any, str]], str]

CANCELLED, LATE = "CancelledError", "TimeoutError"


def in_a_bridge(main: Coroutine[Any, Any, str]) -> str:
    bridge = Bridge("deadlines")
    try:
        return bridge.run(main)
    finally:
        bridge.close()


@pytest.fixture(params=[deadlines.run, in_a_bridge, simulation.run], ids=["main", "bridge", "simulation"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


async def end(body: Body) -> str:
    """How a task ends: in an error, or with a result."""
    task = asyncio.get_running_loop().create_task(body())
    await asyncio.wait([task])
    if task.cancelled():
        return CANCELLED
    return type(task.exception()).__name__ if task.exception() else str(task.result())


def me() -> Any:
    return asyncio.current_task()


def soon(act: Callable[..., Any], *arguments: Any) -> None:
    asyncio.get_running_loop().call_soon(act, *arguments)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


# -- one deadline, and a cancellation in the same step of the loop -------------------------------------------


async def alone() -> None:
    async with timeout(0):
        await forever()


async def cancelled_just_before() -> None:
    soon(me().cancel)
    async with timeout(0):
        await forever()


async def cancelled_just_after() -> None:
    async with timeout(0):
        soon(me().cancel)
        await forever()


async def cancelled_twice() -> None:
    soon(me().cancel)
    await cancelled_just_after()


async def cancelled_in_a_gather() -> None:
    async with timeout(0):
        soon(me().cancel)
        await asyncio.gather(forever(), forever())


async def late_in_a_gather() -> None:
    async with timeout(0):
        await asyncio.gather(forever(), forever())


async def cancelled_long_before() -> None:
    me().cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    await alone()


async def already_answered() -> None:
    answer = asyncio.get_running_loop().create_future()
    soon(answer.set_result, None)
    async with timeout(0):
        await answer


async def failed_meanwhile() -> None:
    async with timeout(0):
        try:
            await forever()
        except asyncio.CancelledError:
            raise ValueError from None


async def in_time() -> str:
    async with timeout(0):
        pass
    async with timeout(60):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return "in time"


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        (alone, LATE),
        (cancelled_just_before, CANCELLED),
        (cancelled_just_after, CANCELLED),
        (cancelled_twice, CANCELLED),
        (cancelled_in_a_gather, CANCELLED),
        (late_in_a_gather, LATE),
        (cancelled_long_before, LATE),
        (already_answered, LATE),
        (failed_meanwhile, "ValueError"),
        (in_time, "in time"),
    ],
)
def test_a_deadline_and_a_cancellation_of_one_moment(run: Run, body: Body, ended: str) -> None:
    assert run(end(body)) == ended


def test_a_deadline_that_has_passed_leaves_no_request_behind(run: Run) -> None:
    async def body() -> int:
        for each in (alone, failed_meanwhile):
            with contextlib.suppress(TimeoutError, ValueError):
                await each()
        return me().cancelling()  # type: ignore[no-any-return]

    assert run(end(body)) == "0"


# -- several deadlines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer_s", "inner_s", "ended"),
    [(0, 0, "outer"), (60, 0, "inner"), (0, 60, "outer"), (0, 0.001, "outer")],
)
def test_the_outer_deadline_precedes_the_inner_one_of_the_same_moment(
    run: Run, outer_s: float, inner_s: float, ended: str
) -> None:
    async def body() -> str:
        try:
            async with timeout(outer_s):
                try:
                    async with timeout(inner_s):
                        await forever()
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "none"

    assert run(end(body)) == ended


def test_tasks_of_a_gather_that_is_cancelled_when_their_deadlines_pass_are_cancelled(run: Run) -> None:
    async def main() -> str:
        tasks = [asyncio.get_running_loop().create_task(alone()) for _ in range(2)]

        async def body() -> None:
            soon(me().cancel)  # after both deadlines, in the same step
            await asyncio.gather(*tasks)

        assert await end(body) == CANCELLED
        return " ".join(str(task.cancelled()) for task in tasks)

    assert run(main()) == "True True"


# -- the loops of users --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [cancelled_just_before, cancelled_just_after])
def test_in_a_loop_of_the_user_a_cancellation_can_be_lost_before_python_3_11(body: Body) -> None:
    assert asyncio.run(end(body)) == (CANCELLED if sys.version_info >= (3, 11) else LATE)
    assert asyncio.run(end(alone)) == LATE
