"""Fixtures for tests of tablet servers."""

from __future__ import annotations

import pytest

from ebla.actors.tablet.copy import recovery


@pytest.fixture
def unmended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep leaders from copying failed replicas again, so that a test can check them for as long as it needs."""
    monkeypatch.setattr(recovery, "needed", lambda core, uuid, now: None)
