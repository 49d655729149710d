"""Real Ray on this machine: a cluster of nodes with slot labels, and helpers that use it and injure it.

One `cluster` serves all modules that use the fixture; they run last. Each module finds every node alive, this process connected,
and no deployment except, for the modules in COMMON, the one that they share. Afterwards the cluster's processes and temporary files
are gone. Tests wait with `eventually`, never for a fixed time.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import ray
from typer.testing import CliRunner

from ebla.actors.errors import NetworkError, NotRunning
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.faults import RealFaults
from ebla.cli.app import app
from ebla.placement import asking, launch
from ebla.placement.config import DeploymentConfig, configure
from ebla.placement.connection import connect_ray, disconnect_ray
from ebla.placement.local.cluster import LocalCluster

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SPARK_EXAMPLE = REPOSITORY / "examples" / "spark_pipeline.py"
HOSTS = ("host-1", "host-2", "host-3", "host-4")
THREE_HOSTS = HOSTS[:3]
WITHIN_S = 240.0
POLL_S = 0.05
DOWN_S = 2.0  # at the end of a module; roles that have not stopped by then are killed
COMMON = ("test_examples", "test_ray_data", "test_pipelines")  # share a deployment of three hosts with logs
CPUS = 3  # that each node offers, one more than the executor of Spark in the tests needs
LEAN = {
    "RAY_START_HOOK": "tests.cluster.ray_start.without_log_monitor",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",  # figures of nodes
    "PYTHONPATH": str(REPOSITORY),  # also for the roles of tests
}

T = TypeVar("T")


def eventually(check: Callable[[], T | None], what: str, within_s: float = WITHIN_S) -> T:
    """Poll `check` until its answer is true, and return the answer. Fail with `what` after the deadline."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(POLL_S)


class Caller:
    """Calls roles from a test, one at a time."""

    def __init__(self, namespace: str) -> None:
        self.network = RayNetwork(namespace)

    def __call__(
        self, address: str, method: str, message: msgspec.Struct, reply: type[T], timeout_s: float = 10.0
    ) -> T:
        return asyncio.run(self.network.call(address, method, message, reply, timeout_s))

    def when_back(self, address: str, method: str, message: msgspec.Struct, reply: type[T]) -> T:
        """Repeat the call until the role runs again, and return the answer."""

        def attempt() -> T | None:
            try:
                return self(address, method, message, reply)
            except (NetworkError, NotRunning):
                return None

        return eventually(attempt, f"{address} answers {method}")


def run_ebla(deployment: str, *words: str, status: int = 0) -> Any:
    """Run a command in this process, and return its JSON document, or its output if the words have no `--json`."""
    done = CliRunner().invoke(app, [*words, "--name", deployment])
    assert done.exit_code == status, done.output
    return json.loads(done.stdout) if "--json" in words else done.stdout


def runs_again(namespace: str, address: str, killed: int) -> bool:
    """Whether the role runs in another process than the killed one."""
    found = asking.find_actor(namespace, address)
    if found is None:
        return False
    status = asking.poll({address: found}, time.monotonic() + 2.0)[address]
    return not isinstance(status, str) and status.state == "running" and status.pid != killed


@contextmanager
def restored_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Shared:
    """The cluster that modules share. A module that needs the cluster starts it if it does not run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cluster: LocalCluster | None = None
        self._common: DeploymentConfig | None = None

    def whole(self) -> LocalCluster:
        if self._cluster is None or LocalCluster.find(self.directory) is None:
            self._cluster = LocalCluster.start(
                len(HOSTS),
                directory=self.directory,
                dashboard=False,
                num_cpus=CPUS,
                auth="token",
                environment=LEAN,
            )
        for number in self._cluster.state.nodes:
            if not self._cluster.alive(number):
                self._cluster.start_node(number)
        return self._cluster

    def common(self) -> DeploymentConfig:
        """The deployment of the modules in COMMON, with the name that clients take by default."""
        if self._common is None:
            data_dir = str(self.directory / "common")
            config = configure({"data_dir": data_dir, "slots": THREE_HOSTS, "logs": True})
            assert launch.up(config).ready
            self._common = config
        return self._common

    def without_deployments(self) -> None:
        self._common = None
        for namespace in sorted(
            {each["namespace"] for each in ray.util.list_named_actors(all_namespaces=True)}
        ):
            if namespace.startswith("ebla-"):
                launch.down(namespace.removeprefix("ebla-"), timeout_s=DOWN_S)

    def end(self) -> None:
        if self._cluster is not None:
            self._cluster.kill_everything()


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = Shared(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def cluster(shared: Shared, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Four nodes, host-1 to host-4, and this process connected to them."""
    shares = request.path.stem in COMMON
    with restored_environment():
        found = shared.whole()
        connect_ray(found.address, directory=found.directory)
        try:
            if not shares:
                shared.without_deployments()
            yield found
            if ray.is_initialized() and not shares:
                shared.without_deployments()
        except BaseException:
            shared.end()
            raise
        finally:
            disconnect_ray()


@pytest.fixture(scope="module")
def common(shared: Shared, cluster: LocalCluster) -> DeploymentConfig:
    return shared.common()


@pytest.fixture
def faults(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[RealFaults]:
    """Faults on the deployment `NAME` of the module."""
    with RealFaults(request.module.NAME, cluster) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with their own cluster first, then those on the shared cluster, so that one cluster runs at a time; of these, first
    those on the deployment of COMMON. The module that ends the shared cluster is the last."""

    def turn(item: pytest.Item) -> tuple[bool, bool, bool]:
        shares, module = "shared" in getattr(item, "fixturenames", ()), item.path.stem
        return shares, shares and module not in COMMON, shares and module == "test_placement"

    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    for place, item in zip(places, sorted((items[place] for place in places), key=turn), strict=True):
        items[place] = item


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DeploymentConfig:
    return configure({"name": "test", "data_dir": str(tmp_path_factory.mktemp("data")), "slots": THREE_HOSTS})
