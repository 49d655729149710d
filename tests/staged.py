"""Tests that are coroutines on a simulated stage."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def staged(
    play: Callable[..., Any], *arguments: Any, **options: Any
) -> Callable[[Test], Callable[..., None]]:
    """Run the test by `play(scenario, *arguments, **options)`. Its first parameter is the stage, others are pytest's."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*given: Any, **parameters: Any) -> None:
            play(lambda stage: test(stage, *given, **parameters), *arguments, **options)

        signature = inspect.signature(test)
        _, *others = signature.parameters.values()
        run.__signature__ = signature.replace(parameters=others, return_annotation=None)  # type: ignore[attr-defined]
        return run

    return decorate
