"""`ebla` on simulated deployments: of real roles, of several masters, and of toys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.repair_stage import Toys, on_toys
from tests.cli.stage import Cli, LogStage, Stage, start, start_group, start_with_logs


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own directory, for what commands remember."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EBLA_LOCAL_DIR", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.fixture
def ebla(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """With the table `flights` and its rows."""
    return Cli(monkeypatch, start, prepare=Stage.table)


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start_group)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """With ledger stores, and without logs."""
    return Cli(monkeypatch, start_with_logs)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """With the log `events` and its records."""
    return Cli(monkeypatch, start_with_logs, prepare=LogStage.log)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    return on_toys(monkeypatch)
