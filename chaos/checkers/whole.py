"""Reads of a bank that are snapshots of each owner's accounts, but not of all together.

An owner's transfers take place one after the other, so its balances tell how many of them a read shows: at least those
before `first`, and not those behind `last`; both are the same transfer, unless balances repeat or an outcome is unknown.
From that follows, for every owner and every read,

    a moment    the read was taken after what it shows began, and before what it does not show ended
    an order    of two reads that one owner's transfers tell apart, the one that shows fewer is the earlier

and no other owner may say otherwise. Reads that do not overlap are in the order of their events, which each owner's own
history has been judged by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebla.chaos.checkers.verdict import told
from ebla.chaos.history import Operation

POSSIBLE_MAX = 64  # balances that unknown transfers leave possible; with more, the owner tells nothing

Problem = tuple[str, list[Operation]]
_State = tuple[int, ...]


def problems(
    owners: Sequence[Sequence[Operation]], reads: Sequence[Operation], balances: Mapping[Any, int]
) -> Iterator[Problem]:
    """`owners` are the transfers of each, in their sequence; every owner's own history has been found good."""
    histories = [_Owner(transfers, balances) for transfers in owners]
    under_way: list[_Shown] = []
    for read in sorted(reads, key=lambda read: read.began):
        shown = _Shown(read, [each.shown(read) for each in histories])
        yield from _moment(shown, owners)
        under_way = [other for other in under_way if _ended(other.read) > read.began]
        for other in under_way:
            yield from _order(shown, other, owners)
        under_way.append(shown)


@dataclass(frozen=True)
class _Shown:
    """Of each owner the first and the last transfer, by number, that may be the newest one that the read shows; -1 stands
    for none at all. None where it cannot be told."""

    read: Operation
    newest: list[tuple[int, int] | None]


def _moment(shown: _Shown, owners: Sequence[Sequence[Operation]]) -> Iterator[Problem]:
    """What the read shows began before what it does not show ended."""
    seen: list[Operation] = []
    unseen: list[Operation] = []
    for newest, transfers in zip(shown.newest, owners, strict=True):
        if newest is None:
            continue
        first, last = newest
        if first >= 0:
            seen.append(transfers[first])
        unseen += [each for each in transfers[last + 1 :] if each.known][:1]
    after = max(seen, key=lambda each: each.began, default=None)
    before = min(unseen, key=_ended, default=None)
    if after is not None and before is not None and after.began > _ended(before):
        yield (
            f"{_brief(shown.read)} shows {told(after)}, but not {told(before)}, which had ended before",
            [before, after, shown.read],
        )


def _order(one: _Shown, other: _Shown, owners: Sequence[Sequence[Operation]]) -> Iterator[Problem]:
    """The two reads do not show each a transfer that the other one does not."""
    only: dict[bool, Operation] = {}  # that only `one` shows; that only `other` shows
    for mine, theirs, transfers in zip(one.newest, other.newest, owners, strict=True):
        if mine is None or theirs is None:
            continue
        if theirs[1] < mine[0]:
            only.setdefault(True, transfers[mine[0]])
        elif mine[1] < theirs[0]:
            only.setdefault(False, transfers[theirs[0]])
    if len(only) == 2:
        yield (
            f"{_brief(one.read)} shows {told(only[True])} and {_brief(other.read)} does not, which shows "
            f"{told(only[False])}, as the former does not: they disagree on which came first",
            [one.read, other.read, only[True], only[False]],
        )


@dataclass
class _Owner:
    """What its accounts may hold right after each of its transfers."""

    transfers: Sequence[Operation]
    balances: Mapping[Any, int]
    accounts: list[Any] = field(init=False)
    after: list[set[_State]] = field(init=False)
    told: bool = field(init=False)

    def __post_init__(self) -> None:
        sides = [each.argument[side] for each in self.transfers for side in ("from", "to")]
        self.accounts = list(dict.fromkeys(sides))
        before = {tuple(self.balances[account] for account in self.accounts)}
        self.after, self.told = [], True
        for transfer in self.transfers:
            after = {self._moved(state, transfer) for state in before}
            self.after.append(after)
            before = after if transfer.known else before | after
            self.told = self.told and len(before) <= POSSIBLE_MAX
            if not self.told:
                return

    def _moved(self, state: _State, transfer: Operation) -> _State:
        changed = dict(zip(self.accounts, state, strict=True))
        changed[transfer.argument["from"]] -= transfer.argument["amount"]
        changed[transfer.argument["to"]] += transfer.argument["amount"]
        return tuple(changed.values())

    def shown(self, read: Operation) -> tuple[int, int] | None:
        """See _Shown: of the transfers that began before the read ended, back to one that ended before it began."""
        if not self.told:
            return None
        found = tuple(read.answer[account] for account in self.accounts)
        possible = []
        for number in reversed(range(len(self.transfers))):
            transfer = self.transfers[number]
            if transfer.began < _ended(read) and found in self.after[number]:
                possible.append(number)
            if transfer.known and _ended(transfer) < read.began:
                break
        else:
            if found == tuple(self.balances[account] for account in self.accounts):
                possible.append(-1)
        return (possible[-1], possible[0]) if possible else None


def _ended(operation: Operation) -> int:
    assert operation.ended is not None, "only of what was answered"
    return operation.ended


def _brief(read: Operation) -> str:
    return f"read-bank by process {read.invoke.process} (events {read.began} and {read.ended})"
