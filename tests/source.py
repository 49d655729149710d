"""Python files as syntax trees, for tests that read the code."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("client", "actors", "placement", "storage", "pipelines", "chaos")


def parsed(path: Path) -> ast.Module:
    """The tree of a file.

    Without garbage collection: a collection in the middle of `ast.parse` may let another thread run, one of Ray's for
    instance, and that thread formats a traceback, which parses, too. CPython 3.11 then raises SystemError in both.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if collected:
            gc.enable()


@cache
def paths() -> tuple[str, ...]:
    """Every module of the package: its path in the repository."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(str(path.relative_to(ROOT)) for path in found)


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its path in the repository."""
    return {path: parsed(ROOT / path) for path in paths()}
