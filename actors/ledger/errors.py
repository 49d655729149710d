"""The errors of ledgers: one class for each next step of the caller.

LedgerFenced      another client recovers the ledger, or has closed it    stop writing; open a ledger of your own
LedgerClosed      this writer has closed the ledger                       open another ledger
WrongToken        the request is for another ledger of this id            read the metadata again
StoreReadOnly     the store has too little space for new entries          use another store
NotEnoughStores   fewer stores run than the ledger needs                  start stores, or wait for them
StoreLeaving      the store's host is decommissioned, or it does not run  choose another store
LedgerBusy        the store deletes moved entries, or may not do it now   try again later
EntryLost         no store has a sound copy of an entry that must exist   bring lost stores back
EndUndecided      a recovery has begun, and has not closed the ledger     recover it
EndUnknown        too few stores know the end of a ledger that is open    read up to `confirmed`, and try again
RecoveryFailed    too few stores answered to find the end of the ledger   wait for stores, then try again
"""

from __future__ import annotations

from ebla.actors.errors import Unavailable
from ebla.storage.errors import EblaError


class LedgerError(EblaError):
    ledger: int | None


class LedgerFenced(LedgerError):
    """Another client recovers this ledger, or has closed it. Entries that were under way may be in the ledger."""

    possibly_applied = True


class LedgerClosed(LedgerError):
    """This writer has closed the ledger. The entry is not in it."""


class WrongToken(LedgerError):
    """The ledger of this id has another creation token. Nothing was changed."""


class StoreReadOnly(LedgerError):
    """The store takes no new entries, because its disk is almost full. Nothing was changed."""


class NotEnoughStores(LedgerError):
    """A ledger needs `wanted` stores, and `found` take entries."""

    wanted: int | None
    found: int | None
    retriable = True


class StoreLeaving(LedgerError):
    """The host of `store` is being decommissioned, or the store does not run: no further entries are placed there. Nothing was
    changed."""

    store: str | None
    retriable = True


class LedgerBusy(LedgerError):
    """The store deletes its moved entries of this ledger now, or a repair may rely on them. Nothing was changed."""

    retriable = True


class EntryLost(LedgerError):
    """Every store that should have the entry answered, and none has a sound copy. `confirmed`: if a recovery found that, the last entry
    that is known to be acknowledged."""

    entry: int | None
    confirmed: int | None


class EndUnknown(LedgerError, Unavailable):
    """The end of the ledger is not known now. The entries up to `confirmed` are acknowledged."""

    confirmed: int | None


class EndUndecided(EndUnknown):
    """A recovery of the ledger has written entries which another one may leave out."""


class RecoveryFailed(LedgerError):
    """The end of the ledger is not known: too few stores answered. The ledger stays in recovery, and nothing is lost. `entry`: its fate
    is open, for no store has a sound copy but those without an answer may (`silent`); None: it did not come so far."""

    entry: int | None
    silent: tuple[str, ...] | None
    confirmed: int | None
    retriable = True
