"""Reports of feeds, verifications and the demo, and the lines of steps: every figure and every failure is shown."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console, RenderableType

from ebla.actors.messages import Digest, ReplicaLocation, TabletLocation
from ebla.health.verdicts import Digests, Unanswered
from ebla.pipelines import demo, report
from ebla.pipelines.outcomes import FeedReport, ReplicaDigest, Sample, TabletDigests, VerifyReport
from ebla.pipelines.probe import longest_pause
from ebla.pipelines.replicas import _judged
from ebla.pipelines.sources.check import Checked, Repeated
from ebla.pipelines.sources.readers import Unfit
from ebla.pipelines.sources.source import Facts
from ebla.show import progress, steps

FED = FeedReport("flights", "flights", "job1", "upsert", 336_776, 0, 16, 16, 2, 9.5, 35_450.1)
REPLICAS = tuple(ReplicaDigest(f"tablet-server/host-{n}", 42_097, "ab" * 16) for n in (1, 2, 3))
TABLETS = tuple(TabletDigests(f"t{n}", n, 98, True, REPLICAS) for n in range(8))
EQUAL = VerifyReport("flights", "flights", 336_776, 336_776, 0, 0, 0, 0, (), TABLETS, True, True, 8.0)
KILL = report.Kill("host-3", 3.1, 126_291, 3, 6, True, 11.2, 13.5)
OUTAGE = report.Outage(8, 3, 1.93, 0.31, 3, 2_412, 0)
LOGGED = report.Events(12_340, 0, 0, 0, True, 0.42, 3_705, 0, 213, ("host-1",), 13.1)
DEMO = report.DemoReport(4, 8, 3, FED, KILL, OUTAGE, EQUAL, LOGGED, (), {"loading": 9.5}, 97.0)


ODD = msgspec.structs.replace(REPLICAS[2], digest="cd" * 16)
UNEQUAL = msgspec.structs.replace(TABLETS[0], tablet="ef" * 16, equal=False, replicas=(*REPLICAS[:2], ODD))
SAMPLE = Sample("different", {"k": "7"}, ("v",), {"v": "new"}, {"v": None})
DIFFERENT = msgspec.structs.replace(EQUAL, different=1, ok=False, samples=(SAMPLE,))
DISAGREEING = msgspec.structs.replace(EQUAL, tablets=(UNEQUAL, *TABLETS[1:]), replicas_equal=False, ok=False)
UNLED = msgspec.structs.replace(DEMO, outage=msgspec.structs.replace(OUTAGE, led=0, led_s=0.0))


@pytest.mark.parametrize(
    ("view", "figures"),
    [
        (report.feed_view(FED), ("336,776", "9.5 s", "35,450 rows/s", "2 retried", "job1")),
        (
            report.verify_view(EQUAL),
            (
                "✔ the table equals its source",
                "336,776 in the source",
                "0 missing",
                "0 extra",
                "0 different",
                "24 of 24 agree",
            ),
        ),
        (
            report.verify_view(DIFFERENT),
            ("✘ the table differs from its source", "1 different", "k=7", "v=new", "v=null"),
        ),
        (
            report.verify_view(DISAGREEING),
            ("✘ the table equals its source, but its replicas do not agree", "21 of 24", "cd" * 16),
        ),
        (
            report.demo_view(DEMO),
            (
                "host-3",
                "3.1 s into the load",
                "after 126,291 rows",
                "11.2 s",
                "0 lost",
                "0 duplicated",
                "(raft)",
                "it led 3 of the 8 tablets of flights and held replicas of 6",
                "it led 3 of the 8 tablets of a second table, which is probed",
                "1.9 s pause at most, on the probed tablets that it led",
                "12,340 records appended meanwhile, 0.4 s pause at most",
                "0 lost   0 misplaced   0 repeated",
                "213 entries that host-3 lacked, by the worker on host-1",
                "3,705 of 3,705 are sound; whole again 13.1 s after the kill",
                "nothing was lost, nothing was written twice",
            ),
        ),
        (report.demo_view(UNLED), ("0.3 s pause at most; 2,412 probing writes",)),
    ],
    ids=["a feed", "equal", "rows differ", "replicas disagree", "the demo", "a host without a leader"],
)
def test_every_figure_and_every_failure_is_shown(view: RenderableType, figures: tuple[str, ...]) -> None:
    text = report.text_of(view, width=120)
    assert [figure for figure in figures if figure not in text] == [], text


def test_a_killed_host_that_led_no_probed_tablet_has_no_pause_of_its_own() -> None:
    text = report.text_of(report.demo_view(UNLED))
    assert "0.0 s" not in text and "that it led" not in text


def test_the_demo_fails_if_one_promise_is_broken() -> None:
    assert list(demo._failures(DEMO, 336_776)) == []
    replace = msgspec.structs.replace
    broken = {
        "lost": replace(DEMO, verify=replace(EQUAL, missing=1)),
        "never written": replace(DEMO, verify=replace(EQUAL, extra=1)),
        "differ from those": replace(DEMO, verify=replace(EQUAL, different=1)),
        "do not agree": replace(DEMO, verify=replace(EQUAL, replicas_equal=None)),
        "were written": replace(DEMO, load=replace(FED, rows=336_775)),
        "was over before": replace(DEMO, kill=replace(KILL, during_load=False)),
        "led no tablet": replace(DEMO, kill=replace(KILL, led=0)),
        "failed for good": replace(DEMO, outage=replace(OUTAGE, failed=1)),
        "records of the log were lost": replace(DEMO, events=replace(LOGGED, lost=1, misplaced=2)),
        "not at their positions": replace(DEMO, events=replace(LOGGED, misplaced=1)),
        "in the log twice": replace(DEMO, events=replace(LOGGED, repeated=1)),
        "reader that followed": replace(DEMO, events=replace(LOGGED, followed=False)),
        "copies of the log's entries": replace(DEMO, events=replace(LOGGED, unsound=1)),
        "no worker has copied": replace(DEMO, events=replace(LOGGED, copied=0)),
        "LogFenced: gone": replace(DEMO, events=replace(LOGGED, followed=False, errors=("LogFenced: gone",))),
    }
    for words, found in broken.items():
        (failure,) = demo._failures(found, 336_776)
        assert words in failure
        view = report.demo_view(msgspec.structs.replace(found, failures=(failure,)))
        assert failure in report.text_of(view, width=160)


SILENT = msgspec.structs.replace(TABLETS[1], equal=False, replicas=(), error="no leader")
UNFIT = Unfit("people.csv", 42, "id", "'seven' is not int64")
AGAIN = Repeated("people.csv", 41, {"id": "7"}, "people.csv", 8)
FACTS = Facts("csv", 1, encoding="utf-8", separator=";", decimal=",", bytes=4_500)
CHECKED = Checked(
    "people.csv", FACTS, {"id": "int64"}, 42, 41, 1, 1, (UNFIT,), (AGAIN,), ({"id": "7"}, {"id": None})
)


@pytest.mark.parametrize(
    "view",
    [
        report.facts_line("people.csv", FACTS),
        report.columns_view(CHECKED, ["id"]),
        report.rows_view(CHECKED),
        report.feed_view(FED),
        report.feed_view(msgspec.structs.replace(FED, engine="arrow", rejected=7, skipped=3, repeated=21)),
        report.verify_view(EQUAL),
        report.verify_view(msgspec.structs.replace(EQUAL, tablets=(UNEQUAL, SILENT), ok=False)),
        report.demo_view(msgspec.structs.replace(DEMO, replication="pacifica")),
    ],
)
def test_a_report_needs_80_columns(view: RenderableType) -> None:
    narrow, wide = (report.text_of(view, width) for width in (80, 160))
    assert [line.rstrip() for line in narrow.splitlines()] == [line.rstrip() for line in wide.splitlines()]


@pytest.mark.parametrize(
    ("times", "since", "pause"),
    [
        ([], 0.0, 0.0),
        ([1.0], 0.0, 0.0),
        ([1.0, 1.1, 3.1, 3.2], 0.0, 2.0),
        ([1.0, 1.1, 3.1, 3.2], 2.0, 2.0),  # the pause began before the kill
        ([1.0, 5.0, 5.5], 5.0, 0.5),  # a pause before the kill does not count
    ],
)
def test_a_pause_that_ends_after_the_kill_counts(times: list[float], since: float, pause: float) -> None:
    assert longest_pause(times, since) == pytest.approx(pause)


# -- the judgement on replicas -------------------------------------------------------------------------------

LOCATION = TabletLocation(
    "t1", 0, "running", None, 1, tuple(ReplicaLocation(u, f"tablet-server/{u}", "voter", True) for u in "abc")
)


def answers(*rows: int | None) -> Digests:
    said = [
        Unanswered("Unavailable", "away") if count is None else Digest("t1", 9, count, f"digest of {count}")
        for count in rows
    ]
    return Digests(9, dict(zip("abc", said, strict=True)))


def test_replicas_are_equal_only_if_all_answers_are() -> None:
    assert _judged(LOCATION, answers(5, 5, 5)).equal
    assert not _judged(LOCATION, answers(5, 5, 6)).equal
    assert not _judged(LOCATION, answers(5, 5, None)).equal
    assert not _judged(LOCATION, answers(None, None, None)).equal


def test_a_tablet_without_a_leader_is_not_equal_but_says_why() -> None:
    judged = _judged(LOCATION, Digests(0, {}, Unanswered("Unavailable", "no leader")))
    assert not judged.equal
    assert judged.error == "no leader"


def test_progress_after_the_end_of_a_step_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    out = io.StringIO()
    shown = steps.Steps(Console(file=out))
    with shown.step("first") as first:
        first("begun")
    with shown.step("second") as second:
        first("too late")
        second("begun")
    lines = [line for line in out.getvalue().splitlines() if "✔" not in line]
    assert lines == ["first: begun", "second: begun"]
    assert list(shown.seconds) == ["first", "second"]
