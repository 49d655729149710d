"""PacificA tables over real tablet servers: the master and its servers agree on ballots, leases and members."""

from __future__ import annotations

from tests.master.real_servers import OPTIONS, open_stage, role, server, table
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

HOSTS = ("a", "b", "c", "d")


async def opened(stage: Stage, hosts: str = "abc", failed_s: float = 6.0, **changes: object) -> str:
    await open_stage(stage, failed_s=failed_s, hosts=tuple(hosts))
    (tablet,) = await stage.tablets("flights", buckets=1, replication="pacifica", **changes)
    await stage.until(lambda: leads(stage, tablet, hosts))
    return tablet


def stored(stage: Stage, tablet: str):
    return stage.master.catalog.tablets[tablet].configuration


def host_of(stage: Stage, tablet: str) -> str:
    known = stored(stage, tablet)
    return known.peer(known.primary).address.rpartition("/")[2]


def leads(stage: Stage, tablet: str, hosts: str) -> bool:
    first = host_of(stage, tablet)
    if not stage.cluster.alive(server(first)) or tablet not in role(stage, first).replicas:
        return False
    return role(stage, first).replicas[tablet].leads


def kinds(stage: Stage, tablet: str) -> dict[str, str]:
    return {p.address.rpartition("/")[2]: p.kind for p in stored(stage, tablet).peers}


async def rows(flights) -> int:
    return len(await flights.scan().to_arrow())


@staged(play, 0, OPTIONS)
async def test_a_dead_primary_is_replaced_and_returns_as_a_voter(stage: Stage) -> None:
    tablet = await opened(stage)
    flights = await table(stage)
    await flights.upsert([{"id": n, "note": "kept"} for n in range(20)])
    first = host_of(stage, tablet)
    stage.cluster.crash(server(first))
    await stage.until(lambda: host_of(stage, tablet) != first and leads(stage, tablet, "abc"))
    assert await rows(flights) == 20
    await flights.upsert([{"id": n, "note": "later"} for n in range(20, 30)])
    await stage.cluster.restart(server(first))
    await stage.until(lambda: kinds(stage, tablet) == dict.fromkeys("abc", "voter"))
    assert await rows(flights) == 30
    await stage.until(lambda: not stage.master.appointer.planner.unled)


@staged(play, 0, OPTIONS)
async def test_all_servers_and_the_master_restart(stage: Stage) -> None:
    tablet = await opened(stage)
    flights = await table(stage)
    await flights.upsert([{"id": n, "note": "kept"} for n in range(20)])
    for host in "abc":
        stage.cluster.crash(server(host))
    await stage.cluster.restart(MASTER)
    for host in "abc":
        await stage.cluster.restart(server(host))
    await stage.until(lambda: leads(stage, tablet, "abc"))
    assert await rows(flights) == 20


@staged(play, 0, OPTIONS)
async def test_a_lost_server_is_replaced_by_the_healer(stage: Stage) -> None:
    tablet = await opened(stage, "abcd")
    flights = await table(stage)
    await flights.upsert([{"id": n, "note": "kept"} for n in range(20)])
    first = host_of(stage, tablet)
    stage.cluster.crash(server(first))
    await stage.until(
        lambda: (
            len(kinds(stage, tablet)) == 3
            and first not in kinds(stage, tablet)
            and set(kinds(stage, tablet).values()) == {"voter"}
        ),
        300,
    )
    assert await rows(flights) == 20


@staged(play, 0, OPTIONS)
async def test_with_min_members_left_a_replacement_is_added_without_waiting(stage: Stage) -> None:
    tablet = await opened(stage, "abc", 60.0, replicas=2)
    flights = await table(stage)
    await flights.upsert([{"id": n, "note": "kept"} for n in range(20)])
    first = host_of(stage, tablet)
    other = next(h for h in kinds(stage, tablet) if h != first)
    stage.cluster.crash(server(other))
    await stage.until(
        lambda: (
            len([k for k in kinds(stage, tablet).values() if k == "voter"]) == 2
            and kinds(stage, tablet).get(other) != "voter"
        ),
        100,
    )
    await flights.upsert([{"id": n, "note": "later"} for n in range(20, 30)])
    assert await rows(flights) == 30


@staged(play, 0, OPTIONS)
async def test_a_hand_over_and_a_move(stage: Stage) -> None:
    from ebla.actors import messages as m
    from ebla.actors.master.messages import MoveReplicaRequest
    from tests.master.healed import asked

    tablet = await opened(stage, "abcd")
    flights = await table(stage)
    await flights.upsert([{"id": n, "note": "kept"} for n in range(20)])
    first = host_of(stage, tablet)
    await stage.client.network.call(
        server(first), "step_down", m.StepDownRequest(tablet, None, 3.0), m.StepDownReply, 5.0
    )
    await stage.until(lambda: host_of(stage, tablet) != first and leads(stage, tablet, "abcd"))
    spare = next(h for h in "abcd" if h not in kinds(stage, tablet))
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, first, spare))
    await stage.until(
        lambda: kinds(stage, tablet).get(spare) == "voter" and first not in kinds(stage, tablet), 200
    )
    assert await rows(flights) == 20
    await stage.until(lambda: not stage.master.catalog.tablets[tablet].former, 200)
