"""Stamps: torn batches and groups that get older are found, and the twins that are right are accepted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers import check_stamp
from ebla.chaos.history import OK, pair
from ebla.storage.errors import InvalidArgument
from tests.chaos.checkers.histories import ROWS, Play, Script, changed, explainable, stamps


def wrong(script: Script, rows: int | None = None) -> str:
    verdict = check_stamp(script.history, rows)
    assert verdict.valid is False, verdict
    assert verdict.events
    return verdict.problem


def right(script: Script, rows: int | None = None) -> None:
    verdict = check_stamp(script.history, rows)
    assert verdict.valid is True, verdict.problem


def stamped(*values: int) -> Script:
    script = Script()
    for value in values:
        script.did(0, "stamp", "g", value)
    return script


def test_a_torn_batch_is_found() -> None:
    h = stamped(1)
    h.begin(0, "stamp", "g", 2)
    h.did(1, "read-stamps", "g", answer=[2, 1, 2])
    assert (
        wrong(h) == "group 'g' is torn: read-stamps by process 1 (events 3 and 4) shows 2, 1 in one snapshot"
    )
    for value in (1, 2):
        h = stamped(1)
        h.begin(0, "stamp", "g", 2)
        h.did(1, "read-stamps", "g", answer=[value] * 3)
        right(h)


def test_a_first_batch_of_which_rows_are_missing_is_found() -> None:
    h = stamped(1)
    h.did(1, "read-stamps", "g", answer=[1, 1])
    right(h)
    assert "shows 2 of 3 rows" in wrong(h, rows=3)
    h.did(1, "read-stamps", "g", answer=[1, 1, 1])
    assert "shows 2 of 3 rows" in wrong(h)


def test_a_stale_snapshot_is_found() -> None:
    h = stamped(1, 2)
    h.did(1, "read-stamps", "g", answer=[1, 1])
    assert "shows 1 in group 'g', but stamp 'g' 2 by process 0 (events 2 and 3) ended before" in wrong(h)
    h = stamped(1)
    h.did(1, "read-stamps", "g", answer=[])
    assert "shows None" in wrong(h)
    h = stamped(1)
    h.begin(0, "stamp", "g", 2)
    h.did(1, "read-stamps", "g", answer=[1, 1])
    h.ok(0)
    h.did(1, "read-stamps", "g", answer=[2, 2])
    right(h)


def test_a_group_that_gets_older_between_reads_is_found() -> None:
    def unknown(*reads: int) -> Script:
        h = stamped(1)
        h.begin(0, "stamp", "g", 2)
        h.info(0)
        for value in reads:
            h.did(1, "read-stamps", "g", answer=[value, value])
        return h

    assert "showed 2" in wrong(unknown(2, 1))
    right(unknown(1, 2))
    right(unknown(1, 1))


def test_a_long_read_that_ends_late_excuses_nobody() -> None:
    def after_a_long_read(value: int) -> Script:
        h = stamped(1)
        h.begin(1, "read-stamps", "g")
        h.did(0, "stamp", "g", 2)
        h.ok(1, [1, 1])
        h.did(2, "read-stamps", "g", answer=[value, value])
        return h

    right(after_a_long_read(2))
    assert "but stamp 'g' 2" in wrong(after_a_long_read(1))


def test_an_unknown_stamp_never_comes_after_the_next_acknowledged_one() -> None:
    h = Script()
    h.begin(0, "stamp", "g", 1)
    h.info(0)
    h.did(2, "stamp", "g", 2)
    h.did(1, "read-stamps", "g", answer=[1, 1])
    assert "ended before that began" in wrong(h)


def test_a_stamp_that_nobody_wrote_is_found() -> None:
    h = stamped(1)
    h.did(1, "read-stamps", "g", answer=[5, 5])
    assert "shows 5 in group 'g', which was never written" in wrong(h)
    h = Script()
    h.did(1, "read-stamps", "g", answer=[1, 1])
    h.did(0, "stamp", "g", 1)
    assert "shows 1 before stamp 'g' 1" in wrong(h)
    h = Script()
    h.begin(0, "stamp", "g", 1)
    h.fail(0)
    h.did(1, "read-stamps", "g", answer=[1, 1])
    assert "surely did not take place" in wrong(h)


def test_groups_are_judged_apart() -> None:
    h = stamped(5)
    h.did(0, "stamp", "other", 1)
    h.did(1, "read-stamps", "other", answer=[1])
    h.did(1, "read-stamps", "g", answer=[5, 5])
    right(h)
    h.did(1, "read-stamps", "g", answer=[])
    assert "group 'g'" in wrong(h)


def test_without_an_answered_read_nothing_was_judged() -> None:
    verdict = check_stamp(stamped(1, 2).history)
    assert verdict.valid is None and "no read of group 'g'" in verdict.problem


def test_what_the_format_does_not_allow_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the stamps of a group must grow"):
        check_stamp(stamped(2, 1).history)
    h = Script()
    h.did(0, "read-stamps", "g", answer=1)
    with pytest.raises(InvalidArgument, match="must be the list of the rows' values"):
        check_stamp(h.history)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 7))
def test_the_verdict_agrees_with_trying_every_order(seed: int, count: int) -> None:
    def draw_stamps(play: Play, slot: int) -> tuple[str, str, int | None]:
        return ("read-stamps", "g", None) if slot else ("stamp", "g", play.count)

    draw = random.Random(seed)
    history = Play(seed, stamps, {}, draw_stamps, draw.choice([0.0, 0.2, 0.4])).run(3, count)
    reads = [event for event in history.events if event.type == OK and event.operation == "read-stamps"]
    if reads and draw.random() < 0.6:
        value = draw.randrange(count)
        history = changed(history, draw.choice(reads).index, [value] * ROWS if value else [])
    verdict = check_stamp(history, ROWS)
    if verdict.valid is None:
        assert not reads
    else:
        assert verdict.valid == explainable(pair(history.events), stamps, {})
