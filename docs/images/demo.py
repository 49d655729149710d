"""Makes the README's picture of the demo's report, from a run's JSON. `make picture` runs it; it needs Chromium.

ebla demo --json > build/demo.json && python docs/images/demo.py build/demo.json docs/images/demo.png
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import MONOKAI

from ebla.pipelines.report import DemoReport, demo_view

COLUMNS = 80
PIXELS_PER_UNIT = 1.25


def drawing(report: DemoReport) -> str:
    """The SVG of a terminal in which the demo ran: its steps with their times, and its report."""
    console = Console(width=COLUMNS, record=True, file=sys.stderr, force_terminal=True)
    console.print("$ ebla demo", highlight=False)
    for title, seconds in report.phases.items():
        console.print(f"[green]✔[/green] {title} [dim]{seconds:.1f} s[/dim]", highlight=False)
    console.print(demo_view(report))
    return console.export_svg(title="ebla demo", theme=MONOKAI)


def photograph(svg: str, picture: Path) -> None:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found is not None
    width, height = (round(float(side) * PIXELS_PER_UNIT) for side in found.groups())
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "demo.html")
        style = "body { margin: 0 } svg { width: 100vw; display: block }"
        page.write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style>{svg}")
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--user-data-dir={directory}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={picture.absolute()}",
                page.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    photograph(drawing(msgspec.json.decode(source.read_bytes(), type=DemoReport, strict=False)), target)
