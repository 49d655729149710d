"""Search a seed for each planted defect, and write it into chaos/defects/*.py and docs/testing.md.

    .venv/bin/python -m tests.chaos.reseed [DEFECT ...]

The search tries the defect's present seed first, so that a seed that still finds the defect stays. tests/chaos/test_planted.py
fails when a new search is necessary.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ebla.chaos import soak
from ebla.chaos.defects.planted import DEFECTS, defect

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "chaos" / "defects").glob("*.py"))
PAGE = ROOT / "docs" / "testing.md"


def with_seeds(module: str, seeds: Mapping[str, int]) -> str:
    """The source of a module of defects, with other seeds."""
    for name, seed in seeds.items():
        function = rf"\n(?:async )?def {name.replace('-', '_')}\("
        module = re.sub(
            rf"(@defect\([^()]*?)(?:, seed=[0-9]+)?((?:, faults=\w+)?\){function})",
            rf"\g<1>, seed={seed}\g<2>",
            module,
        )
    return module


def page_with_seeds(page: str, seeds: Mapping[str, int]) -> str:
    """The page with other seeds in its table."""
    for name, seed in seeds.items():
        page = re.sub(
            rf"^(\| {re.escape(name)} \|.*\| )[0-9]+( \| [0-9]+ \|)$", rf"\g<1>{seed}\g<2>", page, flags=re.M
        )
    return page


def main(names: list[str]) -> int:
    moved: dict[str, int] = {}
    lost = []
    with soak.workers(2) as pools:
        for hunt in soak.hunts([defect(name) for name in names or DEFECTS], pools):
            if hunt.seed is None:
                lost.append(hunt.defect)
            elif hunt.seed != defect(hunt.defect).seed:
                moved[hunt.defect] = hunt.seed
    for module in MODULES:
        module.write_text(with_seeds(module.read_text(), moved))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *MODULES], check=True)
    PAGE.write_text(page_with_seeds(PAGE.read_text(), moved))
    print("moved:", ", ".join(f"{name} to {seed}" for name, seed in moved.items()) or "none")
    print("not found:", ", ".join(lost) or "none")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
