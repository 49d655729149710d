"""Checkers judge a history against what ebla promises. Each is a function from a history to a `Verdict`.

    workload      operations                               promise
    register      read write insert update delete          linearizable, per key
    set           add remove read-set count                nothing acknowledged is lost, doubled or comes back
    bank          transfer read-bank                       batches are atomic, snapshots whole and never stale
    list          append read-list                         acknowledged nodes stay, chains never break
    stamp         stamp read-stamps                        batches are never torn, groups never get older

and `check_convergence` compares digests of replicas when all is over. What each operation means is told at the top
of its checker. A history of several workloads is judged by `check_all`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ebla.chaos.checkers import bank, chains, register, sets, stamps
from ebla.chaos.checkers.bank import Balances, check_bank
from ebla.chaos.checkers.chains import check_list
from ebla.chaos.checkers.convergence import check_convergence
from ebla.chaos.checkers.linearizability import STEPS_MAX
from ebla.chaos.checkers.register import NO_ORDER, Order, check_register
from ebla.chaos.checkers.sets import check_set
from ebla.chaos.checkers.stamps import check_stamp
from ebla.chaos.checkers.verdict import Recorded, Verdict, together
from ebla.chaos.history import History
from ebla.storage.errors import InvalidArgument

__all__ = [
    "OPERATIONS",
    "Verdict",
    "check_all",
    "check_bank",
    "check_convergence",
    "check_list",
    "check_register",
    "check_set",
    "check_stamp",
    "together",
]

# The operations of each workload.
OPERATIONS = {
    "register": tuple(register.STEPS),
    "set": sets.NAMES,
    "bank": bank.NAMES,
    "list": chains.NAMES,
    "stamp": stamps.NAMES,
}


def check_all(
    recorded: Recorded,
    *,
    order: Order = NO_ORDER,
    balances: Balances | None = None,
    rows: int | None = None,
    steps_max: int = STEPS_MAX,
) -> dict[str, Verdict]:
    """Judge each workload that the history has operations of; `together` makes one verdict of them.

    `order` is for registers, `balances` for a bank, `rows` for stamps. An operation that no workload knows is
    refused, so that nothing goes unjudged.
    """
    operations = list(recorded.operations() if isinstance(recorded, History) else recorded)
    used = dict.fromkeys(operation.name for operation in operations)
    known = {name: workload for workload, names in OPERATIONS.items() for name in names}
    for name in used:
        if name not in known:
            raise InvalidArgument(f"no checker judges the operation {name!r}; known are {', '.join(known)}")
    if balances is None and any(known[name] == "bank" for name in used):
        raise InvalidArgument("a bank is judged from its first balances; give them as `balances`")
    checkers: dict[str, Callable[[Recorded], Verdict]] = {
        "register": partial(check_register, order=order, steps_max=steps_max),
        "set": check_set,
        "bank": partial(check_bank, balances=balances or {}, steps_max=steps_max),
        "list": check_list,
        "stamp": partial(check_stamp, rows=rows),
    }
    present = dict.fromkeys(known[name] for name in used)
    return {workload: checkers[workload](operations) for workload in OPERATIONS if workload in present}
