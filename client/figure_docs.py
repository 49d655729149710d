"""Makes the tables of docs/metrics.md and a dashboard for Grafana from the definitions of all figures.

python -m ebla.figure_docs docs     # writes both again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ebla.actors.figures import COUNTER, DEPLOYMENT, HOST, ROLE, Definition, Sheet
from ebla.actors.journal.node import measures as journal
from ebla.actors.journal.writer import measures as channels
from ebla.actors.ledger.auditor import measures as auditor
from ebla.actors.ledger.store import measures as ledger
from ebla.actors.ledger.worker import measures as worker
from ebla.actors.master import measures as master
from ebla.actors.ray_shell import SHELL
from ebla.actors.tablet import measures as tablet

Sheets = Sequence[Sheet[Any]]

LOGS: Sheets = (ledger.STORE, worker.WORKER, auditor.AUDITOR)  # of roles that a deployment without logs lacks
GROUPS: tuple[tuple[str, Sheets], ...] = (
    ("Every role", (SHELL,)),
    ("Tablet servers", tablet.SHEETS),
    ("Masters", tuple(sheet for sheet in master.SHEETS if sheet is not channels.LINE)),
    ("The active master's line to each journal node", (channels.LINE,)),
    ("Journal nodes", journal.SHEETS),
    ("Ledger stores", LOGS[:1]),
    ("Replication workers and auditors of ledgers", LOGS[1:]),
)
BEGIN, END = "<!-- figures: python -m ebla.figure_docs docs -->", "<!-- end of figures -->"
PAGE, DASHBOARD = "metrics.md", "grafana.json"

GAUGE_UNITS = {"bytes": "bytes", "ms": "ms"}
RATE_UNITS = {"bytes": "Bps"}
WIDTH, HEIGHT, COLUMNS = 8, 7, 3
P50, P99 = "_p50_", "_p99_"


def definitions() -> list[Definition]:
    return [each for _, sheets in GROUPS for each in _of(sheets)]


def _of(sheets: Sheets) -> Iterator[Definition]:
    for sheet in sheets:
        yield from sheet.definitions


# -- documentation -------------------------------------------------------------------------------------------


def tables() -> str:
    lines: list[str] = []
    for title, sheets in GROUPS:
        heading = [
            f"**{title}**",
            "",
            "| figure | kind | unit | tags | meaning |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [*heading, *map(_row, _of(sheets)), ""]
    return "\n".join(lines)


def _row(figure: Definition) -> str:
    return f"| `{figure.name}` | {figure.kind} | {figure.unit} | {', '.join(figure.tags)} | {figure.help} |"


def page(text: str) -> str:
    """The page with new tables."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{tables()}\n{END}{tail}"


# -- Grafana -------------------------------------------------------------------------------------------------


def dashboard() -> str:
    """A dashboard to import into Grafana; its data source is the Prometheus that scrapes Ray."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, sheets in GROUPS:
        charts = list(_charts(list(_of(sheets))))
        place = _place(top, 0, 24, 1)
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        top += 1
        for number, chart in enumerate(charts):
            row, column = divmod(number, COLUMNS)
            panels.append(_panel(chart, _place(top + row * HEIGHT, column * WIDTH, WIDTH, HEIGHT)))
        top += -(-len(charts) // COLUMNS) * HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    found = {
        "uid": "ebla",
        "title": "ebla",
        "tags": ["ebla", "ray"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(found, indent=1) + "\n"


def _charts(figures: list[Definition]) -> Iterator[list[Definition]]:
    """The figures of each chart: a median and its 99th percentile share one."""
    for figure in figures:
        if P99 not in figure.name:
            wanted = figure.name.replace(P50, P99)
            yield [figure, *(each for each in figures if each.name == wanted and each is not figure)]


def _panel(chart: list[Definition], place: dict[str, int]) -> dict[str, Any]:
    first = chart[0]
    title = first.name.replace(P50, "_").replace("_", " ")
    units = RATE_UNITS if first.kind == COUNTER else GAUGE_UNITS
    return {
        "type": "timeseries",
        "title": f"{title}/s" if first.kind == COUNTER else title,
        "description": "; ".join(each.help for each in chart),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": units.get(first.unit, "short"), "min": 0}, "overrides": []},
        "gridPos": place,
        "targets": [_target(each, letter) for each, letter in zip(chart, "AB", strict=False)],
    }


def _target(figure: Definition, letter: str) -> dict[str, Any]:
    """One value per role, over all processes that it has had: Ray adds a tag for each process."""
    by = ", ".join((ROLE, *figure.tags))
    chosen = f'{figure.exported}{{{DEPLOYMENT}="${DEPLOYMENT}", {HOST}=~"${HOST}"}}'
    rate = f"sum by ({by}) (rate({chosen}[$__rate_interval]))"
    which = " p50" if P50 in figure.name else " p99" if P99 in figure.name else ""
    legend = " ".join(f"{{{{{tag}}}}}" for tag in (ROLE, *figure.tags)) + which
    return {
        "refId": letter,
        "expr": rate if figure.kind == COUNTER else f"max by ({by}) ({chosen})",
        "legendFormat": legend,
    }


def _variables() -> list[dict[str, Any]]:
    (running,) = SHELL.definitions
    source = {"type": "prometheus", "uid": "${datasource}"}

    def variable(name: str, query: str, several: bool) -> dict[str, Any]:
        return {
            "name": name,
            "type": "query",
            "datasource": source,
            "query": query,
            "refresh": 2,
            "multi": several,
            "includeAll": several,
        }

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        variable(DEPLOYMENT, f"label_values({running.exported}, {DEPLOYMENT})", False),
        variable(HOST, f'label_values({running.exported}{{{DEPLOYMENT}="${DEPLOYMENT}"}}, {HOST})', True),
    ]


def _place(top: int, left: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def write(directory: Path) -> None:
    where = directory / PAGE
    where.write_text(page(where.read_text()))
    (directory / DASHBOARD).write_text(dashboard())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
