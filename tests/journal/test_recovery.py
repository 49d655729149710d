"""A new writer finds all edits that were acknowledged to the last one, whichever nodes answer."""

from __future__ import annotations

import pytest

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import JournalBroken
from ebla.actors.journal.writer.recovery import choose
from tests.journal import recoveries, refusals, rejoining
from tests.journal.stage import play


@pytest.mark.parametrize(
    "scenario",
    [*recoveries.SCENARIOS, *refusals.SCENARIOS, *rejoining.SCENARIOS],
    ids=lambda scenario: scenario.__name__,
)
def test_in_a_history(scenario):
    for seed in range(3):
        play(scenario, seed)


def copy_of(end: int, *, finalized: bool = False, committed: int = 0, digest: int = 7) -> m.Prepared:
    """Of segment 1, by the writer of epoch 1."""
    return m.Prepared(m.SegmentState(1, end, finalized, 1, 0, digest), 0, 1, committed)


def test_a_choice_that_contradicts_a_decision_is_not_made():
    """Before any node must accept it: a node that would refuse it need not be among those that answer."""
    with pytest.raises(JournalBroken, match="finalized at 3 on b"):
        choose("edits", 1, {"a": copy_of(5, finalized=True), "b": copy_of(3, finalized=True)})
    with pytest.raises(JournalBroken, match="finalized at 5 on b"):
        choose("edits", 1, {"a": copy_of(5, finalized=True), "b": copy_of(5, finalized=True, digest=8)})
    with pytest.raises(JournalBroken, match="b knows 6 to be committed"):
        choose("edits", 1, {"a": copy_of(5), "b": copy_of(3, committed=6)})
    with pytest.raises(JournalBroken, match="b knows 1 to be committed"):
        choose("edits", 1, {"a": m.Prepared(None, 0, 0, 0), "b": m.Prepared(None, 0, 0, 1)})
    chosen = choose("edits", 1, {"a": copy_of(5, committed=3), "b": copy_of(3, committed=5)})
    assert chosen is not None and chosen.end == 5
