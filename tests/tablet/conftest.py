"""What tests of tablet servers ask for by name."""

from __future__ import annotations

import pytest

from ebla.actors.tablet.copy import recovery


@pytest.fixture
def unmended(monkeypatch: pytest.MonkeyPatch) -> None:
    """No leader has a failed replica copied anew, so that a test can look at it for as long as it likes."""
    monkeypatch.setattr(recovery, "needed", lambda core, uuid, now: None)
