"""The figures of a run: the cases, their outcomes, and how to repeat failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from ebla.chaos.pages import Table
from ebla.chaos.powercut.cuts.cuts import DIED, KEPT, LOST, UNBORN, Cut
from ebla.chaos.powercut.damage.damage import BIT
from ebla.chaos.powercut.damage.flips import FAILURES, OUTCOMES, Flip

SILENT = "nothing"
SHOWN_MAX = 200  # characters of a reason


class Failure(msgspec.Struct, frozen=True):
    recording: str
    kind: str
    seed: int
    why: str
    found_by: tuple[str, ...] = ()  # checks that storage does not make
    noticed_by: tuple[str, ...] = ()  # other signs of the damage

    @property
    def again(self) -> str:
        return f"python -m ebla.chaos.powercut --recording {self.recording} --{self.kind} {self.seed}"


class Figures:
    """Sums over any number of cases and recordings."""

    def __init__(self) -> None:
        self.cuts: Counter[str] = Counter()
        self.flips: dict[str, Counter[str]] = {}  # by kind of damage
        self.areas: dict[str, Counter[str]] = {}  # of single bits, by area and part
        self.parts: dict[str, Counter[str]] = {}
        self.audits: Counter[str] = Counter()  # of the failures, by checks that would have found them
        self.notices: defaultdict[str, Counter[str]] = defaultdict(Counter)  # and by other signs
        self.points: Counter[str] = Counter()
        self.answers = 0
        self.cuts_that_took = 0
        self.leftovers = 0
        self.failures: list[Failure] = []

    def add_cut(self, recording: Path, cut: Cut) -> None:
        self.cuts[cut.outcome] += 1
        self.points[cut.point] += 1
        self.answers += cut.answers
        self.cuts_that_took += cut.gone > 0
        self.leftovers += cut.leftovers > 0
        if cut.outcome in (LOST, DIED):
            self.failures.append(Failure(str(recording), "cut", cut.seed, f"{cut.outcome}: {cut.why}"))

    def add_flip(self, recording: Path, flip: Flip) -> None:
        outcome = flip.found.outcome
        what = f"{flip.damage}, aimed at a part" if flip.aimed and flip.damage == BIT else flip.damage
        self.flips.setdefault(what, Counter())[outcome] += 1
        if flip.damage == BIT:
            self.areas.setdefault(flip.area, Counter())[outcome] += 1
            self.parts.setdefault(flip.part, Counter())[outcome] += 1
        if outcome in FAILURES:
            kind = "flip" if flip.damage == BIT else "spoil"
            place = f"{flip.damage} in {flip.area}, {flip.page}, {flip.part}"
            why = f"{outcome}: {place}: {flip.found.why}"
            found = flip.found
            self.failures.append(
                Failure(str(recording), kind, flip.seed, why, found.audits, found.noticed_by)
            )
            self.audits.update(found.audits or ["nothing"])
            self.notices[outcome].update(found.noticed_by or [SILENT])

    # -- as text

    def tables(self) -> list[Table]:
        cuts = (
            ("replayed", self.cuts.total()),
            ("with lost sectors or names", self.cuts_that_took),
            ("every promise kept", self.cuts[KEPT]),
            ("refused, no answer before the cut", self.cuts[UNBORN]),
            ("a promise broken", self.cuts[LOST]),
            ("the process died", self.cuts[DIED]),
            ("answers that were checked", self.answers),
            ("fault points passed last", sum(map(bool, self.points))),
            ("with unfinished creations, cleared", self.leftovers),
        )
        rows = [(name, f"{count:,}") for name, count in cuts] if self.cuts else []
        return [
            Table("power cuts", ("result", "count"), rows, (1,)),
            _outcomes("damage", self.flips),
            _outcomes("bits, by area", self.areas),
            _outcomes("bits, by part of a page", self.parts),
        ]

    # -- as data

    def as_dict(self) -> dict[str, Any]:
        return {
            "cuts": dict(self.cuts),
            "cuts_that_took_something": self.cuts_that_took,
            "answers_that_had_to_hold": self.answers,
            "rests_cleared": self.leftovers,
            "points": dict(sorted(self.points.items())),
            "damage": {what: dict(outcomes) for what, outcomes in sorted(self.flips.items())},
            "bits_by_area": {area: dict(outcomes) for area, outcomes in sorted(self.areas.items())},
            "bits_by_part": {part: dict(outcomes) for part, outcomes in sorted(self.parts.items())},
            "failures_that_a_check_would_find": dict(self.audits),
            "failures_noticed_by": {outcome: dict(signs) for outcome, signs in self.notices.items()},
            "failures": [
                {**msgspec.structs.asdict(failure), "again": failure.again} for failure in self.failures
            ],
        }


def _outcomes(title: str, counts: dict[str, Counter[str]]) -> Table:
    rows = [
        (name, f"{found.total()}", *(str(found[outcome] or "") for outcome in OUTCOMES))
        for name, found in sorted(counts.items())
    ]
    return Table(title, ("", "all", *OUTCOMES), rows, range(1, len(OUTCOMES) + 2))
