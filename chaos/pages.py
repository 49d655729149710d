"""Tables of reports, shown on pages and in terminals, and the template of all pages.

A page is one file: pictures are inside, and nothing is fetched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import rich.table
from rich.text import Text

from ebla.placement.extras import needs

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

VALID, VIOLATION, VOID = "valid", "violation", "void"  # verdicts

STYLE = """<style>
 body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; max-width: 1120px; margin: 2rem auto; padding: 0 1rem }
 h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
 .verdict { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; color: #fff }
 .verdict.valid { background: #1a7f37 } .verdict.violation { background: #b3261e } .verdict.void { background: #9a6700 }
 .sub { color: #57606a } img { width: 100%; height: auto }
 table { border-collapse: collapse; min-width: 60% } td, th { text-align: left; padding: .25rem .8rem .25rem 0;
 border-bottom: 1px solid #d8dee4; vertical-align: top } th { color: #57606a; font-weight: 600 } .n { text-align: right }
 .figures { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; margin: 1.2rem 0 } .figures b { display: block; font-size: 1.3rem }
 .reason, .unobserved, .violated, .VIOLATION { color: #b3261e } .skipped, .missed, .undecided { color: #57606a }
 td.observed, td.valid { color: #1a7f37 } tr > :last-child { padding-right: 0 } .n { white-space: nowrap }
</style>"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}: {{ word }}</title>
{{ style | safe }}</head><body>
<h1>{{ title }} <span class="verdict {{ verdict }}">{{ word }}</span></h1>
<p class="sub">{{ sub }}</p>
{% for text in reasons %}<p class="reason">{{ text }}</p>{% endfor %}
{% for text in remarks %}<p>{{ text }}</p>{% endfor %}
<div class="figures">
{% for value, label in figures %}<span><b>{{ value }}</b>{{ label }}</span>{% endfor %}
</div>
{{ picture }}
{% for t in tables if t.rows or t.empty %}<h2>{{ t.title }}</h2>
{% if t.note %}<p class="sub">{{ t.note }}</p>{% endif %}
<table><tr>{% for name in t.columns %}<th{{ t.align(loop.index0) | safe }}>{{ name }}</th>{% endfor %}</tr>
{% for row in t.rows %}<tr>{% for cell in row %}<td{{ (t.align(loop.index0) or t.marked(cell)) | safe }}>{{ cell }}</td>{% endfor %}</tr>
{% else %}<tr><td colspan="{{ t.columns | length }}">{{ t.empty }}</td></tr>{% endfor %}</table>
{% endfor %}
{{ end }}</body></html>
"""
OUTCOMES = ("observed", "unobserved", "violated", "missed", "skipped", "valid", "VIOLATION", "undecided")


class Table(NamedTuple):
    """`numbers`: places of columns that are aligned to the right. Without rows it shows `empty`, or nothing."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    note: str = ""
    empty: str = ""

    def align(self, place: int) -> str:
        return ' class="n"' if place in self.numbers else ""

    def marked(self, cell: str) -> str:
        """The class of a cell that begins with an outcome."""
        word = cell.partition(":")[0]
        return f' class="{word}"' if word in OUTCOMES else ""

    def shown(self) -> rich.table.Table:
        """For a terminal."""
        table = rich.table.Table(title=self.title, title_justify="left")
        for place, name in enumerate(self.columns):
            table.add_column(name, justify="right" if place in self.numbers else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def page(
    title: str,
    verdict: str,
    word: str,
    sub: str,
    figures: Iterable[tuple[str, str]],
    tables: Iterable[Table],
    *,
    reasons: Iterable[str] = (),
    remarks: Iterable[str] = (),
    picture: Markup | str = "",
    end: Markup | str = "",
) -> str:
    """`figures`: values and their labels. `word`: for the verdict."""
    parts: dict[str, Any] = locals()
    return _template().render(style=STYLE, **parts)


@functools.cache
def _template() -> Template:
    """Strict: a template whose figures or style are missing is an error."""
    with needs("demo", "jinja2"):
        from jinja2 import Environment, StrictUndefined
    pages = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return pages.from_string(_PAGE)
