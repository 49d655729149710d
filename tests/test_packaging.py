"""The wheel has every module under the name ebla, works with the core's packages alone, and on every Python it supports."""

from __future__ import annotations

import ast
import email
import json
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ebla.placement import extras
from ebla.placement.extras import EXTRAS, MissingPackage, needs
from tests.environments import (
    IMPORT_ALL,
    PYTHONS,
    SIMULATE,
    TESTERS,
    Environment,
    closure,
    create,
    install,
    interpreter,
    link,
    make_wheel,
    pinned,
)
from tests.source import ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Cores, row formats and simulation of other Pythons are tested without Ray, which is large and needs none of them.
NOT_NEEDED = ("ray",)
NOTEBOOK = "IPython"  # imported only in a notebook, which is a process of IPython
CORES = ("tests/stream/test_scenarios.py", "tests/storage/test_keys.py", "tests/placement/test_deadlines.py")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def requirements(wheel: zipfile.ZipFile) -> list[str]:
    """The requirements without extras."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    stated = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or []
    return [text for text in stated if "extra ==" not in text]


@pytest.fixture(scope="module")
def core(wheel: zipfile.ZipFile, path: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and the packages that it requires, and nothing else."""
    made = create(tmp_path_factory.mktemp("core"))
    done = install(made, "--no-deps", "--no-index", str(path))
    assert done.returncode == 0, done.stderr
    link(closure(requirements(wheel)), made.packages)
    return made


# -- the wheel -----------------------------------------------------------------------------------------------


def test_a_wheel_holds_every_module_under_the_name_ebla(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if name.endswith(".py")}
    assert held == {f"ebla/{path.removeprefix('client/')}" for path in modules()}
    assert "ebla/py.typed" in wheel.namelist()


# -- what is required ----------------------------------------------------------------------------------------


def imports(node: ast.AST) -> Iterator[str]:
    """The top-level packages that are imported below `node`, except where their absence is handled."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.split(".")[0]
    for child in ast.iter_child_nodes(node):
        if not handles_absence(child):
            yield from imports(child)


def handles_absence(node: ast.AST) -> bool:
    """Whether this is a `with needs(...)`, a `try` that catches ImportError, or is for the type checker only."""
    if isinstance(node, ast.With):
        return any(ast.unparse(item.context_expr).startswith("needs(") for item in node.items)
    if isinstance(node, ast.Try):
        caught = {ast.unparse(handler.type) for handler in node.handlers if handler.type is not None}
        return not caught.isdisjoint({"ImportError", "ModuleNotFoundError"})
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_every_import_is_of_a_required_package_or_says_which_extra_it_needs() -> None:
    homes = metadata.packages_distributions()
    required = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    offenders = [
        (path, name)
        for path, tree in modules().items()
        for name in dict.fromkeys(imports(tree))
        if name not in ("ebla", NOTEBOOK) and name not in sys.stdlib_module_names
        if required.isdisjoint(canonicalize_name(home) for home in homes.get(name, ()))
    ]
    assert offenders == []


def test_the_extras_are_those_of_the_project_and_their_modules_are_of_its_packages() -> None:
    declared = PROJECT["optional-dependencies"]
    assert declared.keys() == EXTRAS.keys()
    homes = metadata.packages_distributions()
    for extra, names in EXTRAS.items():
        brought = closure([f"ebla[{extra}]"])
        assert [name for name in names if canonicalize_name(homes[name][0]) not in brought] == []


def test_the_pinned_versions_are_in_the_stated_ranges() -> None:
    locked = {}
    for line in (ROOT / "requirements.lock").read_text().split():
        name, _, version = line.partition("==")
        locked[canonicalize_name(name)] = version
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    stated = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values(), groups["dev"]]
    wrong = [
        text
        for text in chain.from_iterable(stated)
        if (each := Requirement(text)).name != "ebla"
        and not each.specifier.contains(locked[canonicalize_name(each.name)])
    ]
    assert wrong == []


def test_the_supported_pythons_are_those_that_are_tested() -> None:
    supported = SpecifierSet(PROJECT["requires-python"])
    tested = {f"3.{sys.version_info[1]}", *PYTHONS}
    assert {f"3.{n}" for n in range(20) if f"3.{n}.9" in supported} == tested


# -- the core alone ------------------------------------------------------------------------------------------


def test_without_extras_every_module_can_be_imported_or_names_the_extra(core: Environment) -> None:
    count, lacking = json.loads(core.python(IMPORT_ALL))
    assert count > 400
    reports = {name for name, extra in lacking.items() if extra == "demo"}
    assert reports <= {"ebla.chaos.ray.report.page", "ebla.cli.chaos.running"}
    assert {name.rpartition(".")[0] for name in lacking.keys() - reports} == {"ebla.pipelines"}
    assert lacking["ebla.pipelines.session"] == lacking["ebla.pipelines.read"] == "spark"


def test_without_extras_the_packages_of_extras_are_absent(core: Environment) -> None:
    names = sorted({name for names in EXTRAS.values() for name in names})
    program = f"from importlib.util import find_spec; print([n for n in {names} if find_spec(n)])"
    assert core.python(program).strip() == "[]"


def test_without_extras_the_command_shows_its_help(core: Environment) -> None:
    shown = core.run("ebla", "--help")
    assert shown.returncode == 0 and "chaos" in shown.stdout, shown.stderr


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("demo", "ebla demo"),
        ("demo", "ebla chaos run"),
        ("demo", "ebla chaos simulate --seeds 1 --keep kept"),
        ("demo", "ebla feed flights t"),
        ("spark", "ebla feed t.csv t --engine spark"),
        ("spark", "ebla verify t.csv t --executors 1"),
    ],
)
def test_a_command_without_its_extra_begins_nothing_and_says_what_to_install(
    core: Environment, extra: str, command: str
) -> None:
    (core.root / "t.csv").write_text("k,v\n1,a\n")
    refused = core.run(*command.split(), "--json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["kind"], error["fields"]["extra"]) == (2, "MissingPackage", extra)
    shown = core.run(*command.split())
    assert shown.returncode == 2 and shown.stdout == ""
    assert f'pip install "ebla[{extra}]"' in shown.stderr and "Traceback" not in shown.stderr
    assert not (core.root / "kept").exists()


@pytest.fixture(scope="module")
def digest() -> str:
    return Environment(Path(sys.prefix)).python(SIMULATE)


def test_without_extras_a_deployment_is_simulated_and_has_the_same_history(
    core: Environment, digest: str
) -> None:
    assert core.python(SIMULATE) == digest


def test_a_missing_extra_is_an_import_error_with_the_package_and_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(EXTRAS, "spark", ("pyspark", "absent_package"))
    with (
        pytest.raises(ImportError, match=r'absent_package.*pip install "ebla\[spark\]"') as caught,
        needs("spark"),
    ):
        raise AssertionError("the block must not run")
    assert isinstance(caught.value, MissingPackage)
    assert (caught.value.extra, caught.value.module) == ("spark", "absent_package")
    with needs("spark", "pyspark"):
        pass


def test_on_a_python_without_spark_the_error_says_which_python_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = PROJECT["optional-dependencies"]["spark"]
    markers = [Requirement(text).marker for text in spark]
    newest = ".".join(map(str, extras.SPARK_PYTHON))
    following = f"{extras.SPARK_PYTHON[0]}.{extras.SPARK_PYTHON[1] + 1}"
    for marker in markers:
        assert marker is not None
        assert marker.evaluate({"python_version": newest}) and not marker.evaluate(
            {"python_version": following}
        )
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setattr(extras.sys, "version_info", (3, 13, 0))
    with (
        pytest.raises(MissingPackage, match=f"Spark runs on Python up to {newest}, not 3.13"),
        needs("spark"),
    ):
        pass


# -- other Pythons -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[pytest.param(each, marks=pytest.mark.deep) for each in PYTHONS])
def other(
    request: pytest.FixtureRequest, wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Another Python, with the wheel's modules and what they and their tests need, in the pinned versions where that Python has them. The environment
    remains for later runs, without the wheel."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    needed = [text for text in requirements(wheel) if Requirement(text).name not in NOT_NEEDED]
    wanted = pinned(closure([*needed, *TESTERS]).values())
    kept = ROOT / ".venv" / "pythons" / request.param
    stamp = kept / "requirements.txt"
    if not stamp.exists() or stamp.read_text().split() != wanted:
        shutil.rmtree(kept, ignore_errors=True)
        create(kept, python)
        done = install(Environment(kept), "--no-compile", *wanted)
        if done.returncode != 0:
            pytest.skip(
                f"packages for Python {request.param} cannot be installed: {done.stderr.strip()[-200:]}"
            )
        stamp.write_text("\n".join(wanted))
    unpacked = tmp_path_factory.mktemp(request.param)
    wheel.extractall(unpacked)
    return Environment(kept, {"PYTHONPATH": str(unpacked)})


@pytest.mark.timeout(900)  # the first time, packages are installed
def test_cores_and_row_formats_pass_their_tests_on_other_pythons(other: Environment) -> None:
    done = other.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORES, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_a_simulated_run_has_the_same_history_on_other_pythons(other: Environment, digest: str) -> None:
    assert other.python(SIMULATE) == digest
