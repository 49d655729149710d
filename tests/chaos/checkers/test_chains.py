"""Chains: lost nodes and broken chains are found, and the twins that are right are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers import check_list
from ebla.storage.errors import InvalidArgument
from tests.chaos.checkers.histories import Play, Script, chains


def wrong(script: Script) -> str:
    verdict = check_list(script.history)
    assert verdict.valid is False, verdict
    assert verdict.events
    return verdict.problem


def right(script: Script) -> None:
    verdict = check_list(script.history)
    assert verdict.valid is True, verdict.problem


def appended(*nodes: tuple[int, int | None]) -> Script:
    script = Script()
    for node, previous in nodes:
        script.did(0, "append", node, previous)
    return script


def test_a_lost_acknowledged_node_is_found() -> None:
    h = appended((1, None), (2, 1))
    h.did(1, "read-list", answer={1: None})
    assert "lacks node 2, which append 2 1 by process 0 (events 2 and 3) proves was there" in wrong(h)
    h = appended((1, None))
    h.begin(0, "append", 2, 1)
    h.info(0)
    h.did(1, "read-list", answer={1: None})
    right(h)


def test_a_node_that_was_seen_and_is_gone_is_found() -> None:
    h = Script()
    h.begin(0, "append", 1, None)
    h.info(0)
    h.did(1, "read-list", answer={1: None})
    h.did(1, "read-list", answer={})
    assert "read-list by process 1 (events 2 and 3) proves was there" in wrong(h)


def test_a_node_that_nobody_appended_is_found() -> None:
    h = appended((1, None))
    h.did(1, "read-list", answer={1: None, 7: 1})
    assert "holds node 7, but no process appended it" in wrong(h)
    h = Script()
    h.begin(0, "append", 1, None)
    h.fail(0)
    h.did(1, "read-list", answer={1: None})
    assert "surely did not take place" in wrong(h)
    h = Script()
    h.did(1, "read-list", answer={1: None})
    h.did(0, "append", 1, None)
    assert "holds node 1 before" in wrong(h)


def test_a_node_with_another_value_is_found() -> None:
    h = appended((1, None), (2, 1))
    h.did(1, "read-list", answer={1: None, 2: None})
    assert "has node 2 follow None, but append 2 1" in wrong(h)


def test_a_broken_chain_is_found_at_the_last_read() -> None:
    def after_an_unknown_one(last: dict[int, int | None]) -> Script:
        h = Script()
        h.begin(0, "append", 1, None)
        h.info(0)
        h.did(2, "append", 2, 1)
        h.did(2, "append", 3, 2)
        h.did(1, "read-list", answer={2: 1, 3: 2})
        h.did(1, "read-list", answer=last)
        return h

    assert "the chain of node 2 breaks at node 2, which follows node 1" in wrong(
        after_an_unknown_one({2: 1, 3: 2})
    )
    right(after_an_unknown_one({1: None, 2: 1, 3: 2}))


def test_a_read_need_not_be_one_snapshot_of_all_chains() -> None:
    h = Script()
    h.begin(1, "read-list")
    h.did(0, "append", 1, None)
    h.did(0, "append", 2, 1)
    h.ok(1, {2: 1})
    right(h)


def test_a_chain_that_comes_back_to_itself_is_found() -> None:
    h = appended((1, 2), (2, 1))
    h.did(1, "read-list", answer={1: 2, 2: 1})
    assert "the chain of node 1 comes back to node 1" in wrong(h)


def test_without_an_answered_read_nothing_was_judged() -> None:
    assert check_list(appended((1, None)).history).valid is None


def test_what_the_format_does_not_allow_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="take a fresh node"):
        check_list(appended((1, None), (1, None)).history)
    h = Script()
    h.did(0, "read-list", answer=[1])
    with pytest.raises(InvalidArgument, match="must map nodes"):
        check_list(h.history)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 200))
def test_what_a_correct_list_answered_is_accepted(seed: int, count: int) -> None:
    def draw(play: Play, slot: int) -> tuple[str, int | None, int | None]:
        if slot > 2:
            return "read-list", None, None
        own = [
            e.key
            for e in play.history.events
            if e.operation == "append" and e.type == "ok" and e.key % 3 == slot
        ]
        return "append", play.count * 3 + slot, own[-1] if own else None

    history = Play(seed, chains, {}, draw, 0.1).run(slots=5, count=count)
    assert check_list(history).valid is not False
