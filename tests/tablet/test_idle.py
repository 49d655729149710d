"""What is idle costs nothing: the work of a server grows with what happens, not with the replicas that it has."""

from __future__ import annotations

from collections import Counter, UserDict
from collections.abc import Iterator
from typing import Any

import pytest

from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.upkeep.reporter import FULL_EVERY
from ebla.storage.schema import COLUMNS
from ebla.storage.tablets.tablet_store import TabletStore
from tests.tablet.appointing import PacificaGroup, pacifica
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, TABLET, Group, row, simulated
from tests.tablet.quiet import QUIESCES, until_quiescent

MANY = 12


def counted(monkeypatch: pytest.MonkeyPatch, *methods: tuple[type, str]) -> Counter[str]:
    """Count the calls of these methods by their names."""
    counts: Counter[str] = Counter()
    for owner, name in methods:
        original: Any = getattr(owner, name)

        def call(self: Any, *arguments: Any, name: str = name, original: Any = original, **named: Any) -> Any:
            counts[name] += 1
            return original(self, *arguments, **named)

        monkeypatch.setattr(owner, name, call)
    return counts


async def all_quiescent(group: Group) -> None:
    for tablet in [TABLET, *await group.create_many(MANY)]:
        await until_quiescent(group, tablet=tablet)
    await group.sleep(3.0)


@simulated(**QUIESCES)
async def test_recovery_examines_no_quiet_replica_whose_peers_answer(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await all_quiescent(group)
    counts = counted(monkeypatch, (RaftState, "health"))
    await group.sleep(30.0)
    assert counts["health"] == 0
    dead = HOSTS[0]
    group.crash(dead)
    await until(group, lambda: counts["health"] > 0, "the leaders that relied on it are examined", 5.0)


@pacifica(**QUIESCES)
async def test_heartbeats_look_at_quiet_replicas_rarely_and_never_at_their_sizes(
    group: PacificaGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    await all_quiescent(group)
    options = group.server(HOSTS[0]).options
    counts = counted(monkeypatch, (Replica, "facts"), (PacificaCore, "health"))
    sizes = 0

    def size_bytes(self: TabletStore) -> int:
        nonlocal sizes
        sizes += 1
        return 0

    monkeypatch.setattr(TabletStore, "size_bytes", property(size_bytes))
    await group.sleep(2 * FULL_EVERY * options.heartbeat_s)
    assert (sizes, counts["health"]) == (0, 0)
    assert 0 < counts["facts"] <= 3 * len(HOSTS) * (MANY + 1)


@pytest.mark.parametrize("storage", ["rows", COLUMNS])
@pacifica(**QUIESCES)
async def test_the_master_learns_the_size_of_a_replica_after_each_change(
    group: PacificaGroup, storage: str
) -> None:
    """Written, flushed, and of columns compacted."""
    group.storage = storage
    await group.create(other := "c" * 32)
    for k in range(4):
        await group.upsert(*(row(1000 * k + i, "x" * 2000) for i in range(200)), tablet=other)
        await group.settle()
        await group.flush(*HOSTS)
        await group.sleep(2.0)
        for host in HOSTS:
            (reporter,), size = group.server(host).reporters, group.replica(host, other).size_bytes
            assert size > 200_000 * (k + 1)
            assert abs(reporter._sizes[other] - size) <= max(1 << 18, size // 8)


@pacifica(**QUIESCES)
async def test_beacons_look_at_all_replicas_only_when_a_lease_ends(group: PacificaGroup) -> None:
    await all_quiescent(group)
    looks = Counter[str]()

    class Looked(UserDict[str, Replica]):
        def __iter__(self) -> Iterator[str]:
            looks["all"] += 1
            return super().__iter__()

    for host in HOSTS:
        leasing = group.server(host).leasing
        leasing.replicas, replicas = Looked(), leasing.replicas
        leasing.replicas.data = replicas  # type: ignore[attr-defined]
    await group.sleep(30.0)
    assert looks["all"] == 0
    group.stop_master()
    await group.sleep(30.0)
    assert looks["all"] == len(HOSTS)


@simulated(**QUIESCES, follower_failed_s=5.0)
async def test_quiet_time_before_a_restart_is_no_silence(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, follower, _ = await group.roles()
    await group.sleep(60.0)
    group.crash(follower)
    await group.restart(follower)
    for _ in range(50):
        await group.sleep(0.1)
        assert group.replica(leader).health[group.uuid(follower)] in ("healthy", "unknown")
    await until_quiescent(group)
    assert await group.leader() == leader
