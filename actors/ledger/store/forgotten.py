"""Which heads of deleted ledgers the store forgets: a log that rolls and is trimmed would leave heads for ever.

A head outlives its ledger, because it refuses what arrives late: a writer that was stopped for days must not have its entries
acknowledged. So the store keeps the heads of the last deleted ledgers, and of those that it forgets one number, the greatest. A ledger
up to that number without a head here is one that was forgotten, or an old one that has sent nothing here yet, because this store takes
the place of another one. Before such a ledger gets a head, the registry is asked whether it exists: a deleted ledger never comes again.

A ledger above the number needs no question. So a new ledger needs no master, unless as many younger ones are deleted before its first
entry as heads are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ebla.actors.errors import NotFound
from ebla.actors.ledger.errors import LedgerFenced, WrongToken
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.store import records
from ebla.storage.environment import Change, Delete, Environment, Put


class Forgotten:
    def __init__(self, registry: Registry, kept: int) -> None:
        """`kept`: heads of deleted ledgers; twice as many while they wait to be forgotten together."""
        self._registry = registry
        self._kept = kept
        self.greatest = -1
        self._asked: Counter[int] = Counter()  # ledgers about which the registry is asked now

    def load(self, environment: Environment) -> None:
        self.greatest = records.forgotten_of(
            environment.get(records.HEADS, records.FORGOTTEN), environment.path
        )

    def due(self, deleted: Iterable[int]) -> list[int]:
        """Those of the deleted ledgers to forget now, ascending: none about which the registry is asked, because its answer may be
        from before the deletion."""
        ids = sorted(deleted)
        some = ids[: -self._kept] if len(ids) >= 2 * self._kept else []
        return [ledger for ledger in some if not self._asked[ledger]]

    def changes(self, ledgers: Sequence[int]) -> list[Change]:
        """The changes that forget these, ascending."""
        self.greatest = max(self.greatest, ledgers[-1])
        return [
            Delete(records.HEADS, [records.head_key(ledger) for ledger in ledgers]),
            Put(records.HEADS, [records.forgotten_item(self.greatest)]),
        ]

    async def require_there(self, ledger: int, token: str) -> None:
        """Raises LedgerFenced if the ledger is deleted, WrongToken, and what the registry raises."""
        self._asked[ledger] += 1
        try:
            found = await self._registry.read(ledger)
        except NotFound:
            raise LedgerFenced(f"ledger {ledger} is deleted", ledger=ledger) from None
        finally:
            self._asked[ledger] -= 1
            self._asked += Counter()  # drops zeros
        if found.token != token:
            raise WrongToken(f"ledger {ledger} has another token: it is another ledger", ledger=ledger)
