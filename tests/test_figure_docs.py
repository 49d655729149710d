"""The list of figures, its documentation and its dashboard are equal."""

from __future__ import annotations

import json
import re

from ebla import figure_docs
from ebla.actors.figures import COUNTER, GAUGE, OWN_TAGS
from tests.source import ROOT

DOCS = ROOT / "docs"
REMEDY = "python -m ebla.figure_docs docs"
TAGS = {
    "environment",
    "journal",
    "limit",
    "node",
    "state",
    "step",
}  # none grows with tables, tablets or clients


def test_the_page_and_the_dashboard_are_generated_from_the_figures() -> None:
    page = (DOCS / figure_docs.PAGE).read_text()
    assert figure_docs.page(page) == page, REMEDY
    assert (DOCS / figure_docs.DASHBOARD).read_text() == figure_docs.dashboard(), REMEDY


def test_every_figure_has_a_unique_name_a_line_on_the_page_and_a_chart() -> None:
    figures = figure_docs.definitions()
    names = [figure.name for figure in figures]
    assert len(names) == len(dict.fromkeys(names)) > 50
    page = (DOCS / figure_docs.PAGE).read_text()
    assert [name for name in names if page.count(f"| `{name}` |") != 1] == []
    charted = [
        re.findall(r"ray_ebla_\w+", target["expr"])
        for panel in json.loads(figure_docs.dashboard())["panels"]
        for target in panel.get("targets", ())
    ]
    assert sorted(name for found in charted for name in found) == sorted(f.exported for f in figures)


def test_figures_are_named_by_their_role_their_unit_last_and_their_tags_are_bounded() -> None:
    for figure in figure_docs.definitions():
        assert re.fullmatch(
            r"(role|tablet|master|coordination|writer|journal|ledger|repair|audit)_[a-z0-9_]+", figure.name
        )
        assert figure.kind in (GAUGE, COUNTER) and figure.help
        assert set(figure.tags) <= TAGS and not set(figure.tags) & set(OWN_TAGS)
        if figure.unit in ("ms", "bytes"):
            assert figure.name.endswith(f"_{figure.unit}"), figure.name


def test_no_charts_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(figure_docs.dashboard())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
