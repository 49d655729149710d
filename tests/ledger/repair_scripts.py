"""Repairs that only a certain order of events makes; each shows one mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ebla.actors.coordination import messages as cm
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerBusy
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import Mark
from tests.ledger.repair_stage import RepairStage, data, store

At = Callable[[str], Awaitable[None]]


async def lost(stage: RepairStage, ledger: int, *names: str) -> None:
    """Mark stores as lost, as an auditor does."""
    for name in names:
        await stage.client.registry.mark(ledger, stage.uuids[name], lost=True)


async def unmarked(stage: RepairStage, ledger: int, limit_s: float = 60.0) -> None:
    async def gone() -> bool:
        return await stage.mark_of(ledger) is None

    await stage.until(gone, limit_s)


class Hooked:
    """The faults of a role: `at` is called at each fault point."""

    def __init__(self, at: At) -> None:
        self._at = at

    async def here(self, point: str) -> None:
        await self._at(point)

    def reached(self, mark: str) -> None:
        return


def hook(role: Any, at: At) -> None:
    object.__setattr__(role.world, "faults", Hooked(at))


async def a_mark_that_came_again_stays(stage: RepairStage) -> None:
    """Between the worker's check and the deletion of the mark the ledger is marked again: perhaps the check was too early."""
    found = await stage.client.written(20, "a", "b", "c")
    await lost(stage, found.ledger, "b")
    passed: list[Mark | None] = []

    async def at(point: str) -> None:
        if point == "ledger.repair.before_unmark":
            passed.append(await stage.mark_of(found.ledger))
            if len(passed) == 1:
                await stage.client.registry.mark(found.ledger, stage.uuids["b"])

    await stage.work("a")
    hook(stage.worker("a"), at)
    await unmarked(stage, found.ledger)
    await asyncio.sleep(5.0)
    assert [mark and mark.times for mark in passed] == [1, 2], "the second mark was followed, too"


async def named_whole(stage: RepairStage, ledger: int, name: str, limit_s: float = 60.0) -> None:
    """Wait until the metadata names this store; then it must have every entry."""
    until = stage.cluster.loop.time() + limit_s
    while True:
        found = await stage.client.registry.read(ledger)
        if stage.uuids[name] in found.segments[0].stores:
            break
        assert stage.cluster.loop.time() < until
        await asyncio.sleep(0.005)
    for entry in range(found.last + 1):
        assert stage.uuids[name] in stage.copies(found, entry), (entry, found)


async def a_copy_counts_when_it_is_synced(stage: RepairStage) -> None:
    """The worker ends while it copies, and returns: the metadata names the new store only with all entries."""
    found = await stage.client.written(400, "a", "b", "c")
    await stage.lose("b")
    await asyncio.sleep(8.0)
    await lost(stage, found.ledger, "b")
    watching = asyncio.ensure_future(named_whole(stage, found.ledger, "d"))
    await stage.work("d")
    while not stage.entries("d"):
        await asyncio.sleep(0.001)
    stage.cluster.crash("replication-worker/d")
    await stage.cluster.restart("replication-worker/d")
    await watching
    await unmarked(stage, found.ledger)
    await stage.judge_whole(found.ledger, data(400))


async def a_worker_without_its_lock_names_no_store(stage: RepairStage) -> None:
    """A worker loses its session without knowing, at the last step of a repair, and its host's garbage is collected: what it copied
    is deleted before it changes the metadata."""
    found = await stage.client.written(100, "a", "b", "c")
    await stage.lose("b")
    await asyncio.sleep(8.0)
    await lost(stage, found.ledger, "b")
    passed: list[None] = []

    async def at(point: str) -> None:
        if point == "ledger.repair.before_move":
            passed.append(None)
            if len(passed) == 1:
                await asyncio.sleep(20.0)

    stage.workers["garbage_s"] = 3.0
    await stage.work("d")
    worker = stage.worker("d")
    hook(worker, at)
    while not passed:
        await asyncio.sleep(0.01)
    await (await worker._sessions.open()).close()
    await stage.until(lambda: _empty(stage, "d"), 15.0)
    await named_whole(stage, found.ledger, "d")
    await unmarked(stage, found.ledger)
    assert len(passed) == 2
    await stage.judge_whole(found.ledger, data(100))


async def an_auditor_that_is_not_sure_marks_nothing(stage: RepairStage) -> None:
    """The session of the elected auditor expires while it is about to mark. Another one is elected; the first one continues: all
    changes of auditors are made in sessions that have a node of the lock."""
    queued: set[str] = set()
    audited: list[str] = []

    def observe(request: cm.ChangeRequest) -> None:
        for operation in request.operations:
            if operation.path.startswith(paths.AUDITOR):
                queued.add(request.session)
            elif operation.path.startswith((paths.MARKS, paths.AUDITS)):
                audited.append(request.session)

    async def at(point: str) -> None:
        if point == "ledger.audit.before_marks":
            stage.cluster.network.isolate("auditor/0")
            await asyncio.sleep(20.0)
            stage.cluster.network.rejoin("auditor/0")

    found = await stage.client.written(20, "a", "b", "c")
    stage.cluster.network.tap("change_nodes", cm.ChangeRequest, observe)
    await stage.audit(0)
    await asyncio.sleep(1.0)
    await stage.audit(1)
    hook(stage.auditor(0), at)
    await asyncio.sleep(4.0)
    await stage.lose("a")
    await stage.lose("b")
    await asyncio.sleep(60.0)
    mark = await stage.mark_of(found.ledger)
    assert mark is not None and len(mark.lost) == 2
    assert stage.auditor(1).counted.elected and not stage.auditor(0).counted.elected
    assert audited and all(session in queued for session in audited)


async def a_store_that_returns_is_not_lost(stage: RepairStage) -> None:
    """Within the delay, which the auditor counts from the loss."""
    await stage.client.written(20, "a", "b", "c")
    await stage.audit()
    await asyncio.sleep(4.0)
    await stage.lose("a")
    await asyncio.sleep(8.0)
    await stage.restart("a")
    await asyncio.sleep(10.0)
    assert not stage.auditor().counted.audits and not await stage.client.repairs.marked()


async def an_open_fragment_is_recovered_first(stage: RepairStage) -> None:
    """The last fragment of an open ledger has a lost store, and its writer is idle: within the grace period nothing is done, and then
    the ledger is closed."""
    client = stage.client
    found = await client.create("a", "b", "c")
    writer = client.writer(found)
    for each in data(10):
        await writer.add(each)
    await asyncio.sleep(1.0)
    await stage.lose("c")
    await asyncio.sleep(8.0)
    await lost(stage, found.ledger, "c")
    await stage.work()
    await asyncio.sleep(3.0)
    assert await client.registry.read(found.ledger) == found
    await unmarked(stage, found.ledger)
    await stage.judge_whole(found.ledger, data(10))


async def a_store_that_the_auditor_does_not_count_as_lost_is_not_replaced(stage: RepairStage) -> None:
    """A writer marks a store that restarts."""
    found = await stage.client.written(20, "a", "b", "c")
    await stage.lose("b")
    await asyncio.sleep(8.0)
    await stage.client.registry.mark(found.ledger, stage.uuids["b"])
    await stage.work()
    await asyncio.sleep(10.0)
    await stage.restart("b")
    await unmarked(stage, found.ledger)
    assert await stage.client.registry.read(found.ledger) == found


async def a_silent_store_is_not_replaced(stage: RepairStage) -> None:
    """Its session lives, so it may answer soon."""
    found = await stage.client.written(20, "a", "b", "c")
    stage.cluster.network.cut("replication-worker/d", "ledger-store/b")
    await stage.client.registry.mark(found.ledger, stage.uuids["b"])
    await stage.work("d")
    await asyncio.sleep(10.0)
    waiting = (await stage.survey()).marked
    assert [each.reason is not None and "does not answer" in each.reason for each in waiting] == [True]
    stage.cluster.network.mend("replication-worker/d", "ledger-store/b")
    await unmarked(stage, found.ledger)
    assert await stage.client.registry.read(found.ledger) == found


async def garbage_is_deleted_at_the_second_look(stage: RepairStage) -> None:
    """One look after the deletion does not delete."""
    found = await stage.client.written(10, "a", "b", "c")
    stage.workers["garbage_s"] = 10.0
    await stage.work("a")
    await stage.client.registry.delete(found.ledger)
    await asyncio.sleep(15.0)
    assert stage.role("a").ledgers() == [found.ledger]
    await asyncio.sleep(12.0)
    assert stage.role("a").ledgers() == [] and await _empty(stage, "a")


async def entries_under_repair_are_no_garbage(stage: RepairStage) -> None:
    """A worker has copied entries to the store, and has not named it yet."""
    found = await stage.client.written(50, "a", "b", "c")
    await stage.lose("b")
    await asyncio.sleep(8.0)
    await lost(stage, found.ledger, "b")

    async def at(point: str) -> None:
        if point == "ledger.repair.before_move":
            await asyncio.sleep(10.0)

    stage.workers["garbage_s"] = 2.0
    await stage.work("d")
    hook(stage.worker("d"), at)
    await named_whole(stage, found.ledger, "d")
    await unmarked(stage, found.ledger)


async def moved(stage: RepairStage) -> Metadata:
    """A ledger that store a has given to d and still has; b, another store of it, is lost."""
    client, a, d = stage.client, stage.uuids["a"], stage.uuids["d"]
    found = await client.written(50, "a", "b", "c")
    copy = m.CopyRequest(d, found, tuple(range(50)), 1 << 20)
    await client.stores.call(d, "copy_entries", copy, m.CopyReply, 5.0)
    await stage.lose("b")
    await asyncio.sleep(8.0)
    return await client.registry.change(found.ledger, lambda now: meta.with_moved(now, 0, a, d) or now)


async def a_store_that_does_not_run_is_not_named(stage: RepairStage) -> None:
    """The new store dies after the copy, and an audit notices that before the change: it would mark nothing later."""
    found = await stage.client.written(50, "a", "b", "c")
    await stage.audit()
    await stage.work("d")
    noticed = asyncio.Event()

    async def at(point: str) -> None:
        if point == "ledger.repair.before_move" and not noticed.is_set():
            audits = stage.auditor().counted.audits
            await stage.lose("d")
            while stage.auditor().counted.audits == audits:
                await asyncio.sleep(0.1)
            noticed.set()

    hook(stage.worker("d"), at)
    await asyncio.sleep(5.0)
    await stage.lose("b")
    await noticed.wait()
    await asyncio.sleep(5.0)
    assert await stage.client.registry.read(found.ledger) == found
    await stage.restart("d")
    await unmarked(stage, found.ledger)
    await stage.judge_whole(found.ledger, data(50))


async def a_repair_waits_until_moved_entries_are_deleted(stage: RepairStage) -> None:
    """A store is slow as it deletes moved entries. The collector gives up, and releases the lock; then another worker replaces a lost
    store by this one, which still has the entries."""
    found = await moved(stage)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def at(point: str) -> None:
        if point == "ledger.drop.before_commit":
            begun.set()
            await goes_on.wait()

    hook(stage.role("a"), at)
    stage.workers["garbage_s"] = 3.0
    await stage.work("a")
    await begun.wait()
    await stage.until(lambda: _unlocked(stage))
    stage.cluster.crash("replication-worker/a")
    await lost(stage, found.ledger, "b")
    stage.workers["garbage_s"] = 1000.0
    await stage.work("c")
    await asyncio.sleep(3.0)
    goes_on.set()
    await unmarked(stage, found.ledger)
    await stage.judge_whole(found.ledger, data(50))


async def a_late_deletion_of_moved_entries_is_refused(stage: RepairStage) -> None:
    """The request of a collector arrives when its lock is lost, and another worker has named the store."""
    found, a = await moved(stage), stage.uuids["a"]
    listed = await stage.client.stores.call(a, "list_ledgers", m.ListRequest(a), m.ListReply, 1.0)
    (late,) = [each for each in listed.ledgers if each.ledger == found.ledger]
    await lost(stage, found.ledger, "b")
    await stage.work("c")
    await unmarked(stage, found.ledger)
    request = m.DropRequest(a, late.ledger, late.token, late.sign)
    with suppress(LedgerBusy):
        await stage.client.stores.call(a, "drop_entries", request, m.Done, 1.0)
    await stage.judge_whole(found.ledger, data(50))


async def a_store_that_begins_to_leave_is_not_named(stage: RepairStage) -> None:
    """The host of the worker's target is decommissioned between the copy and the change of the metadata."""
    found = await stage.client.written(20, "a", "b", "c")
    await stage.lose("b")
    await asyncio.sleep(8.0)
    await lost(stage, found.ledger, "b")

    async def at(point: str) -> None:
        if point == "ledger.repair.before_move":
            await stage.client.registry.leave([store("d")], True)

    await stage.work("d")
    hook(stage.worker("d"), at)
    await asyncio.sleep(6.0)
    assert await stage.client.registry.read(found.ledger) == found
    (marked,) = (await stage.survey()).marked
    assert marked.reason is not None and "start another store" in marked.reason
    await stage.client.registry.leave([store("d")], False)
    hook(stage.worker("d"), _nothing)
    await unmarked(stage, found.ledger)
    await stage.judge_whole(found.ledger, data(20))


async def a_writer_without_another_store_keeps_the_one_that_leaves(stage: RepairStage) -> None:
    """Its host is decommissioned, and there is no other: the writer is not fenced, and each entry gets all of its copies."""
    client = stage.client
    found = await client.create("a", "b", "c", "d", ensemble=4, write_quorum=4, ack_quorum=4)
    writer = client.writer(found)
    await writer.add(data(1)[0])
    await client.registry.leave([store("d")], True)
    await stage.audit()
    await stage.work()
    await asyncio.sleep(20.0)
    for each in data(9, 1):
        await writer.add(each)
    (marked,) = (await stage.survey()).marked
    assert marked.reason is not None and "start another store" in marked.reason
    await writer.close()
    assert len(await client.contents(found.ledger)) == 10


async def _nothing(point: str) -> None:
    return


async def _unlocked(stage: RepairStage) -> bool:
    return not await stage.client.repairs.locked()


async def _empty(stage: RepairStage, name: str) -> bool:
    return not stage.entries(name)


SCRIPTS = (
    a_mark_that_came_again_stays,
    a_copy_counts_when_it_is_synced,
    a_worker_without_its_lock_names_no_store,
    an_auditor_that_is_not_sure_marks_nothing,
    a_store_that_returns_is_not_lost,
    an_open_fragment_is_recovered_first,
    a_store_that_the_auditor_does_not_count_as_lost_is_not_replaced,
    a_silent_store_is_not_replaced,
    garbage_is_deleted_at_the_second_look,
    entries_under_repair_are_no_garbage,
    a_store_that_does_not_run_is_not_named,
    a_repair_waits_until_moved_entries_are_deleted,
    a_late_deletion_of_moved_entries_is_refused,
    a_store_that_begins_to_leave_is_not_named,
    a_writer_without_another_store_keeps_the_one_that_leaves,
)
