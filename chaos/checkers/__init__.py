"""Checkers judge a history against what ebla promises. Each is a function from a history to a `Verdict`.

    workload      operations                               promise
    register      read write insert update delete          linearizable, per key
    sides         read write                               the same where configurations were forced, on each side
    set           add remove read-set count                nothing acknowledged is lost, doubled or comes back
    bank          transfer read-bank                       batches are atomic, snapshots whole and never stale
    list          append read-list                         acknowledged nodes stay, chains never break
    log           append read-log                          a record is at one position for good, nothing is missed
    ledger        add read-ledger look close end delete    entries are in turn, and every client learns one end
    stamp         stamp read-stamps                        batches are never torn, groups never get older
    coordination  acquire use create list get cas ...      one holder, nothing comes twice, versions are linearizable

Each checker's module defines its operations. Each workload's history is judged by its own checker; `together` (verdict.py) makes
one verdict of several.
"""
