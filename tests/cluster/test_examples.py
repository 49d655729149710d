"""Every script in examples/ runs on a real deployment, as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from tests.cluster.conftest import REPOSITORY, THREE_HOSTS

pytestmark = pytest.mark.cluster

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def environment(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user's shell on a node of a cluster with a deployment."""
    data_dir = tmp_path_factory.mktemp("examples") / "data"
    assert launch.up(configure({"data_dir": str(data_dir), "slots": THREE_HOSTS})).ready
    return {**os.environ, "RAY_ADDRESS": cluster.address}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(environment: dict[str, str], script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows its result"
