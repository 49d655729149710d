"""A master on an older copy of its directory deletes no live data, and reports the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.coordination.messages import (
    ChangeReply,
    ChangeRequest,
    Create,
    OpenSessionRequest,
    SessionReply,
)
from ebla.actors.master.catalog.edits import MasterBegan, ServerDraining
from ebla.actors.master.catalog.lineage import BEGINNINGS_MAX, Lineage
from ebla.actors.replication.health import RUNNING
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import OldCopy
from tests.master.real_servers import HOSTS, OPTIONS, open_stage, role, server, table, voters
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

LATE_S = 12.0  # after which a tablet that is being created is replaced
RESERVE_S = 20.0
SETTINGS = replace(OPTIONS, assignment_timeout_s=LATE_S, forget_min_s=60.0)


def newest(stage: Stage) -> CatalogVersion:
    return stage.master.catalog.lineage.version


async def until_seen(stage: Stage) -> None:
    """Every server has the present version of the catalog on its disk."""
    await stage.until(
        lambda: all(role(stage, host).identity.catalog.version == newest(stage) for host in HOSTS)
    )
    await asyncio.sleep(0.1)


async def while_it_is_created(stage: Stage) -> DurableState:
    """A copy of the catalog in which the table is being created; now it has rows."""
    await open_stage(stage)
    for host in HOSTS:
        stage.cluster.network.cut(MASTER, server(host))
    await stage.create("flights", buckets=2, replicas=3)
    await stage.until(lambda: len(stage.master.catalog.creating) == 2)
    copy = stage.cluster.state(MASTER).copy()
    stage.cluster.network.heal()
    return copy


async def while_it_is_dropped(stage: Stage) -> DurableState:
    """A copy of the catalog in which the table can still be recalled; now it was recalled."""
    await open_stage(stage)
    table = (await stage.create("flights", buckets=2, replicas=3)).table
    await stage.running("flights")
    await stage.drop("flights", reserve_s=RESERVE_S)
    copy = stage.cluster.state(MASTER).copy()
    await stage.ask("recall_table", m.RecallTableRequest("again", table), m.TableInfo)
    return copy


def replicas(stage: Stage, tablet: str) -> int:
    servers = [role(stage, host) for host in HOSTS if stage.cluster.alive(server(host))]
    return sum(each.lifecycle.state_of(tablet) == RUNNING for each in servers)


async def in_place(stage: Stage, state: DurableState, accepts: tuple[str, ...] = ()) -> None:
    """Start the master over this directory."""
    await stage.open_master_over(state, replace(SETTINGS, accepts=accepts))


@pytest.mark.parametrize("copied", [while_it_is_created, while_it_is_dropped])
@pytest.mark.parametrize("seed", range(2))
def test_a_master_on_an_old_copy_deletes_nothing_and_ends_with_the_remedy(seed: int, copied: Callable):
    async def scenario(stage: Stage) -> None:
        copy = await copied(stage)
        stage.cluster.tolerates = lambda address, error, directory: isinstance(error, OldCopy)
        tablets = [each.tablet for each in (await stage.running("flights")).tablets]
        flights = await table(stage)
        await flights.upsert([{"id": number, "note": "kept"} for number in range(20)])
        await until_seen(stage)
        newest = stage.cluster.state(MASTER)
        stage.cluster.crash(MASTER)

        for host in HOSTS:
            stage.cluster.network.cut(MASTER, server(host))
        await in_place(stage, copy)
        await asyncio.sleep(RESERVE_S + 2 * LATE_S)
        stage.cluster.network.heal()
        await asyncio.sleep(10.0)
        assert [replicas(stage, tablet) for tablet in tablets] == [3, 3]
        assert not stage.cluster.alive(MASTER)
        with pytest.raises(OldCopy, match=r"older copy of the catalog, bring back the newest: .*accepts: \["):
            await in_place(stage, copy)

        await in_place(stage, newest)
        assert (await stage.running("flights")).tablets
        assert len(await flights.scan().to_arrow()) == 20
        await until_seen(stage)

    play(scenario, seed, SETTINGS)


@staged(play, 0, SETTINGS)
async def test_a_copy_that_lacks_only_nodes_is_refused(stage: Stage) -> None:
    await open_stage(stage)
    request = OpenSessionRequest("session", 60_000)
    session = (await stage.ask("open_session", request, SessionReply)).session
    await until_seen(stage)
    copy = stage.cluster.state(MASTER).copy()
    create = Create("/ledgers/l", b"", sequential=True, parents=True)
    await stage.ask("change_nodes", ChangeRequest(session, 1, 1, (create,)), ChangeReply)
    await until_seen(stage)
    stage.cluster.crash(MASTER)
    stage.cluster.tolerates = lambda address, error, directory: isinstance(error, OldCopy)
    await in_place(stage, copy)
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    with pytest.raises(OldCopy, match="older copy of the catalog"):
        await in_place(stage, copy)


@staged(play, 0, SETTINGS)
async def test_an_accepted_old_copy_serves_and_deletes_nothing(stage: Stage) -> None:
    copy = await while_it_is_created(stage)
    tablets = [each.tablet for each in (await stage.running("flights")).tablets]
    for _ in range(3):
        await stage.cluster.restart(MASTER)
        await until_seen(stage)
    start = newest(stage).start
    stage.cluster.crash(MASTER)
    for host in HOSTS:
        stage.cluster.network.cut(MASTER, server(host))
    await in_place(stage, copy, accepts=(start,))
    await asyncio.sleep(2 * LATE_S)
    stage.cluster.network.heal()
    assert [each.tablet for each in (await stage.running("flights")).tablets] == tablets
    assert all(len(voters(stage, tablet)) == 3 for tablet in tablets)
    await until_seen(stage)
    stage.cluster.crash(MASTER)
    await in_place(stage, copy)
    await until_seen(stage)


@staged(play, 0, SETTINGS)
async def test_a_restarted_master_or_a_new_catalog_is_accepted(stage: Stage) -> None:
    await open_stage(stage)
    await stage.made("flights")
    for _ in range(3):
        await until_seen(stage)
        await stage.cluster.restart(MASTER)
    await until_seen(stage)
    for host in HOSTS:
        await stage.cluster.restart(server(host))
    await until_seen(stage)
    stage.cluster.crash(MASTER)
    await stage.open_master_over(DurableState())
    await until_seen(stage)
    assert (await stage.status()).tablets_unknown > 0


# -- the lineage ----------------------------------------------------------------------------------------------


def lineage(*changes: int) -> Lineage:
    """The lineage of masters `1`, `2`, ..., with the number of changes at the start of each."""
    made = Lineage()
    for number, count in enumerate(changes, 1):
        made.changes = count
        made.begin(MasterBegan(number, str(number)))
    return made


@pytest.mark.parametrize(
    ("seen", "has"),
    [
        (CatalogVersion("1", 2, "2", 15), True),
        (CatalogVersion("1", 2, "2", 20), True),
        (CatalogVersion("1", 2, "2", 21), False),
        (CatalogVersion("1", 3, "3", 30), True),
        (CatalogVersion("1", 3, "3", 31), False),
        (CatalogVersion("1", 3, "another", 25), False),
        (CatalogVersion("1", 4, "4", 20), False),
        (CatalogVersion("of another catalog", 9, "9", 99), True),
    ],
)
def test_a_catalog_includes_its_own_versions_but_no_diverged_copy(seen: CatalogVersion, has: bool):
    made = lineage(0, 10, 20)
    made.changes = 30
    assert made.has(seen) == has
    again = Lineage()
    again.load(made.image())
    assert again.has(seen) == has and again.version == made.version


def test_a_server_that_was_away_for_many_masters_is_accepted():
    made = lineage(*range(BEGINNINGS_MAX + 10))
    assert made.has(CatalogVersion("1", 5, "5", 4))
    assert not made.has(CatalogVersion("1", 500, "5", 4))


@staged(play)
async def test_changes_of_the_namespace_are_not_counted_as_versions(stage: Stage) -> None:
    await stage.open()
    before = newest(stage)
    stage.master.catalog.apply([ServerDraining("tablet-server/a", True)])
    assert newest(stage) == replace(before, changes=before.changes + 1)
