"""PacificA tables on tablet servers, with a real master."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.appointments import Appointed, Appointments, AppointReply, AppointRequest
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import NON_VOTER
from ebla.actors.tablet.copy.recovery import CREATE_GRACE_S
from ebla.actors.tablet.pacifica.state import INACTIVE, LEARNER, PRIMARY, SECONDARY
from ebla.storage.errors import InvalidArgument
from tests.tablet.appointing import LIMITS, PacificaGroup, pacifica, voting
from tests.tablet.copies import entomb, fill, same_rows, until
from tests.tablet.harness import HOSTS, OTHER, TABLET, address, row
from tests.tablet.test_handing_over import handed_over
from tests.tablet.test_members import adds, change, peer_of, removes, spare

A, B, C = HOSTS


@pacifica()
async def test_a_new_tablet_takes_writes_that_all_members_hold(group: PacificaGroup) -> None:
    await group.upsert(row(1), row(2))
    assert await group.get(1, 2, 3) == [row(1), row(2), None]
    assert (await group.scan())["k"].to_pylist() == [1, 2]
    await same_rows(group, *HOSTS)
    assert await group.leader() == A and group.stored.index == 1
    assert [group.core(host).standing for host in HOSTS] == [PRIMARY, SECONDARY, SECONDARY]
    status = await group.ask(B, "status", m.Empty(), m.ServerState)
    (report,) = status.replicas
    assert (report.role, report.leads, report.leader) == (SECONDARY, False, group.uuid(A))


@pacifica()
async def test_after_the_death_of_the_primary_a_secondary_leads_with_every_write(
    group: PacificaGroup,
) -> None:
    await fill(group, 300)
    await group.leader()
    died_at = group.client.clock.monotonic()
    group.crash(A)
    group.leader_hint = None
    await group.upsert(row(1, "new"))
    assert group.client.clock.monotonic() - died_at > LIMITS.lease_s - LIMITS.beacon_s
    assert await group.leader() in (B, C)
    assert (await group.scan()).num_rows == 300 and await group.get(1) == [row(1, "new")]
    assert group.kinds()[A] == "pre_voter"
    await group.restart(A)
    await voting(group, *HOSTS)
    await same_rows(group, *HOSTS)


@pacifica()
async def test_a_primary_that_starts_again_is_replaced_at_once(group: PacificaGroup) -> None:
    await fill(group, 10)
    await group.leader()
    began = group.client.clock.monotonic()
    await group.restart(A)
    group.leader_hint = None
    await group.upsert(row(11))
    assert group.client.clock.monotonic() - began < LIMITS.beacon_s + 1.5
    await voting(group, *HOSTS)
    assert (await group.scan()).num_rows == 11


@pytest.mark.parametrize("trouble", ["dead", "stalled"])
@pacifica()
async def test_a_secondary_in_trouble_becomes_a_learner_and_votes_again_when_it_is_back(
    group: PacificaGroup, trouble: str
) -> None:
    await fill(group, 10)
    group.crash(C) if trouble == "dead" else group.disk(C).hang(20.0)
    began = group.client.clock.monotonic()
    await group.upsert(row(11))
    assert group.client.clock.monotonic() - began < 3.0
    assert group.kinds() == {A: "voter", B: "voter", C: "pre_voter"}
    if trouble == "dead":
        await group.restart(C)
    await voting(group, *HOSTS)
    await same_rows(group, *HOSTS)


@pacifica()
async def test_after_a_restart_of_all_every_write_is_there(group: PacificaGroup) -> None:
    await fill(group, 100)
    group.crash_all()
    group.stop_master()
    await group.start_master()
    await group.restart()
    group.leader_hint = None
    await group.upsert(row(200))
    assert (await group.scan()).num_rows == 101
    await voting(group, *HOSTS)
    await same_rows(group, *HOSTS)
    records = [group.replica(host).consensus().hard_state for host in HOSTS]
    assert all(isinstance(record, BallotRecord) and record.term == group.stored.index for record in records)


@pacifica()
async def test_the_primary_steps_down_in_favour_of_the_named_secondary(group: PacificaGroup) -> None:
    await fill(group, 10)
    assert await group.leader() == A
    reply = await group.step_down(A, C)
    assert reply.leader == address(C) and await group.leader() == C
    assert group.stored.primary == group.uuid(C) and group.stored.index == 2
    assert await group.get(1) == [row(1, "x" * 100)]


@pacifica()
async def test_a_server_that_stops_hands_all_its_tablets_over(group: PacificaGroup) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    await group.upsert(row(2), tablet=OTHER)
    await group.leader()
    began = group.client.clock.monotonic()
    await group.cluster.stop(address(A))
    assert group.client.clock.monotonic() - began < 3.0
    group.leader_hint = None
    assert await group.get(1) == [row(1)] and await group.get(2, tablet=OTHER) == [row(2)]
    stored = [record.configuration for record in group.master.catalog.tablets.values()]
    assert {made.primary for made in stored} <= {group.uuid(B), group.uuid(C)}


@pacifica()
async def test_requests_end_when_they_are_answered(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    await group.leader()
    await change(group, A, removes(peer_of(group, C)))
    asking = group.server(A).rounds.asking
    await until(group, lambda: not asking, "the request is forgotten", 1.0)


@pacifica()
async def test_a_server_that_stops_takes_no_leadership_over(group: PacificaGroup) -> None:
    """It declines, so that another voter leads at once."""
    await group.upsert(row(1))
    async with handed_over(group, B):
        order = group.order(B, appointed(group.stored, group.uuid(B)))
        answer = group.server(B).orders.follow(order)
        assert "the server is stopping" in answer.refused[TABLET] and answer.declined == (TABLET,)


@pacifica()
async def test_an_added_learner_is_copied_to_and_gets_a_vote(group: PacificaGroup) -> None:
    await fill(group, 300)
    await group.flush(*HOSTS)
    peer = await spare(group)
    assert peer.member == NON_VOTER
    leader = await group.leader()
    made = await change(group, leader, adds(peer), index=group.stored.index)
    assert made == group.stored and made.index == 2
    assert await change(group, leader, adds(peer), index=1) == made, "it is in force already"
    await voting(group, *HOSTS, "host-d")
    assert group.server("host-d").copies.done == 1
    await group.upsert(row(1, "new"))
    await same_rows(group, *HOSTS, "host-d")
    last = await change(group, leader, removes(peer_of(group, C)))
    assert last.peer(group.uuid(C)) is None and group.stored == last
    await group.delete(C, last.index)
    await group.upsert(row(2, "newer"))
    assert await group.get(1, 2) == [row(1, "new"), row(2, "newer")]


@pacifica()
async def test_a_learner_of_an_uncommitted_configuration_is_copied_at_once(group: PacificaGroup) -> None:
    """Without the copy nothing can be committed: two of three voters are dead, and two are needed."""
    await fill(group, 10)
    peer, leader = await spare(group), await group.leader()
    assert leader == A and group.stored.index == 1
    group.crash(B, C)
    await until(group, lambda: list(group.kinds().values()).count("voter") == 2, "one of them loses its vote")
    began = group.client.clock.monotonic()
    await change(group, A, adds(peer), index=group.stored.index)
    assert group.core(A).committed_configuration.index == 1
    await until(group, lambda: TABLET in group.server("host-d").replicas, "the learner is copied")
    assert group.client.clock.monotonic() - began < CREATE_GRACE_S / 2
    await voting(group, A, "host-d")
    await group.upsert(row(11))


@pacifica()
async def test_changes_that_break_a_rule_are_refused_with_it(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    leader, own = await group.leader(), peer_of(group, A)
    voter = replace(await spare(group), member="voter", promote=False)
    with pytest.raises(InvalidArgument, match="added as a pre-voter"):
        await change(group, leader, adds(voter))
    with pytest.raises(InvalidArgument, match="cannot remove itself"):
        await change(group, leader, removes(own))
    with pytest.raises(errors.ConfigurationMoved):
        await change(group, leader, removes(peer_of(group, B)), index=7)
    with pytest.raises(errors.NotLeader):
        await change(group, B, removes(own))
    with pytest.raises(InvalidArgument, match="is not forced at a replica"):
        request = m.UnsafeChangeRequest(group.uuid(A), TABLET, (group.uuid(A),), 1, "a test")
        await group.ask(A, "unsafe_change", request, m.MembersReply)
    await change(group, leader, removes(peer_of(group, B)))
    with pytest.raises(InvalidArgument, match="needs 2 voters"):
        await change(group, leader, removes(peer_of(group, C)))
    assert group.kinds() == {A: "voter", C: "voter"}


@pacifica()
async def test_a_change_without_a_master_is_unknown_and_in_force_later(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    await group.leader()
    gone = peer_of(group, C)
    group.stop_master()
    with pytest.raises(errors.OutcomeUnknown, match="asked the master for"):
        await change(group, A, removes(gone), timeout_s=0.5)
    with pytest.raises(errors.AlreadyInProgress):
        await change(group, A, removes(gone), timeout_s=0.5)
    await group.start_master()
    await until(group, lambda: group.stored.peer(gone.uuid) is None, "the master grants the request")
    await until(group, lambda: group.core(A).asked is None, "the primary has the answer")
    assert await change(group, A, removes(gone)) == group.stored


@pytest.mark.parametrize("point", ["tablet.hard_state.before_commit", "tablet.hard_state.after_commit"])
@pytest.mark.parametrize("host", [A, B])
@pacifica()
async def test_a_crash_around_the_record_of_a_ballot_loses_nothing(
    group: PacificaGroup, host: str, point: str
) -> None:
    await fill(group, 20)
    await group.leader()
    group.crash_at(host, point)
    ballot = group.stored.index
    gone = peer_of(group, C)
    with pytest.raises(errors.EblaError):  # the reply is lost, or the group waits for the crashed member
        await change(group, A, removes(gone), timeout_s=0.5)
        raise errors.OutcomeUnknown("it was in force before the crash")
    await until(group, lambda: not group.alive(host), "the point is passed")
    await group.restart(host)
    group.leader_hint = None
    await group.upsert(row(100))
    assert (await group.scan()).num_rows == 21 and group.stored.index > ballot


@pacifica()
async def test_orders_for_others_are_refused(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    own = group.server(A).instance

    async def order(uuid: str, start: str, tablet: str = TABLET, lease: int = 1) -> dict[str, str]:
        made = appointed(group.stored, group.uuid(A))
        request = AppointRequest(uuid, Appointments(start, lease, (Appointed(tablet, made),)))
        return (await group.ask(A, "appoint", request, AppointReply)).refused

    with pytest.raises(errors.WrongServer):
        await order("another", own.start)
    with pytest.raises(errors.IllegalState, match="for the process"):
        await order(own.uuid, "former")
    assert await order(own.uuid, own.start, OTHER) == {OTHER: "the replica is does_not_exist"}
    (why,) = (await order(own.uuid, own.start, lease=99)).values()
    assert "lease 99" in why
    assert await group.read_once(A) is None, "refused orders change nothing"


@pacifica()
async def test_no_copy_begins_at_a_primary_whose_ballot_is_not_on_its_disk(group: PacificaGroup) -> None:
    """It may forget that it led the ballot, and lead it again: the copy would have entries that others replace."""
    await group.upsert(row(1))
    assert (await group.begin_session(A, B)).term == 1
    group.disk(A).fill()
    group.isolate(C)
    await until(group, lambda: group.core(A).term == 2, "the silent secondary has lost its vote")
    with pytest.raises(errors.Unavailable, match=r"term 2 of tablet \w+ is not on the disk yet"):
        await group.begin_session(A, B)
    group.disk(A).free()
    await group.sleep(2.0)
    leader = await group.leader()
    assert (await group.begin_session(leader, B if leader == A else A)).term == group.core(leader).term


@pacifica()
async def test_a_process_that_has_declined_to_lead_never_leads_in_that_ballot(group: PacificaGroup) -> None:
    """The master may have appointed another since; the order may be doubled and late, and the replica may run by then."""
    await group.upsert(row(1))
    created = group.creation(A)
    first = replace(created.configuration, peers=created.configuration.peers[:1], min_members=1)

    async def order(ballot: int) -> AppointReply:
        made = group.order(A, replace(first, index=ballot), OTHER)
        return await group.ask(A, "appoint", AppointRequest(group.uuid(A), made), AppointReply)

    assert (await order(3)).declined == (OTHER,)
    await group.ask(A, "create_tablet", replace(created, configuration=first), m.Empty)
    core = group.core(A, OTHER)
    for ballot in (1, 3):
        late = await order(ballot)
        assert "has declined to lead in ballot 3" in late.refused[OTHER] and not late.declined
        assert (core.standing, core.term) == (INACTIVE, ballot) and core.awaits_ballot
    assert await order(4) == AppointReply() and core.standing == PRIMARY


@pacifica()
async def test_an_older_copy_declines_every_order_and_no_ballot_is_spent_on_it(group: PacificaGroup) -> None:
    await group.upsert(row(1))
    server, core = group.server(B), group.core(B)
    order = replace(
        appointed(group.stored, group.uuid(B)), settled=2
    )  # all voters held ballot 2, and this one has not
    made = Appointments(server.instance.start, server.leasing.lease.number, (Appointed(TABLET, order),))
    for _ in range(3):
        reply = await group.ask(B, "appoint", AppointRequest(group.uuid(B), made), AppointReply)
        assert reply.declined == (TABLET,) and "an older copy" in reply.refused[TABLET]
        assert core.term == 1


@pytest.mark.parametrize("chosen", [False, True], ids=["stays a secondary", "is appointed"])
@pacifica()
async def test_an_older_copy_that_no_number_shows_yet_does_not_lead_while_another_voter_lives(
    group: PacificaGroup, chosen: bool
) -> None:
    """The copy is of the same minute. It returns when the primary ends; the other secondary has everything."""
    await group.upsert(row(1))
    await group.settle()
    await group.sleep(LIMITS.stable_s)
    copy, first, other = group.disk(B).copy(), group.uuid(B), group.uuid(C)
    for number in range(2, 8):
        await group.upsert(row(number))
    await group.settle()
    group.crash(B)
    group.crash(A)
    group.cluster.put_disk(address(B), copy)
    group.cluster.launch(address(B), group.make(B))
    voters = group.appointer.planner.voters
    ranks = voters.doubt
    with patch.object(
        voters,
        "doubt",
        lambda tablet, uuid: (uuid != first,) if chosen else ranks(tablet, uuid),
    ):
        await until(group, lambda: group.stored.primary == other, "the other one leads")
    assert await group.get(*range(1, 8)) == [row(number) for number in range(1, 8)]
    assert group.stored.index == (4 if chosen else 2) and group.alive(C)


@pacifica()
async def test_a_refused_order_that_ends_a_leadership_answers_its_clients(group: PacificaGroup) -> None:
    """The lease has ended and another has begun, and no tick came in between."""
    await group.upsert(row(1))
    await group.leader()
    group.cut(A, B, C)
    writing = asyncio.ensure_future(group.write_once(A, group.batch(m.UPSERT, [row(2)], 90), 4.0))
    await group.sleep(0.1)
    server, now = group.server(A), group.server(A).world.clock.monotonic()
    lease = server.leasing.lease
    lease.number, lease.until = lease.number + 1, now + 3.0
    order = group.order(A, appointed(group.stored, group.uuid(A)))
    (why,) = server.orders.follow(order).refused.values()
    assert "was over" in why and not group.replica(A).leads
    assert isinstance(await writing, errors.OutcomeUnknown)


@pacifica()
async def test_a_tombstone_remembers_its_ballot_and_a_copy_keeps_it(group: PacificaGroup) -> None:
    await fill(group, 200)
    await group.leader()
    await entomb(group, B)
    tombstone = group.tombstone(B)
    assert tombstone.hard_state == BallotRecord(1, group.uuid(A))
    await group.upsert(row(1, "new"))
    await voting(group, *HOSTS)
    record = group.core(B).hard_state
    assert record.term == group.stored.index and group.core(B).standing == SECONDARY
    await same_rows(group, *HOSTS)
    assert LEARNER not in [group.core(host).standing for host in HOSTS]


@pacifica()
async def test_a_secondary_with_a_lost_record_is_copied_once_it_is_no_voter(group: PacificaGroup) -> None:
    await fill(group, 200)
    group.crash(B)
    group.disk(B).rot("consensus-meta", "records", TABLET.encode())
    await group.restart(B)
    assert group.state_of(B) == "failed"
    await voting(group, A, C)
    await voting(group, *HOSTS)
    assert isinstance(group.core(B).hard_state, BallotRecord)
    await same_rows(group, *HOSTS)


@pacifica()
async def test_a_late_order_of_a_ballot_before_the_replica_is_ignored(group: PacificaGroup) -> None:
    """The replica is created with a later configuration than the order has."""
    created = group.creation(A)
    later = replace(created.configuration, index=5, primary=group.uuid(B))
    await group.ask(A, "create_tablet", replace(created, configuration=later), m.Empty)
    server, core = group.server(A), group.core(A, OTHER)
    for ballot, primary in ((3, A), (4, A), (4, C)):
        made = replace(created.configuration, index=ballot, primary=group.uuid(primary))
        server.orders.follow(group.order(A, made, OTHER))
    assert (core.term, core.last_index, core.configuration) == (4, 0, later)


@pacifica()
async def test_a_member_is_not_deleted_by_an_older_configuration(group: PacificaGroup) -> None:
    """A secondary's newest configuration counts before it is committed: the master has made it durable."""
    await group.upsert(row(1))
    group.crash(B)
    await voting(group, A, C)
    group.crash(A)
    core = group.core(C)
    assert core.configuration.index == 2
    for index in (0, 1, 2):
        with pytest.raises(errors.ConfigurationMoved):
            await group.delete(C, index)
    await group.delete(C, 3)
    assert group.state_of(C) == "deleted"


@pacifica()
async def test_a_tombstone_that_is_appointed_is_reported_again(group: PacificaGroup) -> None:
    """The master may have taken its first report for older than the order."""
    await fill(group, 10)
    await group.leader()
    group.crash(A, C)
    await entomb(group, B)
    await group.sleep(2.0)
    planner, uuid = group.appointer.planner, group.uuid(B)
    planner.voters._held.clear()
    group.server(B).orders.follow(group.order(B, appointed(group.stored, uuid)))
    await until(group, lambda: uuid in planner.voters._held.get(TABLET, {}), "the tombstone is reported", 2.0)
    assert not planner.voters._held[TABLET][uuid].runs
    await group.restart(A, C)
    await until(group, lambda: group.state_of(B) == m.RUNNING, "the tablet is copied again")
    await voting(group, *HOSTS)
    await same_rows(group, *HOSTS)
