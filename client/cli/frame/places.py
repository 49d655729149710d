"""The data directories of this user's deployments, so that `ebla up` finds them again without --data-dir.

    ~/.ebla/data-dirs.json      deployment name -> data_dir of the last `ebla up`

This is only a default: deployment.json in the directory itself takes precedence.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ebla.placement.config import default_data_dir


def _file() -> Path:
    return Path.home() / ".ebla" / "data-dirs.json"


def known() -> dict[str, str]:
    """Data directories by name; empty without a readable file."""
    try:
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def data_dir(name: str) -> str:
    return known().get(name) or default_data_dir(name)


def remember(name: str, directory: str) -> None:
    found = known()
    if found.get(name) == directory:
        return
    path = _file()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode({**found, name: directory})))
    os.replace(partial, path)
