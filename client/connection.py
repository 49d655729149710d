"""`ebla.connect` and `ebla.local`: databases for code that does not await."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ebla.deployment import reach, start_local
from ebla.link import make_link
from ebla.table import Database
from ebla.transport.bridge import short


@short
def connect(name: str = "ebla", address: str | None = None, *, progress: bool = True) -> Database:
    """Connect to a deployment. Use it with `with`, which closes the connection at its end.

    Args:
        name: The deployment's name.
        address: The head of its Ray cluster, such as "10.0.0.5:6379". None: in a Ray task, actor or job, its own cluster;
            elsewhere RAY_ADDRESS, or the cluster on this machine.
        progress: Show the progress of calls that take more than 2 seconds, on a terminal or in a notebook. A pickled
            handle shows none.

    Raises:
        Unavailable: There is no Ray cluster, or no such deployment in it. The message names the remedy.
        InvalidArgument: The address is of a kind that ebla does not use, or of another cluster than this process's.
    """
    reached = reach(name, address)
    return Database((name, reached.address), make_link(name, progress, reached.roles))


@short
def local(
    hosts: int = 3,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    name: str = "ebla",
    settings: Mapping[str, Any] | None = None,
    dashboard: bool = False,
    masters: int | None = None,
    journals: int | None = None,
    progress: bool = True,
) -> Database:
    """Start a Ray cluster on this machine and a deployment on it, which both end when the database is closed.

    They end with the program, too, unless it is killed: then the next call with the same `data_dir` ends them, or the next call
    at all if there was none.

    Args:
        hosts: Ray nodes, each with a tablet server.
        data_dir: The rows stay there for the next call that names it. None: they are deleted with the database.
        name: The deployment's name.
        settings: As in the configuration file of `ebla up`.
        dashboard: Start Ray's dashboard, too.
        masters: Number of masters; several need several journals.
        journals: Number of nodes of the journal that keeps the masters' catalog; an odd number.
        progress: As in `connect`, and that of the start.

    Raises:
        InvalidArgument: This process is connected to a Ray cluster already, or a setting is invalid.
        Unavailable: The deployment did not come up.
    """
    counts = {"masters": masters, "journals": journals}
    address, end = start_local(hosts, data_dir, name, settings, dashboard, counts, progress)
    return Database((name, address), make_link(name, progress), end)
