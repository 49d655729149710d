"""Environments in which the wheel is tested: only with the core's packages, and with other Pythons."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.source import FOLDERS, ROOT

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
RUN_S_MAX = 240
PYTHONS = ("3.10", "3.12", "3.13")  # besides the one that runs the tests
TESTERS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")

# Imports every module. Prints how many there are, and the extra for each one that cannot be imported without it.
IMPORT_ALL = """
import importlib, json, pkgutil, ebla
from ebla.placement.extras import MissingPackage
names = [each.name for each in pkgutil.walk_packages(ebla.__path__, "ebla.") if not each.name.endswith("__main__")]
lacking = {}
for name in names:
    try:
        importlib.import_module(name)
    except MissingPackage as error:
        lacking[name] = error.extra
print(json.dumps([len(names), lacking]))
"""

# Runs a simulated deployment, in which everything must hold. Prints the digest of its history.
SIMULATE = """
from ebla.chaos.runs import Run, plan_of
from ebla.chaos.scenarios.scenarios import scenario
wanted = scenario("chains")
report = Run(wanted, plan_of(wanted, 7)).go()
assert not report.violation and not report.void, report
print(report.digest)
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment. `variables` are added to those of this process, except Python's and Ray's own."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def run(
        self, *command: str, cwd: Path | None = None, within_s: float = RUN_S_MAX
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment. It finds neither this process's packages nor its Ray cluster."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAY_", "EBLA_", "PYTEST_"))
        }
        return subprocess.run(
            [str(self.root / "bin" / command[0]), *command[1:]],
            env={**kept, "COLUMNS": "80", **self.variables},
            cwd=cwd or self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
        )

    def python(self, program: str) -> str:
        """The output of a program, which must end with exit status 0."""
        done = self.run("python", "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def packages(self) -> Path:
        (found,) = self.root.glob("lib/python*/site-packages")
        return found


def create(root: Path, python: Path | str = sys.executable) -> Environment:
    """An empty environment; pip is not in it, `install` uses this process's pip."""
    subprocess.run([python, "-m", "venv", "--without-pip", root], check=True, capture_output=True)
    return Environment(root)


def install(environment: Environment, *words: str) -> subprocess.CompletedProcess[str]:
    """Give up soon where there is no package index."""
    python, patience = str(environment.root / "bin" / "python"), ("--timeout", "15", "--retries", "1")
    command = [*PIP, "--python", python, "install", "--quiet", *patience, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def pinned(packages: Iterable[metadata.Distribution]) -> list[str]:
    """The versions of this environment, or the newest before them that another Python has."""
    return sorted(f"{package.metadata['Name']}<={package.version}" for package in packages)


@functools.cache
def interpreter(version: str) -> Path | None:
    """A Python of this version, from the PATH or from pyenv."""
    known = sorted(
        (Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob(
            f"{version}.*/bin/python"
        )
    )
    found = shutil.which(f"python{version}")
    for path in [*([Path(found)] if found else []), *known]:
        said = subprocess.run([path, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
        if said.stdout.startswith(f"{version}."):
            return path
    return None


def make_wheel(target: Path) -> Path:
    source = target / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", *FOLDERS):
        (source / name).symlink_to(ROOT / name)
    command = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(target), str(source)], check=True, cwd=target)
    return next(target.glob("ebla-*.whl"))


# -- packages of this environment ----------------------------------------------------------------------------


def closure(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The installed packages that the requirements need, also indirectly, by name."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        found[name] = package = metadata.distribution(name)
        for extra in ("", *wanted.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                below = [Requirement(text) for text in package.requires or ()]
                waiting += [each for each in below if applies(each, extra)]
    return found


def applies(requirement: Requirement, extra: str = "") -> bool:
    """Whether the requirement holds here, and only if `extra` is requested."""
    marker = requirement.marker
    if not extra:
        return marker is None or marker.evaluate({"extra": ""})
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def link(packages: dict[str, metadata.Distribution], site: Path) -> None:
    """Make these packages, and no others of this environment, importable in another: links to the largest directories that
    have only files of these packages."""
    inside: list[tuple[metadata.Distribution, PurePath]] = []
    outside: set[PurePath] = set()
    for package in metadata.distributions():
        chosen = canonicalize_name(package.metadata["Name"]) in packages
        for file in package.files or ():
            if file.parts[0] == ".." or file.is_absolute() or file.parts[0] == "__pycache__":
                continue
            if chosen:
                inside.append((package, PurePath(file)))
            else:
                outside.update(PurePath(file).parents)
    for package, file in inside:
        whole = [*(parent for parent in reversed(file.parents) if parent.name), file]
        linked = next(each for each in whole if each not in outside)
        target = site / linked
        if not target.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(str(package.locate_file(str(linked))))
