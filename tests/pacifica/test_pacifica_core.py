"""A PacificA core by single events."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ebla.actors.detector.lease import Lease
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.errors import AlreadyInProgress, NotLeader, Unavailable
from ebla.actors.messages.pacifica import NOTHING, BallotRecord
from ebla.actors.messages.stream import STRANDED, AppendReply, AppendRequest
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from ebla.actors.replication.health import TABLET_NOT_FOUND
from ebla.actors.tablet.engine.core import Sent
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from ebla.actors.tablet.pacifica.state import INACTIVE, PRIMARY
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.errors import InvalidArgument
from ebla.storage.logs.entries import WRITE
from tests.pacifica.group import configuration

LIMITS, TIMES = PacificaLimits(), DetectorLimits()
FIRST = configuration("abc", 2)
D = Peer("d", "host-d", NON_VOTER, promote=True)


def leased(now: float = 0.0, number: int = 1) -> Lease:
    """A lease that holds from `now` on."""
    lease = Lease(TIMES)
    lease.number = number - 1
    renew(lease, now)
    return lease


def renew(lease: Lease, now: float) -> None:
    number = lease.beacon(now, log_stalled=False)
    assert number is not None
    lease.acknowledged(now, number, sent_at=now)


def core(
    lease: Lease,
    *,
    me: str = "a",
    first: Configuration = FIRST,
    ballots: str = "",
    record: int = 0,
    commit: int = 0,
    lacks: tuple[int, int] = NOTHING,
) -> PacificaCore:
    """A core whose log has one entry of each ballot of `ballots`."""
    log = LogIndex()
    for ballot in ballots:
        log.append(int(ballot), 1)
    known = BallotRecord(record, None, lacks)
    return PacificaCore("t1", me, known, first, log, LIMITS, lease, 0.0, commit_index=commit)


def plans(made: PacificaCore) -> dict[str, AppendPlan]:
    return {send.peer: send.request for send in made.take().sends if isinstance(send.request, AppendPlan)}


def settle(made: PacificaCore, now: float, *, without: str = "") -> None:
    """Everybody but `without` takes everything, until there are no more messages."""
    made.durable(made.last_index, made.log.last_term)
    for _ in range(10):
        sends = plans(made)
        for peer, plan in sends.items():
            if peer not in without:
                reply = AppendReply(made.term, True, plan.covers, 0, plan.covers, made.term)
                made.replied(now, peer, Sent(now, plan), reply)
        if not sends:
            return


def primary(lease: Lease, now: float = 0.0, first: Configuration = FIRST) -> PacificaCore:
    made = core(lease, first=first)
    made.appoint(now, first, lease.number)
    settle(made, now)
    return made


def asks_at(made: PacificaCore, now: float) -> float:
    """The time when it asks for other members although no message is answered; its lease must last."""
    while made.asked is None:
        now += 0.05
        made.tick(now)
        made.take()
    return now


def test_a_replica_is_inactive_until_the_master_appoints_it() -> None:
    made = core(leased())
    assert made.view().role == INACTIVE
    with pytest.raises(NotLeader):
        made.read_index(0.0)
    made.appoint(0.1, FIRST, 1)
    assert made.view().role == PRIMARY
    assert made.take().hard_state == BallotRecord(1, "a")


def test_an_entry_is_committed_when_every_voter_holds_it() -> None:
    made = primary(leased())
    index, ballot = made.propose(0.1, WRITE, 1)
    sends = plans(made)
    for held, peer in enumerate("bc"):
        assert (made.commit_index, ballot) == (index - 1, 1), f"only {held} others hold it"
        reply = AppendReply(1, True, index, 0, index, 1)
        made.replied(0.1, peer, Sent(0.1, sends[peer]), reply)
    assert made.commit_index == index - 1, "our own disk counts too"
    made.durable(index, 1)
    assert made.commit_index == index


def test_no_replica_leads_a_ballot_twice() -> None:
    made = core(leased(), record=1)
    with pytest.raises(Unavailable, match="after 1"):
        made.appoint(0.1, FIRST, 1)
    made.appoint(0.2, appointed(FIRST, "a"), 1)
    assert made.view().role == PRIMARY


def test_a_replica_whose_log_is_ahead_of_its_record_may_have_led_that_ballot() -> None:
    made = core(leased(), ballots="12", record=1)
    assert made.take().hard_state == BallotRecord(2, None)
    with pytest.raises(Unavailable):
        made.appoint(0.1, appointed(FIRST, "a"), 1)


def test_an_order_of_another_lease_is_refused() -> None:
    lease = leased()
    made = core(lease)
    renew(lease, TIMES.lease_s + 1)
    with pytest.raises(Unavailable, match="lease 1"):
        made.appoint(TIMES.lease_s + 1, FIRST, 1)
    made.appoint(TIMES.lease_s + 1, FIRST, 2)


def test_what_a_primary_knew_of_its_peers_ends_with_its_lease() -> None:
    """It was paused, so it did not notice that its lease was over; another may have led since."""
    lease = leased()
    made = primary(lease)
    later = TIMES.lease_s + 1
    renew(lease, later)
    with pytest.raises(Unavailable, match="appoint it again"):
        made.appoint(later, appointed(appointed(FIRST, "b"), "a"), 2)
    made.appoint(later, appointed(appointed(FIRST, "b"), "a"), 2)
    assert {peer.match for peer in made.progress.values()} == {0}


def test_a_primary_without_a_lease_steps_down_and_keeps_its_request_from_counting() -> None:
    lease = leased()
    made = primary(lease)
    made.request_members(0.2, (*FIRST.peers, D))
    made.tick(lease.until)
    assert (made.view().role, made.asked) == (INACTIVE, None)


def test_a_request_counts_for_commits_until_it_is_answered() -> None:
    """The master may have granted it already, and may appoint the coming voter at any time."""
    first = Configuration((*FIRST.peers, D), 1, primary="a", min_members=2)
    made = primary(leased(), first=first)
    assert made.asked is not None and [peer.uuid for peer in made.asked.voters()] == list("abcd")
    index, _ = made.propose(0.1, WRITE, 1)
    settle(made, 0.1, without="d")
    assert made.commit_index < index
    made.appoint(0.2, made.asked, 1)
    settle(made, 0.2)
    assert made.commit_index == made.last_index > index


def test_reads_wait_for_the_inherited_entries() -> None:
    lease = leased()
    made = core(lease, ballots="11", record=1, commit=1)
    made.appoint(0.1, appointed(FIRST, "a"), 1)
    with pytest.raises(Unavailable, match="began with, up to 3"):
        made.read_index(0.1)
    settle(made, 0.1)
    assert made.read_index(0.1) == 3


def test_reads_wait_for_voters_that_may_have_committed_what_is_not_here_and_not_for_silent_ones() -> None:
    made = core(leased(), ballots="11", record=1, commit=2)
    made.appoint(0.1, appointed(FIRST, "a"), 1)
    with pytest.raises(Unavailable, match="began with, up to 3"):
        made.read_index(0.1)
    for now in (0.5, 1.0):
        made.tick(now)
        made.take()
    assert made.view().reads_from == 3
    assert made.read_index(0.1 + LIMITS.silent_s) == 2
    assert made.view().reads_from == 2


def test_a_silent_secondary_becomes_a_learner_and_the_last_ones_stay() -> None:
    lease = leased()
    made = primary(lease)
    now = asks_at(made, 0.0)
    assert now == pytest.approx(LIMITS.silent_s, abs=0.06) and made.asked is not None
    assert [(peer.uuid, peer.kind) for peer in made.asked.peers] == [
        ("a", "voter"),
        ("b", "pre_voter"),
        ("c", "voter"),
    ]
    made.appoint(now, made.asked, 1)
    made.tick(LIMITS.silent_s + 0.5)
    assert made.asked is None, "min_members voters stay"
    assert made.next_wake(LIMITS.silent_s + 0.5) > LIMITS.silent_s + 0.5 or made.take().sends


def test_a_primary_hands_over_only_after_it_has_stepped_down() -> None:
    made = primary(leased())
    assert made.step_down(0.1, "b") == "b"
    assert made.view().role == PRIMARY and made.read_index(0.1) == made.commit_index
    made.tick(0.3)
    settle(made, 0.3)
    assert made.view().role == INACTIVE and made.awaits_successor
    assert made.asked == replace(appointed(FIRST, "b"), settled=1)


def test_a_member_refuses_an_earlier_ballot() -> None:
    made, other = core(leased(), me="b"), core(leased())
    other.appoint(0.0, FIRST, 1)
    plan = plans(other)["b"]
    made.appoint(0.1, appointed(appointed(FIRST, "c"), "a"), 1)
    answer = made.receive(0.2, "a", plan.request("a", ()))
    assert isinstance(answer, AppendReply) and not answer.success and answer.term == 3


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ((*FIRST.peers, Peer("d", "host-d")), "pre-voter"),
        (FIRST.peers[1:], "step down first"),
        (FIRST.peers[:1], "needs 2 voters"),
        ((*FIRST.peers, D, D), "named twice"),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused(peers: tuple[Peer, ...], words: str) -> None:
    made = primary(leased())
    with pytest.raises(InvalidArgument, match=words):
        made.request_members(0.1, peers)
    assert made.asked is None


def test_one_change_is_requested_at_a_time() -> None:
    made = primary(leased())
    made.request_members(0.1, (*FIRST.peers, D))
    with pytest.raises(AlreadyInProgress):
        made.request_members(0.1, FIRST.peers[:2])


def test_what_a_secondary_has_lost_does_not_count_for_commits() -> None:
    made = primary(leased())
    index, _ = made.propose(0.1, WRITE, 1)
    appends = plans(made)
    made.durable(index, 1)
    made.replied(0.1, "b", Sent(0.1, appends["b"]), AppendReply(1, True, index, 0, index, 1))
    made.tick(0.3)
    lost = AppendReply(1, False, 0, 0, 0, 0)
    made.replied(0.3, "b", Sent(0.3, plans(made)["b"]), lost)
    assert made.needs_copy("b")
    assert made.asked is not None and made.asked.peers[1].kind == "pre_voter", "it does not wait for silent_s"
    made.replied(0.3, "c", Sent(0.1, appends["c"]), AppendReply(1, True, index, 0, index, 1))
    assert made.commit_index < index


def test_a_pause_of_the_primary_does_not_count_as_silence_of_its_secondaries() -> None:
    made = primary(leased())
    resumed = 2 * LIMITS.silent_s
    made.tick(resumed)
    assert made.asked is None
    assert asks_at(made, resumed) == pytest.approx(resumed + LIMITS.silent_s, abs=LIMITS.heartbeat_s)


def test_a_tablet_with_too_few_voters_commits_nothing_and_takes_learners() -> None:
    first = configuration("ab", 3)
    made = primary(leased(), first=first)
    assert made.commit_index == 0 < made.last_index
    with pytest.raises(Unavailable, match="has 2 members and takes writes with 3"):
        made.propose(0.1, WRITE, 1)
    assert made.request_members(0.1, (*first.peers, D)) == made.asked


def test_no_change_is_requested_while_the_primary_hands_over() -> None:
    made = primary(leased())
    made.step_down(0.1, "b")
    with pytest.raises(AlreadyInProgress):
        made.request_members(0.1, (*FIRST.peers, D))


def test_a_primary_hands_over_after_its_request_is_answered() -> None:
    """The master may have granted the request, and the answer to it may still come."""
    made = primary(leased())
    asked = made.request_members(0.1, (*FIRST.peers, D))
    made.step_down(0.1, "b")
    made.tick(0.3)
    settle(made, 0.3, without="d")
    assert (made.view().role, made.asked) == (PRIMARY, asked)
    made.appoint(0.4, asked, 1)
    made.tick(0.6)
    settle(made, 0.6, without="d")
    assert made.awaits_successor and made.asked == appointed(asked, "b")


def test_a_single_replica_has_nobody_to_hand_over_to() -> None:
    made = primary(leased(), first=configuration("a", 1))
    with pytest.raises(Unavailable, match="no secondary"):
        made.step_down(0.1, None)


def test_an_answer_of_a_later_ballot_ends_a_leadership() -> None:
    made = primary(leased())
    made.tick(0.3)
    made.request_members(0.3, (*FIRST.peers, D))
    plan = plans(made)["b"]
    made.replied(0.3, "b", Sent(0.3, plan), AppendReply(5, False, 0, 0, 0, 0))
    assert (made.view().role, made.term, made.asked) == (INACTIVE, 5, None)
    assert made.take().hard_state == BallotRecord(5, None)


def test_an_answer_of_an_earlier_ballot_says_nothing_about_this_one() -> None:
    made = primary(leased())
    index, _ = made.propose(0.1, WRITE, 1)
    sent = Sent(0.1, plans(made)["b"])
    made.durable(index, 1)
    made.appoint(0.2, appointed(FIRST, "a"), 1)
    made.replied(0.3, "b", sent, AppendReply(1, True, index, 0, index, 1))
    assert made.progress["b"].match < index


def test_a_primary_without_an_unsafe_change_is_refused() -> None:
    first = replace(FIRST, unsafe=1)
    made = core(leased(), me="b", first=first, ballots="11", record=1, commit=2)
    request = AppendRequest(2, "a", 2, 1, (), 2)
    answer = made.receive(0.1, "a", request)
    assert isinstance(answer, AppendReply) and not answer.success and made.leader is None


def test_what_is_committed_and_was_given_up_is_not_replaced() -> None:
    made = core(leased(), me="b", ballots="11", record=1, commit=2)
    answer = made.receive(0.1, "a", AppendRequest(2, "a", 1, 1, (), 1, unsafe=1))
    assert isinstance(answer, AppendReply) and answer.reason == STRANDED


def test_a_removed_member_that_is_added_again_has_to_show_anew_what_it_holds() -> None:
    made = primary(leased())
    index, _ = made.propose(0.1, WRITE, 1)
    settle(made, 0.1)
    assert made.progress["c"].match == index
    without = appointed(replace(FIRST, peers=FIRST.peers[:2]), "a")
    made.appoint(0.2, without, 1)
    settle(made, 0.2)
    learner = replace(FIRST.peers[2], member=NON_VOTER, promote=True)
    made.appoint(0.3, appointed(replace(without, peers=(*without.peers, learner)), "a"), 1)
    assert made.progress["c"].match == 0
    settle(made, 0.3, without="c")
    assert made.asked is None


def test_a_primary_that_has_a_request_awaits_no_successor() -> None:
    made = primary(leased())
    made.request_members(0.1, (*FIRST.peers, D))
    assert not made.awaits_successor


def test_a_primary_looks_at_its_lease_in_time() -> None:
    lease = leased()
    made = primary(lease, first=configuration("a", 1))
    made.take()
    assert made.next_wake(0.1) == lease.until
    made.tick(lease.until)
    assert made.view().role == INACTIVE


def test_a_refusal_of_a_secondary_is_shown() -> None:
    made = primary(leased())
    made.tick(0.3)
    made.failed(0.3, "b", Sent(0.3, plans(made)["b"]), True, TABLET_NOT_FOUND)
    assert made.progress["b"].refusal == TABLET_NOT_FOUND
