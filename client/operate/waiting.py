"""Progress of long work, and waiting until something is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ebla.errors import TimedOut

POLL_S = 1.0


def _not_shown(text: str, done: float, total: float | None) -> None:
    """Shows nothing."""


class Progress:
    """The progress of some work. `step` may be called at any rate."""

    def __init__(self, show: Callable[[str, float, float | None], None] = _not_shown) -> None:
        self._show = show
        self.done = 0.0
        self.total: float | None = None

    def step(self, text: str, done: float | None = None, total: float | None = None) -> None:
        if done is not None:
            self.done = done
        if total is not None:
            self.total = total
        self._show(text, self.done, self.total)


class Deadline:
    """A point of the event loop's time, `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self._at = self._clock() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._at - self._clock())

    @property
    def passed(self) -> bool:
        return self._clock() >= self._at


async def until(
    poll: Callable[[], Awaitable[str | None]], timeout_s: float, progress: Progress, what: str
) -> None:
    """Call `poll` until it returns None; before that it returns what is left to do. Raises TimedOut with the last of these."""
    deadline = Deadline(timeout_s)
    while (left := await poll()) is not None:
        if deadline.passed:
            raise TimedOut(
                f"{what} is not done after {timeout_s:g} s, and continues without this command: {left}",
                deadline_s=timeout_s,
            )
        progress.step(left)
        await asyncio.sleep(POLL_S)
