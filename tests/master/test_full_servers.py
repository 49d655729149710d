"""Servers with full disks: new tablets go elsewhere or are refused with a remedy; existing data can be read."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from ebla.actors.master.messages import MoveReplicaRequest
from ebla.actors.master.options import MasterOptions
from ebla.chaos.simulation.medium import SPACE_BYTES
from ebla.storage.errors import DiskFull, InvalidArgument
from ebla.storage.space import BALLAST_BYTES
from tests.master.builders import configuration, schema
from tests.master.healed import asked
from tests.master.real_servers import HOSTS, OPTIONS, open_stage, role, server, table, voters
from tests.master.stage import Stage, play
from tests.staged import staged


async def fill(stage: Stage, *hosts: str) -> None:
    """Fill their disks, and wait until the master knows."""
    for host in hosts:
        stage.cluster.state(server(host)).fill()
        uuid = role(stage, host).instance.uuid
        await stage.until(lambda uuid=uuid: not stage.master.servers.get(uuid).takes_data)


@pytest.mark.parametrize(
    ("full", "refusal"), [(True, "free space there"), (False, "lost its data directories; choose another")]
)
@staged(play, 0, OPTIONS)
async def test_new_tablets_are_placed_on_servers_with_space(stage: Stage, full: bool, refusal: str) -> None:
    await open_stage(stage)
    disk, known = role(stage, "b").world.disk, stage.master.servers.get(role(stage, "b").instance.uuid)
    honest = disk.takes_data
    if full:
        stage.cluster.state(server("b")).fill()
    else:
        disk.takes_data = lambda: False
    await stage.until(lambda: not known.takes_data)
    tablets = await stage.tablets("flights", buckets=8)
    assert {tuple(voters(stage, tablet)) for tablet in tablets} == {("a", "c", "d")}
    with pytest.raises(InvalidArgument, match=refusal):
        await asked(stage, "move_replica", MoveReplicaRequest(tablets[0], "a", "b"))
    stage.cluster.state(server("b")).free()
    disk.takes_data = honest
    await stage.until(lambda: known.takes_data)
    trains = await stage.tablets("trains", buckets=8)
    assert any("b" in voters(stage, tablet) for tablet in trains)


@staged(play, 0, OPTIONS)
async def test_a_table_is_refused_if_too_few_servers_have_space(stage: Stage) -> None:
    await open_stage(stage)
    await fill(stage, "b", "c")
    with pytest.raises(
        DiskFull, match=r"2 live hosts with disk space.*free space on tablet-server/b, tablet-server/c"
    ):
        await stage.create("flights")
    assert stage.master.catalog.named("flights") is None
    with pytest.raises(Unavailable, match="has 2 live hosts"):
        await stage.create("flights", replicas=5)
    await stage.made("small", replicas=1)


@staged(play, 0, MasterOptions(unresponsive_s=60.0))
async def test_a_full_disk_is_reported_to_the_master_at_once(stage: Stage) -> None:
    await open_stage(stage, heartbeat_s=30.0)
    full, known = role(stage, "b"), stage.master.servers.get(role(stage, "b").instance.uuid)
    stage.cluster.state(server("b")).fill()
    await stage.until(lambda: full.space.full)
    await stage.until(lambda: not known.takes_data, timeout_s=1.0)


@staged(play, 0, OPTIONS)
async def test_a_full_server_refuses_a_replica_before_it_writes(stage: Stage) -> None:
    await open_stage(stage)
    full = role(stage, "b")
    await fill(stage, "b")
    request = m.CreateTabletRequest(
        full.instance.uuid, "f" * 32, "t", "t", schema(), 0, configuration(full.instance.uuid)
    )
    with pytest.raises(
        DiskFull, match=r"0 MiB left under /, and keeps 64 MiB in reserve: no further replica"
    ):
        await stage.client.network.call(server("b"), "create_tablet", request, m.Empty, 5.0)
    assert not full.world.disk.list("data")


@staged(play, hosts="abc")
async def test_a_server_that_refused_for_lack_of_space_gets_no_more_replicas(stage: Stage) -> None:
    stage.scripts["b"].refuses = DiskFull("no space left")
    known = stage.master.servers.get(stage.server("b").uuid)
    assert known is not None and known.takes_data
    await stage.create("flights")
    await stage.until(lambda: not known.takes_data)


@staged(play, 0, OPTIONS)
async def test_servers_on_full_disks_start_and_serve_only_reads(stage: Stage) -> None:
    await open_stage(stage)
    await stage.made("flights", buckets=2)
    flights = await table(stage)
    await flights.upsert({"id": 1, "note": "before"})
    for host in HOSTS:
        stage.cluster.crash(server(host))
        stage.cluster.state(server(host)).fill()
    for host in HOSTS:
        await stage.cluster.restart(server(host))
        assert role(stage, host).running
        stage.cluster.state(server(host)).free()
        stage.cluster.state(
            server(host)
        ).free_bytes = BALLAST_BYTES  # the space that a start leaves for votes
    assert await flights.get({"id": 1}) == {"id": 1, "note": "before"}
    began = stage.cluster.loop.time()
    with pytest.raises(DiskFull, match=r"the write was not applied\. Free space there") as refused:
        await flights.upsert({"id": 1, "note": "during"})
    assert not refused.value.possibly_applied and stage.cluster.loop.time() - began < 1.0
    for host in HOSTS:
        stage.cluster.state(server(host)).free_bytes = SPACE_BYTES
    await stage.until(lambda: not any(role(stage, host).space.full for host in HOSTS))
    await flights.upsert({"id": 1, "note": "after"})
    assert await flights.get({"id": 1}) == {"id": 1, "note": "after"}
