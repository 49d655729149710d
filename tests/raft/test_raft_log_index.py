"""A log's index in memory against a plain list, and the rules of membership."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from ebla.actors.tablet.engine.log_index import ENTRY_OVERHEAD_BYTES, LogIndex
from ebla.actors.tablet.raft.membership import check_change
from ebla.storage.errors import InvalidArgument
from tests.raft.group import configuration

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 90)),
        st.tuples(st.just("config"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("drop"), st.floats(0, 1), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_index_answers_like_a_list_of_entries(steps: list[tuple[str, float, int]]) -> None:
    log, dropped, dropped_term, term = LogIndex(), 0, 0, 1
    entries: list[
        tuple[int, int, Configuration | None]
    ] = []  # (term, bytes, configuration) after the dropped
    for verb, amount, extra in steps:
        if verb == "append":
            term += int(amount)
            entries.append((term, extra + ENTRY_OVERHEAD_BYTES, None))
            assert log.append(term, extra) == dropped + len(entries)
        elif verb == "config":
            term += int(amount)
            wanted = configuration("abcd"[: extra + 1])
            payload = msgspec.msgpack.encode(wanted)
            index = log.append(term, len(payload), payload)
            made = Configuration(wanted.peers, index=index)
            entries.append((term, len(payload) + ENTRY_OVERHEAD_BYTES, made))
        elif verb == "truncate" and entries:
            start = int(amount * (len(entries) - 1))
            epoch = log.epoch
            log.truncate(dropped + 1 + start)
            del entries[start:]
            assert log.epoch == epoch + 1
        elif verb == "drop":
            count = int(amount * len(entries))
            if count:
                dropped_term = entries[count - 1][0]
            log.drop_to(dropped + count)
            dropped += count
            del entries[:count]
        term = max(1, entries[-1][0] if entries else dropped_term)
        _same(log, entries, dropped, dropped_term)


def _same(
    log: LogIndex, entries: list[tuple[int, int, Configuration | None]], dropped: int, dropped_term: int
) -> None:
    last = dropped + len(entries)
    assert (log.first_index, log.last_index, len(log)) == (dropped + 1, last, len(entries))
    assert log.last_term == (entries[-1][0] if entries else dropped_term)
    assert [log.term_at(i) for i in range(dropped, last + 1)] == [dropped_term, *(e[0] for e in entries)]
    assert list(log.configurations.values()) == [made for _, _, made in entries if made]
    for first in range(dropped + 1, last + 1, 3):
        sizes = [size for _, size, _ in entries[first - dropped - 1 :]]
        assert log.size_bytes(first, last) == sum(sizes)
        for limit in (1, 60, 200, 10_000):
            fits = max(1, max(n for n in range(len(sizes) + 1) if sum(sizes[:n]) <= limit))
            assert log.last_within(first, limit) == first + fits - 1


def test_terms_never_decrease_along_a_log() -> None:
    log = LogIndex()
    log.append(3, 1)
    with pytest.raises(AssertionError):
        log.append(2, 1)


def test_a_copied_log_continues_after_its_dropped_predecessor() -> None:
    log = LogIndex(dropped_index=40, dropped_term=3)
    assert (log.last_index, log.last_term, log.term_at(40)) == (40, 3, 3)
    assert log.append(4, 1) == 41


VALID = configuration("abc", "d")
PRE_VOTER = Peer("e", "host-e", NON_VOTER, promote=True)


def changed(*, without: str = "", plus: tuple[Peer, ...] = (), index: int = -1) -> Configuration:
    return Configuration(tuple(p for p in VALID.peers if p.uuid not in without) + plus, index)


@pytest.mark.parametrize(
    "proposed",
    [
        changed(without="b"),
        changed(without="d"),
        changed(plus=(Peer("e", "host-e"),)),
        changed(without="d", plus=(Peer("d", "host-d"),)),
        changed(without="b", plus=(Peer("b", "host-b", NON_VOTER),)),
        changed(without="d", plus=(Peer("d", "elsewhere", NON_VOTER),)),
        changed(without="b", plus=(Peer("b", "host-b", replace=True), PRE_VOTER)),
    ],
)
def test_a_change_may_add_or_remove_one_voter(proposed: Configuration) -> None:
    check_change(VALID, proposed, "a")


@pytest.mark.parametrize(
    ("proposed", "rule"),
    [
        (changed(without="b", plus=(Peer("e", "host-e"),)), "one change may add or remove one voter"),
        (changed(without="bc"), "one change may add or remove one voter"),
        (changed(without="a"), "cannot remove or demote itself"),
        (changed(without="a", plus=(Peer("a", "host-a", NON_VOTER),)), "cannot remove or demote itself"),
        (changed(), "nothing to change"),
        (changed(without="a", plus=(Peer("a", "host-a"),)), "nothing to change"),
        (changed(without="b", index=5), "derived from index=5"),
        (changed(plus=(Peer("b", "host-b"),)), "distinct"),
        (changed(plus=(Peer("", "host-e"),)), "non-empty"),
        (changed(plus=(Peer("e", ""),)), "needs an address"),
        (changed(plus=(Peer("e", "host-e", "king"),)), "'king'"),
        (changed(plus=(Peer("e", "host-e", promote=True),)), "promote is for non-voters"),
        (changed(plus=(Peer("e", "host-e", NON_VOTER, replace=True),)), "replace is for voters"),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused_with_that_rule(proposed: Configuration, rule: str) -> None:
    with pytest.raises(InvalidArgument, match=rule):
        check_change(VALID, proposed, "a")
