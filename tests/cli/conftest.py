"""`ebla` for tests: the command line on a simulated deployment (stage.py), and on one of toys (repair_stage.py)."""

from __future__ import annotations

import pytest

from tests.cli.repair_stage import Repairing
from tests.cli.stage import Cli


@pytest.fixture
def ebla(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch)


@pytest.fixture
def repairing(monkeypatch: pytest.MonkeyPatch) -> Repairing:
    return Repairing(monkeypatch)
