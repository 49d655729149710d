"""A role's figures as Ray's own metrics, named `ray_ebla_<name>` at the endpoint of the Ray cluster.

Every series has the deployment, the role's address and its host, which outlive the role's process, beside the tags of
the figure. Ray shows the last value of a series as long as the process lives; so a series that is no longer measured,
such as a writer's after its epoch, is set to zero. Ray's counters take increments: a count that fell has started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ray.util import metrics

from ebla.actors.figures import COUNTER, DEPLOYMENT, HOST, OWN_TAGS, PREFIX, ROLE, Figure

Series = tuple[str, tuple[str, ...]]


class Metric(Protocol):
    """A gauge is set to `value`, a counter grows by it."""

    def __call__(self, value: float, tags: dict[str, str]) -> None: ...


class Exporter:
    def __init__(
        self, deployment: str, role: str, host: str, make: Callable[[Figure], Metric] | None = None
    ) -> None:
        self._own = {DEPLOYMENT: deployment, ROLE: role, HOST: host}
        self._make = make or _of_ray
        self._metrics: dict[str, Metric] = {}
        self._gauges: dict[Series, Figure] = {}  # as exported last
        self._counted: dict[Series, float] = {}

    def export(self, figures: Iterable[Figure]) -> None:
        measured = {(figure.name, tuple(figure.tags.values())): figure for figure in figures}
        for series, figure in measured.items():
            if figure.kind == COUNTER:
                self._grow(series, figure)
            else:
                self._record(figure, figure.value)
        for series, figure in self._gauges.items():
            if series not in measured:
                self._record(figure, 0.0)
        self._gauges = {series: figure for series, figure in measured.items() if figure.kind != COUNTER}

    def _grow(self, series: Series, figure: Figure) -> None:
        before = self._counted.get(series, 0.0)
        self._counted[series] = figure.value
        added = figure.value - before if figure.value >= before else figure.value
        if added:  # Ray's counters refuse an increment of zero
            self._record(figure, added)

    def _record(self, figure: Figure, value: float) -> None:
        metric = self._metrics.get(figure.name)
        if metric is None:
            metric = self._metrics[figure.name] = self._make(figure)
        metric(value, {**self._own, **figure.tags})


def _of_ray(figure: Figure) -> Metric:
    kind = metrics.Counter if figure.kind == COUNTER else metrics.Gauge
    unit = f" ({figure.unit})" if figure.unit else ""
    keys = (*OWN_TAGS, *figure.tags)
    made = kind(PREFIX + figure.name, description=figure.help + unit, tag_keys=keys)
    return made.inc if isinstance(made, metrics.Counter) else made.set
