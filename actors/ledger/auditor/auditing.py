"""An audit marks every ledger of each lost store, and of each store whose host is being decommissioned. A check of all ledgers asks
the stores that run, marks what they lack, and counts the copies of entries. A ledger whose metadata cannot be read is left out, and
the others are not. A store that lost its directory is forgotten when no ledger names it any more."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container

from ebla.actors.errors import NotFound
from ebla.actors.ledger.auditor.measures import Counted
from ebla.actors.ledger.handles.checking import MISSING, Checker, Copies
from ebla.actors.ledger.metadata import Metadata, stores_in
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.repairs import Tally
from ebla.storage.errors import Corruption

log = logging.getLogger(__name__)


async def audit(
    registry: KeptRegistry,
    lost: Container[str],
    goes_on: Callable[[], Awaitable[bool]],
    counted: Counted,
) -> list[str] | None:
    """`lost`: the stores that were lost when the audit became due; one that runs again is left out. So is one that was lost since:
    it has its own delay. Returns the stores that leave and are still named by a ledger; None if repairs were disabled meanwhile."""
    index: dict[str, list[int]] = {}
    for ledger in await registry.list():
        found = await _read(registry, ledger)
        for store in stores_in(found) if found is not None else ():
            index.setdefault(store, []).append(ledger)
    known = [store.uuid for store in await registry.known()]
    runs = await registry.running()
    leaving = await registry.leaving()
    for store in sorted(index):
        leaves = store in leaving
        if not leaves and (store in runs or (store not in lost and store in known)):
            continue
        why = "leaves" if leaves else "is lost"
        log.warning("store %s %s: %d ledgers are marked", store, why, len(index[store]))
        for ledger in index[store]:
            if not await goes_on():
                return None
            await registry.mark(ledger, store, lost=not leaves, again=not leaves)
            counted.marked += 1
    return [store for store in leaving if store in index]


async def forget_replaced(registry: KeptRegistry, gone: Container[str]) -> list[str]:
    """Forget those of the stores that lost their directory: another store runs at the address, and no ledger names the old one. None
    is forgotten while the metadata of a ledger cannot be read."""
    taken = dict.fromkeys(store.address for store in await registry.stores())
    known = await registry.known()
    left = [store.uuid for store in known if store.uuid in gone and store.address in taken]
    for ledger in await registry.list() if left else ():
        try:
            named = stores_in(await registry.read(ledger))
        except NotFound:  # deleted meanwhile
            continue
        except Corruption:
            return []
        left = [store for store in left if store not in named]
    running = await registry.running()
    left = [store for store in left if store not in running]
    for store in left:
        log.warning("store %s is forgotten: another one has its address, and no ledger names it", store)
        await registry.forget(store)
    return left


async def check(
    registry: KeptRegistry,
    checker: Checker,
    ledger: int,
    lost: Container[str],
    percentage: float,
    tally: Tally,
) -> tuple[int, Tally]:
    """Check one ledger, and mark it. `lost`: stores whose ledgers an audit has marked; others that do not run are left to the next
    audit. Returns how many stores were marked, and the tally with the ledger, if it is closed."""
    found = await _read(registry, ledger)
    if found is None:
        return 0, tally
    running = await registry.running()
    findings = await checker.check(found, running, percentage)
    marks: dict[str, bool] = {}
    for damage in findings.damaged:
        if damage.why != MISSING or damage.store in lost:
            is_lost = damage.why == MISSING or damage.another
            marks[damage.store] = marks.get(damage.store, False) or is_lost
    if found.closed:
        copies = await checker.counted(found, running)
        marks = {**dict.fromkeys(copies.lacking, False), **marks}
        tally = tallied(tally, found, copies)
    for store, is_lost in marks.items():
        log.warning("ledger %d: store %s lacks entries, and is marked", ledger, store)
        await registry.mark(ledger, store, lost=is_lost)
    return len(marks), tally


def tallied(tally: Tally, found: Metadata, copies: Copies) -> Tally:
    few = copies.fewest < found.write_quorum
    return Tally(
        tally.ledgers + 1,
        tally.below_write + few,
        tally.below_ack + (copies.fewest < found.ack_quorum),
        tally.without + (copies.fewest == 0),
        tally.unknown + copies.unknown,
    )


async def _read(registry: KeptRegistry, ledger: int) -> Metadata | None:
    try:
        return await registry.read(ledger)
    except NotFound:  # deleted meanwhile
        return None
    except Corruption as error:
        log.error("ledger %d is neither audited nor checked: %s", ledger, error)
        return None
