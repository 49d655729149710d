"""What commands remember of this user's deployments: the data directories, so that `ebla up` finds them again without --data-dir,
the commands that start them again, and the names that completion offers.

    ~/.ebla/data-dirs.json      deployment name -> data_dir of the last `ebla up`
    ~/.ebla/up-commands.json    deployment name -> the command that starts what the last `ebla up` started
    ~/.ebla/names.json          deployment name -> names of its tables and of its logs
    ~/.ebla/places.lock         held while one of them is replaced

A data directory here is only a default: deployment.json in the directory itself takes precedence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec

from ebla.placement.config import default_data_dir

DATA_DIRS, UP_COMMANDS, NAMES = "data-dirs.json", "up-commands.json", "names.json"
LOCK = "places.lock"
TYPES: dict[str, Any] = {
    DATA_DIRS: dict[str, str],
    UP_COMMANDS: dict[str, str],
    NAMES: dict[str, dict[str, list[str]]],
}


def _read(file: str) -> dict[str, Any]:
    """Values by deployment; empty without a readable file."""
    try:
        found: dict[str, Any] = msgspec.json.decode(
            (Path.home() / ".ebla" / file).read_bytes(), type=TYPES[file]
        )
    except (OSError, msgspec.MsgspecError):
        return {}
    return found


def known() -> dict[str, str]:
    """Data directories by name."""
    return _read(DATA_DIRS)


def up_command(name: str) -> str | None:
    """The command that starts the deployment as the last `ebla up` did."""
    return _read(UP_COMMANDS).get(name)


def data_dir(name: str) -> str:
    return known().get(name) or default_data_dir(name)


def names(name: str) -> dict[str, list[str]]:
    """The names of the deployment's `tables` and `logs`, as the last command saw them."""
    found: dict[str, list[str]] = _read(NAMES).get(name, {})
    return found


def remember(name: str, directory: str) -> None:
    _write(DATA_DIRS, name, directory)


def remember_up(name: str, command: str) -> None:
    _write(UP_COMMANDS, name, command)


def remember_names(name: str, found: dict[str, list[str]]) -> None:
    _write(NAMES, name, found)


def _write(file: str, name: str, value: Any) -> None:
    if _read(file).get(name) == value:
        return
    path = Path.home() / ".ebla" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(path.with_name(LOCK), "w") as lock:
        with contextlib.suppress(OSError):  # of a home directory without locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # another command may remember something at the same time
        partial.write_bytes(msgspec.json.format(msgspec.json.encode({**_read(file), name: value})))
        os.replace(partial, path)
