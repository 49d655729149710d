"""An operator who inspects a journal under faults notices impossible states."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace

from ebla.actors.figures import Percentiles
from ebla.actors.journal.messages import (
    JournalId,
    JournalNodeStatus,
    JournalStatus,
    SegmentState,
    SegmentStatus,
)
from ebla.actors.master.messages import JournalWriterStatus
from ebla.chaos import soak
from ebla.chaos.plans import Plan
from ebla.chaos.runs import Run
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.workloads.inspections import Seen
from ebla.health.verdicts import Survey, Unanswered

JOURNAL = JournalId("catalog", "one")


def segment(end: int, *, finalized: bool = True, digest: int = 7) -> SegmentStatus:
    return SegmentStatus(SegmentState(1, end, finalized, 3, 0, digest), 100, 0, not finalized)


def status(**changes: object) -> JournalStatus:
    good = JournalStatus(
        journal=JOURNAL,
        nodes=("journal/0",),
        promised=3,
        writer=3,
        committed=9,
        last=9,
        lag_txns=0,
        segments=(segment(5),),
        batches=1,
        batches_lagging=0,
        edits=9,
        bytes=100,
        served_edits=0,
        synced_segments=0,
        sync_ms=Percentiles(0, 0.0, 0.0, 0.0, 0.0, 0.0),
    )
    return replace(good, **changes)


def survey(active: tuple[int, int] | None = (3, 9), uuid: str = "a", **changes: object) -> Survey:
    node = JournalNodeStatus(uuid, 1, "journal/0", (status(**changes),))
    writer = None if active is None else JournalWriterStatus(JOURNAL, *active, 6, ())
    return Survey({}, (), (), {}, (), {"journal/0": node, "journal/1": Unanswered("TimedOut", "")}, writer)


GOOD = (survey(), survey(None), survey((4, 9), promised=4), survey((4, 12), promised=4, committed=12))


def test_a_journal_that_only_advances_has_no_problem() -> None:
    seen = Seen()
    for each in GOOD:
        seen.compare(each)
    seen.compare(survey((4, 12), uuid="b", promised=1, writer=0, committed=0, segments=()))
    assert seen.problems == [], "an empty directory instead of a lost one is another node"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (survey(None, promised=3, committed=12), "went back: {'promised': (4, 3)}"),
        (survey(None, promised=4, committed=11), "went back: {'committed': (12, 11)}"),
        (survey((3, 12), promised=4, committed=12), "went from (4, 12) to (3, 12)"),
        (survey((5, 11), "b"), "went from (4, 12) to (5, 11)"),
        (survey((4, 12), promised=4, committed=13), "calls 13 committed, the active master after it 12"),
        (survey(None, "b", segments=(segment(6),)), "segment 1 ended as (5, 7)"),
        (survey(None, "b", segments=(segment(5, digest=8),)), "segment 1 ended as (5, 7)"),
    ],
)
def test_a_journal_that_goes_back_or_contradicts_itself_is_a_problem(bad: Survey, words: str) -> None:
    seen = Seen()
    for each in (*GOOD, bad):
        seen.compare(each)
    assert len(seen.problems) == 1 and words in seen.problems[0]


def test_one_client_inspects_all_and_everything_is_healthy_at_the_end() -> None:
    run = Run(replaced(scenario("takeovers"), duration_s=4.0), Plan("takeovers", 0, ()))
    report = soak.quiet(run.go)
    assert report.violation == ""
    assert report.carried_out["inspections.beside-status"] >= 5
    assert report.carried_out["inspections.beside-check"] >= 2
    assert report.verbs["journal_writer"] >= 7
