"""Every script in examples/ runs on a real deployment, as its first lines say. test_pipelines.py runs the one with Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ebla.placement.config import DeploymentConfig
from ebla.placement.local.cluster import LocalCluster
from tests.cluster.conftest import REPOSITORY, SPARK_EXAMPLE

pytestmark = pytest.mark.cluster

EXAMPLES = sorted(set((REPOSITORY / "examples").glob("*.py")) - {SPARK_EXAMPLE})
LONG = "ray_data_pipeline"
TOGETHER = 2
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(
    cluster: LocalCluster,
    common: DeploymentConfig,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[dict[Path, Future[Done]]]:
    """The requested scripts, in the environment of a user's shell on a node of a cluster with a deployment."""
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}

    def run(script: Path) -> Done:
        return subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            cwd=tmp_path_factory.mktemp(script.stem),
            capture_output=True,
            text=True,
            timeout=600,
        )

    requested = {
        item.callspec.params["script"] for item in request.session.items if item.path == Path(__file__)
    }
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield {script: pool.submit(run, script) for script in sorted(requested)}


@pytest.mark.parametrize(
    "script",
    [pytest.param(each, marks=pytest.mark.deep if each.stem == LONG else ()) for each in EXAMPLES],
    ids=[each.stem for each in EXAMPLES],
)
def test_the_example_runs(runs: dict[Path, Future[Done]], script: Path) -> None:
    done = runs[script].result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows its result"
