"""`pytest tests/raft --rewrite` writes the golden transcripts again."""

from __future__ import annotations

from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # another folder has the option too
        parser.addoption("--rewrite", action="store_true", help="write golden transcripts again")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("rewrite", default=False))
