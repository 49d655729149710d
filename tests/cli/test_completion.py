"""Completion in shells: its installation, and the words that it offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.errors import NoCluster, TimedOut
from ebla.cli.app import app
from tests.cli.stage import Cli, LogStage, invoke

BIN = Path(sys.executable).parent
COMPLETED = 'COMP_WORDS=(ebla {words}); COMP_CWORD={last}; _ebla_completion ebla; echo "${{COMPREPLY[@]}}"'


def run(shell: str, home: Path, **more: str) -> str:
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        **more,
    }
    done = subprocess.run(["bash", "-c", shell], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("home")
    run("ebla --install-completion; true", made)
    return made


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tab", ["table", "tablet"]),
        ("table de", ["describe", "delete"]),
        ("tablet quarantine pu", ["purge"]),
        ("status --js", ["--json"]),
    ],
)
def test_completion_for_bash_is_installed_and_offers_commands_and_options(
    installed: Path, words: str, offered: list[str]
) -> None:
    assert "ebla.sh" in (installed / ".bashrc").read_text()
    complete = COMPLETED.format(words=words, last=len(words.split()))
    script = installed / ".bash_completions" / "ebla.sh"
    assert run(f"source {script}; {complete}", installed).split() == offered


def test_completion_is_installed_for_the_shell_that_is_named(home: Path) -> None:
    assert "fish completion installed" in invoke("--install-completion", "fish").out
    assert (home / ".config" / "fish" / "completions" / "ebla.fish").is_file()
    assert "#compdef ebla" in invoke("--show-completion", "zsh").out
    for option in ("--install-completion", "--show-completion"):
        invoke(option, "tcsh").require(2, "there is no completion for 'tcsh'; the shells are bash, zsh, fish")
    assert [path.name for path in home.iterdir()] == [".config"]


def offered(words: str) -> list[str]:
    """What bash gets for the last word, which is empty after a space."""
    last = len(words.split()) + words.endswith(" ")
    environment = {
        "_EBLA_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ebla {words}",
        "COMP_CWORD": str(last),
    }
    result = CliRunner().invoke(app, env=environment, catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.split()


async def two_tables(stage: LogStage) -> None:
    await stage.log()
    await stage.table()
    await stage.table("fares")


def test_names_of_tables_and_logs_are_offered_as_the_last_command_at_a_terminal_saw_them(
    stored: Cli,
) -> None:
    assert offered("table get ") == []
    assert stored("table list", prepare=two_tables).status == 0
    assert offered("table get ") == [], "scripts leave nothing behind"
    assert stored("table list", prepare=two_tables, typed="").status == 0
    for command in ("table get", "table scan", "feed people.csv", "check", "check fares", "tablet list -t"):
        assert offered(f"{command} f") == ["fares", "flights"], command
    assert offered("table describe fl") == ["flights"]
    assert offered("log tail ") == ["events"]
    assert offered("table get flights ") == []
    stored("table drop fares -y", prepare=two_tables, typed="")
    assert offered("table get ") == ["flights"]


def test_each_deployment_has_its_own_names_until_it_is_down(
    loaded: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(address: str | None) -> NoReturn:
        raise NoCluster("no Ray cluster runs on this machine")

    monkeypatch.setattr("ebla.placement.connection.connect_ray", nowhere)
    loaded("table list --name other", typed="")
    assert offered("--name other table get ") == offered("table get --name other ") == ["flights"]
    assert offered("table get ") == []
    loaded("table count flights", typed="")
    assert offered("table get ") == ["flights"]
    assert invoke("down", "-y").status == 0
    assert offered("table get ") == []
    assert offered("--name other table get ") == ["flights"]


@pytest.mark.parametrize("words", ["--install-completion tcsh ", "table get --name ", "feed -m wrong a "])
def test_a_wrong_command_line_is_completed_in_silence(words: str) -> None:
    assert "flights" not in offered(words)


def test_a_command_does_not_wait_for_names(loaded: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_once = MasterClient.ask_once

    async def silent(self: MasterClient, method: str, *given: Any, **more: Any) -> Any:
        if method == "read_node":
            raise TimedOut("no answer", deadline_s=1.0)
        return await ask_once(self, method, *given, **more)

    monkeypatch.setattr(MasterClient, "ask_once", silent)
    assert loaded("table count flights", typed="").lines == ["20"]
    assert offered("table get ") == []


def test_names_are_offered_in_silence_without_a_connection(home: Path) -> None:
    (home / ".ebla").mkdir()
    (home / ".ebla" / "names.json").write_text("damaged")
    code = (
        "import sys, atexit, ebla.cli\n"
        "heavy = {'ray', 'pyarrow', 'pandas', 'numpy', 'asyncio', 'pydantic'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))))\n"
        "ebla.cli.main()"
    )
    more = {"_EBLA_COMPLETE": "complete_bash", "COMP_WORDS": "ebla table get ", "COMP_CWORD": "3"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["[]"], "")


def test_completion_for_zsh_offers_commands(tmp_path: Path) -> None:
    """Reads the script and its answers as text: zsh itself is not needed on the machine, and does not run the script here."""
    shown = run("_EBLA_COMPLETE=source_zsh ebla", tmp_path)
    assert "#compdef ebla" in shown
    offered = run("ebla; true", tmp_path, _EBLA_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="ebla jour")
    assert '"journal"' in offered
