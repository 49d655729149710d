"""An audit marks every ledger of each lost store. A check of all ledgers asks the stores that run, and marks what they lack."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Iterable

from ebla.actors.errors import NotFound
from ebla.actors.ledger.auditor.measures import Counted
from ebla.actors.ledger.handles.checking import MISSING, Checker
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.kept import KeptRegistry

log = logging.getLogger(__name__)


async def audit(
    registry: KeptRegistry,
    lost: Container[str],
    goes_on: Callable[[], Awaitable[bool]],
    counted: Counted,
) -> bool:
    """`lost`: the stores that were lost when the audit became due; one that runs again is left out. So is one that was lost since:
    it has its own delay. Returns False if repairs were disabled meanwhile."""
    index: dict[str, list[int]] = {}
    for ledger in await registry.list():
        found = await _read(registry, ledger)
        for store in _stores(found):
            index.setdefault(store, []).append(ledger)
    known = [store.uuid for store in await registry.known()]
    runs = await registry.running()
    for store in sorted(index):
        if store in runs or (store not in lost and store in known):
            continue
        log.warning("store %s is lost: %d ledgers are marked", store, len(index[store]))
        for ledger in index[store]:
            if not await goes_on():
                return False
            await registry.mark(ledger, store, lost=True)
            counted.marked += 1
    return True


async def check(
    registry: KeptRegistry, checker: Checker, ledger: int, lost: Container[str], percentage: float
) -> int:
    """Check one ledger, and mark it. `lost`: stores whose ledgers an audit has marked; others that do not run are left to the next
    audit. Returns how many stores were marked."""
    found = await _read(registry, ledger)
    if found is None:
        return 0
    running = await registry.running()
    findings = await checker.check(found, running, percentage)
    marks: dict[str, bool] = {}
    for damage in findings.damaged:
        if damage.why != MISSING or damage.store in lost:
            is_lost = damage.why == MISSING or damage.another
            marks[damage.store] = marks.get(damage.store, False) or is_lost
    for store, is_lost in marks.items():
        log.warning("ledger %d: store %s lacks entries, and is marked", ledger, store)
        await registry.mark(ledger, store, lost=is_lost)
    return len(marks)


async def _read(registry: KeptRegistry, ledger: int) -> Metadata | None:
    try:
        return await registry.read(ledger)
    except NotFound:  # deleted meanwhile
        return None


def _stores(found: Metadata | None) -> Iterable[str]:
    """The stores that the segments name, each once."""
    if found is None:
        return ()
    return dict.fromkeys(store for segment in found.segments for store in segment.stores)
