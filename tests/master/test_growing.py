"""A journal of one node, in the process of the only master, grows to three nodes while the master serves."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors.errors import NetworkError, NotActive, NotRunning, Unavailable
from ebla.actors.fault_points import GROWTH_POINTS, JOIN_POINTS
from ebla.actors.journal import messages as jm
from ebla.actors.journal.errors import LeaseHeld, NodesMoved, OutOfSync, Rejoining
from ebla.actors.journal.node import growth
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.node.rejoin import rejoin_journal
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.master.messages import GrowJournalReply, GrowJournalRequest
from ebla.actors.master.options import MasterOptions
from ebla.chaos.simulation.masters import JOURNAL, maker_of
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import DiskFull, InvalidArgument
from tests.master.stage import MASTER, Stage, content, play

NEW = ("journal/1", "journal/2")
NODES = (MASTER, *NEW)
GROWN = replace(JOURNAL, version=2)
HELD_S = 1.5


def make_node(world):
    return JournalNode(world, JournalNodeOptions(sync_s=2.0, rpc_timeout_s=3.0))


async def opened(stage: Stage) -> None:
    """With tables, and with a checkpoint whose edits are purged from the journal."""
    await stage.open("a", "b", "c")
    for number in range(12):
        await stage.create(f"table {number}", replicas=1)
    await stage.running("table 11")
    await stage.master.scribe._save(stage.master.log.last_txid)
    await stage.until(lambda: only_node(stage).view.state.purged > 0)
    for node in NEW:
        await stage.cluster.start(node, make_node)


def only_node(stage: Stage):
    return stage.cluster.role(MASTER).node.journals[JOURNAL.name]


def node(stage: Stage, address: str):
    return stage.cluster.role(address).journals[JOURNAL.name]


async def grow(stage: Stage, timeout_s: float = 20.0) -> None:
    reply = await stage.ask("grow_journal", GrowJournalRequest(NODES), GrowJournalReply, timeout_s)
    assert reply.nodes == NODES


async def grow_at_last(stage: Stage) -> None:
    for _ in range(200):
        try:
            return await grow(stage)
        except (NetworkError, NotActive, NotRunning, Unavailable):
            await asyncio.sleep(0.1)
    raise AssertionError("the journal did not grow")


async def create(stage: Stage, name: str) -> None:
    await stage.until(lambda: stage.cluster.role(MASTER).reign is not None and all(map(stage.alive, "abc")))
    await stage.persist(lambda: stage.create(name, replicas=1))
    await stage.running(name)


async def serving(stage: Stage) -> float:
    """How long it takes."""
    began = stage.cluster.loop.time()
    role = stage.cluster.role(MASTER)
    await stage.until(lambda: role.reign is not None and role.reign.serves())
    return stage.cluster.loop.time() - began


OPTIONS = MasterOptions(bg_s=0.1, unresponsive_s=2.0, checkpoint_edits=8)


def run(scenario, seed: int = 0) -> None:
    play(scenario, seed, OPTIONS)


def test_the_journal_grows_and_every_node_has_the_catalog():
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        before = content(stage.master.catalog)
        await grow(stage)
        assert content(stage.master.catalog) == before
        await stage.until(lambda: not any(node(stage, each).view.state.token for each in NEW))
        await create(stage, "later")
        assert [node(stage, each).form.nodes for each in NEW] == [NODES, NODES]
        await grow(stage)  # again
        stage.cluster.crash(NEW[0])
        await create(stage, "with two of three")
        before = content(stage.master.catalog)
        stage.cluster.crash(MASTER)
        await stage.cluster.restart(NEW[0])
        await stage.cluster.restart(MASTER)  # which was told of one node when it was launched
        await serving(stage)
        assert content(stage.master.catalog) == before
        assert stage.cluster.role(MASTER).options.journal.nodes == NODES

    run(scenario)


@pytest.mark.parametrize("point", [*GROWTH_POINTS, *JOIN_POINTS])
def test_growing_that_ends_at_any_step_is_carried_on(point: str):
    async def scenario(stage: Stage) -> None:
        await opened(stage)

        async def crash() -> None:
            for address in NEW if point in JOIN_POINTS else (MASTER,):
                stage.cluster.crash(address)

        stage.points.acts[point] = crash
        growing = asyncio.ensure_future(grow_at_last(stage))
        await stage.until(lambda: stage.points.passed.get(point, 0) > 0)
        await asyncio.sleep(0.3)
        for address in (MASTER, *NEW):
            if not stage.cluster.alive(address):
                await stage.cluster.restart(address)
        await growing
        await stage.until(lambda: not any(node(stage, each).view.state.token for each in NEW))
        assert await stage.exists("table 3")
        await create(stage, "later")
        await stage.until(lambda: not only_node(stage).view.state.admits)

    run(scenario)


def test_a_catalog_outlives_the_directory_of_the_master_whose_journal_has_grown():
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        await grow(stage)
        await create(stage, "later")
        await stage.until(lambda: not any(node(stage, each).view.state.token for each in NEW))
        before = content(stage.master.catalog)
        stage.cluster.crash(MASTER)
        stage.cluster.put_disk(MASTER, DurableState())
        stage.group = replace(stage.group, journal=replace(stage.group.journal, journal=GROWN, nodes=NODES))
        await stage.cluster.start(MASTER, maker_of(stage.group))
        await rejoin_journal(stage.client, stage.group.journal, MASTER)
        await serving(stage)
        assert content(stage.master.catalog) == before

    run(scenario)


def test_a_late_admission_does_not_let_a_node_count_that_lost_its_directory_since():
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        tokens: list[str] = []

        async def remember() -> None:
            tokens.append(node(stage, NEW[0]).view.state.token)

        stage.points.acts["journal.grow.before_commit"] = remember
        await grow(stage)
        await stage.until(lambda: not any(node(stage, each).view.state.token for each in NEW))
        await create(stage, "acknowledged since")
        stage.cluster.crash(NEW[0])
        stage.cluster.put_disk(NEW[0], DurableState())
        await stage.cluster.start(NEW[0], make_node)
        await rejoin_journal(stage.client, replace(stage.group.journal, journal=GROWN, nodes=NODES), NEW[0])
        again = node(stage, NEW[0]).view.state.token
        assert again and tokens and again != tokens[0]
        late = growth.admission(only_node(stage).view, GROWN, tokens[0], MASTER)
        await stage.client.network.call(NEW[0], "admit", late, jm.Done, 1.0)
        assert node(stage, NEW[0]).view.state.token == again

    run(scenario)


@pytest.mark.parametrize("late", [False, True])
def test_an_admitted_node_helps_the_old_only_node_unless_a_later_writer_was_granted_the_lease(late: bool):
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        request = jm.RejoinRequest(GROWN, NODES)
        ask = stage.client.network.call
        await stage.until(lambda: stage.cluster.role(MASTER).reign is not None)
        while (joined := await ask(NEW[0], "join", request, jm.Joining, 1.0)).end < 1:
            await asyncio.sleep(0.1)
        if late:
            renewed = jm.RenewRequest(GROWN, 99, jm.Claim("master/1", "another", int(HELD_S * 1000)))
            await ask(NEW[0], "renew_lease", renewed, jm.Done, 1.0)
        state = only_node(stage).view.state
        admit = jm.AdmitRequest(GROWN, joined.token, state.promised, 99, 1, 0, 0, int(HELD_S * 1000), MASTER)
        await ask(NEW[0], "admit", admit, jm.Done, 1.0)
        lease = node(stage, NEW[0]).lease
        claim = jm.Claim(MASTER, "mine", int(HELD_S * 1000))
        if late:
            with pytest.raises(LeaseHeld):
                lease.require_free(claim)
        else:
            lease.require_free(claim)

    run(scenario)


def test_the_old_set_is_refused_after_the_commit_point_and_the_new_one_before():
    async def scenario(stage: Stage) -> None:
        await opened(stage)

        async def ask(address: str, journal: jm.JournalId) -> jm.JournalStateReply:
            return await stage.client.network.call(
                address, "journal_state", journal, jm.JournalStateReply, 1.0
            )

        request = jm.RejoinRequest(GROWN, NODES)
        joined = await stage.client.network.call(NEW[0], "join", request, jm.Joining, 1.0)
        with pytest.raises(Unavailable, match="no node of version 2"):
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

    run(scenario)


def test_a_new_node_that_does_not_answer_changes_nothing():
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        stage.cluster.crash(NEW[1])
        with pytest.raises(Unavailable, match="journal/2 does not join the journal"):
            await grow(stage)
        await stage.create("later", replicas=1)
        with pytest.raises(InvalidArgument, match="grows from one node"):
            await stage.ask("grow_journal", GrowJournalRequest(NEW), GrowJournalReply)
        await stage.cluster.restart(NEW[1])
        await grow(stage)

    run(scenario)


def test_a_master_with_the_whole_journal_serves_at_once_and_one_of_several_nodes_waits():
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        stage.cluster.crash(MASTER)
        await stage.cluster.restart(MASTER)
        assert await serving(stage) == 0.0
        await grow(stage)
        stage.cluster.crash(MASTER)
        await stage.cluster.restart(MASTER)
        assert await serving(stage) > HELD_S / 2

    run(scenario)


def test_a_full_disk_refuses_changes_of_a_segment_that_must_end_and_reads_go_on():
    async def scenario(stage: Stage) -> None:
        await stage.open("a", "b", "c")
        await stage.create("flights")
        await stage.running("flights")
        reign = stage.cluster.role(MASTER).reign
        stage.cluster.state(MASTER).fill()
        for _ in range(3):
            with pytest.raises(DiskFull):
                await stage.create("more")
            with pytest.raises(DiskFull):
                await reign._edits.writer.roll()
            assert (await stage.table("flights")).state == "running"
            await asyncio.sleep(1.0)
        stage.cluster.state(MASTER).free()
        for number in range(25):
            await create(stage, f"table {number}")
        assert stage.cluster.role(MASTER).reign is reign
        await asyncio.sleep(1.0)
        before = content(stage.master.catalog)
        await stage.cluster.restart(MASTER)
        assert content(stage.master.catalog) == before

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_requests_to_create_tables_survive_the_growth(seed: int):
    async def scenario(stage: Stage) -> None:
        await opened(stage)
        made: list[str] = []

        async def create_many() -> None:
            for number in range(40):
                await create(stage, f"during {number}")
                made.append(f"during {number}")

        creating = asyncio.ensure_future(create_many())
        await grow_at_last(stage)
        await creating
        for name in made:
            assert await stage.exists(name)

    run(scenario, seed)
