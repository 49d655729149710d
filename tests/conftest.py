"""Settings and hooks of all tests."""

from __future__ import annotations

import atexit
import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# No assertion on time: tests run slowly on a busy machine.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden transcripts again")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("rewrite"))


# The longest tests, which run first and in this order, so that no core idles at the end.
CLUSTER = "tests/cluster/"
LONGEST = (
    CLUSTER,
    "tests/chaos/test_simulated_runs.py",
    "tests/chaos/powercut/",
    "tests/chaos/test_planted.py",
)
NICENESS = 10


class ByFile(LoadScopeScheduling):
    """With `-n`, keep the tests of a file in one process, and all tests with Ray clusters in one, so that one cluster runs at a
    time. Those tests mostly wait, while other files keep the cores busy."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False  # files are ordered by duration, not by their number of tests
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "cluster" if CLUSTER in file else file


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next((n for n, path in enumerate(LONGEST) if path in item.nodeid), len(LONGEST))
    )


def pytest_configure() -> None:
    gc.disable()  # collecting the tests makes no garbage


def pytest_collection_finish() -> None:
    """Leave modules and tests out of all garbage collections, which cost a tenth of a simulated run otherwise. The interpreter
    collects them at its end, or duckdb prints what it has left."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give tests on a cluster priority over tests that compute: roles on a cluster must renew leases in time."""
    if "PYTEST_XDIST_WORKER" in os.environ and CLUSTER not in item.nodeid and os.nice(0) < NICENESS:
        os.nice(NICENESS - os.nice(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_interrupts() -> None:
    """Restore SIGINT, which a shell makes its background processes and their children ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
