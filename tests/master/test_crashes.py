"""The master dies at its worst moments: around each durable step, with a failing disk, with a damaged one."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NetworkError, NotFound
from ebla.actors.journal.records import EDITS, edit_key
from ebla.actors.master.catalog.invariants import require_sound
from ebla.storage.errors import Corruption, Damaged, DiskFailed, DiskFull
from ebla.storage.rows.alteration import AddColumn
from ebla.storage.schema import Column
from tests.master.builders import create_request
from tests.master.stage import MASTER, OPTIONS, SEGMENT_TXNS, Stage, content, play
from tests.staged import staged

JOURNAL = "journals/catalog"  # the environment of the journal's only node, in the master's directory


@pytest.mark.parametrize("verb", ["create_table", "drop_table"])
@staged(play, hosts="abc")
async def test_a_change_is_carried_out_if_the_master_dies_after_its_edit_and_not_before(
    stage: Stage, verb: str
) -> None:
    creates = verb == "create_table"
    if not creates:
        await stage.made("flights")
    for side in ("before", "after"):
        stage.crash_at(f"master.{verb}.{side}_edit")
        with pytest.raises(NetworkError):
            await (stage.create("flights") if creates else stage.drop("flights"))
        await stage.cluster.restart(MASTER)
        assert await stage.exists("flights") == ((side == "after") == creates)
        await stage.until(lambda: all(stage.alive(host) for host in "abc"))
    if creates:
        first = await stage.table("flights")
        assert (await stage.made("flights")).table == first.table
    else:
        await stage.drop("flights")
        await stage.until(lambda: stage.replicas() == 0)


OF_TABLES = ["create_table", "alter_table", "drop_table", "recall_table", "end_reserve", "forget"]
POINTS = [
    *(
        f"master.{verb}.{side}_edit"
        for verb in (*OF_TABLES, "assign", "report")
        for side in ("before", "after")
    ),
    *(f"master.{verb}_tablet.before_rpc" for verb in ("create", "alter", "delete")),
    *(f"master.checkpoint.{step}" for step in ("before_save", "before_purge", "after_purge")),
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
        altered = await stage.persist(lambda: stage.alter(AddColumn(Column("x", "int64"))))
        assert (altered.table, altered.schema.version) == (info.table, 1)
        while (await stage.persist(stage.table)).applied_version < 1:
            await asyncio.sleep(0.1)
        for server in map(stage.server, stage.scripts):
            for tablet, replica in server.replicas.items():
                assert replica.version == (stage.raft.leaders[tablet] == server.uuid)
        await stage.persist(lambda: stage.drop("flights", reserve_s=3600.0))
        assert not await stage.persist(stage.exists)
        back = await stage.persist(lambda: stage.recall("flights"))
        assert back.table == info.table and stage.replicas() == 18
        await stage.persist(lambda: stage.drop("flights", "for good", reserve_s=3.0))
        await stage.until(lambda: stage.cluster.alive(MASTER) and stage.replicas() == 0)
        await stage.until(lambda: stage.cluster.alive(MASTER) and len(stage.master.catalog.tables) == 0)
        assert crashes == [1], f"{point} was not reached"
        assert not stage.master.catalog.tablets
        require_sound(stage.master.catalog)

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
    require_sound(stage.master.catalog)
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
