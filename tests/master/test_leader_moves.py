"""S31: the leader's replica moves to another server under writes, while the operator or the master may crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ebla.actors.master.messages import MoveReplicaRequest
from ebla.actors.messages.repair import MembersReply
from ebla.actors.tablet.server import TabletServer
from ebla.errors import Unavailable
from tests.master.healed import asked
from tests.master.real_servers import HOSTS, OPTIONS, healed, members_of, role, table, voters, with_a_tablet
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

FIVE = (*HOSTS, "e")
REPAIR, BURY = "master.repair_tablet.before_rpc", "master.tombstone_tablet.before_rpc"


async def led(stage: Stage, hosts: tuple[str, ...] = HOSTS, **given: int) -> MoveReplicaRequest:
    """A tablet whose leader's replica moves to a server without a replica."""
    tablet, _ = await with_a_tablet(stage, hosts, **given)
    source = leader(stage, tablet)
    assert source is not None
    return MoveReplicaRequest(tablet, source, next(h for h in hosts if h not in voters(stage, tablet)))


def leader(stage: Stage, tablet: str) -> str | None:
    """The host of the leader, as the master knows it."""
    uuid = stage.master.views.of(tablet).leader
    peer = stage.master.catalog.tablets[tablet].member(uuid) if uuid else None
    return peer.address.rpartition("/")[2] if peer else None


def moved(stage: Stage, move: MoveReplicaRequest) -> bool:
    """The tablet has three running voters, and other servers have at most tombstones."""
    if not stage.cluster.alive(MASTER) or move.tablet not in stage.master.catalog.tablets:
        return False
    members = members_of(stage, move.tablet)
    return move.target in members and move.source not in members and healed(stage)


@pytest.mark.parametrize("seed", range(3))
@staged(play, options=OPTIONS)
async def test_a_leaders_replica_moves_with_little_effect_on_writes(stage: Stage, seed: int) -> None:
    move = await led(stage)
    before = voters(stage, move.tablet)
    rows, written, longest, over = await table(stage), 0, 0.0, False
    clock = stage.cluster.loop.time
    terms = role(stage, move.source).replicas[move.tablet].core.term

    async def write() -> None:
        nonlocal written, longest
        while not over:
            began = clock()
            await rows.upsert([{"id": written, "note": "x" * 200}])
            written, longest = written + 1, max(longest, clock() - began)

    writing = asyncio.ensure_future(write())
    await stage.until(lambda: written > 200)
    seen: dict[str, None] = {}
    await stage.ask("move_replica", move, MembersReply)

    def done() -> bool:
        seen.update(dict.fromkeys(members_of(stage, move.tablet)))
        return moved(stage, move)

    await stage.until(done)
    more = written
    await stage.until(lambda: written > more + 50)
    over = True
    await writing
    after = sorted({*before, move.target} - {move.source})
    assert voters(stage, move.tablet) == after
    assert {*seen} == {*before, move.target}, "no other leader was elected"
    assert role(stage, move.source).lifecycle.all()[move.tablet].state == "deleted"
    chief = leader(stage, move.tablet)
    assert chief in after
    assert role(stage, chief).replicas[move.tablet].core.term == terms + 1, "only one graceful election"
    assert longest < 1.0, "no election timeout passed"
    assert await rows.scan().count() == written


def at(stage: Stage, point: str, times: int, act: Callable[[], object]) -> None:
    """When the master passes the point for the `number`th time."""

    async def here() -> None:
        nonlocal times
        times -= 1
        if times:
            stage.points.acts[point] = here
        else:
            act()

    stage.points.acts[point] = here


@pytest.mark.parametrize("then", ["nothing", "again", "the master dies"])
@pytest.mark.parametrize("step", ["asked", "copying", "hands over", "evicts", "buries", "done"])
@staged(play, 0, OPTIONS)
async def test_a_move_of_a_leader_ends_after_its_operator_and_master_are_gone(
    stage: Stage, step: str, then: str
) -> None:
    move = await led(stage)
    came = asyncio.Event()
    revived = stage.revive_master()

    def act() -> None:
        came.set()
        if then == "the master dies":
            stage.cluster.crash(MASTER)

    point, times = {"hands over": (REPAIR, 1), "evicts": (REPAIR, 2), "buries": (BURY, 1)}.get(step, ("", 0))
    if point:
        at(stage, point, times, act)
    operator = asyncio.ensure_future(stage.ask("move_replica", move, MembersReply))
    if step == "asked":
        await stage.until(lambda: stage.cluster.alive(MASTER))
    await asyncio.sleep(0.002)
    operator.cancel()
    if step == "copying":
        await stage.until(lambda: "pre_voter" in members_of(stage, move.tablet).values())
    elif step == "done":
        await stage.until(lambda: moved(stage, move))
    if point:
        await came.wait()
    else:
        act()
    if then == "again" or step == "asked":
        await asked(stage, "move_replica", move)
    await stage.until(lambda: moved(stage, move))
    assert (await asked(stage, "move_replica", move)).configuration.peer(move.source) is None
    await stage.until(lambda: revived[0] == (then == "the master dies"))
    stage.watcher.cancel()


@staged(play, 0, OPTIONS)
async def test_the_master_repeats_a_hand_over_until_the_leader_can(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, refused = TabletServer.step_down, 0

    async def unwilling(self: TabletServer, request: object) -> object:
        nonlocal refused
        refused += 1
        if refused < 5:
            raise Unavailable("nobody has caught up")
        return await honest(self, request)

    monkeypatch.setattr(TabletServer, "step_down", unwilling)
    move = await led(stage)
    await asked(stage, "move_replica", move)
    await stage.until(lambda: moved(stage, move))
    assert refused == 5


@pytest.mark.parametrize("of_leader", [True, False])
@staged(play, 0, OPTIONS)
async def test_a_failed_move_without_another_target_is_cancelled(stage: Stage, of_leader: bool) -> None:
    """KUDU-3789."""
    move = await copying(stage, HOSTS, of_leader)
    before = voters(stage, move.tablet)
    stage.cluster.crash(f"tablet-server/{move.target}")
    await stage.until(lambda: members_of(stage, move.tablet) == dict.fromkeys(before, "voter"))
    await stage.until(lambda: not stage.master.views.unsettled)
    assert not any(peer.replace for peer in stage.master.catalog.tablets[move.tablet].configuration.peers)
    await stage.cluster.restart(f"tablet-server/{move.target}")
    await stage.until(lambda: healed(stage))
    await asyncio.sleep(30.0)
    assert voters(stage, move.tablet) == before, "the move is not continued"


@pytest.mark.parametrize("of_leader", [True, False])
@staged(play, 0, OPTIONS)
async def test_a_failed_move_goes_to_another_server(stage: Stage, of_leader: bool) -> None:
    move = await copying(stage, FIVE, of_leader)
    stage.cluster.crash(f"tablet-server/{move.target}")
    await stage.until(lambda: move.source not in members_of(stage, move.tablet))
    wanted = {*FIVE} - {move.source, move.target}
    await stage.until(lambda: set(voters(stage, move.tablet)) == wanted and not stage.master.views.unsettled)


async def copying(stage: Stage, hosts: tuple[str, ...], of_leader: bool) -> MoveReplicaRequest:
    """A move whose target is being copied, and whose operator is gone."""
    move = await led(stage, hosts, copy_bytes_per_s=2_000)
    rows = await table(stage)
    for number in range(100):
        await rows.upsert([{"id": number, "note": "x" * 1_000}])
    if not of_leader:
        follower = next(host for host in voters(stage, move.tablet) if host != move.source)
        move = MoveReplicaRequest(move.tablet, follower, move.target)
    await asked(stage, "move_replica", move)
    await stage.until(lambda: bool(role(stage, move.target).copies.jobs))
    return move
