"""What all tests share."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# No assertion on time: what is slow on a busy machine is not wrong.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="write golden transcripts anew")


class ByFile(LoadScopeScheduling):
    """With `-n`: the tests of a file stay together, for the sake of what they share, and those with a Ray cluster are one
    file here, so that there is one cluster at a time."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "cluster" if "tests/cluster/" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """A shell that runs the tests in the background has them ignore SIGINT, and their children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
