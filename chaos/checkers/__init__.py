"""Checkers judge a history against what ebla promises. Each is a function from a history to a `Verdict`.

    workload      operations                               promise
    register      read write insert update delete          linearizable, per key
    sides         read write                               the same where configurations were forced, on each side
    set           add remove read-set count                nothing acknowledged is lost, doubled or comes back
    bank          transfer read-bank                       batches are atomic, snapshots whole and never stale
    list          append read-list                         acknowledged nodes stay, chains never break
    stamp         stamp read-stamps                        batches are never torn, groups never get older
    coordination  acquire use create list get cas ...      one holder, nothing comes twice, versions are linearizable

Each checker's module defines its operations. Each workload's history is judged by its own checker; `together` makes one verdict
of several.
"""

from __future__ import annotations

from ebla.chaos.checkers.bank import check_bank
from ebla.chaos.checkers.chains import check_list
from ebla.chaos.checkers.coordination import check_coordination
from ebla.chaos.checkers.register import check_register
from ebla.chaos.checkers.sets import check_set
from ebla.chaos.checkers.sides import check_sides
from ebla.chaos.checkers.stamps import check_stamp
from ebla.chaos.checkers.verdict import Verdict, together

__all__ = [
    "Verdict",
    "check_bank",
    "check_coordination",
    "check_list",
    "check_register",
    "check_set",
    "check_sides",
    "check_stamp",
    "together",
]
