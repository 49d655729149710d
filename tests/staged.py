"""Tests that are coroutines, run on a stage or in the simulated loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from ebla.chaos.simulation.loop import run

Test = Callable[..., Coroutine[Any, Any, None]]


def staged(
    play: Callable[..., Any], *arguments: Any, parts: int = 1, **options: Any
) -> Callable[[Test], Callable[..., None]]:
    """Run the test by `play(scenario, *arguments, **options)`. Its first `parts` parameters are the stage, others are pytest's;
    a `seed` is play's too."""

    def decorate(test: Test) -> Callable[..., None]:
        whole = inspect.signature(test)
        others = [*whole.parameters.values()][parts:]
        signature = whole.replace(parameters=others, return_annotation=None)

        @functools.wraps(test)
        def play_test(*given: Any, **named: Any) -> None:
            parameters = signature.bind(*given, **named).arguments
            seed = {"seed": parameters["seed"]} if "seed" in parameters else {}
            play(lambda *stage: test(*stage, **parameters), *arguments, **options, **seed)

        play_test.__signature__ = signature  # type: ignore[attr-defined]
        return play_test

    return decorate


def simulated(test: Test) -> Callable[..., None]:
    """Run the test in the simulated loop."""
    return staged(lambda scenario, **seed: run(scenario()), parts=0)(test)
