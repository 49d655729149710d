"""The nodes of ledgers and logs in the coordination namespace.

/ebla/ledgers/l-<number>      a ledger's metadata; the number is its id
/ebla/stores/known/<uuid>     every store that ever registered: its address
/ebla/stores/up/<uuid>        those that run: ephemeral
/ebla/stores/leaving          the hosts that are being decommissioned
/ebla/repair/marks/<number>   ledgers with stores that lack entries
/ebla/repair/locks/<number>   ledgers that a worker repairs: ephemeral, with the worker's address
/ebla/repair/notes/<number>   why a marked ledger is not repaired yet
/ebla/repair/auditor          the lock of the auditor
/ebla/repair/audits           what the auditor has done
/ebla/repair/disable          while it exists, nothing is audited or repaired
/ebla/repair/delay            how long one lost store may return before it is replaced
/ebla/repair/trigger          a change of it starts an audit
/ebla/logs/<name>             a log: its ledgers and settings
/ebla/counted                 the counted time of the deployment, by which logs delete old records
"""

from __future__ import annotations

from ebla.actors.coordination import paths

LEDGERS = "/ebla/ledgers"
KNOWN = "/ebla/stores/known"
UP = "/ebla/stores/up"
LEAVING = "/ebla/stores/leaving"
MARKS = "/ebla/repair/marks"
LOCKS = "/ebla/repair/locks"
NOTES = "/ebla/repair/notes"
AUDITOR = "/ebla/repair/auditor"
AUDITS = "/ebla/repair/audits"
DISABLE = "/ebla/repair/disable"
DELAY = "/ebla/repair/delay"
TRIGGER = "/ebla/repair/trigger"
LOGS = "/ebla/logs"
COUNTED = "/ebla/counted"
NEW_LEDGER = f"{LEDGERS}/l-"


def of_ledger(ledger: int) -> str:
    return paths.numbered(NEW_LEDGER, ledger)


def of_mark(ledger: int) -> str:
    return f"{MARKS}/{ledger}"


def of_lock(ledger: int) -> str:
    return f"{LOCKS}/{ledger}"


def of_note(ledger: int) -> str:
    return f"{NOTES}/{ledger}"
