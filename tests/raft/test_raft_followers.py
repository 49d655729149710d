"""Followers, event by event: which entries they append, what they answer and when, what they commit."""

from __future__ import annotations

import pytest

from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.raft.core import RaftCore
from tests.raft.builders import append, config_entry, core, logged
from tests.raft.group import configuration


def receive(made: RaftCore, request: AppendRequest, now: float = 5.0) -> Pending | AppendReply:
    answer = made.receive(now, request.leader, request)
    assert isinstance(answer, Pending | AppendReply)
    return answer


def test_a_follower_appends_what_follows_its_log_and_answers_when_it_is_durable() -> None:  # 5.3
    made = core(terms="1")
    answer = receive(made, append("1@1", "11", term=1))
    assert answer == Pending(1, until=3)
    effects = made.take()
    assert effects.appended == (2, 3) and effects.truncate_from is None
    with pytest.raises(AssertionError):
        made.answer(Pending(1, until=3))
    made.durable(3, 1)
    assert made.answer(Pending(1, until=3)) == AppendReply(1, True, 3, 3, 3, 1)


def test_the_answer_to_a_heartbeat_does_not_wait_for_the_disk() -> None:
    made = core(terms="1")
    receive(made, append("1@1", "11", term=1))
    made.take()
    answer = receive(made, append("3@1", term=1))
    assert answer == Pending(1, until=1)
    assert made.answer(answer) == AppendReply(1, True, 1, 1, 1, 1)


def test_a_newer_term_turns_a_waiting_answer_into_a_refusal() -> None:
    made = core(terms="1")
    answer = receive(made, append("1@1", "1", term=1))
    made.take()
    receive(made, append("1@1", term=2, sender="c"))
    made.durable(2, 1)
    assert isinstance(answer, Pending)
    assert made.answer(answer) == AppendReply(2, False, 0, 0, 2, 1)


def test_present_entries_are_not_appended_again() -> None:
    made = core(terms="111")
    assert receive(made, append("1@1", "111", term=1)) == Pending(1, until=4)
    assert made.take().appended == (4, 4)


def test_a_late_shorter_message_removes_nothing() -> None:
    made = core(terms="1111")
    assert receive(made, append("1@1", "1", term=1)) == Pending(1, until=2)
    effects = made.take()
    assert (effects.appended, effects.truncate_from, made.last_index) == (None, None, 4)


def test_a_conflicting_entry_is_removed_with_all_later_entries() -> None:  # 5.3
    made = core(terms="11222")
    receive(made, append("1@1", "13", term=3))
    effects = made.take()
    assert (effects.truncate_from, effects.appended) == (3, (3, 3))
    assert logged(made) == "113"
    assert made.durable_index == 2


def test_a_committed_entry_is_never_replaced() -> None:
    made = core(terms="112", commit_index=3)
    with pytest.raises(AssertionError, match="committed entries never change"):
        receive(made, append("2@1", "3", term=3))


def test_a_follower_without_the_predecessor_hints_its_last_index() -> None:
    assert receive(core(terms="112"), append("9@2", term=2)) == AppendReply(2, False, 0, 3, 3, 2)


def test_a_follower_with_another_predecessor_hints_its_commit_index() -> None:
    made = core(terms="11222", commit_index=2)
    assert receive(made, append("4@3", "3", term=3)) == AppendReply(3, False, 0, 2, 5, 2)
    assert made.take().appended is None


def test_a_follower_commits_up_to_the_leaders_commit_index_and_its_own_match() -> None:  # 5.3
    made = core(terms="1122")
    receive(made, append("1@1", "1", term=3, commit=9))
    assert made.commit_index == 2, "entries 3 and 4 may differ from the leader's"
    made.take()
    receive(made, append("2@1", "33", term=3, commit=3))
    assert made.commit_index == 3


def test_the_commit_index_never_decreases() -> None:
    made = core(terms="111", commit_index=3)
    receive(made, append("1@1", term=1, commit=1))
    assert made.commit_index == 3


def test_a_dropped_predecessor_counts_as_matching() -> None:
    made = core(terms="11111", commit_index=5)
    made.log.drop_to(4)
    assert receive(made, append("2@1", "1112", term=2)) == Pending(2, until=6)
    assert made.take().appended == (6, 6)


def test_two_appends_without_a_take_between_them_raise_an_assertion() -> None:
    made = core(terms="1")
    receive(made, append("1@1", "1", term=1))
    with pytest.raises(AssertionError, match="take"):
        receive(made, append("2@1", "1", term=1))


def test_durable_notices_of_truncated_entries_are_ignored() -> None:
    made = core(terms="1")
    receive(made, append("1@1", "22", term=2))
    made.take()
    receive(made, append("1@1", "3", term=3, sender="c"))
    made.take()
    made.durable(3, 2)
    made.durable(2, 2)
    assert made.durable_index == 1
    made.durable(2, 3)
    assert made.durable_index == 2


def test_the_log_epoch_separates_two_writes_of_the_same_entry() -> None:
    """Entry 2@2 is truncated during its write, and appended again. The notice of its first write arrives before the
    truncation and the second write are on disk: a crash at this point would lose the entry."""
    made = core(terms="1")
    receive(made, append("1@1", "2", term=2))
    first = made.take().log_epoch
    receive(made, append("1@1", "3", term=3, sender="c"))
    made.take()
    receive(made, append("1@1", "2", term=4, sender="b"))
    second = made.take().log_epoch
    made.durable(2, 2, first)
    assert made.durable_index == 1
    made.durable(2, 2, second)
    assert made.durable_index == 2


def test_a_configuration_comes_into_force_and_is_undone_with_its_entry() -> None:  # 4.1
    made = core(terms="1")
    wanted = configuration("abcd")
    request = AppendRequest(2, "b", 1, 1, (config_entry(2, 2, wanted),), 1)
    receive(made, request)
    effects = made.take()
    assert effects.configuration == made.configuration == Configuration(wanted.peers, index=2)
    assert made.committed_configuration.index == -1
    receive(made, append("1@1", "3", term=3, sender="c"))
    effects = made.take()
    assert effects.configuration == made.configuration == configuration("abc")


def test_a_configuration_is_committed_with_its_entry() -> None:
    made = core(terms="1")
    receive(made, AppendRequest(2, "b", 1, 1, (config_entry(2, 2, configuration("abcd")),), 2))
    assert made.committed_configuration.index == 2


def test_a_follower_stores_the_index_that_is_replicated_everywhere() -> None:
    made = core(terms="111")
    receive(made, append("3@1", term=1, replicated=2))
    assert made.all_replicated_index == 2
