"""The rules by which a ledger store accepts requests and answers them. Nothing here waits.

fenced    once a fence is durable, no entry of the writer is stored any more; entries of recoveries and repairs are
written   an entry is never replaced by another one: a second entry of the same number must be equal
once
certain   "absent" means that this store never had the entry; one that fails its checksum is damaged, not absent
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ebla.actors.ledger.errors import LedgerFenced, StoreReadOnly, WrongToken
from ebla.actors.ledger.messages import HELD_MAX, AddRequest, CheckReply, Entry
from ebla.actors.ledger.store.records import Head
from ebla.storage.errors import Corruption, InvalidArgument


def admit(head: Head | None, ledger: int, token: str) -> Head:
    """The head, new for a ledger that the store does not know. Raises WrongToken, LedgerFenced for a deleted ledger."""
    if head is None:
        return Head(token)
    if head.token != token:
        raise WrongToken(
            f"ledger {ledger} of this store has another token: it is another ledger", ledger=ledger
        )
    if head.deleted:
        raise LedgerFenced(f"ledger {ledger} is deleted", ledger=ledger)
    return head


def admit_add(head: Head | None, request: AddRequest, read_only: bool) -> Head:
    """The head with which these entries may be stored."""
    found = admit(head, request.ledger, request.token)
    if found.fenced and not request.recovery:
        raise LedgerFenced(
            f"ledger {request.ledger} is fenced: another client recovers it; write to a new ledger",
            ledger=request.ledger,
        )
    if read_only and not request.recovery:
        raise StoreReadOnly("this store takes no new entries: its disk is almost full", ledger=request.ledger)
    numbers = [entry.entry for entry in request.entries]
    if not numbers or numbers[0] < 0 or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise InvalidArgument(f"entries are numbered from 0, and sent in ascending order, not {numbers[:10]}")
    return found


def require_sound(request: AddRequest) -> None:
    """Raise InvalidArgument if an entry fails its checksum."""
    for entry in request.entries:
        if not entry.sound(request.ledger):
            raise InvalidArgument(f"entry {entry.entry} of ledger {request.ledger} fails its checksum")


def require_equal(ledger: int, stored: Entry | None, given: Entry) -> None:
    """Raise Corruption if another entry of this number is stored. A damaged one may be replaced: its number and ledger are
    right, and every copy is equal."""
    if stored is not None and stored.crc != given.crc:
        raise Corruption(
            f"entry {given.entry} of ledger {ledger} is stored with other bytes: report this; leave the store's directory as it is"
        )


def lacking(looked: CheckReply) -> list[int]:
    """The entries that a repair must copy, ascending."""
    return sorted((*looked.absent, *looked.damaged))


def fenced(head: Head) -> Head:
    assert not head.deleted, "a deleted ledger admits nothing"
    return Head(head.token, True, head.deleted)


def ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges (first, last), at most HELD_MAX of them."""
    made: list[tuple[int, int]] = []
    for number in numbers:
        if made and number == made[-1][1] + 1:
            made[-1] = (made[-1][0], number)
        elif len(made) == HELD_MAX:
            break
        else:
            made.append((number, number))
    return tuple(made)
