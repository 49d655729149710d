"""The figures of a replication worker, see actors/figures.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ebla.actors.figures import Figure, Sheet, counter, gauge


@dataclass
class Counted:
    """The work of this worker since it started; `marked` and `waiting` as of its last round."""

    marked: int = 0
    waiting: int = 0
    repaired: int = 0
    failed: int = 0
    moved: int = 0
    copied: int = 0
    copied_bytes: int = 0
    collected: int = 0


WORKER: Sheet[Counted] = Sheet(
    (),
    gauge("repair_marked", "ledgers", "marked ledgers", lambda c: c.marked),
    gauge("repair_waiting", "ledgers", "marked ledgers that cannot be repaired yet", lambda c: c.waiting),
    counter("repair_repaired", "ledgers", "marks removed by this worker", lambda c: c.repaired),
    counter("repair_failed", "tries", "repairs that did not make a ledger whole", lambda c: c.failed),
    counter("repair_moved", "fragments", "lost stores replaced in a fragment", lambda c: c.moved),
    counter("repair_copied", "entries", "entries copied", lambda c: c.copied),
    counter("repair_copied_bytes", "bytes", "bytes of the entries copied", lambda c: c.copied_bytes),
    counter("repair_collected", "ledgers", "ledgers deleted from this host's store", lambda c: c.collected),
)


def measure_worker(counted: Counted) -> Iterator[Figure]:
    yield from WORKER.read(counted)
