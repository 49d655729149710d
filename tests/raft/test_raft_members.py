"""Membership at the leader: promotion, rules for configurations, forced configurations."""

from __future__ import annotations

import msgspec
import pytest

from ebla.actors.errors import InvalidArgument, Unavailable
from ebla.actors.messages.raft import HardState
from ebla.actors.messages.stream import AppendReply
from ebla.actors.replication.configuration import NON_VOTER, VOTER, Configuration, Peer
from ebla.actors.replication.health import TABLET_DELETED
from ebla.actors.tablet.engine.core import Sent
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.forced import TERMS
from ebla.actors.tablet.raft.membership import check_change, forced, promoted
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.logs.entries import WRITE
from tests.raft.builders import (
    BEAT,
    MIN,
    agree,
    append,
    config_entry,
    core,
    leader,
    next_plan,
    plans,
    proposed,
    replicating,
)
from tests.raft.group import configuration


def with_a_pre_voter() -> tuple[RaftCore, AppendPlan]:
    """a leads a, b, c, and has just added d as a pre-voter; and the first message to d."""
    made = replicating(leader())
    propose(made, configuration("abc", prevoters="d"))
    sends = plans(made.take())
    agree(made, 10.0, sends["b"])
    agree(made, 10.0, sends["c"])
    made.durable(2, 1)
    assert made.committed_configuration.index == 2
    return made, sends["d"]


def probed() -> tuple[RaftCore, AppendPlan]:
    """d has answered once, and a message with all committed entries is on its way to d."""
    made, first = with_a_pre_voter()
    agree(made, 10.0, first)
    plan = plans(made.take())["d"]
    assert plan.covers == made.commit_index == 2
    return made, plan


def propose(made: RaftCore, wanted: Configuration) -> None:
    current = made.configuration
    made.propose_configuration(10.0, msgspec.structs.replace(wanted, index=current.index))


def kinds(made: RaftCore) -> dict[str, str]:
    return {peer.uuid: peer.kind for peer in made.configuration.peers}


# -- promotion


def test_first_contact_promotes_no_peer_even_with_a_complete_log() -> None:
    made, first = with_a_pre_voter()
    assert first.covers == first.commit_index
    agree(made, 10.0, first)
    assert made.progress["d"].match == first.commit_index
    assert kinds(made)["d"] == "pre_voter"


def test_a_pre_voter_that_caught_up_is_promoted_by_an_entry_of_the_leader() -> None:
    made, plan = probed()
    agree(made, 10.1, plan)
    effects = made.take()
    assert effects.configured is not None
    index, term, payload = effects.configured
    assert (index, term) == (3, 1)
    assert msgspec.msgpack.decode(payload, type=Configuration).peer("d") == Peer("d", "host-d")
    assert made.configuration.index == 3 and kinds(made)["d"] == VOTER
    assert made.committed_configuration.index == 2
    assert "c voter, d pre_voter" in made.story() and "d has caught up" in made.story()


def test_a_pre_voter_without_all_committed_entries_is_not_promoted() -> None:
    made, plan = probed()
    agree(made, 10.1, plan, match=1)
    assert kinds(made)["d"] == "pre_voter"


def test_an_answer_after_an_election_timeout_promotes_no_peer() -> None:
    made, plan = probed()
    made.replied(10.01 + MIN, "d", Sent(10.0, plan), AppendReply(1, True, 2, 2, 2, 1))
    assert kinds(made)["d"] == "pre_voter"
    made, plan = probed()
    made.replied(10.0 + MIN, "d", Sent(10.0, plan), AppendReply(1, True, 2, 2, 2, 1))
    assert kinds(made)["d"] == VOTER


def test_a_pre_voter_is_promoted_although_more_was_committed_meanwhile() -> None:
    made, plan = probed()
    made.propose(10.0, WRITE, 1)
    agree(made, 10.0, plans(made.take())["b"])
    made.durable(3, 1)
    assert made.commit_index == 3 and plan.covers == 2
    agree(made, 10.0, plan)
    assert kinds(made)["d"] == VOTER


def test_after_a_failure_the_next_answer_is_first_contact_again() -> None:
    made, plan = probed()
    made.failed(10.0, "d", Sent(10.0, plan), None)
    probe = next_plan(made, "d", 10.0 + BEAT)
    made.progress["d"].match = 2  # the answer was lost, not the entry
    agree(made, 10.0 + BEAT, probe)
    assert kinds(made)["d"] == "pre_voter"


def test_a_non_voter_without_the_promote_flag_stays_a_non_voter() -> None:
    made = replicating(leader("a", "abc", others="d"))
    for beat in (1, 2, 3):
        agree(made, 10.0 + beat, next_plan(made, "d", 10.0 + 1.1 * beat * BEAT))
    assert kinds(made)["d"] == NON_VOTER


def test_a_promotion_waits_for_a_pending_change() -> None:
    made, plan = probed()
    propose(made, configuration("ab", prevoters="d"))
    sends = plans(made.take())
    agree(made, 10.0, plan)
    assert made.configuration.index == 3 and kinds(made)["d"] == "pre_voter", "c's removal is pending"
    agree(made, 10.0, sends["b"])
    made.durable(3, 1)
    assert made.committed_configuration.index == 3
    agree(made, 10.1, sends["d"])
    assert kinds(made) == {"a": VOTER, "b": VOTER, "d": VOTER}


def test_a_promotion_waits_while_leadership_is_handed_over() -> None:
    made, plan = probed()
    made.propose(10.0, WRITE, 1)
    plans(made.take())  # b has not answered, so the order to campaign is not sent yet
    made.step_down(10.0, "b")
    agree(made, 10.0, plan)
    assert made.role == "leader" and kinds(made)["d"] == "pre_voter"


def test_a_promotion_keeps_the_forced_epoch() -> None:
    assert promoted(configuration("ab", prevoters="d", unsafe=2), "d") == configuration("abd", unsafe=2)


# -- rules


@pytest.mark.parametrize("unsafe", [0, 2])
def test_a_change_of_the_forced_epoch_is_refused(unsafe: int) -> None:
    with pytest.raises(InvalidArgument, match="mark of forced configurations"):
        check_change(configuration("abc", unsafe=1), configuration("ab", unsafe=unsafe), "a")


def test_leadership_goes_to_a_voter_that_is_not_marked_for_replacement() -> None:
    made = replicating(leader())
    marked = (Peer("a", "host-a"), Peer("b", "host-b", replace=True), Peer("c", "host-c"))
    propose(made, Configuration(marked))
    agree(made, 10.0, plans(made.take())["b"])
    assert made.step_down(10.0, None) == "c"
    made = replicating(leader("a", "ab"))
    propose(made, Configuration(marked[:2]))
    assert made.step_down(10.0, None) == "b"


def test_a_tombstone_is_no_successor_even_with_the_longest_log() -> None:
    made, sends = proposed()
    agree(made, 10.0, sends["b"])
    plan = next_plan(made, "b", 10.0 + BEAT)
    made.failed(10.0 + BEAT, "b", Sent(10.0, plan), True, TABLET_DELETED)
    assert made.progress["b"].match > made.progress["c"].match
    assert made.step_down(10.0 + BEAT, None) == "c"


# -- forced configurations


def test_a_survivor_leads_the_kept_members_in_a_term_above_all_known_ones() -> None:
    made = core("a", "abcde", terms="11", term=3, vote="b", now=0.0)
    made.force_configuration(MIN, ["a", "b"], "c, d and e burnt", above_term=7)
    effects = made.take()
    term = made.term
    assert term >= 7 + TERMS
    assert effects.hard_state == HardState(term, "a") and effects.became == "leader" and effects.noop is None
    assert effects.configured is not None and effects.configured[:2] == (3, term)
    assert msgspec.structs.replace(made.configuration, index=-1) == configuration("ab", unsafe=1)
    assert [send.peer for send in effects.sends] == ["b"]
    assert "c, d and e burnt" in made.story()
    made.durable(3, term)
    assert made.commit_index == 0, "b has not answered"
    agree(made, MIN, plans(effects)["b"])
    for plan in plans(made.take()).values():
        agree(made, MIN, plan)
    assert made.commit_index == 3 and made.committed_configuration.unsafe == 1


def test_a_forced_configuration_builds_on_a_pending_one_and_its_forced_epoch() -> None:
    made = core("a", "abc", terms="1", now=0.0)
    pending = config_entry(2, 1, configuration("abcd", unsafe=4))
    made.receive(0.1, "b", msgspec.structs.replace(append("1@1", "", term=1), entries=(pending,)))
    made.take()
    made.force_configuration(0.2 + MIN, ["a"], "all others are lost")
    assert made.configuration == configuration("a", index=3, unsafe=5)


def test_a_single_voter_may_be_forced_while_a_change_is_pending() -> None:
    assert forced(configuration("a"), configuration("ab", index=7), ["a"], "a") == configuration(
        "a", unsafe=1
    )


@pytest.mark.parametrize(
    ("keep", "survivor", "rule"),
    [
        (["a", "x"], "a", "no members"),
        (["b"], "a", "one of the voters"),
        (["a", "d"], "d", "one of the voters"),
        (["a", "b", "c", "d"], "a", "nothing to force"),
        (["a", "a"], "a", "once"),
        ([], "a", "one of the voters"),
    ],
)
def test_a_forced_configuration_keeps_members_only_and_its_survivor(
    keep: list[str], survivor: str, rule: str
) -> None:
    current = configuration("abc", prevoters="d", index=4)
    with pytest.raises(InvalidArgument, match=rule):
        forced(current, current, keep, survivor)


def test_forcing_is_refused_while_a_leader_may_be_alive() -> None:
    with pytest.raises(Unavailable, match="contact with a leader"):
        core("a", terms="1", now=0.0).force_configuration(MIN / 2, ["a"], "haste")
    with pytest.raises(Unavailable, match="leads"):
        replicating(leader()).force_configuration(10.0, ["a"], "haste")
    made = core("a", terms="1", now=0.0)
    made.receive(5.0, "b", append("1@1", "", term=1))
    with pytest.raises(Unavailable, match="contact with a leader"):
        made.force_configuration(5.0 + MIN / 2, ["a"], "haste")
    assert made.hard_state == HardState(1) and made.last_index == 1


def test_a_forced_configuration_is_undone_with_its_entry() -> None:
    """A leader of a newer term, with the same forced epoch or a higher one, replaces the entry. No one else has it."""
    made = core("a", terms="1", now=0.0)
    made.force_configuration(MIN, ["a", "b"], "c is lost")
    made.take()
    rival = msgspec.structs.replace(append("1@1", "3", term=made.term + 1), unsafe=1)
    made.receive(MIN, "b", rival)
    assert made.configuration == configuration("abc")
