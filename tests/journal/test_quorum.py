"""The result of a quorum wait after each answer."""

from __future__ import annotations

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import QuorumFailed, broken
from ebla.actors.journal.quorum import Tally

NODES = ("a", "b", "c", "d", "e")
TWO_TRUTHS = broken("edits", "there are two truths")


def tally() -> Tally[int]:
    return Tally("edits", "ask", NODES, 3)


def test_a_quorum_wait_ends_as_soon_as_its_result_is_certain():
    asked = tally()
    for node in ("a", "b"):
        asked.answer(node, 1)
        asked.error({"a": "d", "b": "e"}[node], Unavailable("down"))
        assert asked.verdict() is False
    asked.answer("c", 1)
    assert asked.verdict() is True
    asked = tally()
    asked.answer("a", 1)
    for node in ("c", "d"):
        asked.error(node, Unavailable("down"))
        assert asked.verdict() is False
    asked.error("e", Unavailable("down"))
    failed = asked.verdict()
    assert isinstance(failed, QuorumFailed)
    assert failed.nodes == ["a: done", "b: no answer yet", *(f"{node}: Unavailable: down" for node in "cde")]


def test_a_report_of_a_broken_journal_is_never_outvoted():
    for others in ("bcde", "bc", ""):
        for answers in (True, False):
            asked = tally()
            for node in others:
                asked.answer(node, 1) if answers else asked.error(node, Unavailable("down"))
            asked.error("a", TWO_TRUTHS)
            assert asked.verdict() is TWO_TRUTHS
