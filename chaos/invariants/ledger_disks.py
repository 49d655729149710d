"""The entries on the disks of ledger stores, read from outside, also of stores that are down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.messages import Entry
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.store import arrivals, records
from ebla.chaos.simulation.deployment import Deployment
from ebla.chaos.simulation.medium import DurableState


@dataclass(frozen=True)
class LedgerDisks:
    deployment: Deployment

    def state(self, uuid: str) -> DurableState | None:
        """The directory of this store; None if it is lost."""
        states = map(self.deployment.cluster.state, self.deployment.stores)
        return next((state for state in states if state.uuid == uuid), None)

    def ledgers(self, state: DurableState) -> Iterator[int]:
        """The ledgers with an entry here."""
        tables = state.environments.get(records.PATH, {})
        for database, of_ledger in ((records.ENTRIES, 0), (arrivals.ARRIVALS, 1)):
            yield from (int.from_bytes(key[8 * of_ledger :][:8], "big") for key in tables.get(database, {}))

    def entries(self, state: DurableState, ledger: int) -> dict[int, Entry]:
        """The sound entries of the ledger here."""
        tables = state.environments.get(records.PATH, {})
        wanted = ledger.to_bytes(8, "big")
        found = {}
        for database, at in ((records.ENTRIES, 0), (arrivals.ARRIVALS, 8)):
            for key, value in tables.get(database, {}).items():
                if key[at : at + 8] == wanted:
                    number = int.from_bytes(key[at + 8 :], "big")
                    entry = records.read_entry(ledger, number, value)
                    if entry is not None:
                        found[number] = entry
        return found

    def is_deleted(self, state: DurableState, ledger: int) -> bool:
        """Whether the store was asked to delete the ledger."""
        key = ledger.to_bytes(8, "big")
        heads = state.environments.get(records.PATH, {}).get(records.HEADS, {})
        if key not in heads:
            return ledger <= records.forgotten_of(heads.get(records.FORGOTTEN), records.PATH)
        return records.head_of((key, heads[key]), records.PATH)[1].deleted

    def lacking(self, found: Metadata, first: int, store: str, last: int) -> list[int]:
        """The entries up to `last` of the segment at `first` that this store should have, and has not on its disk."""
        state = self.state(store)
        segment = next(each for each in found.segments if each.first == first)
        stripe = meta.Stripe(found, segment.stores.index(store), first, last)
        there = {} if state is None else self.entries(state, found.ledger)
        return [entry for entry in stripe if entry not in there]
