"""An error that nothing explains is a violation, and so many questions without one answer are no pass."""

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
def test_an_error_that_no_fault_explains_is_a_violation(kind: str) -> None:
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
def test_an_error_that_promises_that_nothing_was_done_does_so_everywhere(operation: str) -> None:
    refused = ended("Unavailable: no master", operation=operation)
    assert check_refusals(refused).valid is True
    open_ = ended("Unavailable: no master", operation=operation, kind=INFO)
    assert "(events 2 and 3, unknown) was refused" in (check_refusals(open_).problem or "")


def test_what_a_workload_brings_about_is_explained_for_that_operation_only() -> None:
    explained = {"update": ("TableDropped",)}
    assert check_refusals(ended("TableDropped: gone"), explained).valid is True
    assert check_refusals(ended("NotFound: gone"), explained).valid is False
    assert check_refusals(ended("TableDropped: gone", operation="read"), explained).valid is False


def test_an_operator_may_be_refused_anything() -> None:
    assert check_refusals(ended("NotFound: no such host", operation="order-move_replica")).valid is True


def test_where_there_is_no_fault_nothing_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ended("TimedOut: late", operation="write")
    assert base.judged(Registers(), late, excused=()).valid is False
    assert (
        base.judged(Alters(), ended("TimedOut: not heard yet", operation="alter"), excused=()).valid is None
    )
    honest, asked = aio.Table.get, itertools.count(1)

    async def hanging(self: Any, *arguments: Any, **more: Any) -> Any:
        if next(asked) % 5 == 0:
            raise TimedOut("nobody answered")
        return await honest(self, *arguments, **more)

    monkeypatch.setattr(aio.Table, "get", hanging)
    crash = Fault(1.0, "crash", ("host-1",), 0.5)
    found = [soak.carry_out(soak.Task(Plan("registers", 1, faults))).violation for faults in ((), (crash,))]
    assert "no fault explains it: TimedOut: nobody answered" in found[0]
    assert found[1] == ""


def test_a_soak_in_which_no_tablet_is_read_where_it_lies_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(self: Any, slots_here: Any) -> None:
        return None

    told = soak.Soak()
    plan = Plan("tokens", 1, ())
    told.add(plan, soak.carry_out(soak.Task(plan)))
    assert told.voids() == []
    monkeypatch.setattr(local_scan.TabletScan, "find", nowhere)
    told = soak.Soak()
    told.add(plan, soak.carry_out(soak.Task(plan)))
    assert [why.partition(" times")[2] for why in told.voids()] == [
        " and never carried out; see why with `ebla chaos replay --story`"
    ]
    assert told.voids()[0].startswith("stage.local-scan was asked ")


def test_errors_are_judged_whatever_the_workload_makes_of_the_rest() -> None:
    assert Registers().judge(ended("InvalidArgument: not today")).valid is True
    assert base.judged(Registers(), ended("InvalidArgument: not today")).valid is False
    assert base.judged(Registers(), ended("TimedOut: late")).valid is True


def test_what_was_asked_again_and_again_must_have_been_carried_out_once() -> None:
    told = tally({"moves": ended(*["NotFound: no such host"] * ASKED_MIN, operation="order-move_replica")})
    assert told.never() == [f"moves.order-move_replica was asked {ASKED_MIN} times and never carried out"]
    assert tally({"moves": ended(*["NotFound"] * (ASKED_MIN - 1))}).never() == []
    told.add({"moves.order-move_replica": 1}, {"moves.order-move_replica": 1})
    assert told.never() == []


def test_operators_of_whom_nothing_was_carried_out_and_tables_that_nobody_read_are_no_pass() -> None:
    assert Moves().judge(History()).valid is None
    refused = ended("NotFound: no such host", operation="order-drain")
    assert Moves().judge(History(refused.events[2:])).valid is None
    assert Alters().judge(History()).valid is None


def test_what_operators_ask_is_noted_by_processes_of_their_own() -> None:
    history = History()
    client = base.Client.__new__(base.Client)
    client.history, client.now_s = history, lambda: 1.0

    async def done() -> str:
        return "moved"

    async def refused() -> str:
        raise InvalidArgument("it has one there")

    async def lost() -> str:
        raise TimedOut("nobody answered")

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


def test_a_database_that_refuses_every_update_and_delete_does_not_pass(
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
def test_nor_may_what_a_workload_asks_on_the_way_be_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which no checker of data looks at."""
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


def test_a_soak_in_which_an_operators_verb_is_always_refused_is_no_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = soak.Soak(runs=1)
    told.operations.add({"moves.order-move_replica": ASKED_MIN}, {"moves.order-move_replica": 0})
    (why,) = told.voids()
    assert why.startswith("moves.order-move_replica was asked 20 times and never carried out")
