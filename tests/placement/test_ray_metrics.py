"""From figures to metrics that are set and counters that grow, without Ray."""

from __future__ import annotations

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.ray_metrics import Exporter, Metric

OWN = {"deployment": "ebla", "role": "master/0", "host": "host-1"}
SHEET: Sheet[float] = Sheet(
    ("node",),
    gauge("lag", "ms", "how far behind", lambda value: value),
    counter("edits", "edits", "edits so far", lambda value: value),
)


class Scraped:
    """The metrics that Ray would show, and the number of updates."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str], float] = {}
        self.updates = 0
        self.made: list[str] = []
        self.exporter = Exporter("ebla", "master/0", "host-1", self.make)

    def make(self, figure: Figure) -> Metric:
        self.made.append(figure.name)

        def metric(value: float, tags: dict[str, str]) -> None:
            self.updates += 1
            assert {name: tags[name] for name in OWN} == OWN
            series = (figure.name, tags["node"])
            if figure.kind == "counter":
                assert value > 0, "Ray's counters refuse it"
                value += self.shown.get(series, 0.0)
            self.shown[series] = value

        return metric

    def export(self, *values: tuple[float, str]) -> None:
        """Export these values of nodes."""
        self.exporter.export([figure for value, node in values for figure in SHEET.read(value, node)])


def test_gauges_are_set_and_counters_grow_by_the_difference() -> None:
    scraped = Scraped()
    for value in (3.0, 5.0, 5.0):
        scraped.export((value, "a"))
    assert scraped.shown == {("lag", "a"): 5.0, ("edits", "a"): 5.0}
    assert scraped.made == ["lag", "edits"]
    assert scraped.updates == 5  # a counter that did not grow is not updated


def test_a_count_that_decreased_has_started_again() -> None:
    scraped = Scraped()
    for value in (7.0, 2.0, 3.0):
        scraped.export((value, "a"))
    assert scraped.shown["edits", "a"] == 7 + 3


def test_a_series_that_ends_becomes_zero_and_its_counter_remains() -> None:
    scraped = Scraped()
    scraped.export((4.0, "a"), (6.0, "b"))
    scraped.export((5.0, "a"))
    assert scraped.shown == {("lag", "a"): 5, ("edits", "a"): 5, ("lag", "b"): 0, ("edits", "b"): 6}
    updates = scraped.updates
    scraped.export((5.0, "a"))
    assert scraped.updates == updates + 1  # the gauge of the remaining series
    scraped.export((5.0, "a"), (7.0, "b"))
    assert (scraped.shown["lag", "b"], scraped.shown["edits", "b"]) == (7, 7)
