"""A host that is lost for good is forgotten by the catalog and by health checks, and ends itself if it returns."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import (
    decode_image,
    encode_image,
)
from ebla.actors.master.messages import ForgetReply, ForgetRequest
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import Forgotten, InvalidArgument, OldCopy
from tests.master.healed import OPTIONS as TOYS
from tests.master.healed import opened
from tests.master.real_servers import HOSTS, OPTIONS, healed, open_stage, server, voters
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

GONE = "a"


async def forget(stage: Stage, name: str = GONE) -> ForgetReply:
    return await stage.ask("forget_server", ForgetRequest(name), ForgetReply)


async def listed(stage: Stage) -> list[str]:
    return [each.host for each in await stage.servers()]


async def lost(stage: Stage) -> list[str]:
    """The host is gone, and its replicas are elsewhere. Returns the tablets."""
    await open_stage(stage, failed_s=4.0)
    tablets = await stage.tablets("flights", buckets=4)
    await stage.until(lambda: healed(stage))
    with pytest.raises(Unavailable, match=r"sent a heartbeat a moment ago.*drain a --wait --stop"):
        await forget(stage)
    stage.cluster.crash(server(GONE))
    await asyncio.sleep(3.0)
    with pytest.raises(InvalidArgument, match=r"is still a member of . tablets"):
        await forget(stage)
    await stage.until(lambda: all(GONE not in voters(stage, tablet) for tablet in tablets))
    await stage.until(lambda: not stage.master.views.unsettled)
    return tablets


@staged(play, 0, OPTIONS)
async def test_a_forgotten_host_is_not_reported_or_waited_for(stage: Stage) -> None:
    tablets = await lost(stage)
    uuid = stage.cluster.role(server(GONE)).instance.uuid
    assert GONE in await listed(stage)
    assert any(record.former for record in stage.master.catalog.tablets.values())
    await stage.drop("flights")
    reported = await forget(stage)
    assert reported == ForgetReply(server(GONE), (uuid,))
    assert await listed(stage) == [host for host in HOSTS if host != GONE]
    edits = (await stage.status()).edits
    assert await forget(stage) == reported and await forget(stage, uuid) == reported
    assert (await stage.status()).edits == edits, "a repeat writes nothing"
    await stage.until(lambda: not stage.master.catalog.tablets)
    assert tablets
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: len(stage.master.servers.known()) == 3)
    assert stage.master.catalog.forgotten == {uuid: server(GONE)}
    with pytest.raises(NotFound, match="there is no server 'nowhere'"):
        await stage.persist(lambda: forget(stage, "nowhere"))


@pytest.mark.parametrize("master_restarts", [False, True])
@staged(play, 0, OPTIONS)
async def test_the_directory_of_a_forgotten_host_is_given_up_when_it_returns(
    stage: Stage, master_restarts: bool
) -> None:
    stage.cluster.tolerates = lambda address, error, directory: isinstance(error, OldCopy)
    tablets = await lost(stage)
    (uuid,) = (await forget(stage)).uuids
    if master_restarts:
        await stage.cluster.restart(MASTER)
    await stage.cluster.restart(server(GONE))
    await stage.until(lambda: not stage.cluster.alive(server(GONE)))
    assert isinstance(stage.cluster.failures[-1].error, Forgotten)
    assert "ebla nodes forget" in stage.cluster.state(server(GONE)).given_up
    with pytest.raises(OldCopy, match="was given up"):
        await stage.cluster.restart(server(GONE))
    stage.cluster.put_disk(server(GONE), DurableState())  # as the directory is set aside on Ray
    await stage.cluster.restart(server(GONE))
    await stage.until(lambda: len(stage.master.servers.known()) == 4)
    back = stage.cluster.role(server(GONE)).instance.uuid
    assert back != uuid
    await stage.drain("b")
    await stage.until(lambda: healed(stage) and any(GONE in voters(stage, t) for t in tablets))
    with pytest.raises(Unavailable, match="sent a heartbeat a moment ago"):
        await forget(stage)


@staged(play, 0, TOYS)
async def test_a_stopped_drained_server_is_forgotten_with_its_drain(stage: Stage) -> None:
    await opened(stage, "abcd", buckets=2)
    await stage.drain(GONE)
    while (await stage.drain(GONE, None)).servers[0].replicas:
        await asyncio.sleep(0.2)
    servers = await stage.servers()
    assert [each.host for each in servers if each.drained] == [GONE]
    stage.cluster.crash(server(GONE))
    await stage.persist(lambda: forget(stage))
    assert GONE not in await listed(stage) and not stage.master.catalog.draining
    again = Catalog()
    again.load(decode_image(encode_image(stage.master.catalog.image())))
    assert again.forgotten == stage.master.catalog.forgotten and len(again) == len(stage.master.catalog)


@staged(play, 0, TOYS)
async def test_a_new_master_forgets_no_server(stage: Stage) -> None:
    """It has no heartbeats of the live servers yet."""
    await opened(stage, "abcd", buckets=2)
    for name in "abcd":
        stage.scripts[name].silent = True
    await stage.cluster.restart(MASTER)
    with pytest.raises(Unavailable, match="has just begun to serve"):
        await forget(stage)
