"""`ebla` for tests: the command line on a simulated deployment (stage.py)."""

from __future__ import annotations

import pytest

from tests.cli.stage import Cli


@pytest.fixture
def ebla(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch)
