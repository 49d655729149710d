"""Where a ledger ends: what a reader or a recovery may conclude from the answers of its stores. Nothing here waits.

A reader returns an entry that an ack quorum has, with all entries before it: no replacement and no recovery leaves it out. But a
recovery, too, makes copies, before it decides the end. Another one may have read before that the entry is absent, and close the
ledger without it. Its reads fence, so a copy on one of the stores that it read shows by the fence that the end is not decided.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.messages import Entry, ReadReply, Tail
from ebla.actors.ledger.metadata import Metadata

# -- of readers ----------------------------------------------------------------------------------------------


def durable(found: Metadata, known: int, tails: Mapping[int, Tail]) -> tuple[int, bool]:
    """The last entry that an ack quorum has, with all entries before it; and whether no later entry can be acknowledged. `known`:
    an acknowledged entry. `tails`: by position."""
    held = {position: _numbers(tail) for position, tail in tails.items()}
    end = known
    while True:
        positions = meta.positions(found, end + 1)
        having = sum(position in held and end + 1 in held[position] for position in positions)
        if having >= found.ack_quorum:
            end += 1
            continue
        unknown = sum(position not in held for position in positions)
        assert end >= known
        return end, having + unknown < found.ack_quorum


def undecided(known: int, end: int, tails: Mapping[int, Tail]) -> bool:
    """Whether entries after `known`, an acknowledged one, may yet be left out of the ledger, although an ack quorum has them."""
    return end > known and any(tail.fenced for tail in tails.values())


def _numbers(tail: Tail) -> set[int]:
    return {number for first, last in tail.held for number in range(first, last + 1)}


class Ending:
    """What the answers so far tell a reader. They may be of different moments since it began, and stores may be asked again.

    `enough`: every entry is known that was acknowledged before the reader began. Each of those is on a store of the first answers that
    cover every ack quorum. So the end is enough when it reaches the greatest entry of these answers, also while the writer goes on.
    """

    def __init__(self, found: Metadata, after: int) -> None:
        self._found = found
        self._greatest: int | None = None
        self.known = self.end = after
        self.tails: dict[int, Tail] = {}  # by position
        self.enough = False

    @property
    def covered(self) -> bool:
        return meta.covers(self._found, self.tails)

    def learn(self, position: int, tail: Tail) -> None:
        self.tails[position] = tail
        self.known = max(self.known, tail.lac)
        self.end, certain = durable(self._found, self.known, self.tails)
        if self._greatest is None and self.covered and not any(each.full for each in self.tails.values()):
            self._greatest = max(each.greatest for each in self.tails.values())
        self.enough = certain or (self._greatest is not None and self.end >= self._greatest)


# -- of recoveries -------------------------------------------------------------------------------------------


def start(found: Metadata, lacs: Iterable[int]) -> int:
    """The last entry that is known to be acknowledged. `lacs`: what the fenced stores know. An empty last segment shows that the
    entry before it is acknowledged."""
    return max([*lacs, found.segments[-1].first - 1])


def fate(
    found: Metadata, number: int, answers: Mapping[int, ReadReply], gone: Container[int] = ()
) -> Entry | bool | None:
    """The entry; None if it is surely not acknowledged; False if neither is certain. `answers`: by position, each with a fence.
    `gone`: positions without an answer whose stores an operator has given up. Then None also means that the entry is given up with
    them, because all other stores lack it."""
    absent = 0
    having = meta.positions(found, number)
    for position in having:
        answer = answers.get(position)
        if answer is None:
            continue
        for entry in answer.entries:
            if entry.entry == number and entry.sound(found.ledger):
                return entry
        absent += number in answer.absent
    left = sum(position not in gone for position in having)
    return None if absent >= min(found.needed, left) else False


def is_lost(
    found: Metadata, number: int, answers: Mapping[int, ReadReply], gone: Container[int] = ()
) -> bool:
    """Whether no store can decide an open fate: all but those that are given up have looked for the entry, and none has a sound copy,
    but damaged ones, so that it may have been acknowledged."""
    for position in meta.positions(found, number):
        answer = answers.get(position)
        if answer is None:
            if position not in gone:
                return False
        elif number not in (*answer.absent, *answer.damaged, *(each.entry for each in answer.entries)):
            return False  # the answer was full
    return fate(found, number, answers, gone) is False


def decided(
    found: Metadata, numbers: Iterable[int], answers: Mapping[int, ReadReply], gone: Container[int] = ()
) -> list[Entry | None]:
    """The first of these entries whose fates are certain; None stands for the first that is not in the ledger, and ends the list."""
    made: list[Entry | None] = []
    for number in numbers:
        known = fate(found, number, answers, gone)
        if isinstance(known, Entry):
            assert known.entry == number
            made.append(known)
            continue
        if known is None:
            made.append(None)
        break
    return made
