"""Figures of masters."""

from __future__ import annotations

import asyncio

from ebla.actors.coordination import messages as c
from ebla.actors.figures import Figures, FiguresRequest
from ebla.actors.journal.node import measures as node_measures
from ebla.actors.master import measures
from ebla.actors.master.messages import HandOverReply, HandOverRequest
from ebla.actors.messages import Empty
from tests.figures import figures_of, kinds, listed
from tests.master import group_stage, toy_pacifica
from tests.master import stage as single_stage
from tests.master.group_stage import GroupStage
from tests.master.stage import MASTER, Stage
from tests.master.toy_pacifica import LIMITS, PacificaStage
from tests.staged import staged


def figures(stage: Stage) -> dict[str, float]:
    return figures_of(stage.cluster.role(MASTER))


@staged(single_stage.play, hosts="abc")
async def test_a_single_master_counts_tables_servers_and_tablets_by_state(stage: Stage) -> None:
    empty = figures(stage)
    assert (empty["master_active"], empty["master_tables"], empty["master_tablets/running"]) == (1, 0, 0)
    await stage.create("flights")
    made = figures(stage)
    under_way = made["master_tablets/preparing"] + made["master_tablets/creating"]
    assert (under_way, made["master_tablets/running"]) == (1, 0)
    await stage.running("flights")
    await stage.made("kept")
    await stage.drop("kept", reserve_s=1000)
    some = figures(stage)
    assert (some["master_tables"], some["master_tables_kept"], some["master_tablets/running"]) == (1, 1, 2)
    assert some["master_last_edit"] > empty["master_last_edit"]
    assert (some["master_servers/alive"], some["master_servers/silent"]) == (3, 0)
    stage.cluster.crash("tablet-server/a")
    await stage.until(lambda: figures(stage)["master_servers/alive"] < 3)
    fewer = figures(stage)
    assert (fewer["master_servers/alive"], fewer["master_servers/silent"]) == (2, 1)
    await stage.drop("flights")
    ending = figures(stage)
    assert (ending["master_tablets/running"], ending["master_tablets/ending"]) == (1, 1)


@staged(single_stage.play, hosts="abcd")
async def test_repairs_and_pending_repairs_are_counted(stage: Stage) -> None:
    await stage.made("flights")
    await stage.until(lambda: not stage.master.catalog.unseen)
    well = figures(stage)
    assert (well["master_tablets_unsettled"], well["master_repairs/added"]) == (0, 0)
    (record,) = stage.master.catalog.tablets.values()
    held = [peer.address.rpartition("/")[2] for peer in record.configuration.peers]
    await stage.drain(held[0])
    assert figures(stage)["master_servers_draining"] == 1
    assert figures(stage)["master_tablets_unsettled"] == 1
    await stage.until(lambda: figures(stage)["master_repairs/evicted"] == 1)
    await stage.until(lambda: figures(stage)["master_tablets_unsettled"] == 0)
    some = figures(stage)
    steps = [some[f"master_repairs/{step}"] for step in ("added", "evicted", "handed_over", "taken_back")]
    assert steps == [1, 1, 1, 0], "the first member led"
    await stage.until(lambda: figures(stage)["master_former_replicas"] == 0)


@staged(single_stage.play)
async def test_sessions_and_nodes_of_the_namespace_are_counted(stage: Stage) -> None:
    await stage.open()
    request = c.OpenSessionRequest("request", 10_000, "a job")
    session = (await stage.ask("open_session", request, c.SessionReply)).session
    nodes = c.ChangeRequest(session, 1, 1, (c.Create("/jobs", b""), c.Create("/jobs/one", b"")))
    await stage.ask("change_nodes", nodes, c.ChangeReply)
    some = figures(stage)
    assert (some["coordination_sessions"], some["coordination_nodes"]) == (1, 2)
    await stage.ask("close_session", c.SessionRequest(session), Empty)
    assert figures(stage)["coordination_sessions"] == 0


@staged(toy_pacifica.play)
async def test_leases_ballots_and_the_health_of_pacifica_tablets_are_counted(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=6)
    well = figures(stage)
    assert well["master_leases/alive"] == 3 and well["master_leases/ended"] == 0
    assert (well["master_ballots"], well["master_ballot_edits"], well["master_servers_ended"]) == (0, 0, 0)
    assert well["master_beacons_acknowledged"] >= 3 > 0 < well["master_beacons_refused"], (
        "a new one is refused once"
    )
    unwell = ("unhealthy", "unwritable", "unreadable", "dead")
    assert [well[f"master_pacifica_tablets/{state}"] for state in unwell] == [0, 0, 0, 0]
    stage.scripts["a"].silent = True
    await stage.until(lambda: stage.edits() > 0 and not stage.appointer.planner.unled)
    some = figures(stage)
    assert (some["master_leases/alive"], some["master_leases/ended"]) == (2, 1)
    assert (some["master_ballots"], some["master_ballot_edits"]) == (len(tablets), 1)
    assert some["master_servers_ended"] == 1 and some["master_tablets_unled"] == 0
    for host in "bc":
        stage.scripts[host].silent = True
    await asyncio.sleep(LIMITS.grace_s + 1.0)
    dead = figures(stage)
    assert dead["master_leases/ended"] == 3 and dead["master_tablets_unled"] > 0
    assert dead["master_pacifica_tablets/dead"] == len(tablets)


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


@staged(single_stage.play, hosts="a")
async def test_a_single_master_reports_the_figures_of_its_journal_node(stage: Stage) -> None:
    answer = await stage.ask("figures", FiguresRequest(), Figures)
    assert kinds(answer.figures) == listed((*measures.SHEETS, *node_measures.SHEETS))
