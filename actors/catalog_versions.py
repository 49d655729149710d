"""The version of the catalog that a master serves, so that a master on an older copy of its catalog is recognised.

A master that begins to serve draws a token and writes this start as an edit: the catalog knows its last starts, and the
number of changes before each (actors/master/catalog/lineage.py). The master sends its version with every answer to a
heartbeat; a tablet server keeps the last one on its disk and sends it with every heartbeat. A version was durable before
a server saw it, so a master whose catalog does not have it runs on an older copy. Such a master ends before it counts
the server as alive, and so before it requests anything of it.

    another catalog                  it is new, with new ids of tables and tablets: nothing can be mistaken
    an older start than kept         the server was away for long
    the same start                   the catalog must have as many changes: up to the next start, or up to now
    an unknown start                 this copy was made before it, or it was made by another copy
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
    """`catalog`: the token of the first start, which identifies the catalog; `begun`: the number of the last start, `start`
    its token; `changes`: the count of all changes, also of nodes and sessions."""

    catalog: str
    begun: int
    start: str
    changes: int

    def __str__(self) -> str:
        return f"{self.begun}.{self.changes} of {self.start}"


def older_catalog(seen: CatalogVersion, own: CatalogVersion, server: str) -> OldCopy:
    """The remedy comes first, because some views show only the start of a message."""
    return OldCopy(
        f"older copy of the catalog, bring back the newest: {server} has seen version {seen}, which the catalog here, at "
        f"{own}, does not have. Tables created or recalled since would be deleted by mistake. If the newest directory is "
        "lost, or this directory is the newest and an older one was in use meanwhile, start with "
        f"`master: {{accepts: [{seen.start}]}}` in the settings: until that is removed, nothing that was dropped or replaced "
        "before is deleted after a time"
    )


def older_ballot(tablet: str, ballot: int, known: int, server: str, own: CatalogVersion) -> OldCopy:
    """The token is that of this start: no catalog has accepted it, so that it puts the tablets in doubt."""
    return OldCopy(
        f"older copy of the catalog, bring back the newest: {server} knows ballot {ballot} of tablet {tablet}, and the catalog here "
        f"has ballot {known}. It would give the same ballots again, to other primaries, and rows would be lost. If the newest "
        f"directory is lost, start with `master: {{accepts: [{own.start}]}}` in the settings: PacificA tablets then serve again once "
        "the servers have shown which ballot was the last"
    )


class SeenCatalog:
    """The version that a tablet server has seen. It counts at once and is on disk soon after: no heartbeat waits for that."""

    def __init__(self, world: World, environment: Environment) -> None:
        self.world = world
        self.version: CatalogVersion | None = None
        self._store = RecordStore(environment, DATABASE, CatalogVersion)
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Load the record. A damaged one counts as absent, until the next answer."""
        try:
            self.version = self._store.get(RECORD)
        except Corruption:
            self.version = None
        self.world.spawn(self._save(), "seen catalog")

    def see(self, version: CatalogVersion | None) -> None:
        """Take a newer version, or one of another catalog or master; answers may be late."""
        known = self.version
        if version is None or version == known:
            return
        same = known is not None and version.catalog == known.catalog
        if known is not None and same and (version.begun, version.changes) < (known.begun, known.changes):
            return
        self.version = version
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
