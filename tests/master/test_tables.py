"""Create, read and drop tables through a whole master, with correct and faulty servers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla.actors import messages as m
from ebla.actors.errors import (
    AlreadyPresent,
    Internal,
    NotDelivered,
    NotFound,
    NotRunning,
    OutcomeUnknown,
    RequestReused,
    Unavailable,
)
from ebla.actors.master.options import MasterOptions
from ebla.storage.errors import InvalidArgument
from tests.master.builders import create_request
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

NETWORK = (NotDelivered, OutcomeUnknown)


@staged(play, hosts="abcd")
async def test_a_created_table_runs_with_a_leader_of_each_tablet(stage: Stage) -> None:
    first = await stage.create("flights", buckets=4, properties={"owner": "ops"})
    assert (first.state, first.replicas, first.replication) == ("preparing", 3, "raft")
    assert all(tablet.replicas == () for tablet in first.tablets)
    info = await stage.running("flights")
    assert info.table == first.table and info.properties == {"owner": "ops"}
    assert [tablet.bucket for tablet in info.tablets] == [0, 1, 2, 3]
    for tablet in info.tablets:
        leader = next(r for r in tablet.replicas if r.role == "leader")
        assert tablet.leader == leader.address and all(r.alive for r in tablet.replicas)
        assert len(stage.holders(tablet.tablet)) >= 2
        asked = m.TabletRequest(tablet.tablet)
        assert await stage.ask("get_tablet", asked, m.TabletLocation) == tablet
    await stage.until(lambda: stage.replicas() == 12)
    (summary,) = (await stage.ask("list_tables", m.ListTablesRequest(), m.ListTablesReply)).tables
    assert (summary.name, summary.state, summary.tablets) == ("flights", "running", 4)
    await stage.until(
        lambda: stage.master.answers.summary(stage.master.catalog.named("flights")).rows_bytes == 400
    )
    status = await stage.status()
    assert (status.tables, status.tablets, status.tablets_not_running) == (1, 4, 0)


@staged(play, hosts="bac")
async def test_tables_are_listed_by_name_and_prefix_and_servers_by_address(stage: Stage) -> None:
    for name in ("zebra", "ant", "antelope"):
        await stage.create(name, replicas=1)
    for prefix, names in (("", ["ant", "antelope", "zebra"]), ("ant", ["ant", "antelope"]), ("x", [])):
        found = await stage.ask("list_tables", m.ListTablesRequest(prefix), m.ListTablesReply)
        assert [table.name for table in found.tables] == names
    servers = await stage.servers()
    assert [(server.host, server.alive) for server in servers] == [("a", True), ("b", True), ("c", True)]


@staged(play)
async def test_missing_tables_and_tablets_are_not_found(stage: Stage) -> None:
    await stage.open()
    with pytest.raises(NotFound):
        await stage.table("nothing")
    with pytest.raises(NotFound):
        await stage.drop("nothing")
    with pytest.raises(NotFound):
        await stage.ask("get_tablet", m.TabletRequest("nothing"), m.TabletLocation)


@staged(play, hosts="abc")
async def test_create_validates_and_names_the_field(stage: Stage) -> None:
    for changes, named in (
        ({"replicas": 2}, "replicas"),
        ({"replication": "paxos"}, "raft"),
        ({"buckets": 9999}, "buckets"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            await stage.create(**changes)
    with pytest.raises(Unavailable, match="has 3 live hosts"):
        await stage.create(replicas=5)
    assert (await stage.status()).edits == 2, "the marker of a segment, and the beginning of the master"


def test_one_of_two_concurrent_creates_of_one_name_wins():
    async def scenario(stage: Stage) -> None:
        await stage.open("a", "b", "c")
        answers = await asyncio.gather(
            *(stage.create("flights", request_id=f"client {n}") for n in range(5)), return_exceptions=True
        )
        assert sum(isinstance(answer, m.TableInfo) for answer in answers) == 1
        assert sum(isinstance(answer, AlreadyPresent) for answer in answers) == 4
        assert (await stage.status()).tables == 1

    for seed in range(5):
        play(scenario, seed)


@staged(play, hosts="abc")
async def test_a_retry_of_create_after_a_lost_answer_gets_the_first_answer(stage: Stage) -> None:
    stage.cluster.network.cut(MASTER, "client", one_way=True)
    with pytest.raises(OutcomeUnknown):
        await stage.create("flights")
    stage.cluster.network.heal()
    again = await stage.create("flights")
    assert (await stage.status()).tables == 1
    stage.cluster.crash(MASTER)
    await stage.cluster.restart(MASTER)
    assert (await stage.create("flights")).table == again.table, (
        "also after a restart, before any server is known"
    )
    with pytest.raises(RequestReused):
        await stage.made("flights", replicas=1)


@staged(
    play,
    0,
    MasterOptions(bg_s=0.1, unresponsive_s=2.0, assignment_timeout_s=5.0, live_servers_share=0.1),
    "abcde",
)
async def test_only_the_table_without_enough_servers_waits(stage: Stage) -> None:
    for host in ("c", "d", "e"):
        stage.cluster.crash(f"tablet-server/{host}")
    await stage.create("five", replicas=5)  # they crashed a moment ago, unknown to the master
    await stage.until(lambda: not stage.alive("e"))
    await stage.made("one", replicas=1)
    with pytest.raises(Unavailable, match="has 2 live hosts"):
        await stage.create("three", replicas=3)
    await stage.until(lambda: len(stage.master.catalog.preparing) == 1)
    assert (await stage.table("five")).tablets[0].state == "preparing"
    for host in ("f", "g", "h"):
        await stage.serve(host)
    assert len((await stage.running("five")).tablets[0].replicas) == 5


@staged(play, hosts="abcd")
async def test_a_replaced_tablets_straggler_is_deleted(stage: Stage) -> None:
    for host in ("a", "b", "c", "d"):
        stage.scripts[host].refuses = Internal("not today")
    await stage.create("flights")
    await stage.until(lambda: sum(len(s.creates) for s in stage.scripts.values()) >= 3)
    (old,) = stage.master.catalog.tablets
    first = stage.master.catalog.tablets[old].configuration.peers
    kept = next(h for h in stage.scripts if stage.server(h).uuid == first[0].uuid)
    # One server has created its replica, but its report arrives only after the tablet was replaced.
    stage.scripts[kept].refuses = None
    stage.cluster.network.isolate(MASTER)
    master = stage.master
    errand = next(iter(master.errands._wanted(master.catalog, master.servers, 0.0)))
    message = master.messenger._call(errand, None)[1]
    message = msgspec.structs.replace(message, dest_uuid=first[0].uuid)
    await stage.server(kept).create_tablet(message)
    await stage.until(lambda: old in stage.master.catalog.ended)
    stage.cluster.network.heal()
    for script in stage.scripts.values():
        script.refuses = None
    info = await stage.running("flights")
    assert info.tablets[0].tablet != old
    assert stage.master.catalog.tablets[old].state == "replaced"
    await stage.until(lambda: stage.holders(old) == [])
    assert old in stage.scripts[kept].deletes
    location = await stage.ask("get_tablet", m.TabletRequest(old), m.TabletLocation)
    assert (location.state, location.replicas) == ("replaced", ())


@staged(play, hosts="abc")
async def test_readers_see_no_uncommitted_create_or_drop(stage: Stage) -> None:
    stage.cluster.state(MASTER).commit_s = (5.0, 5.0)
    creating = asyncio.ensure_future(stage.ask("create_table", create_request("flights"), m.TableInfo, 60.0))
    await stage.until(lambda: stage.points.passed.get("master.create_table.before_edit") == 1)
    await asyncio.sleep(4.0)
    assert not await stage.exists("flights") and (await stage.status()).tables == 0
    assert all(not script.creates for script in stage.scripts.values())
    await creating
    assert await stage.exists("flights")
    stage.cluster.state(MASTER).commit_s = (0.001, 0.001)
    await stage.running("flights")
    await stage.until(lambda: stage.replicas() == 3)
    await asyncio.sleep(1.0)
    stage.cluster.state(MASTER).commit_s = (5.0, 5.0)
    request = m.DropTableRequest("drop", "flights")
    dropping = asyncio.ensure_future(stage.ask("drop_table", request, m.Empty, 60.0))
    await stage.until(lambda: stage.points.passed.get("master.drop_table.before_edit") == 1)
    await asyncio.sleep(4.0)
    assert await stage.exists("flights")
    assert all(not script.deletes for script in stage.scripts.values())
    await dropping
    assert not await stage.exists("flights")


@staged(play)
async def test_a_tablet_is_created_only_after_a_durable_assignment(stage: Stage) -> None:
    async def slow_disk() -> None:
        stage.cluster.state(MASTER).commit_s = (5.0, 5.0)

    await stage.open("a", "b", "c")
    stage.points.acts["master.assign.before_edit"] = slow_disk
    await stage.create("flights")
    await stage.until(lambda: stage.points.passed.get("master.assign.before_edit") == 1)
    await asyncio.sleep(4.0)
    assert all(not script.creates for script in stage.scripts.values())
    await stage.until(lambda: stage.replicas() == 3)


@staged(play, hosts="a")
async def test_requests_during_the_start_get_not_running(stage: Stage) -> None:
    stage.cluster.crash(MASTER)
    stage.cluster.state(MASTER).commit_s = (3.0, 3.0)
    stage.cluster.launch(MASTER, stage.make_master)
    for method, request in (
        ("status", m.Empty()),
        ("create_table", create_request()),
        ("heartbeat", m.HeartbeatRequest(m.ServerInstance("x", 1, "s"))),
    ):
        with pytest.raises(NotRunning):
            await stage.ask(method, request, m.MasterStatus)


@staged(play, options=MasterOptions(changes_waiting_max=3), hosts="abc")
async def test_changes_beyond_the_queue_are_throttled_without_effect(stage: Stage) -> None:
    stage.cluster.state(MASTER).commit_s = (1.0, 1.0)
    answers = await asyncio.gather(
        *(stage.ask("create_table", create_request(f"table {n}"), m.TableInfo, 60.0) for n in range(8)),
        return_exceptions=True,
    )
    throttled = [answer for answer in answers if not isinstance(answer, m.TableInfo)]
    assert throttled and all(answer.limit == "changes_waiting_max" for answer in throttled)
    assert (await stage.status()).tables == 8 - len(throttled)


def test_options_are_checked_by_name():
    for options, named in (
        (MasterOptions(reserve_s=-1), "reserve_s must be 0 to"),
        (MasterOptions(replicas_coming_max=1), "replicas_coming_max must be 2 at least"),
        (MasterOptions(bg_s=0), "bg_s"),
        (MasterOptions(rpcs_max=-1), "rpcs_max"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            options.validate()
