"""The rules for code that a program can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import pytest

from ebla.actors.fault_points import ALL_POINTS, MARKS
from tests import source
from tests.source import FOLDERS, ROOT

LINES_MAX = 400
FUNCTION_LINES_MAX = 60
RAY_MODULES = (
    "actors/ray_",
    "placement/",
    "pipelines/",
    "client/deployment.py",
    "client/ray_data.py",
    "chaos/",
)
ROLE_FOLDERS = (
    "actors/asking",
    "actors/coordination",
    "actors/detector",
    "actors/journal",
    "actors/ledger",
    "actors/master",
    "actors/tablet",
)


class Module(NamedTuple):
    name: str  # its path
    text: str
    nodes: tuple[ast.AST, ...]  # the root first


@cache
def package() -> tuple[Module, ...]:
    trees = source.modules().items()
    return tuple(Module(path, (ROOT / path).read_text(), tuple(ast.walk(tree))) for path, tree in trees)


def modules(*folders: str) -> Iterator[Module]:
    return (
        each
        for each in package()
        if each.name.startswith(tuple(f"{folder}/" for folder in folders or FOLDERS))
    )


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_every_module_opens_by_saying_what_it_is_for() -> None:
    silent = [
        name
        for name, text, (root, *_) in modules()
        if text.strip() and isinstance(root, ast.Module) and not ast.get_docstring(root)
    ]
    assert silent == []


def test_files_and_functions_are_short() -> None:
    files = (path for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*.py"))
    assert [path for path in files if path.read_text().count("\n") > LINES_MAX + 50] == []
    functions = [
        (name, node.name)
        for name, _, nodes in modules()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno > FUNCTION_LINES_MAX
    ]
    assert functions == []


def test_only_the_ray_side_imports_ray() -> None:
    offenders = [
        name
        for name, _, nodes in modules()
        if any(module.split(".")[0] == "ray" for module in imports(nodes))
        and not name.startswith(RAY_MODULES)
    ]
    assert offenders == []


def test_private_parts_of_ray_are_used_in_one_module_only() -> None:
    users = [
        name for name, _, nodes in modules() if any("ray._private" in module for module in imports(nodes))
    ]
    assert set(users) <= {"placement/ray_private.py"}


def test_no_role_swallows_unknown_errors() -> None:
    offenders = [
        (name, node.lineno)
        for name, _, nodes in modules(*ROLE_FOLDERS)
        for node in nodes
        if isinstance(node, ast.ExceptHandler) and _broad(node) and not _raises(node)
    ]
    assert offenders == []


def _broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def test_no_role_iterates_over_a_set() -> None:
    offenders = [
        (name, node.lineno)
        for name, _, nodes in modules(*ROLE_FOLDERS)
        for node in nodes
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Set | ast.SetComp)
        for node in [node.iter]
    ]
    assert offenders == []


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "NotImplementedError"])
def test_no_work_is_marked_as_unfinished(word: str) -> None:
    found = [name for name, text, _ in modules() if re.search(rf"\b{word}\b", text)]
    assert found == []


def test_every_fault_point_names_its_role_and_its_step() -> None:
    points = [
        point
        for _, text, _ in modules(*ROLE_FOLDERS)
        for point in re.findall(r"faults\.here\(\s*f?\"([^\"]+)\"", text)
    ]
    assert points, "the roles have no fault points"
    named = re.compile(r"(journal|ledger|master|tablet)\.[a-z_{}.]+\.(before|after)_[a-z_]+")
    assert [point for point in points if not named.fullmatch(point)] == []
    assert len(points) == len(dict.fromkeys(points)), "a point's name is its place: use each once"


def fault_calls(name: str) -> Iterator[str]:
    """Patterns of the names that the code gives to `faults.here` or `faults.reached`."""
    for module, _, nodes in modules("actors", "storage"):
        for node in nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr != name or "faults" not in ast.unparse(node.func.value):
                continue
            point = node.args[0]
            if isinstance(point, ast.Constant):
                yield re.escape(point.value)
            else:
                assert isinstance(point, ast.JoinedStr), f"{module} names a fault point that cannot be read"
                parts = [
                    re.escape(p.value) if isinstance(p, ast.Constant) else "[a-z_]+" for p in point.values
                ]
                yield "".join(parts)


@pytest.mark.parametrize(("name", "known"), [("here", ALL_POINTS), ("reached", MARKS)])
def test_the_lists_of_fault_points_and_marks_match_the_code(name: str, known: tuple[str, ...]) -> None:
    patterns = list(fault_calls(name))
    assert [p for p in patterns if not any(re.fullmatch(p, each) for each in known)] == []
    assert [each for each in known if not any(re.fullmatch(p, each) for p in patterns)] == []


def test_every_defect_of_the_track_record_names_its_test_and_its_fix() -> None:
    table = (ROOT / "docs" / "testing.md").read_text().partition("## Track record")[2]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")][2:]
    assert rows
    for _, _, kept, fixed in rows:
        assert re.fullmatch("[0-9a-f]{7}", fixed), fixed
        assert all((ROOT / path).exists() for path in re.findall("`([^`]+)`", kept)), kept


# The calls of a core that change nothing which its log, its clients or the next round must follow.
CORES = ("stream/member.py", "raft/core.py", "pacifica/core.py")
CORE_VIEWS = {
    "may_elect",
    "answer",
    "asks_to_lead",
    "health",
    "needs_copy",
    "next_wake",
    "offered",
    "read_index",
    "require_no_older_copy",
    "story",
    "validate",
}
APPOINTING = (
    "actors/tablet/pacifica/orders.py",
    "appoint",
)  # in the event `_appoint`, which returns a refusal
REPLICA_EVENTS = ("on_durable", "propose", "propose_write", "receive")


def test_events_of_a_core_go_through_rounds_step() -> None:
    """Rounds.step gets the event itself. After a direct call the log, the clients and the round would not follow the core."""
    cores = [nodes for name, _, nodes in modules("actors/tablet") if name.endswith(CORES)]
    methods = {
        node.name
        for nodes in cores
        for node in nodes
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    }
    events = {"core": [name for name in methods - CORE_VIEWS if name[0] != "_"]}
    assert {"tick", "replied", "durable", "appoint", "decline", "request_members"} <= set(events["core"])
    events["replica"] = [*REPLICA_EVENTS, "absorb"]
    names = {name for calls in events.values() for name in calls}
    offenders = [
        (name, node.lineno, ast.unparse(node))
        for name, _, nodes in modules("actors", "client", "placement", "pipelines")
        if name not in ("actors/tablet/engine/replica.py", "actors/tablet/engine/rounds.py")
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        if node.func.attr in events.get(ast.unparse(node.func.value).rpartition(".")[2], ())
        if (name, node.func.attr) != APPOINTING
    ]
    assert offenders == []


# Beside a protocol's own room: the union of all protocols' messages, and the place where a server chooses its protocols.
KNOW_PROTOCOLS = ("actors/messages/protocols.py", "actors/tablet/protocols.py")


# A tablet server has the leases of PacificA tablets.
@pytest.mark.parametrize(
    ("protocol", "room"), [("raft", "actors/tablet/raft/"), ("pacifica", "actors/tablet/")]
)
def test_nothing_else_knows_a_replication_protocol(protocol: str, room: str) -> None:
    offenders = [
        (name, module)
        for name, _, nodes in modules("actors", "client", "placement", "pipelines")
        if name not in KNOW_PROTOCOLS and not name.startswith(room)
        for module in imported(nodes)
        if module.startswith((f"ebla.actors.tablet.{protocol}", f"ebla.actors.messages.{protocol}"))
    ]
    assert offenders == []


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Every module, and every name of it, that is imported."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    yield from imports(nodes)
