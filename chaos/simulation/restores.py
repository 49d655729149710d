"""A single master's directory is replaced by an older copy: an operator restores a backup.

    old_catalog  the directory is as it was a while ago. While the master starts, it is cut off from servers and clients; then
                 only from clients. Some time later the operator puts the newest directory back
    accept_catalog  the directory is as it was a while ago, the newest one is lost, and the operator accepts that. Clients go on, so
                 no table may have come, gone or changed since; ballots and members have

The promise holds only for copies that are older than the catalog version that every server has seen; other copies are not
restored. Meanwhile no running replica may be deleted (`nothing_is_deleted_unasked`, which ignores such a master's catalog).
Clients stay cut off: changes that they made would be forgotten.
"""

from __future__ import annotations

import asyncio

from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import RUNNING
from ebla.actors.master.server import ActiveMaster
from ebla.chaos.plans import MASTER, Fault
from ebla.chaos.simulation import damage
from ebla.chaos.simulation.losses import HostLosses
from ebla.chaos.simulation.medium import DurableState
from ebla.options import MASTER as MASTER_ADDRESS
from ebla.storage.errors import OldCopy

SILENT_S = 2.0  # longer than the creation of a tablet takes
CONNECTED_S = 2.0


def _is_calm(catalog: Catalog) -> bool:
    """Whether there are tables, and all of their tablets run."""
    return bool(catalog.tables) and all(record.state == RUNNING for record in catalog.tablets.values())


class Restores(HostLosses):
    def _is_old(self, directory: DurableState, error: BaseException) -> bool:
        """Whether a master ended because it served from such a directory."""
        return isinstance(error, OldCopy) and directory.is_copy

    async def _old_catalog(self, fault: Fault) -> None:
        cluster, deployment = self.deployment.cluster, self.deployment
        newest, master = cluster.state(MASTER_ADDRESS), self._serving_master()
        if master is None or newest.is_copy:
            return
        old, version = newest.copy(), master.catalog.lineage.version
        await asyncio.sleep(fault.for_s)
        master = self._serving_master()
        moved = cluster.state(MASTER_ADDRESS) is not newest
        if moved or master is None or not self._have_all_seen_more(version):
            return
        self.effects[fault.kind] += 1
        deployment.newest_catalog = master.catalog
        names = ["client", *deployment.servers]
        for name in names:
            self.network.cut(MASTER_ADDRESS, name)
        self._put(old)
        await asyncio.sleep(SILENT_S)
        for name in names[1:]:
            self.network.mend(MASTER_ADDRESS, name)
        await asyncio.sleep(CONNECTED_S)
        self._put(newest)
        deployment.newest_catalog = None
        self.network.mend(MASTER_ADDRESS, names[0])

    async def _accept_catalog(self, fault: Fault) -> None:
        cluster, deployment = self.deployment.cluster, self.deployment
        newest, master = cluster.state(MASTER_ADDRESS), self._serving_master()
        if master is None or newest.is_copy or not _is_calm(master.catalog):
            return
        old, tables, tablets = newest.copy(), dict(master.catalog.tables), dict(master.catalog.tablets)
        await asyncio.sleep(fault.for_s)
        master = self._serving_master()
        if cluster.state(MASTER_ADDRESS) is not newest or master is None or tables != master.catalog.tables:
            return
        changed = sum(record != tablets[tablet] for tablet, record in master.catalog.tablets.items())
        self.effects[fault.kind] += changed > 0
        deployment.accepts = tuple(each.start for each in master.catalog.lineage.image().beginnings)
        self._put(old)

    def _serving_master(self) -> ActiveMaster | None:
        """The single master, if it has begun."""
        if self.deployment.masters != (MASTER_ADDRESS,):
            return None
        master = self.deployment.active_master(MASTER_ADDRESS)
        return master if master is not None and master.catalog.lineage.begun else None

    def _put(self, directory: DurableState) -> None:
        with self.deployment.down(MASTER):
            self.deployment.cluster.put_disk(MASTER_ADDRESS, directory)

    def _have_all_seen_more(self, version: CatalogVersion) -> bool:
        states = map(self.deployment.cluster.state, self.deployment.servers)
        seen = list(map(damage.seen_catalog, states))
        return all(
            each is not None and (each.begun, each.changes) > (version.begun, version.changes)
            for each in seen
        )
