"""The nodes of ledgers and logs in the coordination namespace.

/ebla/ledgers/l-<number>      a ledger's metadata; the number is its id
/ebla/stores/known/<uuid>     every store that ever registered: its address
/ebla/stores/up/<uuid>        those that run: ephemeral
/ebla/repair/marks/<number>   ledgers with stores that lack entries
/ebla/logs/<name>             a log: its ledgers and settings
"""

from __future__ import annotations

from ebla.actors.coordination import paths

LEDGERS = "/ebla/ledgers"
KNOWN = "/ebla/stores/known"
UP = "/ebla/stores/up"
MARKS = "/ebla/repair/marks"
LOGS = "/ebla/logs"
NEW_LEDGER = f"{LEDGERS}/l-"


def of_ledger(ledger: int) -> str:
    return paths.numbered(NEW_LEDGER, ledger)


def of_mark(ledger: int) -> str:
    return f"{MARKS}/{ledger}"
