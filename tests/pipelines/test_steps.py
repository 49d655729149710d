"""The lines that a long command prints as its steps go by."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ebla import steps


def test_what_is_told_after_a_step_has_ended_shows_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LINE_EVERY_S", 0.0)
    out = io.StringIO()
    told = steps.Steps(Console(file=out))
    with told.step("first") as first:
        first("begun")
    with told.step("second") as second:
        first("too late")
        second("begun")
    lines = [line for line in out.getvalue().splitlines() if "✔" not in line]
    assert lines == ["  first: begun", "  second: begun"]
    assert list(told.seconds) == ["first", "second"]
