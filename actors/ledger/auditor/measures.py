"""The figures of an auditor, see actors/figures.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ebla.actors.figures import Figure, Sheet, counter, gauge


@dataclass
class Counted:
    """The work of this auditor since it started."""

    elected: bool = False
    lost: int = 0
    audits: int = 0
    marked: int = 0
    checked: int = 0
    checks: int = 0
    skipped: int = 0
    cancelled: int = 0


AUDITOR: Sheet[Counted] = Sheet(
    (),
    gauge("audit_elected", "0/1", "this auditor is the elected one", lambda c: c.elected),
    gauge("audit_lost", "stores", "stores that registered once, and do not run", lambda c: c.lost),
    counter("audit_audits", "audits", "audits of lost stores", lambda c: c.audits),
    counter("audit_marked", "marks", "marks made by audits and checks", lambda c: c.marked),
    counter("audit_checks", "checks", "complete checks of all ledgers", lambda c: c.checks),
    counter("audit_checked", "ledgers", "ledgers that checks have checked", lambda c: c.checked),
    counter("audit_skipped", "checks", "checks put off, because an audit was pending", lambda c: c.skipped),
    counter(
        "audit_cancelled", "audits", "audits cancelled, because the store returned", lambda c: c.cancelled
    ),
)


def measure_auditor(counted: Counted) -> Iterator[Figure]:
    yield from AUDITOR.read(counted)
