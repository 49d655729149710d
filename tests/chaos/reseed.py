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


def search(name: str) -> soak.Hunt:
    """The seed that found it last time, then from the beginning."""
    wanted = defect(name)
    return soak.hunt(wanted, [wanted.seed, *range(wanted.seeds_max)])


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
        asked = {name: pools[number % 2].submit(search, name) for number, name in enumerate(names or DEFECTS)}
        for name, future in asked.items():
            hunt = future.result()
            if hunt.seed is None:
                lost.append(name)
            elif hunt.seed != defect(name).seed:
                moved[name] = hunt.seed
    for module in MODULES:
        module.write_text(with_seeds(module.read_text(), moved))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *MODULES], check=True)
    PAGE.write_text(page_with_seeds(PAGE.read_text(), moved))
    print("moved:", ", ".join(f"{name} to {seed}" for name, seed in moved.items()) or "none")
    print("not found:", ", ".join(lost) or "none")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
