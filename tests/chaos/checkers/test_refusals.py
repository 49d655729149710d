"""An unexplained error is a violation, and a kind of request that is never carried out makes a soak void."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any

import pytest

from ebla import aio, local_scan
from ebla.actors.errors import TimedOut
from ebla.actors.messages import DELETE, UPDATE
from ebla.actors.tablet.engine.apply import Rows
from ebla.chaos import soak
from ebla.chaos.checkers.refusals import ASKED_MIN, CERTAIN, EXPLAINED, check_refusals, tally
from ebla.chaos.history import FAIL, INFO, INVOKE, OK, History
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import plan_of
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.workloads import base
from ebla.chaos.workloads.alters import Alters
from ebla.chaos.workloads.moves import Moves
from ebla.chaos.workloads.registers import Registers
from ebla.storage.errors import InvalidArgument


def ended(*errors: str, kind: str = FAIL, operation: str = "update") -> History:
    history = History()
    history.note(0.0, history.new_process(), INVOKE, "write", 1, 5)
    history.note(0.1, 0, OK, "write", 1)
    for error in errors:
        process = history.new_process()
        history.note(1.0, process, INVOKE, operation, 1, 6)
        history.note(2.0, process, kind, operation, 1, 6, error)
    return history


@pytest.mark.parametrize("kind", [FAIL, INFO])
def test_an_unexplained_error_is_a_violation(kind: str) -> None:
    for name in EXPLAINED:
        assert check_refusals(ended(f"{name}: no answer", kind=kind)).valid is (
            kind == FAIL or name not in CERTAIN
        )
    verdict = check_refusals(ended("TimedOut: late", "InvalidArgument: not today", "Internal: x", kind=kind))
    assert verdict.valid is False
    assert verdict.problem.startswith("update 1 6 by process 2 (events 4 and 5")
    assert "no fault explains it: InvalidArgument: not today; likewise 1 more operations" in verdict.problem
    assert verdict.events == (4, 5, 6, 7)
    assert check_refusals(ended("", kind=kind)).valid is False, "an error without a name explains nothing"


@pytest.mark.parametrize("operation", ["update", "order-move_replica"])
def test_unavailable_with_an_open_outcome_is_always_a_violation(operation: str) -> None:
    refused = ended("Unavailable: no master", operation=operation)
    assert check_refusals(refused).valid is True
    open_ = ended("Unavailable: no master", operation=operation, kind=INFO)
    assert "(events 2 and 3, unknown) was refused" in (check_refusals(open_).problem or "")


def test_an_error_of_a_workload_is_explained_for_its_operation_only() -> None:
    explained = {"update": ("TableDropped",)}
    assert check_refusals(ended("TableDropped: gone"), explained).valid is True
    assert check_refusals(ended("NotFound: gone"), explained).valid is False
    assert check_refusals(ended("TableDropped: gone", operation="read"), explained).valid is False


def test_any_request_of_an_operator_may_be_refused() -> None:
    assert check_refusals(ended("NotFound: no such host", operation="order-move_replica")).valid is True


def test_without_faults_no_error_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ended("TimedOut: late", operation="write")
    assert base.judged(Registers(), late, excused=()).valid is False
    assert (
        base.judged(Alters(), ended("TimedOut: no answer yet", operation="alter"), excused=()).valid is None
    )
    honest, asked = aio.Table.get, itertools.count(1)

    async def hanging(self: Any, *arguments: Any, **more: Any) -> Any:
        if next(asked) % 5 == 0:
            raise TimedOut("no answer")
        return await honest(self, *arguments, **more)

    monkeypatch.setattr(aio.Table, "get", hanging)
    crash = Fault(1.0, "crash", ("host-1",), 0.5)
    found = [soak.carry_out(soak.Task(Plan("registers", 1, faults))).violation for faults in ((), (crash,))]
    assert "no fault explains it: TimedOut: no answer" in found[0]
    assert found[1] == ""


def test_a_soak_without_node_local_reads_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(self: Any, slots_here: Any) -> None:
        return None

    total = soak.Soak()
    plan = Plan("tokens", 1, ())
    total.add(plan, soak.carry_out(soak.Task(plan)))
    assert total.voids() == []
    monkeypatch.setattr(local_scan.TabletScan, "find", nowhere)
    total = soak.Soak()
    total.add(plan, soak.carry_out(soak.Task(plan)))
    assert [why.partition(" times")[2] for why in total.voids()] == [
        " and never carried out; see why with `ebla chaos replay --story`"
    ]
    assert total.voids()[0].startswith("stage.local-scan was asked ")


def test_errors_are_judged_beside_every_workload() -> None:
    assert Registers().judge(ended("InvalidArgument: not today")).valid is True
    assert base.judged(Registers(), ended("InvalidArgument: not today")).valid is False
    assert base.judged(Registers(), ended("TimedOut: late")).valid is True


def test_a_request_that_is_often_made_must_succeed_once() -> None:
    total = tally({"moves": ended(*["NotFound: no such host"] * ASKED_MIN, operation="order-move_replica")})
    assert total.never() == [f"moves.order-move_replica was asked {ASKED_MIN} times and never carried out"]
    assert tally({"moves": ended(*["NotFound"] * (ASKED_MIN - 1))}).never() == []
    total.add({"moves.order-move_replica": 1}, {"moves.order-move_replica": 1})
    assert total.never() == []


def test_a_soak_without_successful_operators_or_reads_is_void() -> None:
    assert Moves().judge(History()).valid is None
    refused = ended("NotFound: no such host", operation="order-drain")
    assert Moves().judge(History(refused.events[2:])).valid is None
    assert Alters().judge(History()).valid is None


def test_requests_of_operators_are_recorded_by_their_own_processes() -> None:
    history = History()
    client = base.Client.__new__(base.Client)
    client.history, client.now_s = history, lambda: 1.0

    async def done() -> str:
        return "moved"

    async def refused() -> str:
        raise InvalidArgument("it has one there")

    async def lost() -> str:
        raise TimedOut("no answer")

    async def ask(call: Awaitable[Any]) -> str:
        try:
            return str(await client.order("move_replica", "host-1", call))
        except base.NoAnswer as error:
            return type(error.__cause__).__name__

    async def ask_all() -> list[str]:
        return [await ask(call()) for call in (done, refused, lost)]

    assert asyncio.run(ask_all()) == ["moved", "InvalidArgument", "TimedOut"]
    ends = [each.end for each in history.operations("order-move_replica")]
    assert [(end.type, end.process) for end in ends if end] == [(OK, 0), (FAIL, 1), (INFO, 2)]


def test_a_database_that_refuses_every_update_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Rows._change

    def refusing(self: Rows, batch: Any) -> Any:
        if batch.kind in (UPDATE, DELETE):
            raise InvalidArgument("only upserts today")
        return honest(self, batch)

    monkeypatch.setattr(Rows, "_change", refusing)
    report = soak.carry_out(soak.Task(plan_of(scenario("calm"), 0)))
    assert "was refused, and no fault explains it: InvalidArgument: only upserts today" in report.violation


@pytest.mark.parametrize("name", ["alters", "churn", "moves"])
def test_refused_auxiliary_requests_are_a_violation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checker of data sees these requests."""
    at = {
        "alters": (aio.Scan, "to_arrow"),
        "churn": (aio.Database, "status"),
        "moves": (aio.Database, "servers"),
    }
    where, method = at[name]
    honest, asked = getattr(where, method), itertools.count(1)

    async def refusing(self: Any, *arguments: Any, **more: Any) -> Any:
        if next(asked) % 2 == 0:
            raise InvalidArgument("not today")
        return await honest(self, *arguments, **more)

    monkeypatch.setattr(where, method, refusing)
    run = "members" if name == "moves" else name
    report = soak.carry_out(soak.Task(plan_of(scenario(run), 0)))
    assert "was refused, and no fault explains it: InvalidArgument: not today" in report.violation
