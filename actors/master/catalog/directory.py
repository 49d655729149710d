"""What a master keeps in its own directory, and how it is opened: the catalog's environment, and a mark that it is there.

A catalog that was there once must be there. The mark that it was is made after it, so that a crash while the directory is
being formatted is not taken for a loss.

A directory that turned out to be an older copy (actors/catalog_versions.py) is marked, too, and not served from any more, unless an
operator accepts it.

Nor does a catalog come back to its directory that was moved into a journal (leadership/mover.py): a second mark, made before the journal
has it, keeps a master that would keep its own catalog from ever beginning there again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebla.actors import incarnations
from ebla.actors import messages as m
from ebla.actors.incarnations import Incarnations
from ebla.actors.master.catalog import checkpoint, edit_log
from ebla.actors.master.catalog.checkpoint import Checkpoints
from ebla.actors.world import World, new_id
from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import Environment, Put
from ebla.storage.errors import InvalidArgument, OldCopy

CATALOG = "catalog"
FORMATTED, MOVED, OLD = "catalog-formatted", "catalog-moved", "catalog-old"
_MARK = "mark"
_WHY = b"why"


@dataclass(frozen=True)
class Directory:
    """`created`: there was none before. `heard` does not save before it is started."""

    instance: m.ServerInstance
    created: bool
    environment: Environment
    checkpoints: Checkpoints
    heard: Incarnations


async def open_directory(world: World) -> Directory:
    found = await open_existing(world, make=True)
    assert found is not None
    return found


async def open_own(world: World, *, accepts: bool = False) -> Directory:
    """Of a master that keeps its catalog by itself. Refused where the catalog has moved, or is on its way, and where it is an older
    copy, unless an operator `accepts` such a one."""
    found = await open_directory(world)
    if has_moved(world):
        raise InvalidArgument(
            f"the catalog of {world.address} was moved into a journal, and is not kept here any more; start the masters that "
            "share the journal with `ebla up`"
        )
    if world.disk.exists(OLD):
        await _require_accepted(world, accepts)
    return found


async def mark_old(world: World, why: str) -> None:
    """Durable when it returns."""
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


def has_moved(world: World) -> bool:
    return world.disk.exists(MOVED)


async def mark_moved(world: World) -> None:
    """Durable when it returns. The directory is open."""
    if not has_moved(world):
        await _make_mark(world, MOVED)


async def open_existing(world: World, *, make: bool = False) -> Directory | None:
    """None if no master has ever kept anything there."""
    found = await world.disk.open_instance(new_id(world.random))
    if not (make or world.disk.exists(FORMATTED)):
        return None
    instance = m.ServerInstance(found.uuid, found.seqno, new_id(world.random))
    environment = await _open_environment(world)
    heard = RecordStore(environment, incarnations.DATABASE, m.ServerInstance)
    return Directory(
        instance, found.created, environment, Checkpoints(environment), Incarnations(world, "master", heard)
    )


async def _open_environment(world: World) -> Environment:
    disk = world.disk
    formatted = disk.exists(FORMATTED)
    environment = await disk.open_environment(
        CATALOG, (edit_log.DATABASE, checkpoint.DATABASE, incarnations.DATABASE), create=not formatted
    )
    if not formatted:
        await world.faults.here("master.format.before_mark")
        await _make_mark(world, FORMATTED)
    return environment


async def _make_mark(world: World, path: str) -> None:
    mark = await world.disk.open_environment(path, (_MARK,), create=True, map_bytes=1 << 20)
    await mark.close()
