"""Processes that have ended for certain, as another process of the host reports: the detector's rules one by one."""

from __future__ import annotations

from ebla.actors.detector import detector as d
from ebla.actors.detector.detector import DIED, NEW, RESTARTED, SILENT, TOGETHER_S, End
from ebla.actors.messages import ServerInstance
from tests.detector.test_detector import FIRST, LIMITS, SECOND, watching


def test_a_process_that_has_ended_for_certain_ends_its_server_soon_and_gets_no_lease_again() -> None:
    master = watching()
    master.beacon(0.5, FIRST, 1)
    assert not master.process_ended(0.6, ServerInstance("b", 1, "x")) and not master.process_ended(
        0.6, SECOND
    )
    assert master.process_ended(0.6, FIRST) and not master.process_ended(0.65, FIRST), "once"
    assert master.lease("a") is None and master.has_ended_process(FIRST)
    assert master.next_wake(0.6) == 0.6 + TOGETHER_S and master.decide(0.6) == []
    assert master.decide(0.7) == [End("a", DIED, FIRST)]
    assert master.beacon(0.8, FIRST, 1) == d.EARLIER, "it was late"
    master.ended(End("a", DIED, FIRST))
    assert master.has_ended("a") and master.beacon(0.8, FIRST, 1) == d.EARLIER
    assert master.beacon(0.9, SECOND, 1) == d.DECIDED
    assert master.decide(0.9) == [End("a", RESTARTED, SECOND, 1)]
    master.ended(End("a", RESTARTED, SECOND, 1))
    assert not master.process_ended(0.9, FIRST), "that was reported late"
    assert master.beacon(1.0, SECOND, 1) == d.ACKNOWLEDGED


def test_processes_that_end_together_are_one_decision() -> None:
    master = watching()
    other = ServerInstance("b", 1, "x")
    master.beacon(0.0, other, 1)
    for end in master.decide(0.0):
        master.ended(end)
    assert master.process_ended(1.0, FIRST) and master.decide(1.09) == []
    assert master.process_ended(1.09, other)
    assert [end.uuid for end in master.decide(1.1)] == ["a"] and master.lease("b") is None
    assert [end.uuid for end in master.decide(1.2)] == ["a", "b"]


def test_a_server_that_starts_again_while_its_end_is_decided_has_restarted() -> None:
    master = watching()
    master.process_ended(0.0, FIRST)
    assert master.decide(0.1) == [End("a", DIED, FIRST)]
    assert master.beacon(0.2, SECOND, 1) == d.DECIDED
    master.ended(End("a", DIED, FIRST))
    assert master.decide(0.2) == [End("a", RESTARTED, SECOND, 1)]


def test_a_process_that_ends_while_it_is_recorded_ends_its_server_afterwards() -> None:
    master = watching()
    new = ServerInstance("b", 1, "x")
    assert master.beacon(0.0, new, 1) == d.DECIDED and master.process_ended(0.0, new)
    assert master.decide(0.0) == [End("b", NEW, new)]
    master.ended(End("b", NEW, new))
    assert master.lease("b") is None and master.next_wake(0.0) == TOGETHER_S
    assert master.decide(TOGETHER_S) == [End("b", DIED, new)]


def test_a_server_whose_process_has_ended_may_have_another_one_when_it_gets_a_tablet() -> None:
    master = watching()
    (end,) = master.decide(6.0)
    master.ended(end)
    master.leave("a")
    assert master.process_ended(6.0, FIRST) and master.decide(7.0) == []
    master.watch(60.0, "a", FIRST)
    assert master.decide(60.0 + LIMITS.grace_s - 0.1) == []
    assert master.decide(60.0 + LIMITS.grace_s) == [End("a", SILENT, FIRST)]
