"""The folders of the code: at every level of the tree, imports between neighbours run one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "client": "ebla",
    **{name: f"ebla.{name}" for name in ("actors", "chaos", "pipelines", "placement", "storage")},
}
MODULES_MAX = 16
PROSE = {  # rooms whose opening has no table of their modules
    "actors/coordination",
    "actors/messages",
    "chaos/checkers",
    "chaos/powercut",
    "client",
    "client/cli",
}


@cache
def modules() -> dict[str, Path]:
    """List every module of the package by its dotted name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *inside)).removesuffix(".__init__")
            found[name] = path
    return found


def imports(name: str) -> Iterator[str]:
    """List the imported modules of the package: at the top, in functions, and for the type checker."""
    known = modules()
    for node in ast.walk(ast.parse(known[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


@cache
def arrows() -> dict[tuple[str, ...], dict[str, dict[str, list[str]]]]:
    """Collect, for each room, the imports between its children."""
    found: dict[tuple[str, ...], dict[str, dict[str, list[str]]]] = {}
    for name in modules():
        for target in imports(name):
            ours, theirs = name.split("."), target.split(".")
            depth = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if depth is not None:
                room = found.setdefault(tuple(ours[:depth]), {})
                room.setdefault(ours[depth], {}).setdefault(theirs[depth], []).append(f"{name} -> {target}")
    return found


def circles(graph: dict[str, dict[str, list[str]]]) -> list[tuple[str, ...]]:
    """Find groups of nodes that reach each other."""
    reach = {node: set(targets) for node, targets in graph.items()}
    for _ in graph:
        for node in reach:
            for other in sorted(reach[node]):
                reach[node] |= reach.get(other, set())
    inside = sorted(node for node in reach if node in reach[node])
    return sorted({tuple(b for b in inside if a in reach[b] and b in reach[a]) for a in inside})


@pytest.mark.parametrize("room", sorted(arrows()), ids=".".join)
def test_neighbours_import_each_other_one_way_only(room: tuple[str, ...]) -> None:
    graph = arrows()[room]
    for circle in circles(graph):
        lines = [line for a in circle for b in circle for line in graph.get(a, {}).get(b, [])]
        raise AssertionError("\n".join(["a circle of imports between " + ", ".join(circle), *lines]))


def rooms() -> dict[Path, set[str]]:
    """List every room with the names of its modules and inner rooms."""
    found: dict[Path, set[str]] = {}
    for path in modules().values():
        if path.name != "__init__.py":
            found.setdefault(path.parent, set()).add(path.stem)
        elif path.parent.name not in FOLDERS:
            found.setdefault(path.parent.parent, set()).add(path.parent.name)
    return found


def test_a_room_has_few_modules() -> None:
    full = {
        str(room.relative_to(ROOT)): len(list(room.glob("*.py"))) - 1
        for room in rooms()
        if len(list(room.glob("*.py"))) - 1 > MODULES_MAX
    }
    assert full == {}


@pytest.mark.parametrize("room", sorted(rooms()), ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_opens_with_all_of_its_modules(room: Path) -> None:
    opening = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    named = set(re.findall(r"^(?: {4})?(\w+)(?:\.py|/) {2,}", opening, re.MULTILINE))
    assert named == (set() if str(room.relative_to(ROOT)) in PROSE else rooms()[room])
