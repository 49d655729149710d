"""Calls to several stores at once, whose answers are taken as they come: a silent store delays no caller that can do without it.

A call that is not waited for any more goes on until its time limit: so the process learns that the store fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, Generic, TypeVar

from ebla.actors.errors import ConnectionClosed
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

K = TypeVar("K")
A = TypeVar("A")


class Calls(Generic[K, A]):
    """Those under way, by key."""

    def __init__(self, world: CallerWorld) -> None:
        self._world = world
        self._answers: dict[K, asyncio.Future[A | EblaError]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._answers

    def __len__(self) -> int:
        return len(self._answers)

    def start(self, key: K, call: Coroutine[Any, Any, A]) -> None:
        assert key not in self._answers
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self._world.spawn(_into(answer, call), f"ask {key}")

    async def answers(self, limit_s: float, every: Iterable[K] = ()) -> list[tuple[K, A | EblaError]]:
        """The answers that are there once all of `every` have answered, or, without these, one has; or after the limit. Their calls
        are under way no more."""
        waited = [self._answers[key] for key in every]
        when = asyncio.ALL_COMPLETED if waited else asyncio.FIRST_COMPLETED
        with contextlib.suppress(TimeoutError):
            async with self._world.clock.timeout(limit_s):
                await asyncio.wait(waited or list(self._answers.values()), return_when=when)
        done = [key for key, answer in self._answers.items() if answer.done()]
        return [(key, self._answers.pop(key).result()) for key in done]


async def _into(answer: asyncio.Future[A | EblaError], call: Coroutine[Any, Any, A]) -> None:
    try:
        result = await call
    except EblaError as error:
        answer.set_result(error)
    else:
        answer.set_result(result)
    finally:
        if not answer.done():  # the call was cancelled with its world, but the caller was not
            answer.set_result(ConnectionClosed("the connection was closed before the store answered"))
