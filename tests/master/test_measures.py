"""Figures of masters."""

from __future__ import annotations

from ebla.actors.coordination import messages as c
from ebla.actors.figures import Figures, FiguresRequest
from ebla.actors.journal.node import measures as node_measures
from ebla.actors.master import measures
from ebla.actors.master.messages import DrainReply, DrainRequest, HandOverReply, HandOverRequest
from ebla.actors.messages import Empty
from tests.figures import figures_of, kinds, listed
from tests.master import group_stage
from tests.master import stage as single_stage
from tests.master.group_stage import GroupStage
from tests.master.stage import MASTER, Stage
from tests.staged import staged


@staged(single_stage.play)
async def test_a_single_master_counts_tables_tablets_and_servers(stage: Stage) -> None:
    await stage.open("a", "b", "c")
    empty = figures_of(stage.cluster.role(MASTER))
    assert (empty["master_active"], empty["master_tables"], empty["master_tablets/running"]) == (1, 0, 0)
    info = await stage.made("flights")
    await stage.made("kept")
    await stage.drop("kept", reserve_s=1000)
    some = figures_of(stage.cluster.role(MASTER))
    assert (some["master_tables"], some["master_tables_kept"]) == (1, 1)
    assert some["master_tablets/running"] == 2 * len(info.tablets)
    assert some["master_last_edit"] > empty["master_last_edit"]
    assert (some["master_servers/alive"], some["master_servers/silent"]) == (3, 0)
    stage.cluster.crash("tablet-server/a")
    await stage.until(lambda: figures_of(stage.cluster.role(MASTER))["master_servers/alive"] < 3)
    fewer = figures_of(stage.cluster.role(MASTER))
    assert (fewer["master_servers/alive"], fewer["master_servers/silent"]) == (2, 1)


@staged(single_stage.play)
async def test_tablets_are_counted_by_state(stage: Stage) -> None:
    await stage.open("a", "b", "c")
    info = await stage.create("flights")
    made = figures_of(stage.cluster.role(MASTER))
    under_way = made["master_tablets/preparing"] + made["master_tablets/creating"]
    assert (under_way, made["master_tablets/running"]) == (len(info.tablets), 0)
    await stage.running("flights")
    assert figures_of(stage.cluster.role(MASTER))["master_tablets/running"] == len(info.tablets)
    await stage.drop("flights")
    ending = figures_of(stage.cluster.role(MASTER))
    assert ending["master_tablets/running"] == 0 and ending["master_tablets/ending"] == len(info.tablets)


@staged(single_stage.play)
async def test_repairs_and_pending_repairs_are_counted(stage: Stage) -> None:
    await stage.open("a", "b", "c", "d")
    await stage.made("flights")
    await stage.until(lambda: not stage.master.catalog.unseen)
    well = figures_of(stage.cluster.role(MASTER))
    assert (well["master_tablets_unsettled"], well["master_repairs/added"]) == (0, 0)
    (record,) = stage.master.catalog.tablets.values()
    held = [peer.address.rpartition("/")[2] for peer in record.configuration.peers]
    await stage.ask("drain", DrainRequest(held[0]), DrainReply)
    assert figures_of(stage.cluster.role(MASTER))["master_servers_draining"] == 1
    assert figures_of(stage.cluster.role(MASTER))["master_tablets_unsettled"] == 1
    await stage.until(lambda: figures_of(stage.cluster.role(MASTER))["master_repairs/evicted"] == 1)
    await stage.until(lambda: figures_of(stage.cluster.role(MASTER))["master_tablets_unsettled"] == 0)
    some = figures_of(stage.cluster.role(MASTER))
    steps = [some[f"master_repairs/{step}"] for step in ("added", "evicted", "handed_over", "taken_back")]
    assert steps == [1, 1, 1, 0], "the first member led"
    await stage.until(lambda: figures_of(stage.cluster.role(MASTER))["master_former_replicas"] == 0)


@staged(single_stage.play)
async def test_sessions_and_nodes_of_the_namespace_are_counted(stage: Stage) -> None:
    await stage.open()
    request = c.OpenSessionRequest("request", 10_000, "a job")
    session = (await stage.ask("open_session", request, c.SessionReply)).session
    nodes = c.ChangeRequest(session, 1, 1, (c.Create("/jobs", b""), c.Create("/jobs/one", b"")))
    await stage.ask("change_nodes", nodes, c.ChangeReply)
    some = figures_of(stage.cluster.role(MASTER))
    assert (some["coordination_sessions"], some["coordination_nodes"]) == (1, 2)
    await stage.ask("close_session", c.SessionRequest(session), Empty)
    assert figures_of(stage.cluster.role(MASTER))["coordination_sessions"] == 0


@staged(group_stage.play)
async def test_only_the_active_master_reports_lease_and_journal_nodes(stage: GroupStage) -> None:
    active = await stage.ready()
    standby = stage.other(active)
    await stage.made("flights")
    await stage.until(lambda: figures_of(stage.role(standby))["master_tables"] == 1)
    leading, following = figures_of(stage.role(active)), figures_of(stage.role(standby))
    assert (leading["master_active"], leading["master_lease_held"], leading["master_epoch"]) == (1, 1, 1)
    assert following["master_active"] == 0
    assert not [series for series in following if series.startswith(("writer_", "master_lease"))]
    for node in stage.journals:
        assert leading[f"writer_acked_txid/{node}"] > 0
    await stage.at(active, "hand_over", HandOverRequest(), HandOverReply, 30.0)
    await stage.until(lambda: stage.serving() == [standby])
    leading, following = figures_of(stage.role(standby)), figures_of(stage.role(active))
    assert (leading["master_active"], leading["master_epoch"], following["master_active"]) == (1, 2, 0)
    assert f"writer_lag_txns/{stage.journals[0]}" not in following


@staged(group_stage.play)
async def test_the_number_of_series_does_not_grow_with_tables(stage: GroupStage) -> None:
    active = await stage.ready()
    few = list(figures_of(stage.role(active)))
    for number in range(5):
        await stage.create(f"table-{number}")
    await stage.running("table-4")
    assert list(figures_of(stage.role(active))) == few
    answer = await stage.at(active, "figures", FiguresRequest(), Figures)
    assert kinds(answer.figures) == listed(measures.SHEETS)
    other = await stage.at(stage.other(active), "figures", FiguresRequest(), Figures)
    assert kinds(other.figures) == listed((measures.PLACE, measures.CATALOG, measures.TABLETS))


@staged(single_stage.play)
async def test_a_single_master_reports_the_figures_of_its_journal_node(stage: Stage) -> None:
    await stage.open("a")
    answer = await stage.ask("figures", FiguresRequest(), Figures)
    assert kinds(answer.figures) == listed((*measures.SHEETS, *node_measures.SHEETS))
