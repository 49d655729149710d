"""The lines that a long command prints for its steps."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ebla import steps


def test_progress_after_the_end_of_a_step_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LINE_EVERY_S", 0.0)
    out = io.StringIO()
    shown = steps.Steps(Console(file=out))
    with shown.step("first") as first:
        first("begun")
    with shown.step("second") as second:
        first("too late")
        second("begun")
    lines = [line for line in out.getvalue().splitlines() if "✔" not in line]
    assert lines == ["  first: begun", "  second: begun"]
    assert list(shown.seconds) == ["first", "second"]
