"""A stage without Ray for the tests of `ebla up` and `ebla down`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.placement.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path, ["a", "b", "c", "d"])
    made.take_the_place_of_ray(monkeypatch)
    return made
