"""The figures of a benchmark, and their table; and what all measurements need."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from typing_extensions import Self

T = TypeVar("T")


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

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the duration of the block."""
        with Stopwatch() as watch:
            yield
        self.seconds.append(watch.seconds)

    def quantile_ms(self, q: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self.start


class Watching:
    """Looks at something again and again, in a thread, during the block."""

    every_s = 0.1

    def __enter__(self) -> Self:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def look(self) -> None:
        raise AssertionError("each kind looks at its own")

    def _run(self) -> None:
        while not self._end.wait(self.every_s):
            self.look()

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()


def until(holds: Callable[[], T], within_s: float, what: str, every_s: float = 0.1) -> T:
    """Wait for the first result that is true, and return it."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} within {within_s:g} s")
        time.sleep(every_s)
    return found


def in_another_process(module: str, kind: type[T], *arguments: str, given: bytes | None = None) -> T:
    """The last line of what a module of the benchmarks prints, in a process where nothing else runs."""
    words = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(words, input=given, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)


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
        "Every ebla write is synced on a majority of three replicas before it is acknowledged, in PacificA tables on all voters.",
        "The floor of a PacificA figure is the same load, or the same fault, on Raft tables.",
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
