"""Finds the seed that shows each planted defect, and writes it into the tables (chaos/defects/) and docs/testing.md.

    .venv/bin/python -m tests.chaos.reseed [DEFECT ...]

The seed in the table is tried first, so seeds that still work do not change. tests/chaos/test_planted.py fails with this
command when a seed has moved.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ebla.chaos import soak
from ebla.chaos.defects.planted import DEFECTS, defect

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "chaos" / "defects").glob("planted*.py"))
PAGE = ROOT / "docs" / "testing.md"


def search(name: str) -> soak.Hunt:
    """Try the seed of the table, then all from 0 on."""
    wanted = defect(name)
    return soak.hunt(wanted, [wanted.seed, *range(wanted.seeds_max)])


def with_seeds(table: str, seeds: Mapping[str, int]) -> str:
    """The table's source with these seeds."""
    lines = table.splitlines(keepends=True)
    rows = [node for node in ast.walk(ast.parse(table)) if _row_of(node) in seeds]
    for row in sorted(rows, key=lambda node: -node.lineno):  # type: ignore[attr-defined]
        assert isinstance(row, ast.Call)
        given = [keyword.value for keyword in row.keywords if keyword.arg == "seed"]
        text = str(seeds[_row_of(row)])
        start, stop, text = (given[0], given[0], text) if given else (None, row.args[-1], f", seed={text}")
        line = stop.end_lineno - 1  # type: ignore[operator]
        begins = stop.end_col_offset if start is None else start.col_offset
        lines[line] = lines[line][:begins] + text + lines[line][stop.end_col_offset :]
    return "".join(lines)


def _row_of(node: ast.AST) -> str:
    """Name of the defect in this row of the table, "" if the node is no row."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Defect"
    return node.args[0].value if named else ""  # type: ignore[attr-defined, no-any-return]


def page_with_seeds(page: str, seeds: Mapping[str, int]) -> str:
    """The page with these seeds in its table."""
    for name, seed in seeds.items():
        page = re.sub(
            rf"^(\| {re.escape(name)} \|.*\| )[0-9]+( \| [0-9]+ \|)$", rf"\g<1>{seed}\g<2>", page, flags=re.M
        )
    return page


def main(names: list[str]) -> int:
    moved: dict[str, int] = {}
    lost = []
    with soak.workers(2) as pools:
        asked = {name: pools[number % 2].submit(search, name) for number, name in enumerate(names or DEFECTS)}
        for name, future in asked.items():
            hunt = future.result()
            if hunt.seed is None:
                lost.append(name)
            elif hunt.seed != defect(name).seed:
                moved[name] = hunt.seed
    for table in TABLES:
        table.write_text(with_seeds(table.read_text(), moved))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *TABLES], check=True)
    PAGE.write_text(page_with_seeds(PAGE.read_text(), moved))
    print("moved:", ", ".join(f"{name} to {seed}" for name, seed in moved.items()) or "none")
    print("not found:", ", ".join(lost) or "none")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
