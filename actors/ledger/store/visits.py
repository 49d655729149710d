"""When a store may delete moved entries of a ledger, so that no repair relies on copies that are deleted afterwards.

A collector of garbage finds under the ledger's lock that this store's entries are not needed. The request that deletes them may
arrive, or go on, when that lock is lost; then another worker may repair the ledger, find entries here, and name this store.

    visit     a check, a copy, or an entry of a recovery or a repair: from now on its sender may rely on what is stored here
    listed    each visit changes the ledger's sign. The list of ledgers has the sign, and the request to delete repeats it. A request
              with an older sign is refused: after the list a repair may have relied on the entries
    refused   while entries are deleted, visits are refused; those that come later find what is left

Signs are kept in memory, and those of an earlier incarnation of the store are older.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebla.actors.ledger.errors import LedgerBusy


class Visits:
    def __init__(self, start: str) -> None:
        """`start`: of this incarnation (ServerInstance)."""
        self._start = start
        self._counts: dict[int, int] = {}
        self._dropping: set[int] = set()

    def sign(self, ledger: int) -> str:
        return f"{self._start}-{self._counts.get(ledger, 0)}"

    def visit(self, ledger: int) -> None:
        """Raises LedgerBusy while entries are deleted."""
        if ledger in self._dropping:
            raise LedgerBusy(
                f"this store deletes its moved entries of ledger {ledger} now: try again later", ledger=ledger
            )
        self._counts[ledger] = self._counts.get(ledger, 0) + 1

    @contextmanager
    def dropping(self, ledger: int, sign: str) -> Iterator[None]:
        """While entries are deleted. Raises LedgerBusy if the sign is not the ledger's, or they are deleted already."""
        if sign != self.sign(ledger) or ledger in self._dropping:
            raise LedgerBusy(
                f"a repair may rely on the entries of ledger {ledger} at this store: list its ledgers again, then decide",
                ledger=ledger,
            )
        self._dropping.add(ledger)
        try:
            yield
        finally:
            self._dropping.remove(ledger)
