"""A role asks the masters and keeps a session through its own World, without the client."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.asking.master_client import MasterClient
from ebla.actors.coordination.messages import Create, Set
from ebla.actors.coordination.sessions.changes import Session, open_session
from ebla.actors.coordination.sessions.locks import Lock
from ebla.actors.errors import ConnectionClosed, NotActive, OutcomeUnknown, TimedOut
from ebla.actors.world import Role, World, rpc
from ebla.storage.errors import EblaError
from tests.master.group_stage import GroupStage, play
from tests.staged import staged

ADDRESS = "auditor/0"
DEADLINE_S = 20.0


class Auditor(Role):
    """Holds a lock while it runs."""

    def __init__(self, world: World, masters: tuple[str, ...]) -> None:
        self.world = world
        self.master = MasterClient(world, masters, "group")
        self.lock: Lock | None = None

    async def start(self) -> None:
        self.session = await open_session(Session, self.master, 3.0, name=ADDRESS, deadline_s=DEADLINE_S)
        lock = Lock(self.session, "/locks/audit")
        await lock.acquire(timeout_s=60.0)
        self.lock = lock

    @rpc
    async def tables(self, request: m.ListTablesRequest) -> m.ListTablesReply:
        return await self.master.ask("list_tables", request, m.ListTablesReply, deadline_s=DEADLINE_S)


async def audited(stage: GroupStage) -> Auditor:
    role = await stage.cluster.start(ADDRESS, lambda world: Auditor(world, stage.masters))
    assert isinstance(role, Auditor)
    return role


@staged(play)
async def test_a_role_keeps_its_session_and_its_lock_through_a_fail_over(stage: GroupStage) -> None:
    role = await audited(stage)
    stage.cluster.crash(await stage.active())
    await asyncio.sleep(10.0)
    assert role.lock is not None and role.lock.held
    found = await role.session.sessions(deadline_s=DEADLINE_S)
    assert [(each.session, each.name) for each in found] == [(role.session.id, ADDRESS)]
    reply = await stage.outside.network.call(
        ADDRESS, "tables", m.ListTablesRequest(), m.ListTablesReply, 10.0
    )
    assert reply.tables == ()


@staged(play)
async def test_a_restarted_role_gets_the_lock_after_the_session_of_the_crashed_one(stage: GroupStage) -> None:
    first = await audited(stage)
    assert first.lock is not None
    token = first.lock.token
    stage.cluster.crash(ADDRESS)
    await stage.cluster.restart(ADDRESS)
    again = stage.cluster.role(ADDRESS)
    assert isinstance(again, Auditor) and again.lock is not None
    assert again.lock.held and again.lock.token > token


@staged(play)
async def test_a_role_changes_and_watches_nodes(stage: GroupStage) -> None:
    session = (await audited(stage)).session
    made = await session.create("/jobs/one", b"a", parents=True, deadline_s=DEADLINE_S)
    watch = await session.watch(made.path, deadline_s=DEADLINE_S)
    version = await session.set(made.path, b"b", version=made.version, deadline_s=DEADLINE_S)
    node = await watch.change(10.0)
    assert node is not None and (node.data, node.version) == (b"b", version)
    await session.change(Set(made.path, b"c"), Create("/jobs/two"), deadline_s=DEADLINE_S)
    assert await session.children("/jobs", deadline_s=DEADLINE_S) == ["one", "two"]
    await session.delete("/jobs/two", deadline_s=DEADLINE_S)
    assert not await session.exists("/jobs/two", deadline_s=DEADLINE_S)


@staged(play)
async def test_a_master_client_follows_hints_reports_refusals_and_ends_when_closed(stage: GroupStage) -> None:
    active = await stage.ready()
    refusals: list[EblaError] = []
    standby = stage.other(active)
    client = MasterClient(
        stage.outside, (standby, active), "group", lambda error, passed_s, deadline_s: refusals.append(error)
    )
    ask = ("list_tables", m.ListTablesRequest(), m.ListTablesReply)
    await client.ask(*ask, deadline_s=DEADLINE_S)
    assert client.address == active and [type(each) for each in refusals] == [NotActive]
    for master in stage.masters:
        stage.cluster.network.isolate(master)
    with pytest.raises(OutcomeUnknown):
        await client.ask_once(*ask)
    with pytest.raises(TimedOut, match=r"deployment 'group' gave no answer to list_tables within 2 s"):
        await client.ask(*ask, deadline_s=2.0)
    client.close(ConnectionClosed("the role stops"))
    with pytest.raises(ConnectionClosed, match="the role stops"):
        await client.ask(*ask, deadline_s=2.0)
