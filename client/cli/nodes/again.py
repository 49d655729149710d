"""Where a deployment that is down has its data, and the command that starts it again there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ebla.cli.frame import places
from ebla.cli.frame.ui import NAME

if TYPE_CHECKING:
    from ebla.placement.launch import DownReport
    from ebla.placement.local.cluster import LocalCluster

CPUS = 4  # that each local node offers, unless another number is given


def directories(name: str, report: DownReport | None) -> tuple[str, ...]:
    """The data directories of the roles that were stopped. If none of them said it, that of this user's last `ebla up`; empty if
    there was none. Without a report no Ray cluster runs, and data can be in the default directory."""
    if report is not None and report.data_dirs:
        return report.data_dirs
    found = places.data_dir(name)
    return (found,) if name in places.known() or (report is None and Path(found).exists()) else ()


def data_dir(found: tuple[str, ...]) -> str | None:
    return found[0] if len(found) == 1 else None


def sentence(found: tuple[str, ...]) -> str:
    """Where the data is, as an introduction of the command that starts the deployment again."""
    if not found:
        return "the data stays, but no role said where; with its directory as DIR, this starts it again:"
    if len(found) > 1:
        return (
            f"the roles had data in {' and '.join(found)}; with the right one as DIR, this starts it again:"
        )
    return f"the data stays in {found[0]} on every host; this starts it again:"


def up_command(name: str, address: str | None, local: LocalCluster | None, data: str | None) -> str:
    """The command that starts the deployment again. `local`: the local cluster that has to be started first. `data`: the data
    directory; if it is unknown, the user has to fill it in, because in any other the deployment starts empty."""
    from ebla.placement.config import default_data_dir

    words = ["ebla", "up"]
    if local is not None:
        from ebla.placement.local.node import default_auth

        settings, mode = local.state.settings, local.state.settings.auth.mode
        words += ["--local", str(local.state.size)]
        default = mode == default_auth(local.directory, os.environ) == "disabled"  # a token is always named
        words += [] if default else ["--auth", mode]
        words += [] if settings.num_cpus == CPUS else ["--cpus", str(settings.num_cpus)]
        words += [] if settings.dashboard else ["--no-dashboard"]
    words += [] if address is None or local is not None else ["--address", address]
    needless = data == default_data_dir(name) == places.data_dir(name)
    words += [] if needless else ["--data-dir", data or "DIR"]
    return shlex.join(words if name == NAME else [*words, "--name", name])
