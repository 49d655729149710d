"""Errors of a run on Ray: they are excused by the same faults as in simulation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebla.chaos.checkers.logs import APPEND, READ
from ebla.chaos.checkers.refusals import EXPLAINED
from ebla.chaos.export import LINES, to_json_lines
from ebla.chaos.history import FAIL, INFO, INVOKE, OK, History
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.ray import run
from ebla.chaos.ray.clients import Clients
from ebla.chaos.ray.orders import Order
from ebla.chaos.ray.run import Request, judge_shared, unexplained
from ebla.chaos.ray.scenarios import scenario
from ebla.chaos.workloads.alters import Alters
from ebla.chaos.workloads.registers import Registers

FULL = Fault(1.0, "full_disk", ("host-2",), 1.0)
CRASH = Fault(1.0, "crash", ("host-2",), 1.0)


def order_of(results: Path, *faults: Fault) -> Order:
    request = Request("disks", Path(), results)
    cluster = SimpleNamespace(address="", directory=Path())
    stage: Any = SimpleNamespace(hosts=(), cluster=cluster, epoch=0.0)
    made = run._Run(request, Plan("disks", 0, faults), stage, {}, None, None)  # type: ignore[arg-type]
    return made._order(1)


def note(history: History, operation: str, answer: Any = None, value: Any = 1, error: str = "") -> History:
    process, kind = history.new_process(), INFO if error and operation != "read" else FAIL if error else OK
    history.note(len(history), process, INVOKE, operation, 0, value)
    history.note(len(history), process, kind, operation, 0, answer, error or None)
    return history


def registers(error: str) -> History:
    return note(note(History(), "write"), "write", value=2, error=error)


@pytest.mark.parametrize("faults", [(CRASH,), (FULL,), (CRASH, FULL)])
def test_a_full_disk_is_an_excuse_if_the_plan_has_one(
    faults: tuple[Fault, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Registers):
        async def conclude(self, client: Any) -> None:
            return None

    order, full = order_of(tmp_path, *faults), FULL in faults
    assert order.excused == (*EXPLAINED, *["DiskFull"] * full)
    clients, workload = Clients(order), Asked()
    monkeypatch.setattr(clients, "_session", lambda: None)
    monkeypatch.setattr(clients, "_client", lambda *_: None)
    history = clients._history(workload.name)
    for event in registers("DiskFull: no space").events:
        history.note(event.time_us / 1e6, event.process, *list_of(event))
    clients.histories[workload.name] = history
    (found,) = asyncio.run(clients._concluded("concluded", [workload])).verdicts
    assert found.valid is full, found.problem


def list_of(event: Any) -> tuple[Any, ...]:
    return event.type, event.operation, event.key, event.value, event.error


@pytest.mark.parametrize("excused", [EXPLAINED, (*EXPLAINED, "DiskFull")])
def test_a_full_disk_is_an_excuse_for_what_all_processes_share(
    excused: tuple[str, ...], tmp_path: Path
) -> None:
    log = note(note(History(), APPEND, 0, [0, 0, 0]), READ, [0, [0]], None)
    note(log, "beside-close", error="DiskFull: no space")
    (tmp_path / f"shared-1{LINES}").write_bytes(to_json_lines(registers("DiskFull: no space")).encode())
    (tmp_path / f"log-1{LINES}").write_bytes(to_json_lines(log).encode())
    found = judge_shared(tmp_path, excused)
    assert [(each.workload, each.valid) for each in found] == [
        (name, "DiskFull" in excused) for name in ("shared", "log")
    ]


def test_without_faults_an_operation_without_answer_makes_the_run_void() -> None:
    late, calm = {"registers-12": registers("TimedOut: no answer in 5 s")}, scenario("calm")
    (why,) = unexplained(calm, Plan("calm", 0, ()), late)
    assert why.startswith("registers-12: write 0 2 by process 1") and "TimedOut: no answer in 5 s" in why
    assert list(unexplained(calm, Plan("calm", 0, ()), {"pulse": note(History(), "write")})) == []
    assert list(unexplained(calm, Plan("calm", 0, (CRASH,)), late)) == []
    assert list(unexplained(scenario("members"), Plan("members", 0, ()), late)) == [], "an operator disturbs"
    alter = {f"{Alters.name}-1": note(History(), "alter", error="TimedOut: not yet")}
    assert list(unexplained(scenario("alters"), Plan("alters", 0, ()), alter)) == [], "the workload causes it"
