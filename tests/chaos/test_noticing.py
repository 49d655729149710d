"""A run notices wrong behaviour of the system, of its own checks, and wrong answers to clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from ebla.chaos import soak
from ebla.chaos.defects.planted import planted
from ebla.chaos.history import History
from ebla.chaos.invariants import invariants
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import plan_of
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.simulation.environment import MemoryEnvironment
from ebla.chaos.simulation.observers.votes import Votes
from ebla.chaos.workloads import chains
from ebla.chaos.workloads.base import Client, judged
from ebla.chaos.workloads.locks import Locks
from ebla.chaos.workloads.registers import Registers
from ebla.coordination.awaited import Session
from ebla.errors import TimedOut
from ebla.storage.environment import Batch


def test_an_error_in_an_invariant_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = iter(range(1000))

    def broken(seen: object) -> None:
        if next(checks) == 5:
            raise KeyError("unexpected")

    monkeypatch.setattr(invariants, "entries_can_be_read", broken)
    report = soak.carry_out(soak.Task(plan_of(scenario("calm"), 1)))
    assert "KeyError" in report.violation


def test_a_watch_ends_when_the_change_it_waits_for_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leaked watch would fail some seconds later, after the run."""
    delete, notice, conclude = Session.delete, Locks._notice_deletion, Locks.conclude
    refused: list[str] = []

    async def refuse_once(self: Session, path: str, **more: Any) -> None:
        if refused == ["soon"]:
            refused.append("now")
            raise TimedOut("no answer")
        await delete(self, path, **more)

    async def refused_first(self: Locks, client: Client) -> None:
        refused.extend([] if refused else ["soon"])
        await notice(self, client)

    async def conclude_slowly(self: Locks, client: Client) -> None:
        await conclude(self, client)
        await client.clock.sleep(60.0)

    monkeypatch.setattr(Session, "delete", refuse_once)
    monkeypatch.setattr(Locks, "_notice_deletion", refused_first)
    monkeypatch.setattr(Locks, "conclude", conclude_slowly)
    plan = Plan("locks", 1, (Fault(1.0, "crash", ("master-0",), 0.5),))
    assert soak.carry_out(soak.Task(plan)).violation == ""
    assert refused == ["soon", "now"]


def test_faults_in_force_at_a_violation_count_by_their_visible_effects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(deployment: object) -> None:
        assert asyncio.get_running_loop().time() < 8.0, "it broke"

    decided = (
        Fault(1.0, "isolate", ("host-1",), 60.0),
        Fault(1.0, "cut_one_way", ("host-2", "host-3"), 60.0),
        Fault(1.0, "lose", (), 60.0, 0.1),
        Fault(1.0, "slow_disk", ("host-2",), 60.0, 0.1),
        Fault(1.0, "clock_rate", ("host-3",), 60.0, 1.05),
    )
    idle = (
        Fault(1.5, "grow_map", ("host-1",), 60.0),  # no reader is possible there
        Fault(50.0, "pause", ("host-2",), 1.0),
    )
    monkeypatch.setattr(invariants, "one_master_serves", broken)
    report = soak.carry_out(soak.Task(Plan("chains", 1, decided + idle)))
    assert report.violation.startswith("AssertionError: it broke")
    found = {kind: count for kind, count in report.effects.items() if count}
    assert found == {fault.kind: 1 for fault in decided}


def test_data_reported_as_durable_must_be_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that returns before its sync is found by a check of the disk."""
    honest = MemoryEnvironment.commit

    async def hasty(self: MemoryEnvironment, batch: Batch) -> None:
        task = asyncio.ensure_future(honest(self, batch))
        if self.path != "wals/shared":
            await task

    monkeypatch.setattr(MemoryEnvironment, "commit", hasty)
    plan = Plan("chains", 3, (Fault(1.0, "slow_disk", ("host-1",), 3.0, 1.0),))
    report = soak.carry_out(soak.Task(plan))
    assert "which is not on its disk" in report.violation


def test_a_scan_that_returns_a_row_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = chains._nodes

    def twice(found: pa.Table) -> dict[int, int | None]:
        return honest(pa.concat_tables([found, found.slice(0, 1)]))

    monkeypatch.setattr(chains, "_nodes", twice)
    report = soak.carry_out(soak.Task(Plan("chains", 1, ())))
    assert "once more" in report.violation and "but no process appended it" in report.violation


@pytest.mark.parametrize(
    ("keys", "wrong"), [([0, 1, 4], ""), ([0, 1, 1], "['1, once more']"), ([0, 5], "[5]")]
)
def test_a_scan_of_registers_that_shows_a_key_twice_or_one_never_used_is_found(
    keys: list[int], wrong: str
) -> None:
    class Table:
        def scan(self, deadline_s: float) -> Table:
            return self

        async def to_arrow(self) -> pa.Table:
            return pa.table({"k": keys, "v": pa.nulls(len(keys), pa.int64())})

    client = Client.__new__(Client)
    client.history, client.now_s = History(), lambda: 0.0
    client.deadline_s = lambda: 1.0  # type: ignore[method-assign]
    registers = Registers()
    asyncio.run(registers._scan(client, Table()))  # type: ignore[arg-type]
    verdict = judged(registers, client.history)
    assert verdict.valid is (wrong == "") and wrong in verdict.problem


def test_a_run_lasts_until_the_last_fault_of_its_plan() -> None:
    points = (Fault(9.0, "crash_point", ("host-1",), 1.0, 0.0, "tablet.log.before_commit"),)
    report = soak.carry_out(soak.Task(Plan("chains", 1, points)))
    assert (report.violation, report.effects["crash_point"]) == ("", 1)
    report = soak.carry_out(soak.Task(Plan("registers", 1, (Fault(16.0, "crash", ("host-1",), 1.0),))))
    assert (report.violation, report.effects["crash"]) == ("", 1)


def test_diverging_clocks_reveal_a_lease_without_margin() -> None:
    """In a written plan: the leader's clock is slow, the others are fast, and the leader is cut off twice."""
    rates = {"host-1": 0.9, "host-2": 1.1, "host-3": 1.1}
    faults = (
        *(Fault(0.0, "clock_rate", (host,), 6.4, rate) for host, rate in rates.items()),
        Fault(1.5, "split", ("host-1",), 2.0),
        Fault(4.2, "split", ("host-1",), 2.0),
    )
    plans = [Plan("leases", seed, faults) for seed in (1, 6, 8, 10)]
    assert [soak.carry_out(soak.Task(plan)).violation for plan in plans] == [""] * len(plans)
    with planted("lease-without-margin"):
        found = [soak.carry_out(soak.Task(plan)).violation for plan in plans]
    assert any("two serve reads at once" in violation for violation in found), found


def test_a_second_vote_of_a_server_in_a_term_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, noted = Votes.note, []

    def twice(self: Votes, uuid: str, tablet: str, term: int, candidate: str) -> None:
        honest(self, uuid, tablet, term, candidate)
        noted.append((uuid == candidate, tablet, term))
        if len(noted) == 5:
            honest(self, uuid, tablet, term, "another")

    report = soak.carry_out(soak.Task(Plan("elections", 1, ())))
    assert report.violation == ""
    monkeypatch.setattr(Votes, "note", twice)
    report = soak.carry_out(soak.Task(Plan("elections", 1, ())))
    assert "voted in term" in report.violation and "for another" in report.violation
    assert {own for own, _, _ in noted} == {True, False}
