"""The figures of a benchmark, and their table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One line of the table. `floor` is the same shape of work without ebla, in the same run, in the same unit.

    `target` is met if `better` ("higher" or "lower") holds for the value, or for value / floor if `of_floor`.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    better: str = "higher"
    of_floor: bool = False
    floor: float | None = None
    floor_name: str = ""
    peer: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        measured = self.ratio if self.of_floor else self.value
        assert measured is not None
        return measured >= self.target if self.better == "higher" else measured <= self.target


@dataclass
class Samples:
    """Durations in seconds."""

    seconds: list[float] = field(default_factory=list)

    def quantile_ms(self, q: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self.start


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def markdown(figures: list[Figure], machine: str) -> str:
    lines = [
        "# Figures",
        "",
        machine,
        "",
        "The floor is the same shape of work without ebla, measured in the same run; the ratio is ebla's figure over it.",
        "Every ebla write is synced on a majority of three replicas before it is acknowledged.",
        "",
        "| figure | ebla | unit | floor | ratio | etcd | target | |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for figure in figures:
        sign = {"higher": "≥", "lower": "≤"}[figure.better]
        target = (
            ""
            if figure.target is None
            else f"{sign} {number(figure.target)}" + (" x floor" if figure.of_floor else "")
        )
        floor = f"{number(figure.floor)} {figure.floor_name}" if figure.floor else ""
        verdict = {None: "", True: "met", False: "**missed**"}[figure.met]
        ratio = number(figure.ratio)
        cells = (
            figure.name,
            number(figure.value),
            figure.unit,
            floor,
            ratio,
            number(figure.peer),
            target,
            verdict,
        )
        lines.append("| " + " | ".join(cells) + " |")
    notes = [f"- {figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([*lines, "", *notes, ""])
