"""`make installs`: the wheel and all its requirements from the package index, in an empty environment of each Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.environments import (
    IMPORT_ALL,
    PYTHONS,
    SIMULATE,
    TESTERS,
    Environment,
    create,
    install,
    interpreter,
    make_wheel,
    pinned,
)
from tests.source import ROOT

pytestmark = [pytest.mark.installs, pytest.mark.timeout(3600)]

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
ROOMS = ("raft", "storage", "tablet", "journal", "client", "coordination", "placement")
FRAMES = ("polars", "duckdb")  # whose rows tests of the client write
LONG = ("*random*", "*sweeps*", "*mutants*")
TESTS_S_MAX = 1800
COLUMNS = ("-c", "k:int64", "-c", "v:string")
USE = """
import ebla
with ebla.connect() as db:
    table = db.table("t")
    table.upsert([{"k": number, "v": str(number)} for number in range(1000)])
    assert table.scan().to_pandas().v.tolist() == sorted((str(n) for n in range(1000)), key=int)
    print(table.get({"k": 7}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=[OWN, *PYTHONS])
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The newest packages that the wheel's ranges allow, not those of requirements.lock."""
    python = sys.executable if request.param == OWN else interpreter(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    made = create(tmp_path_factory.mktemp("installed"), python)
    done = install(made, str(wheel), *pinned(map(metadata.distribution, (*TESTERS, *FRAMES))))
    assert done.returncode == 0, done.stderr
    return made


def test_every_module_can_be_imported_or_names_its_extra(installed: Environment) -> None:
    count, lacking = json.loads(installed.python(IMPORT_ALL))
    assert count > 400 and set(lacking.values()) == {"spark", "demo"}


def test_a_seed_has_one_history(installed: Environment) -> None:
    assert installed.python(SIMULATE) == Environment(Path(sys.prefix)).python(SIMULATE)


def test_roles_and_client_pass_their_tests(installed: Environment) -> None:
    left_out = [word for pattern in LONG for word in ("--ignore-glob", pattern)]
    folders = [f"tests/{room}" for room in ROOMS]
    done = installed.run(
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *folders),
        cwd=ROOT,
        within_s=TESTS_S_MAX,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr


@pytest.fixture
def operator(installed: Environment, tmp_path: Path) -> Iterator[Environment]:
    """An operator with an empty home directory."""
    found = Environment(installed.root, {"HOME": str(tmp_path), "EBLA_LOCAL_DIR": str(tmp_path / "local")})
    yield found
    found.run("ebla", "down", "-y")


def test_a_deployment_on_ray_serves_rows(operator: Environment) -> None:
    up = operator.run("ebla", "up", "--local", "3", "--auth", "token", "--json")
    assert up.returncode == 0, up.stderr
    assert json.loads(up.stdout)["warnings"] == []
    for command in (("table", "create", "t", *COLUMNS, "--key", "k"), ("check", "--checksum")):
        done = operator.run("ebla", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert operator.python(USE).strip() == "{'k': 7, 'v': '7'}"
    down = operator.run("ebla", "down", "-y", "--json")
    assert down.returncode == 0 and json.loads(down.stdout)["changed"], down.stderr
