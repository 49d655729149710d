"""Who repairs what: the whole state of audits and repairs, for operators."""

from __future__ import annotations

import msgspec

from ebla.actors.coordination import paths as names
from ebla.actors.coordination.sessions.nodes import Nodes
from ebla.actors.errors import NotFound
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.records import DEADLINE_S, Sessions
from ebla.actors.ledger.shared.repairs import Audits, Repairs
from ebla.actors.world import CallerWorld

MARKED_MAX = 1000


class LostStore(msgspec.Struct, frozen=True):
    """`since_us`: when the auditor noticed; None: it has not yet."""

    uuid: str
    address: str
    since_us: int | None


class MarkedLedger(msgspec.Struct, frozen=True):
    """`stores` lack entries, and `lost` of them are replaced unless they return. `worker` repairs it now, or None. `reason`: why it
    is not whole yet, as of the last of `tries` tries; the next one is at `retry_us`, or earlier if a store returns."""

    ledger: int
    stores: tuple[str, ...]
    lost: tuple[str, ...]
    since_us: int
    worker: str | None = None
    reason: str | None = None
    tries: int = 0
    retry_us: int | None = None


class RepairSurvey(msgspec.Struct, frozen=True):
    """`auditor`: the elected one, or None. `delay_s`: as an operator has set it; None: the auditor's option holds. `marks`: how many
    ledgers are marked; `marked` are the first of them. `audit_us`, `check_us`: the last audit and the last check of all ledgers;
    None: there was none."""

    enabled: bool
    auditor: str | None
    delay_s: float | None
    known: tuple[StoreInfo, ...]
    running: tuple[StoreInfo, ...]
    lost: tuple[LostStore, ...]
    marks: int
    marked: tuple[MarkedLedger, ...]
    audit_us: int | None
    check_us: int | None


async def survey(world: CallerWorld, session: Sessions, marked_max: int = MARKED_MAX) -> RepairSurvey:
    """Read the state, one node after another: it may change meanwhile."""
    registry, repairs = KeptRegistry(world, session), Repairs(session)
    audits = await repairs.audits.get(paths.AUDITS) or Audits()
    running = await registry.stores()
    known = await registry.known()
    up = [store.uuid for store in running]
    lost = [
        LostStore(store.uuid, store.address, audits.lost.get(store.uuid))
        for store in known
        if store.uuid not in up
    ]
    marks = await repairs.marked()
    found = [await marked(registry, repairs, ledger) for ledger in marks[:marked_max]]
    return RepairSurvey(
        await repairs.enabled(),
        await _auditor(session.nodes),
        await repairs.delay_s(),
        tuple(known),
        tuple(running),
        tuple(lost),
        len(marks),
        tuple(each for each in found if each is not None),
        audits.audit_us or None,
        audits.check_us or None,
    )


async def marked(registry: KeptRegistry, repairs: Repairs, ledger: int) -> MarkedLedger | None:
    """The ledger's mark, and its repair; None: it is not marked."""
    mark = await registry.marks.get(paths.of_mark(ledger))
    if mark is None:
        return None
    note = await repairs.notes.get(paths.of_note(ledger))
    lock = await repairs.nodes.get(paths.of_lock(ledger), deadline_s=DEADLINE_S)
    worker = None if lock is None else lock.data.decode()
    made = MarkedLedger(ledger, mark.stores, mark.lost, mark.since_us, worker)
    if note is None:
        return made
    return msgspec.structs.replace(made, reason=note.reason, tries=note.tries, retry_us=note.retry_us)


async def _auditor(nodes: Nodes) -> str | None:
    """The name of the session whose node is the first of the lock."""
    try:
        waiting = await nodes.children(paths.AUDITOR, deadline_s=DEADLINE_S)
    except NotFound:
        return None
    numbers = {names.number(name): name for name in waiting}
    numbered = [number for number in numbers if number is not None]
    if not numbered:
        return None
    node = await nodes.get(names.join(paths.AUDITOR, numbers[min(numbered)]), deadline_s=DEADLINE_S)
    if node is None:
        return None
    sessions = await nodes.sessions(deadline_s=DEADLINE_S)
    return next((each.name for each in sessions if each.session == node.owner), None)
