"""What all tests share."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="write golden transcripts anew")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """A shell that runs the tests in the background has them ignore SIGINT, and their children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
