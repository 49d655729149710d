"""The master dies at its worst moments: around each durable step, with a failing disk, with a damaged one."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NetworkError, NotFound
from ebla.actors.journal.records import EDITS, edit_key
from ebla.actors.master.options import MasterOptions
from ebla.storage.errors import Corruption, Damaged, DiskFailed, DiskFull
from tests.master.builders import create_request
from tests.master.stage import MASTER, SEGMENT_TXNS, Stage, content, play
from tests.staged import staged

JOURNAL = "journals/catalog"  # the environment of the journal's only node, in the master's directory
OPTIONS = MasterOptions(
    bg_s=0.1,
    unresponsive_s=2.0,
    assignment_timeout_s=5.0,
    forget_min_s=5.0,
    rpc_backoff_max_s=1.0,
    checkpoint_edits=5,
)


@staged(play, hosts="abc")
async def test_a_crash_before_the_edit_leaves_no_table_and_a_crash_after_it_leaves_the_table(
    stage: Stage,
) -> None:
    stage.crash_at("master.create_table.before_edit")
    with pytest.raises(NetworkError):
        await stage.create("flights")
    await stage.cluster.restart(MASTER)
    assert not await stage.exists("flights")
    await stage.until(lambda: all(stage.alive(host) for host in "abc"))
    stage.crash_at("master.create_table.after_edit")
    with pytest.raises(NetworkError):
        await stage.create("flights")
    await stage.cluster.restart(MASTER)
    first = await stage.table("flights")
    assert (await stage.create("flights")).table == first.table
    await stage.running("flights")
    stage.crash_at("master.drop_table.before_edit")
    with pytest.raises(NetworkError):
        await stage.drop("flights")
    await stage.cluster.restart(MASTER)
    assert await stage.exists("flights")
    stage.crash_at("master.drop_table.after_edit")
    with pytest.raises(NetworkError):
        await stage.drop("flights")
    await stage.cluster.restart(MASTER)
    assert not await stage.exists("flights")
    await stage.drop("flights")
    await stage.until(lambda: stage.replicas() == 0)


POINTS = [
    "master.create_table.before_edit",
    "master.create_table.after_edit",
    "master.assign.before_edit",
    "master.assign.after_edit",
    "master.create_tablet.before_rpc",
    "master.report.before_edit",
    "master.report.after_edit",
    "master.checkpoint.before_save",
    "master.checkpoint.before_purge",
    "master.drop_table.before_edit",
    "master.drop_table.after_edit",
    "master.delete_tablet.before_rpc",
    "master.forget.before_edit",
    "master.forget.after_edit",
    "master.checkpoint.after_purge",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_table_lives_and_dies_in_full_whichever_durable_step_the_master_crashes_at(point: str):
    async def scenario(stage: Stage) -> None:
        await stage.open("a", "b", "c", "d")
        stage.crash_at(point)
        crashes = stage.revive_master()
        info = await stage.persist(lambda: stage.create("flights", buckets=6))
        await stage.running("flights")
        await stage.until(lambda: stage.replicas() == 18)
        assert (await stage.persist(stage.table)).table == info.table
        await stage.persist(stage.drop)
        await stage.until(lambda: stage.cluster.alive(MASTER) and stage.replicas() == 0)
        await stage.until(lambda: stage.cluster.alive(MASTER) and len(stage.master.catalog.tablets) == 0)
        assert crashes == [1], f"{point} was not reached"
        stage.master.catalog.check()

    play(scenario, seed=POINTS.index(point), options=OPTIONS)


@pytest.mark.parametrize("seed", range(6))
@staged(play, hosts="abcde")
async def test_fifty_tablets_come_up_though_the_master_crashes_three_times(stage: Stage, seed: int) -> None:
    created = asyncio.ensure_future(stage.persist(lambda: stage.create("flights", buckets=50)))
    for _ in range(3):
        await asyncio.sleep(stage.client.random.uniform(0.002, 0.1))
        stage.cluster.crash(MASTER)
        await asyncio.sleep(stage.client.random.uniform(0.0, 1.0))
        await stage.cluster.restart(MASTER)
    await created
    info = await stage.running("flights")
    assert len(info.tablets) == 50
    await stage.until(lambda: stage.replicas() == 150)
    await asyncio.sleep(1.0)
    assert all(tablet.leader for tablet in (await stage.table("flights")).tablets)
    held = [len(stage.server(host).replicas) for host in stage.scripts]
    assert max(held) - min(held) <= 3, "a restarted master waits for all servers before it places"
    stage.master.catalog.check()
    live = {tablet.tablet for tablet in info.tablets}
    assert all(set(stage.server(host).replicas) <= live for host in stage.scripts), "no leaked replicas"


@staged(play, hosts="abcde")
async def test_a_restarted_master_waits_for_all_servers_before_it_places(stage: Stage) -> None:
    stage.crash_at("master.assign.before_edit")
    await stage.create("flights", buckets=15, replicas=1)
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    for late in "de":
        stage.scripts[late].silent = True
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(1.0)
    assert stage.replicas() == 0 and all(stage.alive(host) for host in "abc")
    for late in "de":
        stage.scripts[late].silent = False
    await stage.running("flights")
    assert [len(stage.server(host).replicas) for host in "abcde"] == [3] * 5


@staged(play, hosts="abc")
async def test_the_third_replica_is_made_although_the_tablet_ran_with_two_when_the_master_crashed(
    stage: Stage,
) -> None:
    stage.cluster.crash("tablet-server/c")
    await stage.made("flights")
    stage.cluster.crash(MASTER)
    await stage.cluster.restart("tablet-server/c")
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.replicas() == 3)


@staged(play, hosts="abc")
async def test_a_replica_that_was_reported_once_is_never_created_again(stage: Stage) -> None:
    await stage.made("flights")
    await stage.until(lambda: not stage.master.catalog.unseen)
    lost = stage.server("a")
    lost.replicas.clear()  # it says nothing about a replica that may have voted
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(30.0)
    assert stage.replicas() == 2 and len(stage.scripts["a"].creates) == 1


@staged(play, options=OPTIONS, hosts="abcd")
async def test_dropped_tables_are_finished_though_the_master_restarts_or_the_server_was_away(
    stage: Stage,
) -> None:
    await stage.made("flights", buckets=4)
    await stage.until(lambda: stage.replicas() == 12)
    away = "a"
    held = len(stage.server(away).replicas)
    stage.cluster.crash(f"tablet-server/{away}")
    await stage.drop("flights")
    await stage.cluster.restart(MASTER)
    others = [host for host in stage.scripts if host != away]
    await stage.until(lambda: not any(stage.server(host).replicas for host in others))
    await asyncio.sleep(60.0)
    assert (await stage.status()).tablets_ending == held, "kept while a server may hold something"
    await stage.cluster.restart(MASTER)
    await stage.cluster.restart(f"tablet-server/{away}")
    await stage.until(lambda: stage.replicas() == 0)
    await stage.until(lambda: len(stage.master.catalog.tables) == 0)
    attempts = {tablet: stage.scripts[away].deletes.count(tablet) for tablet in stage.scripts[away].deletes}
    assert all(count <= 3 for count in attempts.values())
    await asyncio.sleep(60.0)
    assert len(stage.scripts[away].deletes) == sum(attempts.values()), "none after it is gone"


@staged(play, options=OPTIONS, hosts="a")
async def test_a_create_that_arrives_after_the_drop_was_confirmed_is_undone(stage: Stage) -> None:
    await stage.made("flights", replicas=1)
    late = next(iter(stage.server("a").replicas.values()))
    await stage.drop("flights")
    await stage.until(lambda: stage.replicas() == 0)
    await asyncio.sleep(2.0)
    await stage.server("a").put(late)
    await stage.until(lambda: stage.replicas() == 0)
    await stage.until(lambda: len(stage.master.catalog.tablets) == 0)


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_server_that_returns_with_an_empty_disk_does_not_hold_up_the_end_of_a_table(
    stage: Stage,
) -> None:
    await stage.made("flights")
    address = "tablet-server/a"
    stage.cluster.crash(address)
    stage.cluster.lose_disk(address)
    await stage.drop("flights")
    await stage.cluster.restart(address)
    await stage.until(lambda: len(stage.master.catalog.tables) == 0)


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_report_alone_can_confirm_a_deletion(stage: Stage) -> None:
    await stage.made("flights", buckets=2)
    for script in stage.scripts.values():
        script.never_confirms = True
    await stage.drop("flights")
    await stage.until(lambda: len(stage.master.catalog.tables) == 0)


@staged(play, hosts="abc")
async def test_a_caller_that_gives_up_does_not_tear_its_change_in_two(stage: Stage) -> None:
    stage.cluster.state(MASTER).commit_s = (1.0, 1.0)
    for give_up_s in (0.0, 0.5, 1.0):
        name = f"after {give_up_s}"
        caller = asyncio.ensure_future(stage.master.tables.create_table(create_request(name)))
        await asyncio.sleep(give_up_s)
        caller.cancel()
        await stage.until(lambda n=name: stage.master.catalog.named(n) is not None)
    await stage.persist(lambda: stage.create("later"))
    for record in stage.master.catalog.running_tables():
        await stage.running(record.name)


@staged(play, hosts="abc")
async def test_a_master_that_was_stopped_goes_on_where_it_was(stage: Stage) -> None:
    await stage.made("flights", buckets=3)
    await stage.until(lambda: not stage.master.catalog.unseen)
    before = content(stage.master.catalog)
    await stage.cluster.stop(MASTER)
    await stage.cluster.restart(MASTER)
    assert content(stage.master.catalog) == before
    await stage.drop("flights")
    await stage.until(lambda: stage.replicas() == 0)


@staged(play, hosts="abc")
async def test_a_master_whose_edit_log_fails_fails_loudly_and_acknowledges_nothing(stage: Stage) -> None:
    stage.cluster.expect_failure(MASTER)
    stage.cluster.state(MASTER).fail_next_commit(JOURNAL)
    with pytest.raises(NetworkError):
        await stage.create("flights")
    (failure,) = stage.cluster.failures
    assert isinstance(failure.error, DiskFailed) and not stage.cluster.alive(MASTER)
    with pytest.raises(DiskFailed):
        await stage.cluster.restart(MASTER)


@staged(play, hosts="abc")
async def test_a_full_disk_refuses_changes_and_nothing_else_and_the_master_goes_on_when_there_is_room(
    stage: Stage,
) -> None:
    await stage.made("flights")
    master = stage.master
    stage.cluster.state(MASTER).fill()
    for _ in range(3):
        with pytest.raises(DiskFull):
            await stage.create("more")
    with pytest.raises(DiskFull):
        await stage.drop("flights")
    await asyncio.sleep(3.0)
    assert (await stage.table("flights")).state == "running"
    with pytest.raises(NotFound):
        await stage.table("more")
    stage.cluster.state(MASTER).free()
    await stage.made("more")
    assert stage.master is master
    before = content(master.catalog)
    await stage.cluster.restart(MASTER)
    assert content(stage.master.catalog) == before


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_checkpoint_that_does_not_fit_is_made_later(stage: Stage) -> None:
    master = stage.master

    async def fill() -> None:
        stage.cluster.state(MASTER).fill()

    async def come_and_go(number: int) -> None:
        await stage.create(f"table {number}", request_id=f"create {number}", replicas=1)
        await stage.running(f"table {number}")
        await stage.drop(f"table {number}", f"drop {number}")

    stage.points.acts["master.checkpoint.before_save"] = fill
    number = 0
    with pytest.raises(DiskFull):
        while number < 100:
            number += 1
            await come_and_go(number)
    assert master.scribe.checkpointed == 0
    stage.cluster.state(MASTER).free()
    while not master.scribe.checkpointed:
        number += 1
        assert number < 200
        await come_and_go(number)
    before = content(master.catalog)
    assert stage.master is master
    await stage.cluster.restart(MASTER)
    assert content(stage.master.catalog) == before


@staged(play, hosts="abc")
async def test_a_damaged_catalog_does_not_start_and_a_missing_one_is_not_taken_for_new(stage: Stage) -> None:
    await stage.create("flights")
    stage.cluster.crash(MASTER)
    state = stage.cluster.state(MASTER)
    state.rot(JOURNAL, EDITS, edit_key(1, 1, 2))
    with pytest.raises(Corruption):
        await stage.cluster.restart(MASTER)
    state.rot(JOURNAL, EDITS, edit_key(1, 1, 2))
    await stage.cluster.restart(MASTER)
    assert await stage.exists("flights")
    stage.cluster.crash(MASTER)
    state.lose_environment("catalog")
    with pytest.raises(Damaged):
        await stage.cluster.restart(MASTER)


@staged(play)
async def test_a_crash_while_the_directory_is_formatted_is_not_taken_for_a_loss(stage: Stage) -> None:
    stage.crash_at("master.format.before_mark")
    stage.cluster.launch(MASTER, stage.make_master)
    await stage.until(lambda: stage.points.passed.get("master.format.before_mark") == 1)
    await stage.cluster.restart(MASTER)
    assert (await stage.status()).tables == 0


@staged(play, options=OPTIONS, hosts="abc")
async def test_the_log_stays_short_and_a_restart_finds_the_same_catalog(stage: Stage) -> None:
    for number in range(40):
        await stage.create(f"table {number}", replicas=1)
        if number % 2:
            await stage.drop(f"table {number}")
    await stage.until(lambda: not stage.master.catalog.creating and not stage.master.catalog.preparing)
    await asyncio.sleep(20.0)
    before, edits = content(stage.master.catalog), (await stage.status()).edits
    kept = stage.cluster.state(MASTER).environments[JOURNAL]["edits"]
    assert edits > 80 and len(kept) <= len(stage.master.catalog) + 2 * SEGMENT_TXNS
    await stage.cluster.restart(MASTER)
    assert content(stage.master.catalog) == before
    assert (await stage.status()).edits > edits, "that the master began again"
