"""Every script in examples/ runs on a real deployment, as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from tests.cluster.conftest import REPOSITORY, THREE_HOSTS

pytestmark = pytest.mark.cluster

SLOWEST = REPOSITORY / "examples" / "spark_pipeline.py"
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"), key=lambda script: (script != SLOWEST, script))
AT_A_TIME = 2

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def running(
    cluster: LocalCluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[Done]]]:
    """The selected scripts, some at a time, in the environment of a user's shell on a node with a deployment. No two scripts use
    the same table."""
    data_dir = tmp_path_factory.mktemp("examples") / "data"
    assert launch.up(configure({"data_dir": str(data_dir), "slots": THREE_HOSTS})).ready
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    items = [item for item in request.session.items if item.getparent(pytest.Module) is request.node]
    scripts = [item.callspec.params["script"] for item in items if isinstance(item, pytest.Function)]

    def run(script: Path) -> Done:
        return subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            cwd=tmp_path_factory.mktemp(script.stem),
            capture_output=True,
            text=True,
            timeout=200,
        )

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {script: pool.submit(run, script) for script in scripts}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(running: dict[Path, Future[Done]], script: Path) -> None:
    done = running[script].result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows its result"
