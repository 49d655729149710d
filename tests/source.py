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
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its path in the repository."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT)): parsed(path) for path in paths}
