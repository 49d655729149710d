"""What all tests share."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="write golden transcripts anew")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n`: the tests of a file stay together, for the sake of what they share, and those with a Ray cluster are one
    group, so that there is one cluster at a time."""
    for item in items:
        place = item.path.relative_to(HERE)
        group = "cluster" if place.parts[0] == "cluster" else str(place)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """A shell that runs the tests in the background has them ignore SIGINT, and their children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
