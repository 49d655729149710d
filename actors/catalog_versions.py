"""Which version of the catalog a master serves from, so that one that runs on an older copy of it is recognised.

A master that begins to serve draws a token and makes its beginning durable as an edit of the catalog: the catalog knows the
last beginnings, and how many changes there were before each (actors/master/catalog/lineage.py). With every answer to a heartbeat the
master tells its version; a tablet server keeps the last one on its disk, and shows it with every heartbeat. What a server has
seen was durable before, so a master whose catalog does not have it runs on an older copy: it ends before it counts the server
as alive, and so before it asks that server for anything.

    the catalog is another one       it was begun anew: the ids of its tables and tablets are others, nothing can be mistaken
    an older beginning than kept     the server was away for long
    the same beginning               the catalog must have as many changes: up to the next beginning, or up to now
    a beginning that is not known    the copy was made before it, or it is that of another copy
"""

from __future__ import annotations

import asyncio

import msgspec

from ebla.actors.world import World
from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import Environment
from ebla.storage.errors import Corruption, DiskFull, OldCopy

DATABASE = "catalog-version"
RECORD = "seen"
DISK_FULL_PAUSE_S = 0.5


class CatalogVersion(msgspec.Struct, frozen=True, array_like=True):
    """`catalog` is the token of the first master, which names the catalog; `begun` is the number of the last one, `start` its
    token; `changes` counts the changes of tables, tablets and servers."""

    catalog: str
    begun: int
    start: str
    changes: int

    def __str__(self) -> str:
        return f"{self.begun}.{self.changes} of {self.start}"


def older_catalog(seen: CatalogVersion, own: CatalogVersion, server: str) -> OldCopy:
    """The beginning is what an operator sees where there is little space."""
    return OldCopy(
        f"older copy of the catalog, bring back the newest: {server} has seen version {seen}, which the catalog here, at "
        f"{own}, does not have. Tables made or recalled since would be taken for those that are to be deleted. If the newest "
        "directory is lost, or this one is it and an older one was in use meanwhile, start with "
        f"`master: {{accepts: [{seen.start}]}}` in the settings: until that is taken back, nothing of what was dropped or replaced "
        "before is deleted on the ground of time"
    )


class SeenCatalog:
    """What a tablet server has seen. It counts at once and is on disk soon after: no heartbeat waits for that."""

    def __init__(self, world: World, environment: Environment) -> None:
        self.world = world
        self.version: CatalogVersion | None = None
        self._store = RecordStore(environment, DATABASE, CatalogVersion)
        self._wake = asyncio.Event()

    def start(self) -> None:
        """A record that fails its check is as good as none, until the next answer."""
        try:
            self.version = self._store.get(RECORD)
        except Corruption:
            self.version = None
        self.world.spawn(self._save(), "seen catalog")

    def see(self, told: CatalogVersion | None) -> None:
        """An answer may be late: only what is newer counts, or is of another catalog or master."""
        known = self.version
        if told is None or told == known:
            return
        same = known is not None and told.catalog == known.catalog
        if known is not None and same and (told.begun, told.changes) < (known.begun, known.changes):
            return
        self.version = told
        self._wake.set()

    async def _save(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            version = self.version
            assert version is not None
            await self.world.faults.here("tablet.catalog_version.before_commit")
            try:
                await self._store.environment.commit([self._store.put(RECORD, version)])
            except DiskFull:
                await self.world.clock.sleep(DISK_FULL_PAUSE_S)
                self._wake.set()
                continue
            await self.world.faults.here("tablet.catalog_version.after_commit")
