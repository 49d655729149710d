"""The step before each worker of a local cluster that has a runtime environment, instead of Ray's setup_worker.py: it sets the
variables of the environment, and becomes the worker.

Ray's own step imports all of Ray for that, 1 s of CPU for each role, and each task or actor that starts a process. What this step
does not understand it leaves to Ray's: workers of other languages, containers, commands with a prefix, variables made of others.

Ray runs this file by its path, and leaves it out where there is no environment: it knows such a step by this file's name. The file
imports nothing of ebla, and nothing of Ray.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

CONTEXT, LANGUAGE = "--serialized-runtime-env-context", "--language"


def start_of(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]] | None:
    """The worker's command and its additional variables; None if Ray's own step must find them."""
    given, rest = _parted(arguments)
    try:
        context = json.loads(given.get(CONTEXT) or "{}")
    except ValueError:
        return None
    if given.get(LANGUAGE) != "PYTHON" or not isinstance(context, dict):
        return None
    variables, executable = context.pop("env_vars", None) or {}, context.pop("py_executable", None)
    if any(context.values()) or executable not in (None, sys.executable) or "BASH_ENV" in os.environ:
        return None
    if any("$" in value for value in variables.values()):
        return None
    return [sys.executable, *rest], variables


def _parted(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of the two options that are for this step, and the worker's arguments."""
    given: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in (CONTEXT, LANGUAGE):
            given[name] = value if equals else next(words, "")
        else:
            rest.append(word)
    return given, rest


def rays_own(arguments: Sequence[str]) -> list[str]:
    spec = find_spec("ray")
    assert spec is not None and spec.submodule_search_locations, "Ray runs this file"
    path = os.path.join(next(iter(spec.submodule_search_locations)), "_private", "workers", "setup_worker.py")
    return [sys.executable, path, *arguments]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    found = start_of(arguments)
    command, variables = found if found is not None else (rays_own(arguments), {})
    os.execve(command[0], command, {**environment, **variables})


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
