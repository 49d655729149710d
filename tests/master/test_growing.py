"""A journal of one node, in the process of the only master, grows to three nodes while the master serves."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors.errors import Unavailable
from ebla.actors.fault_points import GROWTH_POINTS, JOIN_POINTS
from ebla.actors.journal import messages as jm
from ebla.actors.journal.errors import NodesMoved, OutOfSync, Rejoining
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.actors.journal.writer.reader import JournalReader, Position
from ebla.actors.master.catalog import checkpoint
from ebla.actors.master.catalog.edits import CatalogWritten, decode
from ebla.actors.master.messages import GrowJournalReply, GrowJournalRequest
from ebla.chaos.simulation.masters import JOURNAL, maker_of
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import DiskFull, InvalidArgument
from tests.master.growing import (
    GROWN,
    HELD_S,
    NEW,
    NODES,
    counting,
    create,
    grow,
    grow_at_last,
    node,
    only_node,
    opened,
    run,
    serving,
)
from tests.master.stage import MASTER, Stage, content
from tests.staged import staged


@staged(run)
async def test_the_journal_grows_and_every_node_has_the_catalog(stage: Stage) -> None:
    await opened(stage)
    before = content(stage.master.catalog)
    await grow(stage)
    assert content(stage.master.catalog) == before
    await counting(stage)
    await create(stage, "later")
    assert [node(stage, each).form.nodes for each in NEW] == [NODES, NODES]
    await grow(stage)  # again
    stage.cluster.crash(NEW[0])
    await create(stage, "with two of three")
    before = content(stage.master.catalog)
    stage.cluster.crash(MASTER)
    await stage.cluster.restart(NEW[0])
    await stage.cluster.restart(MASTER)  # launched with one node in its options
    await serving(stage)
    assert content(stage.master.catalog) == before
    assert stage.cluster.role(MASTER).options.journal.nodes == NODES


@pytest.mark.parametrize("point", [*GROWTH_POINTS, *JOIN_POINTS])
@staged(run)
async def test_growing_that_ends_at_any_step_is_carried_on(stage: Stage, point: str) -> None:
    await opened(stage)
    stage.crash_at(point, *(NEW if point in JOIN_POINTS else ()))
    growing = asyncio.ensure_future(grow_at_last(stage))
    await stage.until(lambda: stage.points.passed.get(point, 0) > 0)
    await asyncio.sleep(0.3)
    for address in (MASTER, *NEW):
        if not stage.cluster.alive(address):
            await stage.cluster.restart(address)
    await growing
    await counting(stage)
    assert await stage.exists("table 3")
    await create(stage, "later")
    await stage.until(lambda: not only_node(stage).view.state.admits)


@pytest.mark.parametrize("chunk_bytes", [100, checkpoint.CHUNK_BYTES])
@staged(run)
async def test_a_catalog_outlives_the_directory_of_the_master_whose_journal_has_grown(
    stage: Stage, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", chunk_bytes)
    await opened(stage)
    await grow(stage)
    await create(stage, "later")
    await counting(stage)
    before, seen = content(stage.master.catalog), stage.master.catalog.lineage.version
    stage.cluster.crash(MASTER)
    stage.cluster.put_disk(MASTER, DurableState())
    stage.group = replace(stage.group, journal=replace(stage.group.journal, journal=GROWN, nodes=NODES))
    reader = JournalReader(stage.client, stage.group.journal)
    purged = max(each.purged for each in (await reader.manifests()).values())
    edits = [edit for _, edit in (await reader.read_all(Position(purged), in_progress=True)).edits]
    chunks = [len(edit) for edit in edits if isinstance(decode(edit)[0], CatalogWritten)]
    assert (len(chunks) > 10) == (chunk_bytes == 100) and max(chunks) < chunk_bytes + 100
    await stage.cluster.start(MASTER, maker_of(stage.group))
    await rejoin_journal(stage.client, stage.group.journal, MASTER)
    await serving(stage)
    assert content(stage.master.catalog) == before
    assert stage.master.catalog.lineage.has(seen), "else it would count as an older copy"


@staged(run)
async def test_the_old_set_is_refused_after_the_commit_point_and_the_new_one_before(stage: Stage) -> None:
    await opened(stage)

    async def ask(address: str, journal: jm.JournalId) -> jm.JournalStateReply:
        return await stage.client.network.call(address, "journal_state", journal, jm.JournalStateReply, 1.0)

    request = jm.RejoinRequest(GROWN, NODES)
    joined = await stage.client.network.call(NEW[0], "join", request, jm.Joining, 1.0)
    with pytest.raises(Unavailable, match="not yet a node of version 2"):
        await ask(MASTER, GROWN)
    with pytest.raises(Rejoining):
        await ask(NEW[0], GROWN)
    state = only_node(stage).view.state
    admit = jm.AdmitRequest(
        GROWN, joined.token, state.promised, 1, state.committed + 9, 0, state.purged, 0, MASTER
    )
    with pytest.raises(OutOfSync):
        await stage.client.network.call(NEW[0], "admit", admit, jm.Done, 1.0)
    await grow(stage)
    with pytest.raises(NodesMoved) as moved:
        await ask(MASTER, JOURNAL)
    assert (moved.value.version, moved.value.nodes) == (2, list(NODES))
    with pytest.raises(NodesMoved):
        await ask(NEW[0], JOURNAL)
    assert (await ask(MASTER, GROWN)).nodes == NODES


@staged(run)
async def test_the_copy_of_the_catalog_is_not_purged_while_the_journal_grows(stage: Stage) -> None:
    await opened(stage)
    active_term = stage.cluster.role(MASTER).active_term
    before = only_node(stage).view.state.purged
    copied = await active_term.write_catalog()
    await stage.master.scribe._save(copied)
    await asyncio.sleep(5 * stage.group.purge_s)
    assert only_node(stage).view.state.purged == before
    active_term.give_up_growing()
    await stage.until(lambda: only_node(stage).view.state.purged == copied)


@staged(run)
async def test_a_growth_that_fails_after_the_copy_lets_purges_continue(stage: Stage) -> None:
    stage.group = replace(stage.group, grow_s=5.0)
    await opened(stage)
    stage.crash_at("master.grow.after_edit", NEW[1])
    with pytest.raises(Unavailable, match="journal/2 does not join the journal"):
        await grow(stage)
    copied = stage.master.log.last_txid
    await stage.master.scribe._save(copied)
    await stage.until(lambda: only_node(stage).view.state.purged == copied)


@staged(run)
async def test_a_new_node_that_does_not_answer_changes_nothing(stage: Stage) -> None:
    await opened(stage)
    stage.cluster.crash(NEW[1])
    with pytest.raises(Unavailable, match="journal/2 does not join the journal"):
        await grow(stage)
    await stage.create("later", replicas=1)
    with pytest.raises(InvalidArgument, match="grows from one node"):
        await stage.ask("grow_journal", GrowJournalRequest(NEW), GrowJournalReply)
    await stage.cluster.restart(NEW[1])
    await grow(stage)


@staged(run)
async def test_a_master_with_the_whole_journal_serves_at_once_and_one_of_several_nodes_waits(
    stage: Stage,
) -> None:
    await opened(stage)
    stage.cluster.crash(MASTER)
    await stage.cluster.restart(MASTER)
    assert await serving(stage) == 0.0
    await grow(stage)
    stage.cluster.crash(MASTER)
    await stage.cluster.restart(MASTER)
    assert await serving(stage) > HELD_S / 2


@staged(run)
async def test_a_full_disk_refuses_changes_of_a_segment_that_must_end_and_reads_go_on(stage: Stage) -> None:
    await stage.open("a", "b", "c")
    await stage.made("flights")
    active_term = stage.cluster.role(MASTER).active_term
    stage.cluster.state(MASTER).fill()
    for _ in range(3):
        with pytest.raises(DiskFull):
            await stage.create("more")
        with pytest.raises(DiskFull):
            await active_term._edits.writer.roll()
        assert (await stage.table("flights")).state == "running"
        await asyncio.sleep(1.0)
    stage.cluster.state(MASTER).free()
    for number in range(25):
        await create(stage, f"table {number}")
    assert stage.cluster.role(MASTER).active_term is active_term
    await asyncio.sleep(1.0)
    before = content(stage.master.catalog)
    await stage.cluster.restart(MASTER)
    assert content(stage.master.catalog) == before
