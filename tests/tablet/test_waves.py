"""Thousands of groups wake and elect in waves: none of a late server, and one after another those of a dead one."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec import structs

from ebla.actors import messages as m
from ebla.actors.messages.appointments import ProcessEnded
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine import liveness, rounds
from ebla.actors.tablet.engine.core import CANDIDATE
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import CAMPAIGNS_MAX
from ebla.actors.tablet.server import TabletServer
from tests.tablet.copies import until
from tests.tablet.harness import FIVE, HOSTS, TABLET, Group, address, row, simulated
from tests.tablet.quiet import ELECTION_S, HEARTBEAT_S, QUIESCES, QUIET_S, quiescent, until_quiescent


@simulated(**QUIESCES)
async def test_a_server_that_was_late_itself_does_not_take_others_for_silent(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    _, follower, _ = await group.roles()
    for _ in range(10):
        group.cluster.pause(address(follower))
        await group.sleep(ELECTION_S + HEARTBEAT_S)
        group.cluster.resume(address(follower))
        await group.sleep(2 * ELECTION_S)
    assert group.points.reached["tablet.liveness.late"] == 10
    assert group.points.reached["tablet.liveness.silent"] == 0


@simulated(**QUIESCES)
async def test_the_tablets_of_a_dead_server_elect_in_waves(group: Group) -> None:
    tablets = [TABLET, *await group.create_many(3 * CAMPAIGNS_MAX)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    lost = [tablet for tablet in tablets if await group.leader(tablet) == HOSTS[0]]
    group.crash(HOSTS[0])
    most: Counter[str] = Counter()

    for host in HOSTS[1:]:
        _at_ticks(group.server(host), most)
    survivors = [(host, tablet) for host in HOSTS[1:] for tablet in lost]
    await until(
        group, lambda: not any(quiescent(group, host, tablet=each) for host, each in survivors), "awake"
    )
    for host, tablet in survivors:
        replica = group.replica(host, tablet)
        replica.core.timer.deadline = replica.due = group.server(host).world.now()
    await until(
        group, lambda: all(any(group.replica(h, each).leads for h in HOSTS[1:]) for each in lost), "led"
    )
    assert len(lost) > CAMPAIGNS_MAX
    assert max(most.values()) == CAMPAIGNS_MAX


@pytest.mark.parametrize("quiet", [True, False])
@simulated(**QUIESCES)
async def test_hundreds_of_tablets_have_one_election_each_when_the_process_of_their_leaders_has_ended(
    group: Group, quiet: bool
) -> None:
    tablets = [TABLET, *await group.create_many(3 * CAMPAIGNS_MAX)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    lost = [tablet for tablet in tablets if await group.leader(tablet) == HOSTS[0]]
    ended = group.server(HOSTS[0]).instance
    if not quiet:
        for host in HOSTS:
            for tablet in lost:
                group.server(host).rounds.step(
                    group.replica(host, tablet),
                    group.replica(host, tablet).core.wake,
                    group.server(host).world.now(),
                )
    terms = {tablet: group.replica(HOSTS[1], tablet).core.term for tablet in lost}
    group.crash(HOSTS[0])
    for host in HOSTS[1:]:
        await group.ask(host, "process_ended", ProcessEnded(ended), m.Empty)
    async with group.server(HOSTS[1]).world.clock.timeout(0.9 * ELECTION_S):
        while not all(any(group.replica(host, each).leads for host in HOSTS[1:]) for each in lost):
            await asyncio.sleep(0.01)
    assert len(lost) > CAMPAIGNS_MAX
    assert {tablet: group.replica(HOSTS[1], tablet).core.term - 1 for tablet in lost} == terms


@simulated(**QUIESCES)
async def test_a_server_that_is_only_late_does_not_lose_the_tablets_that_have_not_woken(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = 8
    monkeypatch.setattr(liveness, "AT_ONCE_MAX", some)
    tablets = [TABLET, *await group.create_many(9 * some)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    led = [tablet for tablet in tablets if await group.leader(tablet) == HOSTS[0]]
    assert len(led) > 2 * some
    group.cluster.pause(address(HOSTS[0]))
    await group.sleep(ELECTION_S + HEARTBEAT_S)
    group.cluster.resume(address(HOSTS[0]))
    await group.sleep(QUIET_S)
    assert 0 < group.points.reached["tablet.liveness.silent"] <= 3 * some, "on two servers"
    assert sum(group.replica(HOSTS[0], tablet).leads for tablet in led) >= len(led) - some


@simulated(**QUIESCES)
async def test_no_tablet_gets_another_leader_when_all_servers_were_paused_together(group: Group) -> None:
    tablets = [TABLET, *await group.create_many(20)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    terms = {tablet: group.replica(HOSTS[0], tablet).core.term for tablet in tablets}
    for host in HOSTS:
        group.cluster.pause(address(host))
    await group.sleep(4 * ELECTION_S)
    for host in HOSTS:
        group.cluster.resume(address(host))
    await group.sleep(QUIET_S)
    assert {tablet: group.replica(HOSTS[0], tablet).core.term for tablet in tablets} == terms


@simulated(**QUIESCES)
async def test_a_silent_server_and_another_one_that_was_started_again_wake_leaders_together(
    group: Group,
) -> None:
    tablets = [TABLET, *await group.create_many(30)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    leader, silent, again = HOSTS
    server = group.server(leader)
    led = [replica for replica in server.replicas.values() if replica.leads]
    assert len(led) > 2
    instance = server.identity.others.known(group.uuid(again))
    assert server.identity.others.meet(structs.replace(instance, seqno=instance.seqno + 1, start="next"))
    liveness, later = server.rounds.liveness, server.world.now() + 10 * ELECTION_S
    liveness.contacts.watched_at = later
    liveness._note_silence(liveness._others[group.uuid(silent)], later)
    assert not any(quiescent(group, leader, tablet=replica.tablet) for replica in led)


@simulated(**QUIESCES)
async def test_elections_that_found_no_majority_wait_for_their_turn_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, lost, seconds = 2, 12, 20
    monkeypatch.setattr(rounds, "CAMPAIGNS_MAX", turns)
    tablets = [TABLET, *await group.create_many(lost - 1)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    for host in HOSTS[1:]:
        group.crash(host)
    server, held = group.server(HOSTS[0]), 0
    tick = server.rounds.tick

    def counted(now: float) -> None:
        nonlocal held
        before = dict(server.rounds._elections._begun)
        tick(now)
        held += sum(before.get(replica) != at for replica, at in server.rounds._elections._begun.items())

    server.rounds.tick = counted  # type: ignore[method-assign]
    await group.sleep(seconds)
    assert lost < held <= turns * (seconds / ELECTION_S + 1)


@simulated(**QUIESCES)
async def test_tablets_without_a_majority_do_not_keep_the_turns_of_others(group: Group) -> None:
    tablets = [TABLET, *await group.create_many(CAMPAIGNS_MAX + 8)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    for host in HOSTS[1:]:
        group.crash(host)
    tried: dict[str, None] = {}

    def all_have_tried() -> bool:
        for tablet in tablets:
            if group.replica(HOSTS[0], tablet).core.shown_role == CANDIDATE:
                tried[tablet] = None
        return len(tried) == len(tablets)

    await until(group, all_have_tried, "each has held an election", 20.0)


@pytest.mark.parametrize("before", [True, False], ids=["before", "at the same time"])
@simulated(hosts=FIVE, **QUIESCES)
async def test_tablets_that_lost_their_majority_do_not_delay_the_elections_of_others(
    group: Group, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    turns, lost = 4, 80
    monkeypatch.setattr(rounds, "CAMPAIGNS_MAX", turns)
    survivors, leader, gone = HOSTS[:2], HOSTS[2], FIVE[3:]
    for number in range(lost):
        await _create(group, f"a{number:031x}", (survivors[number % 2], *gone))
    tablets = [f"b{number:031x}" for number in range(4)]
    for tablet in tablets:
        await _create(group, tablet, HOSTS)
        await group.lead(leader, tablet)
    await group.sleep(QUIET_S)
    if before:
        group.crash(*gone)
        await group.sleep(10 * ELECTION_S)
        group.crash(leader)
    else:
        group.crash(leader, *gone)

    def all_are_led() -> bool:
        return all(any(group.replica(host, tablet).leads for host in survivors) for tablet in tablets)

    # In turns with all of those without a majority they would wait for 40 / 4 elections.
    await until(group, all_are_led, "the others have leaders", 5 * ELECTION_S)


async def _create(group: Group, tablet: str, hosts: tuple[str, ...]) -> None:
    peers = Configuration(tuple(Peer(group.uuid(host), address(host)) for host in hosts))
    for host in hosts:
        request = structs.replace(group.creation(host, tablet), configuration=peers)
        await group.ask(host, "create_tablet", request, m.Empty)


@simulated(**QUIESCES)
async def test_a_round_takes_some_of_many_replicas_and_the_others_follow(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = 4
    monkeypatch.setattr(rounds, "ROUND_MAX", some)
    sizes: list[int] = []
    send = rounds.Rounds._send

    def noted(self: rounds.Rounds, replicas: list[Replica]) -> None:
        sizes.append(len(replicas))
        send(self, replicas)

    monkeypatch.setattr(rounds.Rounds, "_send", noted)
    tablets = [TABLET, *await group.create_many(5 * some)]
    await asyncio.gather(*[group.upsert(row(1), tablet=tablet) for tablet in tablets])
    assert max(sizes) == some
    assert [await group.get(1, tablet=tablet) for tablet in tablets] == [[row(1)]] * len(tablets)


@pytest.mark.parametrize("electing", [False, True], ids=["alone", "among elections"])
def test_groups_return_to_a_server_that_answers_again_a_few_at_a_time(electing: bool) -> None:
    some, few = 6, 2

    @simulated(**QUIESCES)
    async def returned(group: Group) -> None:
        tablets = [TABLET, *await group.create_many(5 * some)]
        for tablet in tablets:
            await until_quiescent(group, tablet=tablet)
        server, lost, awake = group.server(HOSTS[0]), group.uuid(HOSTS[2]), 0
        server.rounds.liveness.elections = lambda: CAMPAIGNS_MAX if electing else 0
        group.crash(HOSTS[2])
        for tablet in tablets:
            await group.upsert(row(1), tablet=tablet)
        led = [replica for replica in server.replicas.values() if replica.leads]
        assert len(led) > 2 * some
        await until(group, lambda: all(lost in each.core.stance.absent for each in led), "without it", 20.0)
        await group.restart(HOSTS[2])
        group.disk(HOSTS[2]).hang(ELECTION_S)  # so none of them becomes quiescent again at once
        for _ in range(10):
            await group.sleep(ELECTION_S / 12)
            awake = max(awake, sum(not replica.core.stance.quiescent for replica in led))
        assert awake == (few if electing else some)
        await until(group, lambda: all(lost in each.core.stance.relying for each in led), "with it", 20.0)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(liveness, "AT_ONCE_MAX", some)
        patched.setattr(liveness, "AMONG_ELECTIONS_MIN", few)
        returned()


def _at_ticks(server: TabletServer, most: Counter[str]) -> None:
    """Note the greatest number of elections that this server holds at a tick."""
    rounds, address = server.rounds, server.world.address
    tick = rounds.tick

    def noted(now: float) -> None:
        tick(now)
        candidates = sum(each.core.shown_role == CANDIDATE for each in server.replicas.values())
        most[address] = max(most[address], candidates)

    rounds.tick = noted
