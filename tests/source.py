"""Python files as syntax trees, for tests that read the code."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


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
