"""The figures of a run: what was tried, what came of it, and how to repeat what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

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
    noticed_by: tuple[str, ...] = ()  # what gave it away nevertheless

    @property
    def again(self) -> str:
        return f"python -m ebla.chaos.powercut --recording {self.recording} --{self.kind} {self.seed}"


class Figures:
    """Of any number of cases, of any number of recordings."""

    def __init__(self) -> None:
        self.cuts: Counter[str] = Counter()
        self.flips: dict[str, Counter[str]] = {}  # by what was done
        self.areas: dict[str, Counter[str]] = {}  # of single bits, by what was hit
        self.parts: dict[str, Counter[str]] = {}
        self.audits: Counter[str] = Counter()  # of the failures, by what would have found them
        self.notices: defaultdict[str, Counter[str]] = defaultdict(Counter)  # and by what gave them away
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
        return [
            *([self._cuts()] if self.cuts else []),
            *(
                [
                    _table("damage", self.flips),
                    _table("bits, by area", self.areas),
                    _table("bits, by what they are for", self.parts),
                ]
                if self.flips
                else []
            ),
        ]

    def _cuts(self) -> Table:
        table = Table(title="power cuts", title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        table.add_row("replayed", str(self.cuts.total()))
        table.add_row("of which something was gone", str(self.cuts_that_took))
        table.add_row("every promise kept", str(self.cuts[KEPT]))
        table.add_row("refused, nothing answered yet", str(self.cuts[UNBORN]))
        table.add_row("a promise broken", str(self.cuts[LOST]))
        table.add_row("the process died", str(self.cuts[DIED]))
        table.add_row("answers that had to hold", f"{self.answers:,}")
        table.add_row("fault points passed last", str(len([point for point in self.points if point])))
        table.add_row("rests of unfinished creations, cleared", str(self.leftovers))
        return table

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


def _table(title: str, rows: dict[str, Counter[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for outcome in ("all", *OUTCOMES):
        table.add_column(outcome, justify="right")
    for name, outcomes in sorted(rows.items()):
        table.add_row(name, str(outcomes.total()), *(str(outcomes[outcome] or "") for outcome in OUTCOMES))
    return table
