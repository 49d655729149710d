"""A leader repairs its peers: it reports their health, and requests copies for those that its log cannot help."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.replication.configuration import Peer
from ebla.actors.tablet.copy import recovery
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.server import TabletServer
from ebla.storage.errors import Corruption, DiskFull
from tests.tablet.copies import (
    before_ready,
    deleted,
    entomb,
    filled,
    left_behind,
    quarantined,
    same_rows,
    until,
)
from tests.tablet.harness import FIVE, HOSTS, TABLET, Group, address, row, simulated
from tests.tablet.test_members import members

PATIENCE: dict[str, Any] = {"follower_failed_s": 6.0}


def health(group: Group, leader: str) -> dict[str, str]:
    """Return the health of each host as the leader reports it."""
    report = group.replica(leader).report()
    return {
        peer.address[-6:]: report.health[peer.uuid]
        for peer in report.configuration.peers
        if peer.uuid in report.health
    }


def copied(group: Group, *hosts: str) -> Callable[[], bool]:
    return lambda: all(
        group.state_of(host) == m.RUNNING and group.replica(host).store.applied.index > 1 for host in hosts
    )


Start = Callable[[Copies, m.StartCopyRequest], Awaitable[None]]


def watched(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], Exception | None]
) -> list[tuple[float, m.StartCopyRequest]]:
    """Collect all requests for copies; the n-th is refused with `answer(n)`, or carried out if that is None."""
    seen: list[tuple[float, m.StartCopyRequest]] = []
    original = Copies.start

    async def start(self: Copies, request: m.StartCopyRequest) -> None:
        seen.append((self.world.clock.monotonic(), request))
        error = answer(len(seen))
        if error is not None:
            raise error
        await original(self, request)

    monkeypatch.setattr(Copies, "start", start)
    return seen


def pauses_between(seen: list[tuple[float, m.StartCopyRequest]]) -> list[float]:
    return [later - before for (before, _), (later, _) in itertools.pairwise(seen)]


@simulated()
async def test_a_deleted_replica_of_a_member_is_copied_automatically(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch, lambda _: None)
    leader, target, other = await deleted(group, 100)
    await until(group, copied(group, target), "the tablet is there again")
    await same_rows(group, target, other, leader)
    (request,) = (request for _, request in seen)
    own = group.server(leader)
    assert request.source == Peer(own.instance.uuid, address(leader))
    assert (request.state, request.term, request.last) == (
        m.DELETED,
        group.replica(leader).core.term,
        None,
    )


@simulated()
async def test_a_damaged_replica_is_copied_over(group: Group) -> None:
    leader, target, other = await filled(group, 100)
    group.replica(target).fail(Corruption("for a test"))
    await until(group, copied(group, target), "the replica runs again")
    await same_rows(group, target, other, leader)
    (entry,) = await quarantined(group, target)
    assert entry.tablet == TABLET


@simulated(log_retained_entries_max=2)
async def test_a_follower_behind_the_start_of_the_log_is_copied_in_place(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch, lambda _: None)
    leader, target, other = await left_behind(group)
    uuid, last = group.uuid(target), group.replica(target).log.last
    core = group.replica(leader).core
    await until(group, lambda: core.needs_copy(uuid), "its log is too short")
    await until(group, lambda: not core.needs_copy(uuid), "the follower follows the log again")
    assert core.progress[uuid].state == "replicate"
    assert (seen[0][1].state, seen[0][1].last) == (m.RUNNING, (last.index, last.term))
    await same_rows(group, target, other)
    (entry,) = await quarantined(group, target)
    assert entry.tablet == TABLET and entry.bytes > 0
    assert members(group, leader).index == -1, "it stayed a member"


@simulated()
async def test_a_tablet_is_not_copied_to_a_member_that_will_soon_create_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch, lambda _: None)
    tablet = "e" * 32
    for host in HOSTS[:2]:
        await group.create_at(host, tablet)
    leader = await group.leader(tablet)
    uuid = group.uuid(HOSTS[2])
    core = group.replica(leader, tablet).core
    await until(group, lambda: core.progress[uuid].refusal == "tablet_not_found", "the replica is missing")
    await group.sleep(5.0)
    await group.create_at(HOSTS[2], tablet)
    await until(group, lambda: core.progress[uuid].state == "replicate", "the replica follows")
    assert seen == []


@simulated()
async def test_a_new_tablet_is_copied_to_a_member_that_never_creates_it(group: Group) -> None:
    tablet = "e" * 32
    for host in HOSTS[:2]:
        await group.create_at(host, tablet)
    await until(group, lambda: tablet in group.server(HOSTS[2]).replicas, "the tablet is copied")


# -- back-off


@simulated()
async def test_a_copy_that_cannot_succeed_is_requested_at_growing_intervals(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: there is no tight loop of requests or messages."""
    seen = watched(monkeypatch, lambda _: errors.IllegalState("for a test", tablet=TABLET, state="x"))
    envelopes: Counter[str] = Counter()
    original = TabletServer.replicate

    async def replicate(self: TabletServer, envelope: peers.Envelope) -> peers.EnvelopeReply:
        envelopes[self.options.host] += 1
        return await original(self, envelope)

    replicate.__rpc__ = True  # type: ignore[attr-defined]
    monkeypatch.setattr(TabletServer, "replicate", replicate)
    _, target, _ = await deleted(group, 1)
    await group.sleep(1.0)
    envelopes.clear()
    await group.sleep(100.0)
    pauses = pauses_between(seen)
    assert 4 <= len(seen) <= 12
    assert recovery.RETRY_S_MIN <= pauses[0] <= 2 * recovery.RETRY_S_MIN
    assert all(later > 1.2 * before for before, later in itertools.pairwise(pauses[:5]))
    assert max(pauses) <= 1.5 * recovery.RETRY_S_MAX + 1
    assert 0 < envelopes[target] < 100 * 20, "at most 20 a second"


@simulated()
async def test_after_a_success_the_next_copy_is_requested_at_once(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch, lambda n: errors.IllegalState("for a test") if n <= 5 else None)
    leader, target, _ = await deleted(group, 1)
    await until(group, copied(group, target), "the tablet is copied")
    await until(group, lambda: health(group, leader).get(target) == "healthy", "the replica follows")
    await group.sleep(1.0)
    before = len(seen)
    await entomb(group, target)
    await group.sleep(1.0)
    assert len(seen) > before


@simulated()
async def test_a_throttled_copy_waits_for_the_time_in_the_refusal(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(number: int) -> Exception | None:
        return errors.Throttled("for a test", limit="copies_max", retry_after_s=3.0) if number <= 4 else None

    seen = watched(monkeypatch, answer)
    _, target, _ = await deleted(group, 1)
    await until(group, copied(group, target), "the tablet is copied")
    pauses = pauses_between(seen)
    assert len(pauses) == 4 and all(3.0 <= pause <= 4.5 + 0.5 for pause in pauses)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.Throttled("others first", limit="copies_max", retry_after_s=1.0), {"unknown"}),
        (DiskFull("no space left"), {"unknown", "unhealthy"}),
    ],
)
@simulated(**PATIENCE)
async def test_a_replica_waiting_for_its_copy_is_unknown_and_one_that_cannot_be_copied_fails(
    group: Group, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: set[str]
) -> None:
    seen = watched(monkeypatch, lambda _: error)
    leader, target, _ = await deleted(group, 1)
    await until(group, lambda: health(group, leader).get(target) == "unknown", "the peer is unknown")
    seen_health = set()
    for _ in range(60):
        await group.sleep(0.5)
        seen_health.add(health(group, leader)[target])
    assert seen_health == expected and len(seen) > 3


@simulated()
async def test_a_running_copy_counts_as_requested(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch, lambda _: errors.AlreadyInProgress("for a test", tablet=TABLET))
    _, _target, _ = await deleted(group, 1)
    await group.sleep(30.0)
    assert 3 <= len(seen) <= 8


@simulated()
async def test_requests_of_many_tablets_are_limited_at_a_time(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    original = recovery.Recovery._call

    async def call(self: recovery.Recovery, peer: Peer, request: m.StartCopyRequest) -> float:
        at_once.append(self.calls)
        await self.world.clock.sleep(1.0)
        return await original(self, peer, request)

    monkeypatch.setattr(recovery.Recovery, "_call", call)
    tablets = await group.create_many(12)
    for tablet in tablets:
        await group.leader(tablet)
    target = HOSTS[0]
    for tablet in tablets:
        await entomb(group, target, tablet)
    await until(
        group,
        lambda: all(tablet in group.server(target).replicas for tablet in tablets),
        "all are copied",
        120.0,
    )
    assert max(at_once) == recovery.PEER_CALLS_MAX


@simulated(hosts=FIVE, copies_max=1, leader_heartbeat_s=0.4, election_s_min=2.4, lease_s=1.6)
async def test_a_paused_server_does_not_delay_copies_to_another(group: Group) -> None:
    """It reported more tombstones than the limit of requests, and is paused afterwards."""
    tablets = await group.create_many(16)
    leader = await group.leader()
    for tablet in tablets:
        await group.lead(leader, tablet)
    hung, well = [host for host in group.hosts if host != leader][:2]
    expected, other = tablets[:14], tablets[14:]
    for tablet in expected:
        await entomb(group, hung, tablet)
    uuid = group.uuid(hung)
    await until(
        group,
        lambda: any(group.replica(leader, t).core.progress[uuid].refusal for t in expected[5:]),
        "tombstones are reported",
    )
    group.cluster.pause(address(hung))
    for tablet in other:
        await entomb(group, well, tablet)
    await until(
        group, lambda: all(tablet in group.server(well).replicas for tablet in other), "it is mended", 10.0
    )
    await group.sleep(30.0)
    assert group.server(leader).recovery.calls == 0, "a silent peer gets no request"


@simulated()
async def test_a_replica_that_no_longer_leads_requests_no_copy(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The term is checked again before the request is sent."""
    seen = watched(monkeypatch, lambda _: None)
    leader, target, _ = await group.roles()
    replica, own = group.replica(leader), group.server(leader).recovery
    attempt = recovery.Attempt()
    peer = replica.core.configuration.peer(group.uuid(target))
    assert peer is not None
    own._send(replica, peer, attempt, m.DELETED, None)
    replica.core._become_follower("for a test", replica.core.term + 1)
    replica.absorb()
    await group.sleep(0.05)
    assert seen == [] and own.calls == 0 and not attempt.under_way


# -- health


@simulated(**PATIENCE)
async def test_the_leader_reports_its_peers_health_and_only_the_leader(group: Group) -> None:
    leader, one, other = await group.roles()
    await until(group, lambda: health(group, leader) == {one: "healthy", other: "healthy"}, "all are healthy")
    assert group.replica(one).report().health == {}
    before = group.replica(leader).facts()
    group.crash(one)
    await until(group, lambda: health(group, leader).get(one) == "unknown", "the peer is unknown")
    assert group.replica(leader).facts() != before, "a change is reported to the master"
    await until(group, lambda: health(group, leader).get(one) == "silent", "the peer stays without an answer")
    await group.restart(one)
    await until(group, lambda: health(group, leader).get(one) == "healthy", "the peer is back")


@simulated(**PATIENCE)
async def test_a_long_copy_is_no_failure(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """S11: the target answers during the copy."""
    seen: list[str] = []
    before_ready(monkeypatch, lambda *_: group.sleep(20.0))
    asked = watched(monkeypatch, lambda _: None)
    leader, target, _ = await deleted(group, 1)
    while group.state_of(target) != m.RUNNING:
        seen.append(health(group, leader).get(target, "unknown"))
        await group.sleep(0.2)
    assert len(seen) > 80 and not {"silent", "unhealthy"} & set(seen)
    assert len(asked) == 1


@simulated(**PATIENCE)
async def test_a_wiped_server_is_lost_and_its_successor_gets_no_copy(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch, lambda _: None)
    leader, target, _ = await group.roles()
    await group.upsert(row(1))
    group.crash(target)
    group.cluster.lose_disk(address(target))
    await group.restart(target)
    await until(group, lambda: health(group, leader).get(target) == "lost", "another server is there")
    await group.sleep(12.0)
    assert seen == [] and health(group, leader).get(target) == "lost"


# -- turns


@simulated()
async def test_replicas_without_a_request_yet_go_before_those_that_wait(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, int] = {}

    async def call(self: recovery.Recovery, peer: Peer, request: m.StartCopyRequest) -> float:
        asked[request.tablet] = asked.get(request.tablet, 0) + 1
        await self.world.clock.sleep(1.0)
        return recovery.RETRY_S_MIN

    monkeypatch.setattr(recovery.Recovery, "_call", call)
    leader, target, _ = await group.roles()
    tablets = [TABLET, *await group.create_many(5 * recovery.PEER_CALLS_MAX - 1)]
    for tablet in tablets:
        await group.lead(leader, tablet)
    for tablet in tablets:
        await entomb(group, target, tablet)
    await until(group, lambda: len(asked) == len(tablets), "each copy was requested", 20.0)
    assert max(asked.values()) <= 3, "in turn"
