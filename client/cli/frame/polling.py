"""Requests that commands repeat to the active master until they are carried out, or have taken effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ebla.cli.frame.cluster import Cluster
from ebla.cli.frame.render import brief
from ebla.errors import TimedOut
from ebla.storage.errors import EblaError

if TYPE_CHECKING:
    from ebla.cli.frame.ui import Progress

T = TypeVar("T")

CALL_S = 12.0  # a master gives a tablet's leader 10 s
AGAIN_S = 0.3
LOOK_S = 1.0
WHY_MAX = 60  # of a refusal that may pass; all of it is told if it does not


async def persist(
    cluster: Cluster,
    method: str,
    request: msgspec.Struct,
    reply: type[T],
    timeout_s: float,
    progress: Progress | None = None,
) -> T:
    """The answer of whichever master serves. What is a matter of moments is asked again, as long as `timeout_s` allows:
    such requests may be repeated. The last refusal is raised."""
    import asyncio

    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while True:
        try:
            return await cluster.call(await cluster.active(), method, request, reply, CALL_S)
        except EblaError as error:
            passes = error.retriable or error.possibly_applied
            if not passes or clock() >= deadline:
                raise
            if progress is not None:
                progress.step(f"not yet, asking for {timeout_s:g} s in all: {brief(error.message, WHY_MAX)}")
        await asyncio.sleep(AGAIN_S)


async def until(
    look: Callable[[], Awaitable[str | None]], timeout_s: float, progress: Progress, what: str
) -> None:
    """`look` says what is still to be done, or None. Raises TimedOut with its last words."""
    import asyncio

    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while (left := await look()) is not None:
        if clock() >= deadline:
            raise TimedOut(
                f"{what} is not done after {timeout_s:g} s, and goes on without this command: {left}",
                deadline_s=timeout_s,
            )
        progress.step(left)
        await asyncio.sleep(LOOK_S)
