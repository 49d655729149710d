"""Groups without writes send nothing; their leases and elections rely on messages between servers (engine/quiescence.py)."""

from __future__ import annotations

import asyncio
from collections import Counter

from ebla.actors import errors
from ebla.actors.messages.peers import LivenessRequest
from ebla.actors.messages.stream import AppendRequest
from ebla.actors.replication.configuration import PRE_VOTER, VOTER
from ebla.actors.tablet.engine.others import AGAIN_SHARE, INTERVAL_SHARE
from ebla.actors.tablet.engine.waits import IDLE_S
from ebla.actors.tablet.upkeep.maintenance import UNUSED_S
from ebla.chaos.simulation.medium import COMMIT_S
from ebla.storage.errors import Corruption
from tests.tablet.appointing import PacificaGroup, pacifica, voting
from tests.tablet.copies import entomb, until
from tests.tablet.harness import HOSTS, TABLET, Group, address, is_readable, row, simulated
from tests.tablet.quiet import ELECTION_S, HEARTBEAT_S, LEASE_S, QUIESCES, QUIET_S, quiescent, until_quiescent


async def calls_within(group: Group, seconds: float) -> Counter[str]:
    """The calls between roles within this time, by method."""
    before = group.cluster.network.carried_out.copy()
    await group.sleep(seconds)
    return group.cluster.network.carried_out - before


@simulated(**QUIESCES)
async def test_idle_groups_send_nothing_and_each_pair_of_servers_one_message_an_interval(
    group: Group,
) -> None:
    tablets = [TABLET, *await group.create_many(12)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    loop = group.cluster.loop
    began, steps = loop.time(), loop.steps
    calls = await calls_within(group, 10 * INTERVAL_SHARE * LEASE_S)
    steps_each_s = (loop.steps - steps) / (loop.time() - began) / len(HOSTS)
    assert calls["replicate"] == 0
    leaders = {await group.leader(tablet) for tablet in tablets}
    assert 9 * 2 * len(leaders) <= calls["liveness"] <= 11 * 2 * len(leaders)
    assert not any(group.server(host).rounds.ticking for host in HOSTS)
    assert steps_each_s < 130, "an idle server wakes for few things beside these messages"


@simulated(**QUIESCES)
async def test_a_server_that_does_not_answer_gets_the_next_message_sooner(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, other, third = await group.roles()
    sent: list[str] = []
    network = group.cluster.network
    network.tap("liveness", LivenessRequest, lambda request: sent.append(request.dest.uuid))
    network.cut(address(leader), address(other))
    await group.sleep(LEASE_S)
    assert sent.count(group.uuid(third)) == 2
    assert 4 <= sent.count(group.uuid(other)) <= 1 / AGAIN_SHARE


@simulated(**QUIESCES)
async def test_a_lease_outlasts_the_loss_of_two_messages(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, *others = await group.roles()
    live, loop = group.server(leader).rounds.liveness, group.cluster.loop
    sent = [live._others[group.uuid(host)].sent_at for host in others]
    await until(
        group,
        lambda: [live._others[group.uuid(host)].sent_at for host in others] != sent,
        "the next messages",
    )
    await group.sleep(INTERVAL_SHARE * LEASE_S / 2)  # they are answered
    group.isolate(leader)
    await group.sleep((INTERVAL_SHARE / 2 + AGAIN_SHARE + 0.05) * LEASE_S)  # two are lost
    group.heal()
    until_s = loop.time() + LEASE_S
    while loop.time() < until_s:
        assert is_readable(group.server(leader), group.replica(leader))
        await group.sleep(0.005)


@simulated(**QUIESCES)
async def test_an_outage_of_three_quarters_of_a_lease_before_a_message_moves_no_quiet_leader(
    group: Group,
) -> None:
    tablets = [TABLET, *await group.create_many(8)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    leaders = [await group.leader(tablet) for tablet in tablets]
    server = group.server(leaders[0])
    live = server.rounds.liveness
    await until(
        group,
        lambda: min(live._next_at(other) for other in live._others.values()) < server.world.now() + 0.02,
        "the next message is due",
    )
    group.isolate(leaders[0])
    await group.sleep(0.75 * LEASE_S)
    group.heal()
    await group.sleep(10.0)
    assert [await group.leader(tablet) for tablet in tablets] == leaders


@simulated(**QUIESCES)
async def test_a_server_that_answers_nothing_costs_the_others_no_rest(group: Group) -> None:
    tablets = [TABLET, *await group.create_many(12)]
    for tablet in tablets:
        await until_quiescent(group, tablet=tablet)
    group.isolate(HOSTS[2])
    await group.sleep(30.0)
    live = group.server(HOSTS[0]).rounds.liveness
    looks, due = 0, live._due
    assert any(other.absent for other in live._others.values()), "groups are quiescent without it"

    def counted(now: float) -> float:
        nonlocal looks
        looks += 1
        return due(now)

    live._due = counted  # type: ignore[method-assign]
    await group.sleep(60.0 * LEASE_S)
    assert looks < 1.5 * 60.0 / AGAIN_SHARE, "about as often as it sends messages"
    group.heal()


@simulated(**QUIESCES)
async def test_idle_replicas_unmap_their_files_until_they_are_used(group: Group) -> None:
    await group.upsert(row(1, "a"))
    leader = await group.leader()
    await group.flush(leader)
    assert _mapped(group, leader)
    await until(
        group,
        lambda: not any(_mapped(group, host) for host in HOSTS),
        "unmapped",
        2 * (UNUSED_S + IDLE_S) + 1,
    )
    assert await group.get(1) == [row(1, "a")]
    assert [host for host in HOSTS if _mapped(group, host)] == [leader]
    await until(group, lambda: not _mapped(group, leader), "unmapped", 2 * (UNUSED_S + IDLE_S) + 1)


def _mapped(group: Group, host: str) -> bool:
    return group.replica(host).store.environment.mapped


@simulated(**QUIESCES)
async def test_a_quiescent_leader_answers_reads_at_once_and_a_write_wakes_the_group(group: Group) -> None:
    await group.upsert(row(1, "a"))
    await until_quiescent(group)
    leader, term = await group.leader(), group.replica(HOSTS[0]).core.term
    await group.sleep(60.0)
    calls = await calls_within(group, 0.0)
    assert await group.read_once(leader) is None and quiescent(group)
    assert calls["replicate"] == 0
    await group.upsert(row(2, "b"))
    assert not quiescent(group, leader) and await group.leader() == leader
    await until_quiescent(group)
    assert {group.replica(host).core.term for host in HOSTS} == {term}
    assert await group.get(1, 2) == [row(1, "a"), row(2, "b")]


@simulated(**QUIESCES)
async def test_the_crash_of_a_quiescent_leader_is_noticed_as_fast_as_that_of_any_leader(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader = await group.leader()
    group.crash(leader)
    crashed_at = group.client.clock.monotonic()
    assert await group.leader() != leader
    assert group.client.clock.monotonic() - crashed_at < 2 * ELECTION_S + HEARTBEAT_S + 0.2
    assert await group.get(1) == [row(1)]


@simulated(**QUIESCES)
async def test_a_cut_off_quiescent_leader_refuses_reads_before_another_is_elected(group: Group) -> None:
    await group.upsert(row(1, "old"))
    await until_quiescent(group)
    old, *others = await group.roles()
    group.cut(old, *others)
    await group.sleep(LEASE_S)
    assert isinstance(await group.read_once(old), errors.Unavailable)
    group.leader_hint = others[0]
    await group.upsert(row(1, "new"))
    await until(group, lambda: not group.replica(old).leads, "stepped down", 3.0)
    group.heal()
    await until_quiescent(group)
    assert await group.get(1) == [row(1, "new")]


@simulated(**QUIESCES)
async def test_a_group_is_quiescent_without_a_dead_member_and_brings_it_up_to_date_when_it_returns(
    group: Group,
) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, other, dead = await group.roles()
    group.crash(dead)
    await group.sleep(2 * ELECTION_S + 1.0)
    assert quiescent(group, leader, other), "the loss of a server wakes no group that has a majority"
    await group.upsert(row(2))
    await until_quiescent(group, leader, other)
    assert group.replica(leader).core.stance.absent == (group.replica(dead).core.me,)
    calls = await calls_within(group, 10 * LEASE_S / 2)
    assert calls["replicate"] == 0
    await group.restart(dead)
    await group.settle()
    await until_quiescent(group)
    assert group.replica(dead).core.last_index == group.replica(leader).core.last_index
    assert await group.leader() == leader


@simulated(**QUIESCES, follower_failed_s=5.0)
async def test_a_quiescent_leader_reports_a_server_that_was_silent_for_long(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, _, dead = await group.roles()
    uuid = group.uuid(dead)
    await group.sleep(20.0)
    assert group.replica(leader).health[uuid] == "healthy", "quiet time is no silence"
    group.crash(dead)
    await until(group, lambda: group.replica(leader).health[uuid] == "silent", "silent", 8.0)
    assert quiescent(group, leader)


@simulated(**QUIESCES)
async def test_a_restarted_follower_is_awake_until_its_leader_has_reached_it(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, follower, _ = await group.roles()
    group.crash(follower)
    await group.restart(follower)
    await until(group, lambda: group.points.reached["tablet.liveness.restarted"] > 0, "the leader wakes", 1.0)
    await until_quiescent(group)
    assert await group.leader() == leader


@simulated(**QUIESCES)
async def test_a_quiescent_group_hands_over(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, successor, _ = await group.roles()
    await group.step_down(leader, successor)
    assert await group.leader() == successor
    await until_quiescent(group)
    assert await group.get(1) == [row(1)]


@simulated(**QUIESCES)
async def test_a_quiescent_leader_that_fails_alone_is_replaced(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, *others = await group.roles()
    group.replica(leader).fail(Corruption("for a test"))
    await group.upsert(row(2))
    assert await group.leader() in others
    assert await group.get(1, 2) == [row(1), row(2)]


@simulated(**QUIESCES)
async def test_a_quiescent_follower_that_is_deleted_is_copied_again(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    _, follower, _ = await group.roles()
    await entomb(group, follower)
    await until(group, lambda: group.state_of(follower) == "running", "copied", 20.0)
    await until_quiescent(group)


@simulated(**QUIESCES)
async def test_a_late_request_to_be_quiescent_does_not_leave_a_group_without_a_leader(group: Group) -> None:
    """The leader has failed since. Its server lives, and says that it leads this group no more."""
    await group.upsert(row(1))
    leader, *others = await group.roles()
    await until_quiescent(group)
    core = group.replica(leader).core
    last, term = core.log.last_index, core.log.last_term
    request = AppendRequest(core.term, core.me, last, term, (), last, last, quiesce=True)
    group.replica(leader).fail(Corruption("for a test"))
    await until(group, lambda: not quiescent(group, *others), "the followers wake", 1.0)
    for host in others:
        await group.replicate(host, leader, request)
    assert quiescent(group, *others)
    assert await group.leader() in others


@simulated(**QUIESCES)
async def test_servers_that_are_all_started_again_elect_and_become_quiescent(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    await group.restart_all()
    assert await group.get(1) == [row(1)]
    await until_quiescent(group)


@simulated(**QUIESCES)
async def test_lost_and_repeated_liveness_messages_do_no_harm(group: Group) -> None:
    await group.upsert(row(1))
    network = group.cluster.network
    for n in range(2, 12):
        network.drop_probability, network.repeat_probability = 0.2, 0.3
        await group.sleep(QUIET_S / 2)
        network.drop_probability = network.repeat_probability = 0.0
        await group.upsert(row(n))
    await until_quiescent(group)
    assert await group.get(*range(1, 12)) == [row(n) for n in range(1, 12)]


@simulated(**QUIESCES)
async def test_a_request_that_comes_first_after_a_pause_does_not_take_quiet_time_for_silence(
    group: Group,
) -> None:
    """A leader that does not answer for an election timeout is replaced; a pause that is shorter harms nothing."""
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, term = await group.leader(), group.replica(HOSTS[0]).core.term
    group.cluster.pause(address(leader))
    await group.sleep(LEASE_S)
    group.cluster.resume(address(leader))
    await group.upsert(row(2))
    assert (await group.leader(), group.replica(HOSTS[0]).core.term) == (leader, term)


@pacifica(**QUIESCES)
async def test_an_idle_pacifica_group_sends_nothing_and_a_write_wakes_it(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    calls = await calls_within(group, 20.0)
    assert calls["replicate"] == 0 and not any(group.server(host).rounds.ticking for host in HOSTS)
    await group.upsert(row(2))
    assert await group.get(1, 2) == [row(1), row(2)]
    await until_quiescent(group)


@pacifica(**QUIESCES)
async def test_a_secondary_that_ends_in_a_quiescent_group_loses_its_vote_as_fast_as_any(
    group: PacificaGroup,
) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    primary, _, dead = await group.roles()
    group.crash(dead)
    await until(
        group, lambda: group.kinds()[dead] == PRE_VOTER, "a learner", 2 * ELECTION_S + 4 * HEARTBEAT_S
    )
    await group.upsert(row(2))
    await until(group, lambda: group.replica(primary).core.stance.quiescent, "quiescent without it", 10.0)
    await group.restart(dead)
    await voting(group, *HOSTS)
    await until_quiescent(group)


@pacifica(**QUIESCES)
async def test_the_secondaries_of_a_quiescent_primary_keep_their_votes_when_its_process_was_paused(
    group: PacificaGroup,
) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    primary, *others = await group.roles()
    for _ in range(3):
        group.cluster.pause(address(primary))
        await group.sleep(2 * ELECTION_S)
        group.cluster.resume(address(primary))
        await group.upsert(row(2))
        await group.sleep(ELECTION_S)
        assert {group.kinds()[host] for host in others} == {VOTER}


@simulated(**QUIESCES, follower_failed_s=4.0)
async def test_a_server_that_is_starting_is_not_taken_for_a_silent_one(group: Group) -> None:
    await group.upsert(row(1))
    await until_quiescent(group)
    leader, other, starting = await group.roles()
    uuid = group.uuid(starting)
    group.crash(starting)
    group.disk(starting).commit_s = 3.0, 3.0
    carried_out = group.cluster.network.carried_out
    before = carried_out["replicate"]
    restarted = asyncio.ensure_future(group.restart(starting))
    for _ in range(80):
        await group.sleep(0.1)
        assert group.replica(leader).health[uuid] != "silent"
    assert carried_out["replicate"] == before, "neither its end nor its start wakes the leader"
    await restarted
    group.disk(starting).commit_s = COMMIT_S
    await until(group, lambda: group.server(starting).running, "all is loaded")
    await until_quiescent(group)
    assert await group.leader() in (leader, other)
