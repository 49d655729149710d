"""The data directories of this user's deployments, so that `ebla up` finds them again without --data-dir, and the commands that
start them again.

    ~/.ebla/data-dirs.json      deployment name -> data_dir of the last `ebla up`
    ~/.ebla/up-commands.json    deployment name -> the command that starts what the last `ebla up` started

This is only a default: deployment.json in the directory itself takes precedence.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ebla.placement.config import default_data_dir

DATA_DIRS, UP_COMMANDS = "data-dirs.json", "up-commands.json"


def _read(file: str) -> dict[str, str]:
    """Texts by name; empty without a readable file."""
    try:
        return msgspec.json.decode((Path.home() / ".ebla" / file).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def known() -> dict[str, str]:
    """Data directories by name."""
    return _read(DATA_DIRS)


def up_command(name: str) -> str | None:
    """The command that starts the deployment as the last `ebla up` did."""
    return _read(UP_COMMANDS).get(name)


def data_dir(name: str) -> str:
    return known().get(name) or default_data_dir(name)


def remember(name: str, directory: str) -> None:
    _write(DATA_DIRS, name, directory)


def remember_up(name: str, command: str) -> None:
    _write(UP_COMMANDS, name, command)


def _write(file: str, name: str, text: str) -> None:
    found = _read(file)
    if found.get(name) == text:
        return
    path = Path.home() / ".ebla" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode({**found, name: text})))
    os.replace(partial, path)
