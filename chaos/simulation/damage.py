"""Damage to the records of a simulated disk, and readings of a disk from outside.

Each damage returns the path of the damaged environment, or "" if none was suitable. The choice depends only on `chance` and
the disk's contents.
"""

from __future__ import annotations

from random import Random

import msgspec

from ebla.actors import catalog_versions, incarnations
from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.messages import ServerInstance
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.directories.records import unseal
from ebla.storage.tablets.tablet_store import ROWS

NEVER_STALE = ("consensus-meta", "tablet-meta")  # a stale vote is beyond the budget: see docs/testing.md


def rot(state: DurableState, chance: Random) -> str:
    tables = _tables(state, 1)
    rows = [each for each in tables if each[1] == ROWS]
    if not tables:
        return ""
    path, name = chance.choice(rows if rows and chance.random() < 0.5 else tables)
    state.rot(path, name, chance.choice(list(state.environments[path][name])))
    return path


def misdirect(state: DurableState, chance: Random) -> str:
    tables = _tables(state, 2)
    if not tables:
        return ""
    path, name = chance.choice(tables)
    state.misdirect(path, name, *chance.sample(list(state.environments[path][name]), 2))
    return path


def make_stale(state: DurableState, old: DurableState, chance: Random) -> str:
    """Restore one record from `old`."""
    records = [
        (path, name, key)
        for path, name in _tables(state, 1)
        if path not in NEVER_STALE and name != ROWS
        for key, value in old.environments.get(path, {}).get(name, {}).items()
        if state.environments[path][name].get(key, value) != value
    ]
    if not records:
        return ""
    path, name, key = chance.choice(records)
    return path if state.make_stale(path, name, key, old) else ""


def known_seqno(state: DurableState, uuid: str) -> int:
    """The highest number of this server's incarnations that a role has on disk."""
    for path in ("consensus-meta", "catalog"):
        found = state.environments.get(path, {}).get(incarnations.DATABASE, {}).get(uuid.encode())
        if found is not None:
            body = unseal(uuid.encode(), found, path)
            return msgspec.msgpack.decode(body, type=ServerInstance).seqno
    return 0


def seen_catalog(state: DurableState) -> CatalogVersion | None:
    """The newest version of the catalog that the server has on disk."""
    name = catalog_versions.RECORD.encode()
    found = state.environments.get("consensus-meta", {}).get(catalog_versions.DATABASE, {}).get(name)
    if found is None:
        return None
    return msgspec.msgpack.decode(unseal(name, found, "consensus-meta"), type=CatalogVersion)


def _tables(state: DurableState, records_min: int) -> list[tuple[str, str]]:
    """(environment, database) of those with at least `records_min` records."""
    return [
        (path, name)
        for path in sorted(state.environments)
        for name, table in sorted(state.environments[path].items())
        if len(table) >= records_min
    ]
