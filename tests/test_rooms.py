"""The rooms of the code: a room imports only the rooms that ARROWS allows, and imports between neighbours form no circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from tests import source as code
from tests.source import FOLDERS, ROOT

MODULES_MAX = 17
PROSE = {  # rooms whose opening has no table of their modules
    "actors/messages",
    "chaos/checkers",
    "chaos/powercut",
    "client",
    "client/cli",
}

# For each room, its inner rooms and the rooms that each of them may import: neighbours, and rooms inside neighbours. An entry for
# a room holds for all modules below it. `*.py` are the room's own modules, which every module below it may import.
# docs/architecture.md explains the directions.
MODULES = "*.py"
EVERYTHING = "**"
ARROWS = {
    "": {
        "client": "actors actors/asking actors/coordination actors/coordination/sessions actors/journal "
        "actors/journal/node actors/journal/writer actors/ledger actors/ledger/auditor actors/ledger/handles actors/ledger/shared actors/ledger/worker actors/ledger/store actors/master actors/messages actors/replication actors/tablet "
        "placement placement/deploy placement/journal placement/local storage storage/predicates storage/rows "
        "storage/runs storage/tablets",
        "client/cli": "pipelines pipelines/arrow pipelines/sources",
        "client/cli/chaos": EVERYTHING,
        "pipelines": "client client/health client/log client/show actors actors/messages placement placement/deploy "
        "placement/local storage storage/predicates storage/rows",
        "pipelines/demo.py": "chaos",  # `ebla demo` kills a node
        "pipelines/events.py": "client/operate actors/ledger actors/ledger/shared",
        "placement": "actors actors/journal actors/journal/writer actors/ledger/auditor actors/ledger/store actors/ledger/worker "
        "actors/master actors/messages actors/tablet storage "
        "storage/directories",
        "actors": "storage storage/directories storage/logs storage/predicates storage/rows storage/runs storage/tablets",
        "chaos": EVERYTHING,
    },
    "actors": {
        MODULES: "messages",
        "messages": "replication",
        "asking": "messages",
        "coordination": "asking messages",
        "detector": "messages",
        "journal": "asking messages",
        "ledger": "asking coordination coordination/sessions messages",
        "master": "asking coordination detector journal journal/node journal/writer messages replication",
        "tablet": "detector messages replication",
    },
    "actors/ledger": {
        "shared": "handles",
        "store": "handles shared",
        "worker": "handles shared",
        "auditor": "handles shared",
    },
    "actors/master": {
        MODULES: "catalog cluster errands pacifica repair rules tables",
        "cluster": "catalog rules",
        "repair": "catalog cluster rules",
        "errands": "catalog cluster repair rules",
        "pacifica": "catalog cluster",
        "tables": "catalog cluster",
        "leadership": "catalog",
    },
    "actors/tablet": {
        MODULES: "copy engine lifecycle pacifica raft serving upkeep",
        "stream": "engine",
        "raft": "engine stream",
        "pacifica": "engine lifecycle stream",
        "lifecycle": "engine",
        "copy": "engine lifecycle",
        "serving": "engine lifecycle",
        "upkeep": "copy engine lifecycle serving",
    },
    "chaos": {
        MODULES: "checkers defects invariants ray ray/stage scenarios simulation workloads",
        "workloads": "checkers",
        "scenarios": "checkers simulation workloads workloads/logs",
        "invariants": "checkers simulation simulation/observers workloads",
        "defects": "scenarios simulation",
        "powercut": "simulation",
        "ray": "checkers scenarios workloads workloads/logs",
    },
    "chaos/powercut": {
        MODULES: "cuts damage life recording",
        "life": "recording",
        "cuts": "life recording",
        "damage": "cuts life recording",
    },
    "chaos/ray": {MODULES: "faults report stage", "stage": "report", "faults": "report stage"},
    "chaos/simulation": {MODULES: "observers"},
    "client": {
        MODULES: "coordination log read show transport write",
        "coordination": "show transport",
        "log": "show transport",
        "transport": "show",
        "write": "transport",
        "read": "show transport write",
        "operate": "health log transport",
        "cli": "coordination health log operate show write",
    },
    "client/cli": {
        MODULES: "chaos data frame logs masters nodes tables tablets",
        "chaos": "frame",
        "data": "frame tables",
        "logs": "frame",
        "masters": "frame",
        "nodes": "frame",
        "tables": "frame",
        "tablets": "frame",
    },
    "pipelines": {MODULES: "sources", "arrow": "sources"},
    "placement": {MODULES: "deploy journal local", "journal": "deploy", "local": "deploy"},
    "storage": {
        "directories": "",
        "rows": "",
        "logs": "",
        "predicates": "rows",
        "lmdb": "directories rows",
        "runs": "directories predicates rows",
        "tablets": "directories lmdb logs predicates rows runs",
    },
}


@cache
def modules() -> dict[str, str]:
    """The path of every module of the package, by its dotted name."""
    found = {}
    for path in code.paths():
        inside = path.removeprefix("client/").removesuffix(".py").removesuffix("__init__").strip("/")
        found[".".join(("ebla", *inside.split("/"))).rstrip(".")] = path
    return found


@cache
def imports(name: str) -> tuple[str, ...]:
    """List the imported modules of the package: at the top, in functions, and for the type checker."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    known = modules()
    for node in ast.walk(code.modules()[known[name]]):
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


@cache
def arrows_between_rooms() -> dict[tuple[str, str, str], list[str]]:
    """Collect the imports by enclosing room, importing module and imported room, the last two relative to the first."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, path in modules().items():
        for target in imports(name):
            ours, theirs = Path(path).parts, Path(modules()[target]).parent.parts
            same = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
            depth = sum(1 for _ in same)
            if len(theirs) > depth:  # not an enclosing room
                arrow = "/".join(ours[:depth]), "/".join(ours[depth:]), "/".join(theirs[depth:])
                found.setdefault(arrow, []).append(f"{name} -> {target}")
    return found


def allowance(enclosing: str, module: str, target: str) -> tuple[str, str, str] | None:
    """Find the entry of ARROWS that allows the module to import the target."""
    for source, targets in ARROWS.get(enclosing, {}).items():
        if f"{module}/".startswith(f"{source}/") or (source == MODULES and "/" not in module):
            for each in targets.split():
                if each in (target, EVERYTHING):
                    return enclosing, source, each
    return None


def test_a_room_imports_only_the_rooms_that_the_table_allows() -> None:
    wrong = [
        f"in {enclosing or 'the top room'}, {module} may not import {target}:\n    " + "\n    ".join(lines)
        for (enclosing, module, target), lines in sorted(arrows_between_rooms().items())
        if allowance(enclosing, module, target) is None
    ]
    remedy = (
        "Move the code to a room that may import it, or pass it in from a caller. If the architecture itself changes, "
        "write the arrow into ARROWS of tests/test_rooms.py and check the directions in docs/architecture.md."
    )
    assert not wrong, "\n".join([*wrong, remedy])


def test_every_arrow_of_the_table_is_used() -> None:
    listed = {
        (enclosing, source, target)
        for enclosing, sources in ARROWS.items()
        for source, targets in sources.items()
        for target in targets.split()
    }
    used = {allowance(*arrow) for arrow in arrows_between_rooms()}
    assert listed - used == set(), "remove these arrows from ARROWS: no import needs them"


def circles(graph: dict[str, dict[str, list[str]]]) -> list[tuple[str, ...]]:
    """Find groups of nodes that reach each other."""
    reach = {node: set(targets) for node, targets in graph.items()}
    for _ in graph:
        for node in reach:
            for other in sorted(reach[node]):
                reach[node] |= reach.get(other, set())
    inside = sorted(node for node in reach if node in reach[node])
    return sorted({tuple(b for b in inside if a in reach[b] and b in reach[a]) for a in inside})


def test_neighbours_import_each_other_one_way_only() -> None:
    problems = []
    for graph in arrows().values():
        for circle in circles(graph):
            lines = [line for a in circle for b in circle for line in graph.get(a, {}).get(b, [])]
            problems.append("\n".join(["a circle of imports between " + ", ".join(circle), *lines]))
    assert not problems, "\n".join(problems)


def rooms() -> dict[str, set[str]]:
    """List every room with the names of its modules and inner rooms."""
    found: dict[str, set[str]] = {}
    for path in map(Path, modules().values()):
        if path.name != "__init__.py":
            found.setdefault(str(path.parent), set()).add(path.stem)
        elif path.parent.name not in FOLDERS:
            found.setdefault(str(path.parent.parent), set()).add(path.parent.name)
    return found


def test_a_room_has_few_modules() -> None:
    sizes = {room: len(list((ROOT / room).glob("*.py"))) - 1 for room in rooms()}
    assert {room: size for room, size in sizes.items() if size > MODULES_MAX} == {}


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_opens_with_all_of_its_modules(room: str) -> None:
    opening = ast.get_docstring(code.modules()[f"{room}/__init__.py"]) or ""
    named = set(re.findall(r"^(?: {4})?(\w+)(?:\.py|/) {2,}", opening, re.MULTILINE))
    assert named == (set() if room in PROSE else rooms()[room])


def test_the_page_about_the_architecture_names_rooms_and_modules_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("```\n")[2].partition("```")[0]
    named, path = [], [ROOT]
    for indent, name in re.findall(r"^( *)(\w+)/ ", tree, re.MULTILINE):
        del path[len(indent) // 2 + 1 :]
        path.append(path[-1] / name)
        named.append(path[-1])
    missing = [str(room.relative_to(ROOT)) for room in named if not (room / "__init__.py").is_file()]
    for words in re.findall(r"`(\w+(?:/\w+)+(?:\.py)?)`", page):
        if not any((folder / words).exists() for folder in (ROOT, ROOT / "actors")):
            missing.append(words)
    assert len(named) > 30 and not missing, f"docs/architecture.md names {', '.join(missing)}"
