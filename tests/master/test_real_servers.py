"""The master with real tablet servers: both sides of the protocol agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ebla.actors import messages as m
from ebla.actors.master.messages import (
    AddReplicaRequest,
    MoveReplicaRequest,
    RemoveReplicaRequest,
)
from ebla.actors.messages.appointments import ProcessEnded
from ebla.actors.messages.repair import (
    DeleteTabletRequest,
    MembersReply,
    UnsafeChangeRequest,
)
from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import (
    DELETED,
    RUNNING,
)
from ebla.actors.tablet.lifecycle.deletion import Deletion
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.server import RECORDS
from ebla.storage.errors import Corruption, DiskFull
from ebla.storage.rows.alteration import AddColumn
from ebla.storage.schema import Column
from tests.master.healed import asked
from tests.master.real_servers import (
    HOSTS,
    OPTIONS,
    healed,
    members_of,
    open_stage,
    replicas,
    role,
    server,
    table,
    voters,
    with_a_tablet,
)
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged


@staged(play, 0, OPTIONS)
async def test_servers_without_a_common_tablet_learn_incarnations_from_the_master(stage: Stage) -> None:
    await open_stage(stage)
    servers = [stage.cluster.role(f"tablet-server/{host}") for host in HOSTS]
    shown = {each.instance.uuid: each.instance.start for each in servers}
    await asyncio.sleep(150.0)  # numbers are raised every minute
    for each in servers:
        heard = {known.uuid: known.start for known in each.identity.others.all()}
        assert {each.instance.uuid: each.instance.start, **heard} == shown


@pytest.mark.parametrize("seed", range(2))
@staged(play, options=OPTIONS)
async def test_tables_heal_move_drain_and_are_dropped_completely(stage: Stage, seed: int) -> None:
    await open_stage(stage, failed_s=4.0)
    tablets = await stage.tablets("flights", buckets=4)
    await stage.until(lambda: replicas(stage) == 12)

    stage.cluster.crash(server("a"))
    await stage.until(lambda: all("a" not in voters(stage, tablet) for tablet in tablets))
    await stage.cluster.restart(server("a"))
    await stage.until(lambda: healed(stage))

    moved = tablets[0]
    source = stage.master.views.of(moved).leader
    free = next(h for h in HOSTS if h not in voters(stage, moved))
    move = MoveReplicaRequest(moved, source, free)
    await asked(stage, "move_replica", move)
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: free in voters(stage, moved) and healed(stage))
    assert stage.master.catalog.tablets[moved].member(source) is None

    await stage.drain("b")
    await stage.until(lambda: healed(stage) and all("b" not in voters(stage, t) for t in tablets))
    assert "deleted" in {tombstone.state for tombstone in role(stage, "b").lifecycle.all().values()}
    out = role(stage, "b").instance.uuid
    await stage.until(lambda: stage.master.servers.get(out).load.replicas == 0)
    await stage.drop("flights")
    await stage.until(lambda: replicas(stage) == 0 and len(stage.master.catalog.tables) == 0)
    held = [stage.cluster.role(server(h)).lifecycle.all() for h in HOSTS]
    assert not any(held), "a dropped table leaves no tombstone"
    status = await stage.status()
    assert (status.tablets_unknown, status.leader_conflicts) == (0, 0)


@pytest.mark.parametrize("seed", range(2))
def test_three_servers_repair_a_replica_that_lost_its_votes(seed: int):
    """There is no fourth server: the replica is removed, and added again on the same server."""
    hosts = HOSTS[:3]

    async def scenario(stage: Stage) -> None:
        await open_stage(stage, hosts=hosts)
        tablets = await stage.tablets("flights", buckets=2)

        def whole() -> bool:
            roles = [stage.cluster.role(server(h)) for h in hosts]
            running = all(r.replicas[t].state == "running" for r in roles for t in tablets if t in r.replicas)
            held = all(len(r.replicas) == 2 for r in roles)
            return held and running and all(voters(stage, t) == list(hosts) for t in tablets)

        await stage.until(whole)
        stage.cluster.crash(server("a"))
        for tablet in tablets:
            stage.cluster.state(server("a")).rot("consensus-meta", RECORDS, tablet.encode())
        await stage.cluster.restart(server("a"))
        assert not stage.cluster.role(server("a")).replicas
        await stage.until(lambda: whole() and not stage.master.views.unsettled)
        assert all(stage.master.catalog.tablets[t].configuration.index > 0 for t in tablets)

    play(scenario, seed, OPTIONS)


def stores_nothing(stage: Stage, host: str) -> Callable[[], None]:
    """The error that ends it."""
    disk = role(stage, host).world.disk
    sound = disk.receive

    async def receive(*asked: object) -> None:
        raise DiskFull("no space left")

    disk.receive = receive
    return lambda: setattr(disk, "receive", sound)


@staged(play, 0, OPTIONS)
async def test_a_replica_that_cannot_be_copied_in_place_moves_to_another_host(stage: Stage) -> None:
    tablet, broken = await with_a_tablet(stage)
    stores_nothing(stage, broken)
    role(stage, broken).replicas[tablet].fail(Corruption("a failed checksum"))
    await stage.until(lambda: broken not in voters(stage, tablet))
    spare = next(host for host in HOSTS if host not in voters(stage, tablet))
    assert spare == broken and len(voters(stage, tablet)) == 3
    await stage.until(lambda: not stage.master.views.unsettled)


@staged(play, 0, OPTIONS)
async def test_a_pre_voter_that_cannot_be_copied_is_replaced_on_another_host(stage: Stage) -> None:
    hosts = (*HOSTS, "e")
    tablet, dead = await with_a_tablet(stage, hosts)
    spares = [host for host in hosts if host not in voters(stage, tablet)]
    mends = {host: stores_nothing(stage, host) for host in spares}
    stage.cluster.crash(server(dead))
    await stage.until(lambda: "pre_voter" in members_of(stage, tablet).values())
    chosen = next(host for host, kind in members_of(stage, tablet).items() if kind == "pre_voter")
    (sound,) = (host for host in spares if host != chosen)
    mends[sound]()
    await stage.until(lambda: sound in voters(stage, tablet) and dead not in voters(stage, tablet))
    assert chosen not in members_of(stage, tablet)


async def forced_alone(
    stage: Stage, tablet: str, survivor: str, hosts: Sequence[str] = HOSTS
) -> Configuration:
    """All others are gone, the survivor is back, and an operator forces it to continue without a majority."""
    for host in hosts:
        if host != survivor:
            stage.cluster.crash(server(host))
    await stage.cluster.restart(server(survivor))
    replica = role(stage, survivor).replicas[tablet]
    await stage.until(lambda: replica.state == "running")
    own, known = role(stage, survivor).instance.uuid, replica.core.committed_configuration
    request = UnsafeChangeRequest(own, tablet, (own,), known.index, "the rack burnt", known.unsafe)
    operator = stage.cluster.client_world("operator")

    async def force() -> MembersReply:
        return await operator.network.call(server(survivor), "unsafe_change", request, MembersReply, 20.0)

    return (await stage.persist(force)).configuration


@staged(play, 0, OPTIONS)
async def test_a_forced_configuration_is_adopted_over_longer_logs(stage: Stage) -> None:
    tablet, survivor = await with_a_tablet(stage)
    stage.cluster.crash(server(survivor))
    await stage.until(lambda: len(members_of(stage, tablet)) == 4)
    others = [host for host in HOSTS if host != survivor]
    forced = await forced_alone(stage, tablet, survivor)
    assert stage.master.catalog.tablets[tablet].configuration.index >= forced.index
    await stage.until(lambda: members_of(stage, tablet) == {survivor: "voter"})
    for host in others:
        stage.cluster.lose_disk(server(host))
        await stage.cluster.restart(server(host))
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and not stage.master.views.unsettled)


@pytest.mark.parametrize("seed", range(2))
@staged(play, options=OPTIONS)
async def test_replicas_given_up_by_force_elect_no_leader_and_are_copied(stage: Stage, seed: int) -> None:
    tablet, survivor = await with_a_tablet(stage, hosts=HOSTS[:3])
    others = [host for host in HOSTS[:3] if host != survivor]
    await forced_alone(stage, tablet, survivor, HOSTS[:3])
    await stage.until(lambda: members_of(stage, tablet) == {survivor: "voter"})
    stage.cluster.crash(MASTER)
    await asyncio.gather(*[stage.cluster.restart(server(host)) for host in others])
    replica = role(stage, survivor).replicas[tablet]
    before = replica.core.hard_state
    await asyncio.sleep(10.0)
    assert replica.leads and replica.core.hard_state == before
    assert not any(role(stage, host).replicas[tablet].leads for host in others)
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and not stage.master.views.unsettled)
    assert replica.leads and replica.core.hard_state == before
    assert all(role(stage, host).replicas[tablet].core.configuration.unsafe == 1 for host in others)


@staged(play, 0, OPTIONS)
async def test_a_forced_survivor_gets_an_alteration_that_only_lost_replicas_had(stage: Stage) -> None:
    tablet, survivor = await with_a_tablet(stage)
    stage.cluster.crash(server(survivor))
    await stage.alter(AddColumn(Column("x", "int64")))
    await stage.until(lambda: stage.master.views.of(tablet).version == 1)
    await forced_alone(stage, tablet, survivor)
    replica = role(stage, survivor).replicas[tablet]
    await stage.until(lambda: replica.rows is not None and replica.rows.schema.version == 1)
    await stage.until(lambda: not stage.master.views.behind)
    assert (await stage.table()).applied_version == 1


@pytest.mark.parametrize("drained", [False, True])
@staged(play, 0, OPTIONS)
async def test_a_replica_removed_twice_becomes_a_tombstone_again(stage: Stage, drained: bool) -> None:
    """A non-voter does not react to a silent leader: a master that does not ask it lets it serve forever."""
    tablet, _ = await with_a_tablet(stage)
    host = next(each for each in HOSTS if each not in voters(stage, tablet))
    for _ in range(3):
        await asked(stage, "add_replica", AddReplicaRequest(tablet, host, "non_voter"))
        await stage.until(lambda: role(stage, host).lifecycle.state_of(tablet) == RUNNING)
        await asyncio.sleep(1.0)
        if drained:
            await stage.drain(host, True)
        else:
            await asked(stage, "remove_replica", RemoveReplicaRequest(tablet, host))
        await stage.until(lambda: role(stage, host).lifecycle.state_of(tablet) == DELETED)
        if drained:
            await stage.drain(host, False)


DELETIONS_MAX = 3


@pytest.mark.parametrize("takes_over", [False, True])
@staged(play, 0, OPTIONS)
async def test_a_tombstone_is_deleted_with_few_requests_when_its_server_returns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, takes_over: bool
) -> None:
    asked_of: list[tuple[str, bool]] = []
    honest = Deletion.delete

    async def delete(self: Deletion, request: DeleteTabletRequest) -> None:
        asked_of.append((self.world.address, request.tombstone))
        await honest(self, request)

    monkeypatch.setattr(Deletion, "delete", delete)
    await open_stage(stage)
    (tablet,) = await stage.tablets("flights")
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and healed(stage))
    source = next(
        peer
        for peer in stage.master.catalog.tablets[tablet].configuration.peers
        if peer.uuid != stage.master.views.of(tablet).leader
    )
    free = next(host for host in HOSTS if host not in voters(stage, tablet))
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, source.uuid, free))
    host = source.address.rpartition("/")[2]
    await stage.until(lambda: host not in voters(stage, tablet) and healed(stage))
    assert role(stage, host).lifecycle.state_of(tablet) == "deleted"
    stage.cluster.crash(server(host))
    await stage.drop("flights")
    await asyncio.sleep(30.0)
    if takes_over:
        await stage.cluster.restart(MASTER)
    asked_of.clear()
    await stage.cluster.restart(server(host))
    await stage.until(lambda: not role(stage, host).lifecycle.all())
    await stage.until(lambda: len(stage.master.catalog.tablets) == 0)
    here = [tombstone for address, tombstone in asked_of if address == server(host)]
    assert here and len(here) <= DELETIONS_MAX and not any(here)
    asked_of.clear()
    await asyncio.sleep(120.0)
    assert asked_of == [], "no request after the deletion"


SLOW_S = 18.0  # of the followers' disks: the addition is pending for this time


@pytest.mark.parametrize("leader_is_heard", [True, False])
@pytest.mark.parametrize("seed", range(2))
@staged(play, options=OPTIONS)
async def test_a_member_with_a_pending_addition_is_copied_once_and_stays(
    stage: Stage, seed: int, leader_is_heard: bool
) -> None:
    tablet, _ = await with_a_tablet(stage, election_s_min=16.0)
    # A leader is patient with followers whose disks are slow.
    deletions: list[DeleteTabletRequest] = []
    stage.cluster.network.tap("delete_tablet", DeleteTabletRequest, deletions.append)
    new = next(host for host in HOSTS if host not in voters(stage, tablet))
    uuid = role(stage, new).instance.uuid
    leader = stage.master.views.of(tablet).leader
    leading = next(host for host in HOSTS if role(stage, host).instance.uuid == leader)
    followers = [host for host in voters(stage, tablet) if host != leading]
    for host in followers:
        stage.cluster.state(server(host)).commit_s = (SLOW_S, SLOW_S)
    adding = asyncio.ensure_future(asked(stage, "add_replica", AddReplicaRequest(tablet, new, "non_voter")))
    while role(stage, leading).replicas[tablet].core.configuration.peer(uuid) is None:
        await asyncio.sleep(0.001)  # before the leader reports it
    if not leader_is_heard:
        stage.cluster.network.cut(MASTER, server(leading))
    await stage.until(lambda: role(stage, new).lifecycle.state_of(tablet) == RUNNING)
    assert new not in members_of(stage, tablet)
    await asyncio.sleep(5.0)
    assert bool(deletions) != leader_is_heard, (
        "a master with only the leader's older report is refused by the server"
    )
    assert role(stage, new).lifecycle.state_of(tablet) == RUNNING
    for host in followers:
        stage.cluster.state(server(host)).commit_s = (0.001, 0.001)
    stage.cluster.network.heal()
    await adding
    await stage.until(lambda: new in members_of(stage, tablet))
    assert (role(stage, new).lifecycle.state_of(tablet), role(stage, new).copies.done) == (RUNNING, 1)


@staged(play, 0, OPTIONS)
async def test_the_master_shows_the_size_of_a_table_as_its_rows_come_and_not_each_small_change(
    stage: Stage,
) -> None:
    await with_a_tablet(stage)

    async def shown() -> int:
        return (await stage.ask("list_tables", m.ListTablesRequest(), m.ListTablesReply)).tables[0].rows_bytes

    rows = await table(stage)
    schema = rows.schema
    empty = await shown()
    key, value = schema.names[0], schema.names[-1]
    for count, grows in ((4000, True), (10, False)):
        before = await shown()
        await rows.upsert([{key: number, value: "x" * 200} for number in range(count)])
        await asyncio.sleep(10.0)
        assert (await shown() > before + 4000 * 200 // 2) is grows
    assert empty < 1 << 18


def leading(stage: Stage, tablet: str) -> str | None:
    """The host of the tablet's leader, if there is one."""
    for host in HOSTS[:3]:
        replica = role(stage, host).replicas.get(tablet) if stage.cluster.alive(server(host)) else None
        if replica is not None and replica.leads:
            return host
    return None


async def led(stage: Stage, tablet: str) -> str:
    await stage.until(lambda: leading(stage, tablet) is not None)
    found = leading(stage, tablet)
    assert found is not None
    return found


@staged(play, 0, OPTIONS)
async def test_a_tablet_has_another_leader_at_once_when_the_master_sees_the_process_of_its_leader_end(
    stage: Stage,
) -> None:
    stage.cluster.hosts.host_of, stage.cluster.hosts.seen = lambda address: "one", 1.0
    tablet, _ = await with_a_tablet(stage, hosts="abc")
    flights = await table(stage)
    for _ in range(5):
        await flights.upsert([{"id": 1, "note": "before"}])
        first = await led(stage, tablet)
        stage.cluster.crash(server(first))
        async with stage.master.world.clock.timeout(RaftLimits().election_s_min / 2):
            await flights.upsert([{"id": 1, "note": "after"}])
        assert await led(stage, tablet) != first
        await stage.cluster.restart(server(first))
        await asyncio.sleep(10.0)


@staged(play, 0, OPTIONS)
async def test_the_late_report_that_a_process_has_ended_concerns_no_later_one(stage: Stage) -> None:
    tablet, _ = await with_a_tablet(stage, hosts="abc")
    first = await led(stage, tablet)
    ended = role(stage, first).instance
    await stage.cluster.restart(server(first))
    await asyncio.sleep(10.0)
    operator = stage.cluster.client_world("client/operator").network
    if (second := await led(stage, tablet)) != first:
        order = m.StepDownRequest(tablet, role(stage, first).instance.uuid)
        await operator.call(server(second), "step_down", order, m.StepDownReply, 5.0)
        await stage.until(lambda: leading(stage, tablet) == first)
    term = role(stage, first).replicas[tablet].core.term
    for address in (MASTER, *map(server, "abc")):
        await operator.call(address, "process_ended", ProcessEnded(ended), m.Empty, 1.0)
    await asyncio.sleep(5.0)
    assert leading(stage, tablet) == first and role(stage, first).replicas[tablet].core.term == term
