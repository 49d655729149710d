"""The figures of a ledger store, see actors/figures.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.ledger.messages import Entry


class Counted:
    """The work of this store since it started."""

    def __init__(self) -> None:
        self.adds = self.added = self.added_bytes = self.sent = self.sent_bytes = 0

    def add(self, entries: Sequence[Entry]) -> None:
        self.adds += 1
        self.added += len(entries)
        self.added_bytes += sum(len(entry.data) for entry in entries)

    def read(self, entries: Sequence[Entry]) -> None:
        self.sent += len(entries)
        self.sent_bytes += sum(len(entry.data) for entry in entries)


class MeasuredStore(Protocol):
    """The part of a store that its figures use."""

    counted: Counted
    read_only: bool
    free_bytes: int

    @property
    def held(self) -> int: ...


STORE: Sheet[MeasuredStore] = Sheet(
    (),
    gauge(
        "ledger_ledgers",
        "ledgers",
        "ledgers with entries on this store",
        lambda s: s.held,
    ),
    gauge(
        "ledger_read_only",
        "0/1",
        "the store has too little space, and takes no entries of writers",
        lambda s: s.read_only,
    ),
    gauge("ledger_free_bytes", "bytes", "free space of the store's disk", lambda s: s.free_bytes),
    counter("ledger_adds", "requests", "synced requests to add entries", lambda s: s.counted.adds),
    counter("ledger_added", "entries", "entries added", lambda s: s.counted.added),
    counter("ledger_added_bytes", "bytes", "bytes of the entries added", lambda s: s.counted.added_bytes),
    counter("ledger_sent", "entries", "entries sent to readers and repairs", lambda s: s.counted.sent),
    counter("ledger_sent_bytes", "bytes", "bytes of the entries sent", lambda s: s.counted.sent_bytes),
)


def measure_store(store: MeasuredStore) -> Iterator[Figure]:
    yield from STORE.read(store)
