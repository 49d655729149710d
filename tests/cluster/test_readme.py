"""The example of the README works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import REPOSITORY

pytestmark = pytest.mark.cluster


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert found is not None
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", found[1]],
        env={**inherited, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "{'id': 1, 'name': 'ada', 'score': 9.5}" in done.stdout
    assert re.search(r"ada +┆ 9\.5 .*kay +┆ 8\.0 ", done.stdout, re.DOTALL), done.stdout
    assert done.stdout.endswith("first Written(rows=1)\nretry Written(rows=1)\n"), done.stdout
