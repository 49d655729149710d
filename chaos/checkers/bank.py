"""A bank: transfers move money between accounts, and no read ever shows another total.

    transfer    value {"from", "to", "amount"}: one atomic batch
    read-bank   -> {account: balance} of all accounts

Accounts that transfers join have one owner, which makes one transfer at a time. After a transfer with an unknown outcome the
owner's next one excludes it from taking place later: an owner's transfers take place in their sequence, or not at all. So each
owner's accounts are one object, whose history is judged exactly. A read is also one snapshot of all accounts: its total never
changes, and the transfers that its balances prove to be included or not must fit one moment, and one order of all reads
(whole.py). No balance is ever negative.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ebla.chaos.checkers import whole
from ebla.chaos.checkers.linearizability import REFUSED, UNKNOWN, Call, Linearization, linearize
from ebla.chaos.checkers.verdict import (
    Recorded,
    Verdict,
    brief,
    broken,
    described,
    joined,
    listed,
    nothing,
    operations_of,
    places,
    together,
)
from ebla.chaos.history import Operation
from ebla.storage.errors import InvalidArgument

TRANSFER, READ = "transfer", "read-bank"
NAMES = (TRANSFER, READ)
Account = Hashable
Balances = Mapping[Any, int]


def check_bank(recorded: Recorded, balances: Balances) -> Verdict:
    """`balances`: the accounts and their initial balances."""
    operations = [each for each in operations_of(recorded, NAMES) if not each.failed]
    transfers = [each for each in operations if each.name == TRANSFER]
    reads = [each for each in operations if each.name == READ and each.known]
    for transfer in transfers:
        _check_transfer(transfer, balances)
    if not reads:
        return nothing("no read of the bank was answered")
    judged = len(reads) + sum(each.known for each in transfers)
    for read in reads:
        problem = _wrong_read(read, balances)
        if problem:
            return broken(f"{brief(read)} {problem}", [read], judged)
    owned = [
        (accounts, [each for each in transfers if each.argument["from"] in accounts])
        for accounts in _owners(transfers, balances)
    ]
    parts = [_check_owner(accounts, own, reads, balances) for accounts, own in owned]
    if all(part.valid is not False for part in parts):
        torn = next(whole.problems([own for _, own in owned if own], reads, balances), None)
        if torn:
            return broken(*torn, judged)
    verdict = together(parts, "owners")
    return Verdict(verdict.valid, verdict.problem, verdict.events, judged)


def _check_transfer(transfer: Operation, balances: Balances) -> None:
    value = transfer.argument
    if not isinstance(value, dict) or not {"from", "to", "amount"} <= value.keys():
        raise InvalidArgument(f'{described(transfer)}: the value must be {{"from", "to", "amount"}}')
    for side in ("from", "to"):
        if value[side] not in balances:
            raise InvalidArgument(
                f"{described(transfer)}: {side} is none of the accounts; give its first balance"
            )


def _wrong_read(read: Operation, balances: Balances) -> str:
    """The problem that a single read shows; empty if there is none."""
    if not isinstance(read.answer, dict):
        raise InvalidArgument(f"{described(read)}: the answer must map accounts to balances")
    missing = [account for account in balances if account not in read.answer]
    extra = [account for account in read.answer if account not in balances]
    if missing or extra:
        lacks = [f"lacks the accounts {listed(missing)}"] if missing else []
        return " and ".join(lacks + ([f"holds {listed(extra)}, which were never opened"] if extra else []))
    total, should_be = sum(read.answer.values()), sum(balances.values())
    if total != should_be:
        return f"has a total of {total}, not {should_be}: {_few(read.answer)}"
    negative = {account: balance for account, balance in read.answer.items() if balance < 0}
    return f"has negative balances: {_few(negative)}" if negative else ""


def _owners(transfers: Sequence[Operation], balances: Balances) -> list[list[Account]]:
    """The accounts in groups that transfers join, in the order of `balances`."""
    head: dict[Account, Account] = {account: account for account in balances}

    def find(account: Account) -> Account:
        while head[account] != account:  # ends: every step goes to an earlier join
            head[account] = head[head[account]]
            account = head[account]
        return account

    for transfer in transfers:
        head[find(transfer.argument["to"])] = find(transfer.argument["from"])
    groups: dict[Account, list[Account]] = {}
    for account in balances:
        groups.setdefault(find(account), []).append(account)
    return list(groups.values())


# -- one owner's accounts: (their balances, how many of the owner's transfers cannot take place any more)


def _transfer(state: Any, argument: Any, answer: Any) -> Any:
    balances, passed = state
    number, changes = argument
    if number < passed:
        return state if answer is UNKNOWN else REFUSED
    changed = list(balances)
    for at, amount in changes:
        changed[at] += amount
    return tuple(changed), number + 1


def _read(state: Any, argument: Any, answer: Any) -> Any:
    return state if state[0] == answer else REFUSED


def _check_owner(
    accounts: Sequence[Account],
    transfers: Sequence[Operation],
    reads: Sequence[Operation],
    balances: Balances,
) -> Verdict:
    at = {account: place for place, account in enumerate(accounts)}
    calls = []
    for number, transfer in enumerate(transfers):
        if number:
            _check_sequence(transfers[number - 1], transfer)
        value = transfer.argument
        changes = ((at[value["from"]], -value["amount"]), (at[value["to"]], value["amount"]))
        answer = None if transfer.known else UNKNOWN
        calls.append(Call(_transfer, (number, changes), answer, observes=False, operation=transfer))
    for read in reads:
        found = tuple(read.answer[account] for account in accounts)
        calls.append(Call(_read, None, found, observes=True, operation=read))
    initial = (tuple(balances[account] for account in accounts), 0)
    result = linearize(calls, initial)
    if result.found:
        return Verdict(True, judged=len(calls))
    names = f"accounts {listed(accounts)}"
    if result.found is None:
        return Verdict(None, f"{names}: undecided after {result.steps} steps", judged=len(calls))
    involved = [call.operation for call in ([result.last] if result.last else []) + list(result.stuck[:1])]
    return Verdict(False, f"{names}: {_story(result, accounts)}", places(involved), len(calls))


def _check_sequence(earlier: Operation, later: Operation) -> None:
    if earlier.end is None or earlier.end.index > later.began:
        raise InvalidArgument(
            f"{described(later)} began before {described(earlier)} ended: joined accounts have one owner, which makes "
            "one transfer at a time"
        )


# -- words


def _story(result: Linearization, accounts: Sequence[Account]) -> str:
    stuck = result.stuck[0]
    balances = dict(zip(accounts, result.state[0], strict=True))  # type: ignore[index]
    after = f" after {described(result.last.operation)}" if result.last else " from the beginning"
    if stuck.observes:
        found = dict(zip(accounts, stuck.answer, strict=True))  # type: ignore[call-overload]
        return (
            f"{brief(stuck.operation)} found {_few(found)}, which no order of the transfers explains; the longest "
            f"attempt has {_few(balances)}{after}"
        )
    return (
        f"no order of the transfers explains the reads; with {_few(balances)}{after}, "
        f"{described(stuck.operation)} does not fit"
    )


def _few(balances: Mapping[Any, int]) -> str:
    return "{" + joined([f"{account!r}: {balance}" for account, balance in balances.items()]) + "}"
