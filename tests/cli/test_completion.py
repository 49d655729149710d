"""Completion in shells: its installation, and the words that it offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    home: Path, words: str, offered: list[str]
) -> None:
    assert "ebla.sh" in (home / ".bashrc").read_text()
    complete = COMPLETED.format(words=words, last=len(words.split()))
    assert run(f"source {home / '.bash_completions' / 'ebla.sh'}; {complete}", home).split() == offered


def test_completion_for_zsh_offers_commands(tmp_path: Path) -> None:
    """Reads the script and its answers as text: zsh itself is not needed on the machine, and does not run the script here."""
    shown = run("_EBLA_COMPLETE=source_zsh ebla", tmp_path)
    assert "#compdef ebla" in shown
    offered = run("ebla; true", tmp_path, _EBLA_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="ebla jour")
    assert '"journal"' in offered
