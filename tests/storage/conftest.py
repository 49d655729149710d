"""Fixtures for tests of disks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.storage.children import SHIM
from tests.storage.two_disks import Two


@pytest.fixture(scope="session")
def failing_sync(tmp_path_factory) -> Path:
    """A library that makes fdatasync fail, or on one disk hang, as a device does, while a control file exists."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("skipped: no C compiler to build the library that makes fdatasync fail")
    place = tmp_path_factory.mktemp("shim")
    (place / "shim.c").write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-o", str(place / "shim.so"), str(place / "shim.c"), "-ldl"]
    subprocess.run(command, check=True)
    return place / "shim.so"


@pytest.fixture
def two(tmp_path: Path, request: pytest.FixtureRequest) -> Two:
    """A parameter says whether the target disk has a data directory."""
    return Two(tmp_path, *[tmp_path / "d0"] * getattr(request, "param", False))
