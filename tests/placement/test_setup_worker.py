"""The steps before a worker and a node of a local cluster: what they start is what Ray's own steps would start."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray._private import ray_constants
from ray._private.runtime_env.context import RuntimeEnvContext
from ray.core.generated.common_pb2 import Language

from ebla.placement.local import ray_start, setup_worker

WORKER = ["/ray/_private/workers/default_worker.py", "--node-ip-address=127.0.1.1", "--startup-token=7"]
PLAIN = {"env_vars": {"EBLA_A": "1", "EBLA_B": "two words"}, "py_executable": sys.executable}


def given(context: dict[str, Any], language: str = "PYTHON") -> list[str]:
    return [*WORKER, f"--language={language}", f"{setup_worker.CONTEXT}={json.dumps(context)}"]


@pytest.mark.parametrize(
    "context", [{}, PLAIN, {"env_vars": {"EBLA_A": ""}}], ids=["none", "plain", "an empty value"]
)
def test_a_worker_gets_the_command_and_the_variables_that_rays_own_step_gives_it(
    context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[str] = []
    monkeypatch.delenv("BASH_ENV", raising=False)
    monkeypatch.setattr(os, "execvp", lambda file, args: run.extend(args))
    before = dict(os.environ)
    try:
        RuntimeEnvContext.deserialize(json.dumps(context)).exec_worker(list(WORKER), Language.PYTHON)
        set_by_ray = {name: value for name, value in os.environ.items() if before.get(name) != value}
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert run[:2] == ["bash", "-c"]
    found = setup_worker.start_of(given(context))
    assert found is not None
    assert (["exec", *found[0]], found[1]) == (shlex.split(run[2]), set_by_ray)


@pytest.mark.parametrize(
    "arguments",
    [
        given(PLAIN, "JAVA"),
        given({**PLAIN, "command_prefix": ["cd", "/x", "&&"]}),
        given({**PLAIN, "override_worker_entrypoint": "/x.py"}),
        given({**PLAIN, "py_executable": "uv run"}),
        given({**PLAIN, "env_vars": {"PATH": "/x:${PATH}"}}),
        given({**PLAIN, "unknown": 1}),
        [*WORKER, "--language=PYTHON", f"{setup_worker.CONTEXT}=no JSON"],
        WORKER,
    ],
    ids=["Java", "a prefix", "an entrypoint", "a command", "a variable of others", "new", "no JSON", "none"],
)
def test_what_this_step_does_not_understand_is_left_to_rays_own(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *command: run.extend(command))
    setup_worker.main(arguments, {"A": "1"})
    path, command, environment = run
    assert (path, command[0], command[2:], environment) == (
        sys.executable,
        sys.executable,
        arguments,
        {"A": "1"},
    )
    assert Path(command[1]).read_text().count("exec_worker") == 1


def test_the_step_becomes_the_worker_with_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import os, sys; print(os.getppid(), os.environ['EBLA_A'], sys.argv[1:])"
    monkeypatch.delenv("BASH_ENV", raising=False)
    arguments = ["-c", script, f"{setup_worker.CONTEXT}", json.dumps(PLAIN), "--language=PYTHON", "last"]
    ran = subprocess.run(
        [sys.executable, setup_worker.__file__, *arguments], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{os.getpid()} 1 ['last']\n"


def test_the_file_has_the_name_by_which_ray_knows_the_step() -> None:
    assert Path(setup_worker.__file__).name == ray_constants.SETUP_WORKER_FILENAME


def test_the_environment_of_bash_is_left_to_rays_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASH_ENV", "/etc/modules.sh")  # which bash reads before it becomes the worker
    assert setup_worker.start_of(given(PLAIN)) is None


def test_ray_start_goes_on_without_the_commands_that_are_never_run() -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", ray_start.__name__, "start", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--node-ip-address" in shown.stdout
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    for each in ray_start.UNUSED:
        assert each.rpartition(".")[0] not in imported
        assert each in Path(sys.modules["ray"].__path__[0], "scripts", "scripts.py").read_text()
