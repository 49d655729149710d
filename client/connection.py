"""`ebla.connect` and `ebla.local`: databases for code that does not await."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ebla.deployment import reach, start_local
from ebla.link import make_link
from ebla.table import Database


def connect(name: str = "ebla", address: str | None = None) -> Database:
    """The deployment `name` in this Ray cluster, or in the Ray cluster at `address`. A context manager.

    Raises Unavailable, with the remedy, if there is no Ray cluster or no such deployment in it.
    """
    reached = reach(name, address)
    return Database((name, reached), make_link(name))


def local(
    hosts: int = 3,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    name: str = "ebla",
    settings: Mapping[str, Any] | None = None,
    dashboard: bool = False,
    masters: int | None = None,
    journals: int | None = None,
) -> Database:
    """A Ray cluster of `hosts` nodes on this machine and a deployment on it, until the database is closed.

    The rows stay in `data_dir` for the next call that names it; without `data_dir` they are deleted with the database.
    `settings` are those of the configuration file of `ebla up`; `masters` and `journals` are two of them.
    """
    counts = {"masters": masters, "journals": journals}
    settings = {**(settings or {}), **{key: count for key, count in counts.items() if count is not None}}
    address, end = start_local(hosts, data_dir, name, settings, dashboard)
    return Database((name, address), make_link(name), end)
