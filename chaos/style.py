"""The style of the pages, and how they are rendered."""

from __future__ import annotations

from typing import Any

from ebla.extras import needs

STYLE = """<style>
 body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; max-width: 1120px; margin: 2rem auto; padding: 0 1rem }
 h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
 .verdict { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; color: #fff }
 .valid { background: #1a7f37 } .violation { background: #b3261e } .void { background: #9a6700 }
 .sub { color: #57606a } img { width: 100%; height: auto }
 table { border-collapse: collapse; min-width: 60% } td, th { text-align: left; padding: .25rem .8rem .25rem 0;
 border-bottom: 1px solid #d8dee4; vertical-align: top } th { color: #57606a; font-weight: 600 } .n { text-align: right }
 .figures { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; margin: 1.2rem 0 } .figures b { display: block; font-size: 1.3rem }
 .unobserved, .violated, .false { color: #b3261e } .skipped, .missed, .none { color: #57606a } td.observed, td.true { color: #1a7f37 }
 tr > :last-child { padding-right: 0 } .n { white-space: nowrap } .quiet { color: #57606a }
</style>"""


def render(template: str, **values: Any) -> str:
    """The page, with STYLE as its `style`. A value that the template names and that is missing is an error."""
    with needs("demo", "jinja2"):
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    pages = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return pages.from_string(template).render(style=Markup(STYLE), **values)
