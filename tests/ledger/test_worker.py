"""The replication worker repairs marked ledgers."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.coordination import messages as cm
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerFenced
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared import records as records_of_nodes
from ebla.actors.ledger.store import records
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.ledger.worker.copying import LANES
from ebla.actors.ledger.worker.worker import Due
from ebla.actors.messages import Empty
from tests.ledger.repair_scripts import SCRIPTS, lost, unmarked
from tests.ledger.repair_stage import RepairStage, Scenario, data, play, store


def test_a_lost_store_of_a_closed_ledger_is_replaced() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(500, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await stage.work()
        await asyncio.sleep(5.0)
        assert (await stage.client.registry.read(found.ledger)) == found, "without a mark nothing is done"
        await lost(stage, found.ledger, "b")
        await unmarked(stage, found.ledger)
        moved = await stage.judge_whole(found.ledger, data(500))
        assert moved.segments[0].stores == tuple(stage.uuids[name] for name in "adc")
        assert await stage.client.repairs.notes.get(paths.of_note(found.ledger)) is None
        assert await stage.client.repairs.locked() == []
        states = [await stage.worker(name).worker_status(Empty()) for name in "abcd"]
        assert sum(state.copied for state in states) == 500
        assert [(state.repaired, state.moved) for state in states if state.copied] == [(1, 1)]
        assert not any(state.tasks for state in states)

    play(scenario)


def test_the_workers_own_store_is_preferred() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(10, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await lost(stage, found.ledger, "b")
        await stage.work("f")
        await unmarked(stage, found.ledger)
        assert stage.uuids["f"] in (await stage.judge_whole(found.ledger)).segments[0].stores

    play(scenario, count=7)


@pytest.mark.parametrize("shape", [(5, 3, 2), (4, 2, 1)])
def test_two_lost_stores_of_a_striped_ledger_are_replaced(shape: tuple[int, int, int]) -> None:
    async def scenario(stage: RepairStage) -> None:
        ensemble, write_quorum, ack_quorum = shape
        names = "abcde"[:ensemble]
        found = await stage.client.written(101, *names, write_quorum=write_quorum, ack_quorum=ack_quorum)
        await stage.lose("a")
        await stage.lose("c")
        await asyncio.sleep(8.0)
        await lost(stage, found.ledger, "a", "c")
        await stage.work("b", "f")
        await unmarked(stage, found.ledger)
        await stage.judge_whole(found.ledger, data(101))

    play(scenario, count=7)


def test_a_running_store_is_filled_in_place() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        stage.cluster.crash(store("b"))
        found = await client.written(300, "a", "b", "c", write_quorum=3, ack_quorum=2)
        await asyncio.sleep(1.0)
        await stage.restart("b")
        await stage.settled()
        state = stage.cluster.state(store("a"))
        for entry in (0, 17, 299):
            state.rot("ledgers", "entries", records.key_of(found.ledger, entry))
        await client.registry.mark(found.ledger, stage.uuids["a"])
        await client.registry.mark(found.ledger, stage.uuids["b"])
        await stage.until(lambda: stage._registered(3))
        await stage.work("c")
        await unmarked(stage, found.ledger)
        whole = await stage.judge_whole(found.ledger, data(300))
        assert whole == await client.registry.read(found.ledger)
        assert {s for segment in whole.segments for s in segment.stores} == set(stage.uuids.values())

    play(scenario, count=3)


def test_a_store_that_only_restarts_is_waited_for_and_its_mark_is_removed() -> None:
    """The mark of a writer does not say that the store is lost: that is decided by the auditor's delay."""

    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(50, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await client.registry.mark(found.ledger, stage.uuids["b"])
        await stage.work()
        await asyncio.sleep(20.0)
        (marked,) = (await stage.survey()).marked
        assert (
            marked.reason is not None and "does not run, and the auditor does not count it" in marked.reason
        )
        assert await client.registry.read(found.ledger) == found
        await stage.restart("b")
        await unmarked(stage, found.ledger, 5.0)
        assert await client.registry.read(found.ledger) == found

    play(scenario)


def test_a_store_with_a_new_directory_is_replaced_by_another_store_at_its_address() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(50, "a", "b", "c")
        await stage.lose("b")
        stage.cluster.lose_disk(store("b"))
        await stage.restart("b")
        await client.registry.mark(found.ledger, found.segments[0].stores[1], lost=True)
        await stage.work("b")
        await unmarked(stage, found.ledger)
        whole = await stage.judge_whole(found.ledger, data(50))
        assert whole.segments[0].stores[1] == stage.uuids["b"]

    play(scenario, count=3)


def test_a_ledger_without_a_sound_copy_keeps_its_mark_and_says_why_and_others_are_repaired() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        only = await client.written(5, "a", write_quorum=1, ack_quorum=1)
        other = await client.written(5, "a", "b", "c")
        await stage.lose("a")
        await asyncio.sleep(8.0)
        await lost(stage, only.ledger, "a")
        await lost(stage, other.ledger, "a")
        await stage.work()
        await unmarked(stage, other.ledger)
        await asyncio.sleep(30.0)
        (marked,) = (await stage.survey()).marked
        assert marked.ledger == only.ledger and marked.worker is None
        assert marked.reason is not None and "5 entries have no readable copy (0-4)" in marked.reason
        assert 3 <= marked.tries <= 5, "2, 4, 8, 16 s"
        assert await client.registry.read(only.ledger) == only
        await stage.restart("a")
        await unmarked(stage, only.ledger, 6.0)
        assert await client.contents(only.ledger) == data(5)

    play(scenario)


def test_a_repair_without_another_store_says_so() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(5, "a", "b", "c")
        await stage.lose("a")
        await asyncio.sleep(8.0)
        await lost(stage, found.ledger, "a")
        await stage.work()
        await asyncio.sleep(5.0)
        (marked,) = (await stage.survey()).marked
        assert marked.reason is not None and "start another store" in marked.reason

    play(scenario, count=3)


def test_an_open_last_fragment_is_left_to_its_writer_and_recovered_after_the_grace_period() -> None:
    async def scenario(stage: RepairStage) -> None:
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
        await asyncio.sleep(4.0)
        assert (await client.registry.read(found.ledger)).state == meta.OPEN
        (marked,) = (await stage.survey()).marked
        assert marked.reason is not None and "its writer may replace store" in marked.reason
        await unmarked(stage, found.ledger, 20.0)
        await stage.judge_whole(found.ledger, data(10))
        assert (await client.registry.read(found.ledger)).repaired, "a log's writer may go on elsewhere"
        with pytest.raises(LedgerFenced):
            await writer.add(b"late")

    play(scenario)


def test_a_ledger_whose_writer_replaces_the_store_stays_open() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.create("a", "b", "c")
        writer = client.writer(found)
        for each in data(10):
            await writer.add(each)
        await stage.lose("c")
        await stage.work()
        await asyncio.sleep(7.0)
        await lost(stage, found.ledger, "c")
        await asyncio.sleep(1.0)
        for each in data(20, 10):
            await writer.add(each)
            await asyncio.sleep(0.2)
        await unmarked(stage, found.ledger, 30.0)
        now = await client.registry.read(found.ledger)
        assert now.state == meta.OPEN and len(now.segments) == 2
        assert await writer.add(b"entry 30") == 30
        await writer.close()
        await stage.judge_whole(found.ledger, data(31))

    play(scenario)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_scripted_repair_keeps_the_promises(script: Scenario) -> None:
    play(script)


def test_a_deleted_ledger_loses_its_mark() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await lost(stage, found.ledger, "b")
        await stage.client.registry.delete(found.ledger)
        await stage.work()
        await unmarked(stage, found.ledger, 5.0)

    play(scenario)


def test_a_disabled_worker_takes_no_ledger_and_a_running_repair_ends_at_a_batch() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(1000, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await stage.work("a")
        await client.repairs.disable()
        with pytest.raises(AlreadyPresent, match="disabled already"):
            await client.repairs.disable()
        await lost(stage, found.ledger, "b")
        await asyncio.sleep(10.0)
        assert await client.repairs.locked() == [] and not (await stage.survey()).enabled
        await client.repairs.enable()
        with pytest.raises(NotFound, match="nothing was to be done"):
            await client.repairs.enable()
        await asyncio.sleep(3.0)
        (marked,) = (await stage.survey()).marked
        assert marked.worker == "replication-worker/a"
        await client.repairs.disable()
        await asyncio.sleep(4.0)
        copied = stage.worker("a").counted.copied
        assert await client.repairs.locked() == [] and 0 < copied < 1000
        await client.repairs.enable()
        await unmarked(stage, found.ledger, 60.0)
        await stage.judge_whole(found.ledger, data(1000))
        assert stage.worker("a").counted.copied == 1000, "copied entries are not copied again"

    play(scenario, worker={"batch_entries": 50, "bytes_per_s": 600})


def test_batches_of_one_repair_are_copied_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is written, the next is read. A batch has as many entries as fit, once their size is known."""
    under_way: dict[int, int] = {}
    sizes: list[int] = []
    copy_entries = LedgerStore.copy_entries

    async def counted(self: LedgerStore, request: m.CopyRequest) -> m.CopyReply:
        under_way[id(request)] = len(under_way) + 1
        most.append(len(under_way))
        try:
            reply = await copy_entries(self, request)
        finally:
            del under_way[id(request)]
        sizes.append(reply.copied)
        return reply

    most: list[int] = []
    monkeypatch.setattr(LedgerStore, "copy_entries", counted)

    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(1000, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await lost(stage, found.ledger, "b")
        await stage.work("d")
        await unmarked(stage, found.ledger)
        await stage.judge_whole(found.ledger, data(1000))

    play(scenario, worker={"batch_entries": 100})
    assert max(most) == LANES
    assert sum(sizes) == 1000 and max(sizes) == 100 and len(sizes) < 20


def test_a_worker_repairs_a_few_ledgers_at_once_within_one_rate_and_tells_how_far_it_is() -> None:
    async def scenario(stage: RepairStage) -> None:
        made = [await stage.client.written(100, "a", "b", "c") for _ in range(4)]
        await stage.lose("b")
        await asyncio.sleep(8.0)
        for found in made:
            await lost(stage, found.ledger, "b")
        began = stage.cluster.loop.time()
        await stage.work("d")
        await asyncio.sleep(4.0)
        tasks = [each.task for each in (await stage.survey()).marked if each.worker == "replication-worker/d"]
        assert len(tasks) == 2 and all(task and task.entries == 100 for task in tasks)
        assert any(task and task.copied_bytes for task in tasks)
        for found in made:
            await unmarked(stage, found.ledger)
            await stage.judge_whole(found.ledger, data(100))
        last = 2 * LANES * sum(map(len, data(10, 90)))  # copies for which nothing waits
        waited_for = 4 * sum(map(len, data(100))) - last
        assert stage.cluster.loop.time() - began > waited_for / 300.0

    play(scenario, worker={"batch_entries": 10, "bytes_per_s": 300, "tasks_max": 2})


def test_a_lock_that_was_made_without_an_answer_ends() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await stage.work("c")
        network, made = stage.cluster.network, asyncio.Event()

        def observe(request: cm.ChangeRequest) -> None:
            paths_of = [each.path for each in request.operations if isinstance(each, cm.Create)]
            if paths.of_lock(found.ledger) in paths_of and not made.is_set():
                network.cut("master/0", "replication-worker/c", one_way=True)
                made.set()

        network.tap("change_nodes", cm.ChangeRequest, observe)
        await lost(stage, found.ledger, "b")
        await made.wait()
        await asyncio.sleep(records_of_nodes.DEADLINE_S + 2.0)
        network.mend("master/0", "replication-worker/c", one_way=True)
        await unmarked(stage, found.ledger)
        await stage.judge_whole(found.ledger, data(20))

    play(scenario)


def test_a_worker_that_could_not_follow_news_follows_it_later() -> None:
    """The masters are away for longer than a request waits, just after a ledger was marked."""

    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.lose("b")
        await asyncio.sleep(8.0)
        await stage.work("d")
        await asyncio.sleep(3.0)
        away = asyncio.Event()

        def observe(request: cm.NodeRequest) -> None:
            if request.path == paths.DISABLE and not away.is_set():
                stage.cluster.crash("master/0")
                away.set()

        await lost(stage, found.ledger, "b")
        stage.cluster.network.tap("read_node", cm.NodeRequest, observe)
        await away.wait()
        await asyncio.sleep(records_of_nodes.DEADLINE_S + 2.0)
        await stage.cluster.restart("master/0")
        await unmarked(stage, found.ledger)

    play(scenario)


def test_a_note_that_another_worker_deletes_first_is_no_error() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(5, "a", "b", "c")
        await client.repairs.disable()
        await stage.work("a")
        await client.registry.mark(found.ledger, stage.uuids["b"])
        marked = await client.registry.marks.find(paths.of_mark(found.ledger))
        assert marked is not None
        assert not await stage.worker("a")._delete_mark(found.ledger, Due(*marked, noted=True))
        assert await stage.mark_of(found.ledger) is not None

    play(scenario)


def test_deleted_and_moved_ledgers_leave_the_store() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        kept = await client.written(10, "a", "b", "c")
        deleted = await client.written(10, "a", "b", "c")
        moved = await client.written(10, "a", "b", "c")
        opened = await client.create("a", "b", "c")
        await client.writer(opened).add(b"one")
        await client.registry.delete(deleted.ledger)
        a, d = stage.uuids["a"], stage.uuids["d"]
        await client.registry.change(moved.ledger, lambda now: meta.with_moved(now, 0, a, d) or now)
        await client.session.open()
        lock = await (await client.session.open()).create(
            paths.of_lock(moved.ledger), ephemeral=True, parents=True, deadline_s=5.0
        )
        await stage.work("a")
        await asyncio.sleep(15.0)
        assert deleted.ledger in stage.role("a").ledgers(), "only the second look deletes"
        await asyncio.sleep(12.0)
        role = stage.role("a")
        assert role.ledgers() == [kept.ledger, moved.ledger, opened.ledger]
        assert stage.entries("a") == 21, "the moved one is locked"
        await (await client.session.open()).delete(lock.path, deadline_s=5.0)
        await asyncio.sleep(15.0)
        assert stage.entries("a") == 11
        assert await client.contents(kept.ledger) == data(10)
        assert stage.entries("b") == 31

    play(scenario, worker={"garbage_s": 10.0})
