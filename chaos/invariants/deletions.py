"""Nothing is deleted unasked: a tablet's data leaves a disk only if the catalog has ended the tablet, or a tombstone stays."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import LIVE
from ebla.actors.tablet.server import RECORDS
from ebla.chaos.simulation.deployment import Deployment
from ebla.chaos.simulation.medium import DurableState


@dataclass
class Deletions:
    """`data`: (uuid, tablet) seen on a disk. `ended`: tablets that were dropped or replaced. `paths`: the environments on each
    disk, at the last check."""

    data: dict[tuple[str, str], None] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    paths: list[tuple[str, list[str]]] = field(default_factory=list)

    def remember_what_ended(self, catalog: Catalog) -> None:
        for tablet, ended in catalog.tablets.items():
            if ended.state not in LIVE:
                self.ended[tablet] = None

    def nothing_is_deleted_unasked(self, deployment: Deployment) -> None:
        """That a server does not know a tablet is no reason: the catalog must have ended the tablet."""
        states = [deployment.cluster.state(address) for address in deployment.servers]
        paths = [(s.uuid, list(s.environments)) for s in states if s.uuid is not None and not s.is_copy]
        if paths == self.paths:
            return
        self.paths = paths
        present: dict[tuple[str, str], None] = {}
        for uuid, there in paths:
            for path in there:
                if path.startswith("data/"):
                    present[uuid, path.removeprefix("data/")] = None
        uuids = dict(paths)
        for uuid, tablet in self.data:
            gone = uuid in uuids and (uuid, tablet) not in present
            assert not gone or tablet in self.ended or _has_superblock(states, uuid, tablet), (
                f"server {uuid} deleted the data of tablet {tablet}, which the catalog did not end"
            )
        self.data = present


def _has_superblock(states: list[DurableState], uuid: str, tablet: str) -> bool:
    """Whether the server remembers that it had the tablet: its promises are kept, and its data is in quarantine."""
    return any(
        tablet.encode() in state.environments.get("tablet-meta", {}).get(RECORDS, {})
        for state in states
        if state.uuid == uuid
    )
