"""Tests that are coroutines, and run in a world of their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Test = Callable[..., Any]


def inside(play: Callable[..., None], parts: int = 1) -> Callable[[Test], Test]:
    """Make a decorator of tests from `play`, which runs a coroutine function on a stage.

    The first `parts` parameters of the test are the stage. pytest gives the others, and those parameters of `play` that have no
    default.
    """
    _, *options = (p for p in inspect.signature(play).parameters.values() if p.kind != p.VAR_KEYWORD)

    def decorate(test: Test) -> Test:
        wanted = [*inspect.signature(test).parameters.values()][parts:]
        names = [each.name for each in wanted]
        needed = [each for each in options if each.default is each.empty and each.name not in names]

        @functools.wraps(test)
        def run(**given: Any) -> None:
            chosen = {each.name: given[each.name] for each in options if each.name in given}
            play(lambda *stage: test(*stage, **{name: given[name] for name in names}), **chosen)

        run.__signature__ = inspect.Signature([*wanted, *needed])  # type: ignore[attr-defined]
        return run

    return decorate
