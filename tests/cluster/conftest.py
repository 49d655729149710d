"""Real Ray, on this machine: a cluster of nodes with slot labels, and what tests need to use and to hurt it.

`cluster` lives for one test module and is connected to; its processes and temporary files are gone afterwards,
whatever the tests did to it. Nothing here waits for a fixed time: `eventually` polls within a deadline.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import ray

from ebla.actors.errors import NetworkError, NotRunning
from ebla.actors.ray_world import RayNetwork
from ebla.placement.config import DeploymentConfig, configure
from ebla.placement.connection import connect_ray
from ebla.placement.local_cluster import LocalCluster

REPOSITORY = Path(__file__).parent.parent.parent
WITHIN_S = 60.0
POLL_S = 0.05

T = TypeVar("T")


def eventually(check: Callable[[], T | None], what: str, within_s: float = WITHIN_S) -> T:
    """The first true answer of `check`, or a failure that says what did not come about."""
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
        """The answer, once the role that was lost is there again. Only for calls that may be repeated."""

        def attempt() -> T | None:
            try:
                return self(address, method, message, reply)
            except (NetworkError, NotRunning):
                return None

        return eventually(attempt, f"{address} answers {method}")


def start_cluster(directory: Path, nodes: int = 3, **options: object) -> LocalCluster:
    """The repository is importable on every node, for the roles that only tests have."""
    environment = {"PYTHONPATH": str(REPOSITORY), **dict(options.pop("environment", {}))}  # type: ignore[call-overload]
    settings: dict[str, object] = {"auth": "disabled", **options}
    return LocalCluster.start(nodes, directory=directory, environment=environment, **settings)  # type: ignore[arg-type]


def connect(cluster: LocalCluster) -> None:
    connect_ray(cluster.address, directory=cluster.directory)


def disconnect() -> None:
    ray.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, host-1 to host-3, and this process connected to them."""
    before = dict(os.environ)
    started = start_cluster(tmp_path_factory.mktemp("cluster"))
    try:
        connect(started)
        yield started
    finally:
        disconnect()
        found = LocalCluster.find(started.directory)
        if found is not None:
            found.kill_everything()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DeploymentConfig:
    return configure({"name": "test", "data_dir": str(tmp_path_factory.mktemp("data"))})
