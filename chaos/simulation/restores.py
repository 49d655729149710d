"""An only master's directory that is replaced by an older copy of it: somebody restores a backup.

    old_catalog  the directory is again what it was a while ago. While the master comes up no server and no client hears it; then the
                 servers do. Some time later somebody has found the newest directory, and puts that back in place

What is promised is only of copies which every server has seen more of, so that any other is left alone. Nothing that runs by
now may be deleted meanwhile (`nothing_is_deleted_unasked`, which learns nothing from such a master). Clients stay cut off:
what they would be told is forgotten.
"""

from __future__ import annotations

import asyncio

from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.master.server import Master
from ebla.chaos.plans import MASTER, Fault
from ebla.chaos.simulation import damage
from ebla.chaos.simulation.losses import HostLosses
from ebla.chaos.simulation.medium import DurableState
from ebla.options import MASTER as MASTER_ADDRESS
from ebla.storage.errors import OldCopy

SILENT_S = 2.0  # more than a tablet may take to be created
HEARD_S = 2.0


class Restores(HostLosses):
    def _is_old(self, directory: DurableState, error: BaseException) -> bool:
        """Whether a master ends because it serves from such a directory."""
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
        await asyncio.sleep(HEARD_S)
        self._put(newest)
        deployment.newest_catalog = None
        self.network.mend(MASTER_ADDRESS, names[0])

    def _serving_master(self) -> Master | None:
        """The only one, if it has begun."""
        if self.deployment.masters != (MASTER_ADDRESS,):
            return None
        master = self.deployment.reigning(MASTER_ADDRESS)
        return master if master is not None and master.catalog.lineage.begun else None

    def _put(self, directory: DurableState) -> None:
        self.deployment.hold_down(MASTER)
        self.deployment.cluster.put_disk(MASTER_ADDRESS, directory)
        self.deployment.let_up(MASTER)

    def _have_all_seen_more(self, version: CatalogVersion) -> bool:
        states = map(self.deployment.cluster.state, self.deployment.servers)
        seen = list(map(damage.seen_catalog, states))
        return all(
            each is not None and (each.begun, each.changes) > (version.begun, version.changes)
            for each in seen
        )
