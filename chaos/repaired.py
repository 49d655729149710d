"""Whether all ledgers are whole and nothing is left over, some time after all faults have ended.

registered   every store that runs is in the list of stores that run
whole        a closed ledger names stores that run only; each of them has all of its entries on disk, equal everywhere, and
             their bytes are the ledger's length. No ledger is open
unmarked     there are no marks, no notes about them, and no locks
clean        no store has an entry of a ledger that is deleted, or is closed and does not name it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ebla.actors.coordination.namespace import Namespace
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.store.store import LedgerStore
from ebla.chaos.invariants.ledger_disks import LedgerDisks
from ebla.chaos.invariants.ledgers import ledgers_of, read
from ebla.chaos.simulation.deployment import Deployment


@dataclass(frozen=True)
class Repaired:
    deployment: Deployment

    def problem(self) -> str:
        """The first thing that is not so yet; empty if everything is."""
        master = self.deployment.active_master(self.deployment.master_address())
        if master is None:
            return "no master serves"
        return next(self._problems(master.catalog.namespace), "")

    def _problems(self, namespace: Namespace) -> Iterator[str]:
        running = self._running()
        up = namespace.children(paths.UP)
        yield from (f"store {uuid} runs, and is not registered" for uuid in running if uuid not in up)
        ledgers = {ledger: read(namespace, ledger) for ledger, _ in ledgers_of(namespace)}
        for found in ledgers.values():
            yield from self._damages(found, running)
        for path in (paths.MARKS, paths.NOTES, paths.LOCKS):
            left = namespace.children(path)
            if left:
                yield f"there is {path}/{left[0]}: {namespace.nodes[f'{path}/{left[0]}'].data!r}"
        yield from self._garbage(ledgers, running)

    def _running(self) -> dict[str, LedgerStore]:
        roles = (
            self.deployment.cluster.role(address)
            for address in self.deployment.stores
            if self.deployment.cluster.alive(address)
        )
        return {role.instance.uuid: role for role in roles}

    def _damages(self, found: Metadata, running: dict[str, LedgerStore]) -> Iterator[str]:
        stores = dict.fromkeys(store for segment in found.segments for store in segment.stores)
        gone = [store for store in stores if store not in running]
        if gone:
            yield f"ledger {found.ledger} names store {gone[0]}, which does not run: {found}"
            return
        disks, held = LedgerDisks(self.deployment), {}
        for store in stores:
            state = disks.state(store)
            held[store] = {} if state is None else disks.entries(state, found.ledger)
        if not found.closed:
            yield f"ledger {found.ledger} is not closed: {found}"
        for entry in range(found.last + 1):
            copies = [held[store].get(entry) for store in meta.stores_of(found, entry)]
            if None in copies or any(copy != copies[0] for copy in copies):
                yield f"entry {entry} of ledger {found.ledger} has the copies {copies}: {found}"
        last = None if found.last < 0 else held[meta.stores_of(found, found.last)[0]].get(found.last)
        if found.closed and found.length != (0 if last is None else last.length):
            yield f"the length of ledger {found.ledger} is {found.length}, and its last entry is {last}"

    def _garbage(self, ledgers: dict[int, Metadata], running: dict[str, LedgerStore]) -> Iterator[str]:
        disks = LedgerDisks(self.deployment)
        for uuid in running:
            state = disks.state(uuid)
            for ledger in dict.fromkeys(() if state is None else disks.ledgers(state)):
                found = ledgers.get(ledger)
                if found is None or not any(uuid in segment.stores for segment in found.segments):
                    yield f"store {uuid} still has entries of ledger {ledger}: {found}"
