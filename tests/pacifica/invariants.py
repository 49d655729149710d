"""PacificA's own promises.

the catalog first       a replica leads only in a ballot that is durable in the catalog, as its primary
committed is on all     every voter of the catalog's configuration has every committed entry on its disk
the least number        an entry is committed with `min_members` voters at least
no service after death  a replica whose server was declared dead serves no reads
given up for good       a replica that does not know of a forced configuration serves no reads. The committed entries in the
                        survivor's log stay committed; the others do not count any more
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebla.actors.errors import NotLeader, Unavailable
from tests.stream.invariants import Oracle
from tests.stream.node import Node as AnyNode

if TYPE_CHECKING:
    from tests.pacifica.group import Group


class PacificaOracle(Oracle):
    group: Group

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group
        self.lost = 0  # committed entries that the last forced configuration gave up

    def observe(self, node: AnyNode[Any]) -> None:
        core, known = node.running(), len(self.committed)
        core.validate()
        if self._is_given_up(node):
            return
        if core.role == "leader":
            made = self.group.master.history.get(core.term)
            assert made == core.configuration, (
                f"{node.name} leads by {core.configuration}, the catalog has {made}"
            )
            assert made.primary == node.name, f"{node.name} leads for {made.primary}"
        super().observe(node)
        if len(self.committed) > known:
            voters = len(core.configuration.voters())
            assert voters >= core.configuration.min_members, (
                f"{node.name} commits with {voters}: {core.story()}"
            )
            self.voters_hold_all()

    def catalog_changed(self) -> None:
        self.voters_hold_all()

    def _has_all_committed(self, node: AnyNode[Any], term: int) -> None:
        """An older copy that no number shows may lead until a voter refuses it; it commits nothing, and serves no reads."""
        server = self.group.nodes[node.name]
        if not (server.restored and server.recent):
            super()._has_all_committed(node, term)

    def _is_given_up(self, node: AnyNode[Any]) -> bool:
        return bool(node.running().forced_epoch < self.group.master.stored.unsafe)

    def given_up(self, survivor: AnyNode[Any]) -> None:
        """Forget the committed entries that the survivor of a forced configuration does not have. It may be of a side that was
        given up before; then the entries that it has committed count."""
        pairs = zip(self.committed, survivor.entries, strict=False)
        same = [known == entry for known, entry in pairs]
        kept = same.index(False) if False in same else len(same)
        self.lost = len(self.committed) - kept
        del self.committed[kept:], self.committed_in[kept:]
        known = survivor.disk.dropped if survivor.core is None else survivor.core.commit_index
        again = survivor.entries[kept:known]
        self.committed += again
        self.committed_in += [entry.term for entry in again]

    def voters_hold_all(self) -> None:
        stored = self.group.master.stored
        for peer in stored.voters():
            node = self.group.nodes[peer.uuid]
            held = node.disk.entries[: len(self.committed)]
            node.restored = node.restored and held != self.committed
            assert node.lost or node.restored or held == self.committed, (
                f"{peer.uuid} votes in ballot {stored.index} and holds {len(held)} of {len(self.committed)} entries"
            )

    def check_reads(self) -> None:
        super().check_reads()
        detector = self.group.master.detector
        for node in self.group.leaders():
            dead = detector is not None and detector.has_ended(node.name)
            if not dead and not self._is_given_up(node):
                continue
            try:
                node.running().read_index(node.clock())
            except (NotLeader, Unavailable):
                continue
            raise AssertionError(
                f"{node.name} serves, and was declared dead, or given up: {node.running().story()}"
            )
