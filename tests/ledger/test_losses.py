"""Which stores are lost, and when an audit is due: by events."""

from __future__ import annotations

from ebla.actors.ledger.auditor.losses import Losses

KNOWN = ["a", "b", "c", "d"]


def losses(delay_s: float = 60.0, settle_until: float = 0.0, **since: float) -> Losses:
    made = Losses(delay_s, settle_until, since)
    made.on_stores(0.0, KNOWN, [store for store in KNOWN if store not in since])
    return made


def test_one_lost_store_is_audited_after_the_delay() -> None:
    found = losses()
    found.on_stores(10.0, KNOWN, ["a", "b", "c"])
    assert found.due_at(10.0) == 70.0 and found.pending(69.9) and not found.is_due(69.9)
    assert found.is_due(70.0)
    found.on_audited(0.0, ["d"])
    assert found.due_at(70.0) is None and found.audited == ["d"]


def test_a_return_within_the_delay_cancels_the_audit() -> None:
    found = losses()
    found.on_stores(10.0, KNOWN, ["a", "b", "c"])
    found.on_stores(60.0, KNOWN, KNOWN)
    assert found.due_at(100.0) is None and found.cancelled == 1
    found.on_stores(100.0, KNOWN, ["a", "b", "c"])
    assert found.due_at(100.0) == 160.0, "a new loss has a delay of its own"


def test_two_lost_stores_are_audited_at_once() -> None:
    found = losses()
    found.on_stores(10.0, KNOWN, ["a", "b", "c"])
    found.on_stores(20.0, KNOWN, ["a", "b"])
    assert found.is_due(20.0) and not found.pending(20.0)


def test_a_store_whose_ledgers_are_marked_does_not_count_until_it_has_returned() -> None:
    found = losses()
    found.on_stores(0.0, KNOWN, ["a", "b", "c"])
    found.on_audited(0.0, ["d"])
    found.on_stores(100.0, KNOWN, ["a", "b"])
    assert found.due_at(100.0) == 160.0, "one fresh store"
    found.on_stores(110.0, KNOWN, ["a", "b", "d"])
    found.on_stores(120.0, KNOWN, ["a", "b"])
    assert found.is_due(120.0), "the store that returned is lost again: two fresh ones"


def test_a_delay_of_zero_and_the_present_delay_start_an_audit_and_another_starts_the_timer_again() -> None:
    found = losses()
    found.on_stores(10.0, KNOWN, ["a", "b", "c"])
    found.on_delay(30.0, 60.0, again=False)
    assert found.due_at(30.0) == 70.0, "nobody has set it"
    found.on_delay(30.0, 40.0, again=True)
    assert found.due_at(30.0) == 70.0 and found.lost["d"] == 30.0
    found.on_delay(31.0, 40.0, again=True)
    assert found.is_due(31.0), "set to its present value"
    found.on_audited(0.0, ["d"])
    assert found.due_at(31.0) is None
    found.on_stores(32.0, KNOWN, KNOWN)
    found.on_stores(33.0, KNOWN, ["a", "b", "c"])
    found.on_delay(34.0, 0.0, again=True)
    assert found.is_due(34.0)


def test_a_trigger_starts_an_audit_without_a_loss() -> None:
    found = losses(settle_until=50.0)
    assert found.due_at(1.0) is None
    found.on_trigger()
    assert found.is_due(1.0)
    found.on_audited(0.0, [])
    assert found.due_at(2.0) is None


def test_nothing_is_due_while_disabled_and_what_was_due_is_due_afterwards() -> None:
    found = losses()
    found.on_switch(False)
    found.on_stores(10.0, KNOWN, ["a", "b"])
    found.on_trigger()
    assert found.due_at(100.0) is None and not found.pending(100.0)
    found.on_switch(True)
    assert found.is_due(100.0)


def test_a_new_auditor_settles_first_and_continues_the_timers_of_the_one_before() -> None:
    found = losses(60.0, 10.0, c=-100.0, d=-200.0)
    assert found.due_at(0.0) == 10.0, "two are lost, and may register yet"
    found.on_stores(5.0, KNOWN, ["a", "b", "c"])
    assert found.due_at(5.0) == 10.0, "the delay of the other is over"
    found = losses(60.0, 10.0, d=-40.0)
    assert found.due_at(0.0) == 20.0


def test_a_store_that_an_auditor_before_has_audited_does_not_shorten_the_delay_of_another() -> None:
    found = losses(60.0, 10.0, c=-1000.0)
    found.on_stores(5.0, KNOWN, ["a", "b"])
    assert found.due_at(5.0) == 10.0 and found.to_audit(10.0) == ["c"]
    found.on_audited(11.0, ["c"])
    assert found.due_at(11.0) == 65.0 and found.to_audit(64.0) == []
    assert found.to_audit(65.0) == ["c", "d"]


def test_an_audited_store_is_gone_for_long_after_the_delay_and_until_it_returns() -> None:
    found = losses()
    found.on_stores(10.0, KNOWN, ["a", "b"])
    assert found.is_due(10.0) and found.long_audited(100.0) == []
    found.on_audited(10.0, ["c", "d"])
    assert found.long_audited(69.0) == [] and found.long_audited(70.0) == ["c", "d"]
    found.on_stores(80.0, KNOWN, ["a", "b", "c"])
    assert found.long_audited(80.0) == ["d"]


def test_a_store_that_stays_lost_is_audited_again_each_day() -> None:
    found = losses()
    found.on_stores(10.0, KNOWN, ["a", "b", "c"])
    found.on_audited(70.0, ["d"])
    found.on_stores(86_000.0, KNOWN, ["a", "b", "c"])
    assert found.due_at(86_000.0) is None
    found.on_stores(87_000.0, KNOWN, ["a", "b", "c"])
    assert found.is_due(87_000.0) and found.to_audit(87_000.0) == ["d"]
