"""Where each deployment of this user keeps its data, so that `ebla up` finds it again without being told.

    ~/.ebla/data-dirs.json      deployment name -> data_dir of the last `ebla up`

Only a convenience: what is in the directory itself (deployment.json) is what counts.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ebla.placement.config import default_data_dir


def _file() -> Path:
    return Path.home() / ".ebla" / "data-dirs.json"


def known() -> dict[str, str]:
    """By name; empty if there is nothing, or nothing readable."""
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
