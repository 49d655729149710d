"""What all tests share."""

from __future__ import annotations

import os
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


# What takes longest, in this order before everything else, so that no core idles at the end.
CLUSTER = "tests/cluster/"
LONGEST = (
    CLUSTER,
    "tests/chaos/test_simulated_runs.py",
    "tests/chaos/powercut/",
    "tests/chaos/test_planted.py",
)
NICENESS = 10


class ByFile(LoadScopeScheduling):
    """With `-n`: the tests of a file stay together, for the sake of what they share, and those with a Ray cluster are one
    file here, so that there is one cluster at a time. They mostly wait; other files keep the cores busy meanwhile."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False  # they are ordered by what they take, not by how many they are
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "cluster" if CLUSTER in file else file


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next((n for n, path in enumerate(LONGEST) if path in item.nodeid), len(LONGEST))
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What computes lets what waits for a cluster go first: roles on a cluster have leases to keep."""
    if "PYTEST_XDIST_WORKER" in os.environ and CLUSTER not in item.nodeid and os.nice(0) < NICENESS:
        os.nice(NICENESS - os.nice(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """A shell that runs the tests in the background has them ignore SIGINT, and their children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
