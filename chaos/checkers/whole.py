"""Finds reads of a bank that are snapshots of each owner's accounts, but not of all accounts together.

An owner's transfers take place one after the other, so the balances in a read show which transfers it includes: the newest one
is between `first` and `last`; both are the same transfer, unless balances repeat or an outcome is unknown. For every owner and
every read this gives

    a moment    the read took place after the transfers that it shows began, and before those that it does not show ended
    an order    of two reads that show different numbers of an owner's transfers, the one that shows fewer is the earlier

and no two owners may contradict each other. Reads that do not overlap are in the order of their events; each owner's own history
has been judged by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebla.chaos.checkers.verdict import Problem, brief, described
from ebla.chaos.history import Operation

POSSIBLE_MAX = 64  # balances that unknown transfers leave possible; with more, the owner is ignored

_State = tuple[int, ...]


def problems(
    owners: Sequence[Sequence[Operation]], reads: Sequence[Operation], balances: Mapping[Any, int]
) -> Iterator[Problem]:
    """`owners`: the transfers of each, in their sequence; every owner's own history has been found valid."""
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
    """For each owner the first and the last transfer, by number, that may be the newest one that the read shows; -1 stands for
    none at all. None if it is unknown."""

    read: Operation
    newest: list[tuple[int, int] | None]


def _moment(shown: _Shown, owners: Sequence[Sequence[Operation]]) -> Iterator[Problem]:
    """Transfers that the read shows began before those that it does not show ended."""
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
            f"{brief(shown.read)} shows {described(after)}, but not {described(before)}, which had ended before",
            [before, after, shown.read],
        )


def _order(one: _Shown, other: _Shown, owners: Sequence[Sequence[Operation]]) -> Iterator[Problem]:
    """Not both reads show a transfer that the other one does not."""
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
            f"{brief(one.read)} shows {described(only[True])}, but not {described(only[False])}; "
            f"{brief(other.read)} shows the second, but not the first: they disagree on which came first",
            [one.read, other.read, only[True], only[False]],
        )


@dataclass
class _Owner:
    """The possible balances of an owner's accounts right after each of its transfers."""

    transfers: Sequence[Operation]
    balances: Mapping[Any, int]
    accounts: list[Any] = field(init=False)
    after: list[set[_State]] = field(init=False)
    decided: bool = field(init=False)

    def __post_init__(self) -> None:
        sides = [each.argument[side] for each in self.transfers for side in ("from", "to")]
        self.accounts = list(dict.fromkeys(sides))
        before = {tuple(self.balances[account] for account in self.accounts)}
        self.after, self.decided = [], True
        for transfer in self.transfers:
            after = {self._moved(state, transfer) for state in before}
            self.after.append(after)
            before = after if transfer.known else before | after
            self.decided = self.decided and len(before) <= POSSIBLE_MAX
            if not self.decided:
                return

    def _moved(self, state: _State, transfer: Operation) -> _State:
        changed = dict(zip(self.accounts, state, strict=True))
        changed[transfer.argument["from"]] -= transfer.argument["amount"]
        changed[transfer.argument["to"]] += transfer.argument["amount"]
        return tuple(changed.values())

    def shown(self, read: Operation) -> tuple[int, int] | None:
        """See _Shown. Considers transfers that began before the read ended, back to one that ended before it began."""
        if not self.decided:
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
    assert operation.ended is not None, "only answered operations"
    return operation.ended
