"""The level of the cluster: at `freezed` the master changes no members and creates no tables, and too few live servers freeze it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors.errors import Frozen
from ebla.actors.master.cluster.levels import FREEZED, STEADY
from ebla.actors.master.messages import (
    LevelReply,
    LevelRequest,
    MoveReplicaRequest,
    RemoveReplicaRequest,
)
from ebla.actors.master.options import MasterOptions
from ebla.actors.replication.health import LOST
from ebla.storage.errors import InvalidArgument
from tests.master import toy_pacifica
from tests.master.healed import (
    OPTIONS,
    asked,
    configuration,
    follower,
    hosts_of,
    opened,
    silence,
    spare,
    wake,
    well,
)
from tests.master.stage import MASTER, Requests, Stage, play
from tests.master.toy_pacifica import PacificaStage
from tests.staged import staged

LONG_S = 20.0


async def level(stage: Requests, wanted: str | None = None) -> LevelReply:
    return await stage.persist(lambda: stage.ask("level", LevelRequest(wanted), LevelReply))


def members(stage: Stage, tablets: list[str]) -> list[list[str]]:
    return [hosts_of(stage, tablet) for tablet in tablets]


# -- set by an operator --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [None, "master.level.before_edit", "master.level.after_edit"])
@staged(play, 0, OPTIONS)
async def test_a_frozen_cluster_replaces_no_replica_until_the_thaw(stage: Stage, point: str | None) -> None:
    tablets = await opened(stage, "abcde", buckets=4)
    revived = stage.revive_master()
    if point is not None:
        stage.crash_at(point)
    frozen = await level(stage, FREEZED)
    assert (frozen.level, frozen.present) == (FREEZED, FREEZED) and frozen.since_us > 0
    await stage.until(lambda: all(stage.alive(host) for host in "abcde"))
    edits = stage.master.log.last_txid
    again = await level(stage, FREEZED)
    assert again.since_us == frozen.since_us and stage.master.log.last_txid == edits, "it is a repeat"
    before = members(stage, tablets)
    silence(stage, gone := follower(stage, tablets[0]), LOST)
    await stage.until(lambda: len(stage.master.views.unsettled) > 0)
    await asyncio.sleep(LONG_S)
    assert members(stage, tablets) == before and stage.holders(tablets[0]) == before[0]
    assert revived[0] == (point is not None)
    stage.watcher.cancel()
    await stage.cluster.restart(MASTER)
    assert (await level(stage)).frozen == frozen.frozen, "the next incarnation of the master knows it"
    await asyncio.sleep(LONG_S)
    assert members(stage, tablets) == before
    assert (await level(stage, STEADY)).frozen == ""
    await stage.until(lambda: all(gone not in hosts for hosts in members(stage, tablets)) and _whole(stage))


def _whole(stage: Stage) -> bool:
    """All voters are there; former members at silent hosts may still have data."""
    records = stage.master.catalog.tablets.values()
    return all(len(each.configuration.voters()) == 3 == len(each.configuration.peers) for each in records)


@staged(play, 0, OPTIONS)
async def test_a_frozen_cluster_creates_no_table_and_completes_an_earlier_one(stage: Stage) -> None:
    await opened(stage, "abc")
    placing = asyncio.Event()
    stage.points.acts["master.assign.before_edit"] = placing.wait
    await stage.create("early")
    frozen = asyncio.ensure_future(level(stage, FREEZED))
    await asyncio.sleep(1.0)
    placing.set()
    await frozen
    await stage.running("early")
    with pytest.raises(
        Frozen, match=r"no table is created.*since 2023-.* because an operator set.*`ebla level steady`"
    ):
        await stage.create("late")
    assert not await stage.exists("late")
    await stage.create("early")  # the repeat of an earlier request gets the first answer
    await stage.drop("flights")
    await level(stage, STEADY)
    await stage.made("late")


@staged(play, 0, OPTIONS)
async def test_operators_change_members_of_a_frozen_cluster_and_moves_end_after_the_thaw(
    stage: Stage,
) -> None:
    (tablet,) = await opened(stage, "abcd")
    await level(stage, FREEZED)
    source, target = follower(stage, tablet), spare(stage, tablet)
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, source, target))
    await stage.until(lambda: configuration(stage, tablet).peer(stage.server(target).uuid) is not None)
    await asyncio.sleep(LONG_S)
    assert hosts_of(stage, tablet) == ["a", "b", "c", "d"], "the last step of a move is a repair"
    await level(stage, STEADY)
    await stage.until(lambda: well(stage) and source not in hosts_of(stage, tablet))
    await level(stage, FREEZED)
    leaving = follower(stage, tablet)
    await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, leaving, at_once=True))
    await stage.until(lambda: len(hosts_of(stage, tablet)) == 2)
    await asyncio.sleep(LONG_S)
    assert len(hosts_of(stage, tablet)) == 2 and leaving in stage.holders(tablet), "its data stays, too"
    await level(stage, STEADY)
    await stage.until(lambda: well(stage))


@staged(play, 0, OPTIONS)
async def test_a_drain_of_a_frozen_cluster_waits_and_says_why(stage: Stage) -> None:
    (tablet,) = await opened(stage, "abcd")
    await level(stage, FREEZED)
    name = follower(stage, tablet)
    reply = await stage.drain(name)
    assert "an operator set the level freezed" in reply.frozen and reply.servers[0].replicas == 1
    await asyncio.sleep(LONG_S)
    assert name in hosts_of(stage, tablet)
    await level(stage, STEADY)
    await stage.until(lambda: well(stage) and name not in hosts_of(stage, tablet))


@staged(play, options=OPTIONS, hosts="a")
async def test_an_unknown_level_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidArgument, match="level must be freezed or steady, not 'frozen'"):
        await level(stage, "frozen")
    assert (await level(stage)) == LevelReply(STEADY, 0, STEADY, "", 1, 1, 1)


# -- PacificA ------------------------------------------------------------------------------------------------


@staged(toy_pacifica.play)
async def test_a_frozen_cluster_appoints_primaries_among_the_members(stage: PacificaStage) -> None:
    tablets = await stage.opened("abcd", buckets=4)
    await level(stage, FREEZED)
    before = {tablet: {peer.uuid for peer in stage.stored(tablet).peers} for tablet in tablets}
    dead = stage.primary(tablets[0])
    stage.cluster.crash(f"tablet-server/{dead}")
    await stage.until(lambda: all(stage.serving(tablet) == [stage.primary(tablet)] for tablet in tablets))
    await asyncio.sleep(LONG_S)
    for tablet in tablets:
        assert stage.primary(tablet) != dead and len(stage.voters(tablet)) >= stage.stored(tablet).min_members
        assert {peer.uuid for peer in stage.stored(tablet).peers} == before[tablet]


# -- too few live servers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "dead", "needed", "frozen"),
    [
        ("abc", 1, 2, False),
        ("abcd", 2, 2, False),
        ("abc", 2, 2, True),
        ("abcde", 3, 3, True),
        ("ab", 1, 2, True),
    ],
)
@staged(play, 0, OPTIONS)
async def test_too_few_live_servers_freeze_the_cluster_until_they_return(
    stage: Stage, hosts: str, dead: int, needed: int, frozen: bool
) -> None:
    await stage.open(*hosts)
    for host in hosts[:dead]:
        stage.scripts[host].silent = True
    await stage.until(lambda: not any(stage.alive(host) for host in hosts[:dead]))
    found = await level(stage)
    assert (found.live, found.expected, found.needed) == (len(hosts) - dead, len(hosts), needed)
    assert (found.level, found.present) == (STEADY, FREEZED if frozen else STEADY)
    assert ("servers send heartbeats, and" in found.frozen) == frozen
    assert (await stage.status()).frozen == found.frozen
    if frozen:
        with pytest.raises(Frozen, match=f"{found.live} of {found.expected} servers send heartbeats"):
            await stage.create("flights", replicas=1)
    for host in hosts[:dead]:
        stage.scripts[host].silent = False
    await stage.until(lambda: all(stage.alive(host) for host in hosts))
    assert (await level(stage)).frozen == ""
    await stage.made("flights", replicas=1)


@staged(play, 0, OPTIONS)
async def test_members_of_tablets_count_after_a_restart_of_the_master(stage: Stage) -> None:
    tablets = await opened(stage, "abcde", buckets=8)
    for host in "abc":
        silence(stage, host)
    await stage.cluster.restart(MASTER)
    assert (await level(stage)).present == STEADY, "no server has had time for a heartbeat"
    await asyncio.sleep(OPTIONS.settle_s + OPTIONS.unresponsive_s)
    found = await level(stage)
    assert (found.live, found.expected, found.present) == (2, 5, FREEZED)
    before = members(stage, tablets)
    await asyncio.sleep(LONG_S)
    assert members(stage, tablets) == before
    for host in "abc":
        wake(stage, host)
    await stage.until(lambda: well(stage))


@staged(play, 0, OPTIONS)
async def test_drained_hosts_and_hosts_in_maintenance_do_not_count(stage: Stage) -> None:
    await opened(stage, "abcde")
    for host in "abc":
        silence(stage, host)
    await stage.until(lambda: not stage.alive("c"))
    assert (await level(stage)).present == FREEZED
    await stage.drain("a")
    found = await level(stage)
    assert (found.live, found.expected, found.needed, found.present) == (2, 4, 2, STEADY)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"live_servers_share": 1.5}, "live_servers_share must be 1 at most, not 1.5"),
        ({"live_servers_share": 0.0}, "live_servers_share must be greater than zero"),
        ({"live_servers_min": 0}, "live_servers_min must be greater than zero"),
    ],
)
def test_limits_that_freeze_no_cluster_are_refused(options: dict[str, float], refusal: str) -> None:
    with pytest.raises(InvalidArgument, match=refusal):
        replace(MasterOptions(), **options).validate()


# -- the catalog ---------------------------------------------------------------------------------------------
