"""The numbers that a role reports, for dashboards and for `ebla metrics`.

A role lists its figures on sheets, each with a function that reads it from the role's state without waiting or changes.
actors/ray_metrics.py exports the sheets, client/figure_docs.py makes the dashboard and the documentation from them.

    bounded    tags name roles, hosts, journal nodes and states, never tables, tablets or clients
    gauges     show the present; a percentile is of the last samples
    counters   only grow while their subject lives, and start again at zero with the process, or with a new epoch
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec
from typing_extensions import NamedTuple

T = TypeVar("T")

GAUGE, COUNTER = "gauge", "counter"
PREFIX = "ebla_"
DEPLOYMENT, ROLE, HOST = "deployment", "role", "host"
OWN_TAGS = (DEPLOYMENT, ROLE, HOST)  # of every exported series, beside the tags of its figure
SAMPLES_MAX = 2048


class Figure(msgspec.Struct, frozen=True):
    name: str
    kind: str
    unit: str
    help: str
    value: float
    tags: dict[str, str] = {}


class FiguresRequest(msgspec.Struct, frozen=True):
    """All of a role's figures, as of now."""


class Figures(msgspec.Struct, frozen=True):
    figures: tuple[Figure, ...]


class Definition(msgspec.Struct, frozen=True):
    """A figure without its value; `tags` are the names of its own tags."""

    name: str
    kind: str
    unit: str
    help: str
    tags: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """The name at Ray's endpoint."""
        return f"ray_{PREFIX}{self.name}" + ("_total" if self.kind == COUNTER else "")

    def of(self, value: float, *tags: str) -> Figure:
        named = dict(zip(self.tags, tags, strict=True))
        return Figure(self.name, self.kind, self.unit, self.help, float(value), named)


class Line(NamedTuple, Generic[T]):
    """One figure of a sheet."""

    kind: str
    name: str
    unit: str
    help: str
    read: Callable[[T], float]


def gauge(name: str, unit: str, help: str, read: Callable[[T], float]) -> Line[T]:
    return Line(GAUGE, name, unit, help, read)


def counter(name: str, unit: str, help: str, read: Callable[[T], float]) -> Line[T]:
    return Line(COUNTER, name, unit, help, read)


class Sheet(Generic[T]):
    """The figures of one kind of subject, with the names of its tags."""

    def __init__(self, tags: tuple[str, ...], *lines: Line[T]) -> None:
        self.definitions = tuple(
            Definition(line.name, line.kind, line.unit, line.help, tags) for line in lines
        )
        self._reads = tuple(line.read for line in lines)

    def read(self, subject: T, *tags: str) -> Iterator[Figure]:
        for definition, read in zip(self.definitions, self._reads, strict=True):
            yield definition.of(read(subject), *tags)


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of the last samples, in milliseconds."""

    count: int
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float


class Latencies:
    """The last SAMPLES_MAX samples, and the count of all samples."""

    def __init__(self) -> None:
        self.count = 0
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._last = Percentiles(0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def add(self, seconds: float) -> None:
        self.count += 1
        self._samples.append(seconds)

    def percentiles(self) -> Percentiles:
        """Nearest rank."""
        if self._last.count == self.count:
            return self._last
        ordered = sorted(self._samples)

        def at(percent: int) -> float:
            return ordered[-(-percent * len(ordered) // 100) - 1] * 1000

        self._last = Percentiles(self.count, *map(at, (50, 75, 90, 95, 99)))
        return self._last
