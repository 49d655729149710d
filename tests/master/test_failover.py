"""Masters that fail over: which master serves, and which changes survive."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.coordination import messages as c
from ebla.actors.errors import NotActive
from ebla.actors.journal.errors import JournalBroken
from tests.master.builders import create_request
from tests.master.group_stage import GroupStage, play
from tests.master.test_standby import fill, same
from tests.staged import staged


@staged(play)
async def test_one_master_serves_and_the_other_names_it(stage: GroupStage) -> None:
    active = await stage.active()
    standby = stage.other(active)
    await asyncio.sleep(1.0)
    for method, request, reply in (
        ("create_table", create_request(), m.TableInfo),
        ("drop_table", m.DropTableRequest("drop", "flights"), m.Empty),
        ("get_table", m.TableName("flights"), m.TableInfo),
        ("list_tables", m.ListTablesRequest(), m.ListTablesReply),
        ("get_tablet", m.TabletRequest("t"), m.TabletLocation),
        ("list_servers", m.Empty(), m.ListServersReply),
        ("open_session", c.OpenSessionRequest("one", 1000), c.SessionReply),
        ("keep_session", c.SessionRequest("s"), c.SessionReply),
        ("close_session", c.SessionRequest("s"), m.Empty),
        ("list_sessions", m.Empty(), c.ListSessionsReply),
        ("change_nodes", c.ChangeRequest("s", 0, 0, (c.Create("/a"),)), c.ChangeReply),
        ("read_node", c.NodeRequest("/"), c.NodeReply),
        ("wait_node", c.WaitRequest("/a", 0, 1000), c.NodeReply),
    ):
        with pytest.raises(NotActive) as refused:
            await stage.at(standby, method, request, reply)
        assert refused.value.active == active
    status = await stage.at(standby, "status", m.Empty(), m.MasterStatus)
    assert (status.role, status.active, status.epoch) == ("standby", active, 0)
    status = await stage.at(active, "status", m.Empty(), m.MasterStatus)
    assert (status.role, status.active, status.epoch > 0) == ("active", active, True)


@pytest.mark.parametrize("seed", range(4))
@staged(play)
async def test_a_killed_master_is_replaced_by_a_standby_with_the_whole_catalog(
    stage: GroupStage, seed: int
) -> None:
    first = await stage.active()
    made = [await stage.create(f"table {number}", buckets=2) for number in range(3)]
    await stage.drop("table 1")
    stage.cluster.crash(first)
    assert await stage.names() == ["table 0", "table 2"]
    assert (await stage.table("table 0")).table == made[0].table
    await stage.running("table 2")
    await stage.create("table 3")
    assert stage.served == [first, stage.other(first)]
    await stage.cluster.restart(first)
    await asyncio.sleep(5.0)
    assert stage.served == [first, stage.other(first)], "a returning master is a standby"
    stage.cluster.crash(stage.other(first))
    assert await stage.names() == ["table 0", "table 2", "table 3"]
    assert stage.served == [first, stage.other(first), first]


@staged(play)
async def test_the_successor_gives_the_lost_answer_of_a_drop(stage: GroupStage) -> None:
    first = await stage.ready()
    await stage.made("flights")
    stage.points.arm(first, "master.drop_table.after_edit", lambda: stage.cluster.crash(first))
    await stage.drop("flights", "once")
    assert stage.served[-1] == stage.other(first)
    await stage.create("flights", request_id="again")
    await stage.drop("flights", "once")
    assert await stage.exists("flights"), "a retry does not drop a new table of that name"


@pytest.mark.parametrize("seed", range(4))
@staged(play)
async def test_a_superseded_paused_master_answers_and_writes_nothing(stage: GroupStage, seed: int) -> None:
    first = await stage.ready()
    await stage.create("old")
    stage.cluster.pause(first)
    asked = [
        asyncio.ensure_future(stage.at(first, method, request, reply, 60.0))
        for method, request, reply in (
            ("create_table", create_request("late"), m.TableInfo),
            ("list_tables", m.ListTablesRequest(), m.ListTablesReply),
            ("get_table", m.TableName("new"), m.TableInfo),
        )
    ]
    await stage.until(lambda: stage.serving() == [stage.other(first)])
    await stage.create("new")
    await stage.drop("old")
    stage.cluster.resume(first)
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(answer, NotActive)
    assert await stage.names() == ["new"]
    await stage.until(lambda: stage.role(first).active_term is None)
    assert (await stage.at(first, "status", m.Empty(), m.MasterStatus)).role == "standby"


@pytest.mark.parametrize("seed", range(4))
@staged(play)
async def test_a_master_without_journal_nodes_stops_before_another_begins(
    stage: GroupStage, seed: int
) -> None:
    """Clients and tablet servers still reach it, so only its lease stops its answers."""
    first = await stage.ready()
    await stage.create("old")
    stage.cut_from_journals(first)
    while stage.served[-1] == first:
        try:
            await stage.at(first, "list_tables", m.ListTablesRequest(), m.ListTablesReply)
        except NotActive:
            pass
        await asyncio.sleep(0.05)
    await stage.create("new")
    with pytest.raises(NotActive):
        await stage.at(first, "get_table", m.TableName("old"), m.TableInfo)
    stage.cluster.network.heal()
    await stage.until(lambda: stage.role(first).active_term is None)
    assert await stage.names() == ["new", "old"]


@pytest.mark.parametrize(("old", "new"), [(0.9, 1.1), (1.1, 0.9)])
@staged(play)
async def test_different_clock_rates_do_not_let_two_masters_serve(
    stage: GroupStage, old: float, new: float
) -> None:
    first = await stage.ready()
    stage.cluster.clock(first).set_rate(old)
    for address in (*stage.journals, stage.other(first)):
        stage.cluster.clock(address).set_rate(new)
    await asyncio.sleep(5.0)
    stage.cut_from_journals(first)
    await stage.until(lambda: stage.serving() == [stage.other(first)])


@pytest.mark.parametrize("seed", range(4))
@staged(play)
async def test_acknowledged_tables_survive_a_crash_of_all_roles(stage: GroupStage, seed: int) -> None:
    made = [(await stage.create(f"table {number}", buckets=2)).table for number in range(3)]
    all_roles = (*stage.masters, *stage.journals, *(f"tablet-server/{host}" for host in stage.hosts))
    for address in all_roles:
        stage.cluster.crash(address)
    await asyncio.sleep(1.0)
    for address in all_roles:
        await stage.cluster.restart(address)
    await stage.ready()
    assert [(await stage.running(f"table {number}")).table for number in range(3)] == made
    await stage.create("another")


@pytest.mark.parametrize("seed", range(3))
@staged(play)
async def test_a_master_serves_only_with_a_majority_of_journal_nodes(stage: GroupStage, seed: int) -> None:
    await stage.create("flights")
    stage.cluster.crash("journal/0")
    await stage.create("two are enough")
    stage.cluster.crash("journal/1")
    await stage.until(lambda: not stage.serving())
    await asyncio.sleep(20.0)
    assert not stage.serving()
    await stage.cluster.restart("journal/0")
    assert await stage.names() == ["flights", "two are enough"]
    await stage.create("again")


@staged(play)
async def test_full_disks_of_masters_prevent_neither_changes_nor_take_overs(stage: GroupStage) -> None:
    first = await stage.ready()
    for master in stage.masters:
        stage.cluster.state(master).fill()
    await fill(stage, 1, 20)
    await stage.until(lambda: same(stage, first, stage.other(first)))
    scribe = stage.role(first).active_term.master.scribe
    standby = stage.role(stage.other(first)).standby
    assert scribe.checkpointed == standby.checkpointed == 0
    assert not standby.read_error
    stage.cluster.crash(first)
    await stage.create("flights")
    assert await stage.names() == ["flights"]
    for master in stage.masters:
        stage.cluster.state(master).free()
    await fill(stage, 21, 40)
    second = stage.other(first)
    await stage.until(lambda: stage.role(second).active_term.master.scribe.checkpointed > 0)
    assert stage.served == [first, second]


@pytest.mark.parametrize("seed", range(4))
@staged(play)
async def test_contradicting_journals_end_the_active_master(stage: GroupStage, seed: int) -> None:
    first = await stage.ready()
    await stage.running((await stage.create("flights")).name)
    await asyncio.sleep(1.0)  # until the node is idle
    view = stage.role("journal/0").journals["catalog"].view
    view.state = replace(view.state, committed=10**6)
    for master in stage.masters:
        stage.cluster.expect_failure(master)

    async def create(number: int) -> None:
        await asyncio.sleep(number)
        await stage.at(first, "create_table", create_request(f"table {number}"), m.TableInfo)

    creating = asyncio.ensure_future(asyncio.gather(*map(create, range(3)), return_exceptions=True))
    await stage.until(lambda: not stage.cluster.alive(first) or stage.role(first).active_term is None)
    for master in stage.masters:
        stage.cluster.network.cut(master, "journal/0")  # so that the others can continue without it
    await asyncio.sleep(5.0)
    assert not stage.cluster.alive(first)
    failure = next(each for each in stage.cluster.failures if each.address == first)
    assert isinstance(failure.error, JournalBroken)
    for said in ("journal/0", "1000000", "stop the masters", "ebla journal status"):
        assert said in str(failure.error)
    creating.cancel()
