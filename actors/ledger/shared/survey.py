"""The whole state of audits and repairs, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from ebla.actors.coordination import paths as names
from ebla.actors.coordination.sessions.nodes import Nodes
from ebla.actors.errors import NotFound
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.messages import Task, WorkerStatus
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import KeptRegistry, Leaving, Mark
from ebla.actors.ledger.shared.records import DEADLINE_S, Sessions
from ebla.actors.ledger.shared.repairs import LOST, NO_STORE, Audits, Note, Repairs, Tally
from ebla.actors.messages import Empty
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

MARKED_MAX = 1000
WORKER_S = 2.0


class LostStore(msgspec.Struct, frozen=True):
    """`since_us`: when the auditor noticed; None: it has not yet. `leaving`: its host is being decommissioned."""

    uuid: str
    address: str
    since_us: int | None
    leaving: bool = False


# What is the matter with a marked ledger.
MOVING = "moving"  # every entry has its copies; a host that is decommissioned has some of them
UNDER_REPLICATED = "under_replicated"
UNRECOVERABLE = "unrecoverable"  # entries have no readable copy, or its end cannot be decided


class MarkedLedger(msgspec.Struct, frozen=True):
    """`stores` lack entries, and `lost` of them are replaced unless they return. `worker` repairs it now, or None; `task`: how far it
    is, if it tells. `reason`: why the ledger is not whole yet, as of the last of `tries` tries; the next one is at `retry_us`, or
    earlier if a store returns. `kind`: see shared/repairs.py; of an unrecoverable one, the first of its `entries` without a readable
    copy, as ranges, and the stores that do not run and should have them (`missing`)."""

    ledger: int
    stores: tuple[str, ...]
    lost: tuple[str, ...]
    since_us: int
    worker: str | None = None
    reason: str | None = None
    tries: int = 0
    retry_us: int | None = None
    state: str = UNDER_REPLICATED
    kind: str | None = None
    entries: tuple[tuple[int, int], ...] = ()
    missing: tuple[str, ...] = ()
    task: Task | None = None

    @property
    def stuck(self) -> bool:
        """Whether nothing happens to it until an operator or a store comes."""
        return self.worker is None and self.kind in (NO_STORE, LOST)


class RepairSurvey(msgspec.Struct, frozen=True):
    """`auditor`: the elected one, or None. `delay_s`: as an operator has set it; None: the auditor's option holds. `marks`: how many
    ledgers are marked; `marked` are the first of them. `audit_us`, `check_us`: the last audit and the last check of all ledgers;
    None: there was none. `leaving`: the addresses of stores whose hosts are being decommissioned. `copies`: of closed ledgers, as of the
    last check."""

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
    leaving: tuple[str, ...] = ()
    copies: Tally | None = None


async def survey(world: CallerWorld, session: Sessions, marked_max: int = MARKED_MAX) -> RepairSurvey:
    """Read the state, one node after another: it may change meanwhile."""
    registry, repairs = KeptRegistry(world, session), Repairs(session)
    audits = await repairs.audits.get(paths.AUDITS) or Audits()
    running = await registry.stores()
    known = await registry.known()
    leaving = (await registry.leavings.get(paths.LEAVING) or Leaving()).since_us
    up = [store.uuid for store in running]
    lost = [
        LostStore(store.uuid, store.address, audits.lost.get(store.uuid), store.address in leaving)
        for store in known
        if store.uuid not in up
    ]
    marks = await repairs.marked()
    found = await marked(world, registry, repairs, marks[:marked_max])
    return RepairSurvey(
        await repairs.enabled(),
        await _auditor(session.nodes),
        await repairs.delay_s(),
        tuple(known),
        tuple(running),
        tuple(lost),
        len(marks),
        tuple(found),
        audits.audit_us or None,
        audits.check_us or None,
        tuple(leaving),
        audits.copies,
    )


async def marked(
    world: CallerWorld, registry: KeptRegistry, repairs: Repairs, ledgers: Sequence[int]
) -> list[MarkedLedger]:
    """Those of the ledgers that are marked."""
    found = [each for ledger in ledgers if (each := await _marked(registry, repairs, ledger)) is not None]
    if not found:
        return []
    hosts = {store.uuid: store.address.rpartition("/")[2] for store in await registry.known()}
    leaving, running = await registry.leaving(), await registry.running()
    moving = [store for store in leaving if store in running]
    workers = sorted({each.worker for each in found if each.worker is not None})
    tasks: dict[int, Task] = {}
    for answer in await asyncio.gather(*(_status_of(world, worker) for worker in workers)):
        tasks.update((task.ledger, task) for task in (answer.tasks if answer is not None else ()))
    return [completed(each, hosts, moving, tasks.get(each.ledger)) for each in found]


def completed(
    found: MarkedLedger, hosts: Mapping[str, str], moving: Sequence[str], task: Task | None
) -> MarkedLedger:
    """With the state, and with the names of hosts in the reason. `moving`: stores that run, and whose hosts are being
    decommissioned."""
    reason = found.reason
    for uuid, host in hosts.items() if reason is not None else ():
        reason = reason and reason.replace(uuid, f"at {host}")
    state = UNDER_REPLICATED
    if found.kind == LOST:
        state = UNRECOVERABLE
    elif all(store in moving for store in found.stores):
        state = MOVING
    return msgspec.structs.replace(found, reason=reason, state=state, task=task)


async def _status_of(world: CallerWorld, worker: str) -> WorkerStatus | None:
    try:
        return await world.network.call(worker, "worker_status", Empty(), WorkerStatus, WORKER_S)
    except EblaError:
        return None


async def _marked(registry: KeptRegistry, repairs: Repairs, ledger: int) -> MarkedLedger | None:
    mark = await registry.marks.get(paths.of_mark(ledger))
    if mark is None:
        return None
    note = await repairs.notes.get(paths.of_note(ledger))
    lock = await repairs.nodes.get(paths.of_lock(ledger), deadline_s=DEADLINE_S)
    return joined(ledger, mark, note, None if lock is None else lock.data.decode())


def joined(ledger: int, mark: Mark, note: Note | None, worker: str | None) -> MarkedLedger:
    made = MarkedLedger(ledger, mark.stores, mark.lost, mark.since_us, worker)
    if note is None:
        return made
    return msgspec.structs.replace(
        made,
        reason=note.reason,
        tries=note.tries,
        retry_us=note.retry_us,
        kind=note.kind,
        entries=note.entries,
        missing=note.missing,
    )


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
