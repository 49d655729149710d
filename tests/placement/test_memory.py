"""Memory that a role's process gives back when a busy time is over."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import pytest

from ebla.actors.ray_world import BUSY_SHARE, TRIM_S, trim_after_load

IDLE_S, BUSY_S = TRIM_S * BUSY_SHARE / 2, TRIM_S * BUSY_SHARE * 2  # CPU time between two looks


class Over(Exception):
    """The last look was made."""


@pytest.mark.parametrize(
    ("used_s", "trims"),
    [
        ([IDLE_S] * 5, []),
        ([BUSY_S] * 5, []),
        ([IDLE_S, BUSY_S, BUSY_S, IDLE_S, IDLE_S, IDLE_S], [4]),
        ([BUSY_S, IDLE_S, BUSY_S, IDLE_S], [2, 4]),
    ],
)
def test_memory_is_given_back_once_after_each_busy_time(used_s: list[float], trims: list[int]) -> None:
    times, looks, trimmed = list(accumulate(used_s, initial=0.0)), 0, []

    async def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == len(times):
            raise Over

    with pytest.raises(Over):
        asyncio.run(trim_after_load(lambda: times[looks], sleep, lambda: trimmed.append(looks)))
    assert trimmed == trims
