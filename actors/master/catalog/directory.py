"""A master's own directory: the environment of its checkpoints, and a mark that the environment exists.

With the mark, a missing environment is a loss. The mark is made after the environment, so that a crash
while the directory is being formatted is not taken for a loss. The journal's only node has its environment
in the same directory.

A directory that turned out to be an older copy (actors/catalog_versions.py) also gets a mark; a master no
longer serves from it, unless an operator accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebla.actors import incarnations
from ebla.actors import messages as m
from ebla.actors.incarnations import Incarnations
from ebla.actors.master.catalog import checkpoint
from ebla.actors.master.catalog.checkpoint import Checkpoints
from ebla.actors.world import World, new_id
from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import Environment, Put
from ebla.storage.errors import OldCopy

CATALOG = "catalog"
FORMATTED, OLD = "catalog-formatted", "catalog-old"
_MARK = "mark"
_WHY = b"why"


@dataclass(frozen=True)
class Directory:
    """An open directory. `incarnations` saves nothing before it is started."""

    instance: m.ServerInstance
    environment: Environment
    checkpoints: Checkpoints
    incarnations: Incarnations


async def open_directory(world: World, *, accepts: bool = False) -> Directory:
    """Open the directory. Raises OldCopy for an older copy, unless an operator `accepts` one."""
    found = await world.disk.open_instance(new_id(world.random))
    instance = m.ServerInstance(found.uuid, found.seqno, new_id(world.random))
    environment = await _open_environment(world)
    if world.disk.exists(OLD):
        await _require_accepted(world, accepts)
    known = RecordStore(environment, incarnations.DATABASE, m.ServerInstance)
    return Directory(instance, environment, Checkpoints(environment), Incarnations(world, "master", known))


async def mark_old(world: World, why: str) -> None:
    """Mark the directory as an older copy, durably when this returns."""
    if not world.disk.exists(OLD):
        mark = await world.disk.open_environment(OLD, (_MARK,), create=True, map_bytes=1 << 20)
        await mark.commit([Put(_MARK, [(_WHY, why.encode())])])
        await mark.close()


async def _require_accepted(world: World, accepts: bool) -> None:
    mark = await world.disk.open_environment(OLD, (_MARK,), create=False, map_bytes=1 << 20)
    why = mark.get(_MARK, _WHY)
    await mark.close()
    if not accepts:
        raise OldCopy((why or b"older copy of the catalog, bring back the newest").decode())
    await world.disk.remove(OLD)


async def _open_environment(world: World) -> Environment:
    disk = world.disk
    formatted = disk.exists(FORMATTED)
    environment = await disk.open_environment(
        CATALOG, (checkpoint.DATABASE, incarnations.DATABASE), create=not formatted
    )
    if not formatted:
        await world.faults.here("master.format.before_mark")
        await _make_mark(world, FORMATTED)
    return environment


async def _make_mark(world: World, path: str) -> None:
    mark = await world.disk.open_environment(path, (_MARK,), create=True, map_bytes=1 << 20)
    await mark.close()
