"""Known mistakes are put into the production classes, and the test named beside each must fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ebla.actors.incarnations import Incarnations
from ebla.actors.journal.node.lease import Lease
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.leadership import active_term
from ebla.actors.master.leadership.active_term import ActiveTerm
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.leadership.standby import Standby
from ebla.actors.tablet.upkeep.reporter import Reporter
from tests.journal import test_lease
from tests.master import test_failover, test_standby, test_take_over
from tests.mistakes import found

Mistake = Callable[[pytest.MonkeyPatch], None]


def nodes_promise_during_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "require_free", lambda self, claim: None)


def nodes_grant_to_older_epochs(patch: pytest.MonkeyPatch) -> None:
    honest = Lease.grant
    patch.setattr(Lease, "grant", lambda self, epoch, claim, promised: honest(self, 1 << 60, claim, promised))


def a_restarted_node_promises_at_once(patch: pytest.MonkeyPatch) -> None:
    honest = Lease.__init__
    patch.setattr(Lease, "__init__", lambda self, name, clock, held_ms: honest(self, name, clock, 0))


def any_master_may_release(patch: pytest.MonkeyPatch) -> None:
    honest = Lease.release
    patch.setattr(
        Lease,
        "release",
        lambda self, token, to: honest(self, self._grant.claim.token if self._grant else token, to),
    )


def the_successor_is_not_preferred(patch: pytest.MonkeyPatch) -> None:
    honest = Lease.release
    patch.setattr(Lease, "release", lambda self, token, to: honest(self, token, None))


def the_lease_counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    honest = Holder.won
    patch.setattr(
        Holder, "won", lambda self, epoch, asked_at: honest(self, epoch, self._world.clock.monotonic())
    )


def a_renewal_counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    honest = Holder._round

    async def late(self: Holder) -> None:
        before = self._until
        await honest(self)
        if self._until > before:
            self._until = self._world.clock.monotonic() + self._limits.lease_s

    patch.setattr(Holder, "_round", late)


def nodes_keep_a_lease_no_longer_than_its_holder(patch: pytest.MonkeyPatch) -> None:
    honest = Holder.__init__

    def shorter(self: Holder, world: Any, options: Any, limits: Any) -> None:
        honest(self, world, options, limits)
        self.claim = type(self.claim)(self.claim.holder, self.claim.token, int(limits.lease_s * 1000))

    patch.setattr(Holder, "__init__", shorter)


def a_holder_never_gives_up(patch: pytest.MonkeyPatch) -> None:
    honest = Holder._lose
    patch.setattr(
        Holder,
        "_lose",
        lambda self, error: None if "could not be renewed" in str(error) else honest(self, error),
    )


def answers_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Master, "_require", lambda self, active_term: None)


def errands_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(active_term, "_WhileHeld", lambda network, holder: network)


def recovered_edits_are_not_read(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: QuorumEditLog, after: int, last: int, digest: int) -> list[Any]:
        return []

    patch.setattr(QuorumEditLog, "_catch_up", nothing)


def edits_are_purged_with_the_active_masters_checkpoint(patch: pytest.MonkeyPatch) -> None:
    async def everything(self: ActiveTerm) -> int:
        return 1 << 60

    patch.setattr(ActiveTerm, "_checkpointed_elsewhere", everything)


def a_standby_copies_no_checkpoint(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Standby) -> None:
        return None

    patch.setattr(Standby, "_take_checkpoint", nothing)


def no_grace(patch: pytest.MonkeyPatch) -> None:
    honest = Servers.__init__
    patch.setattr(Servers, "__init__", lambda self, unresponsive_s, until=0.0: honest(self, unresponsive_s))


def a_standby_ignores_incarnations(patch: pytest.MonkeyPatch) -> None:
    honest = Incarnations.meet

    def only_in_an_active_term(self: Incarnations, shown: Any) -> bool:
        return shown.uuid != "server" and honest(self, shown)

    patch.setattr(Incarnations, "meet", only_in_an_active_term)


def standbys_get_full_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reporter, "_brief", property(lambda self: False, lambda self, value: None), raising=False)


FOUND_BY: dict[Mistake, Callable[[], None]] = {
    nodes_promise_during_a_lease: test_lease.test_a_node_promises_no_later_epoch_during_a_lease,
    nodes_grant_to_older_epochs: test_lease.test_an_older_epoch_gets_no_lease_while_a_promise_is_being_synced,
    a_restarted_node_promises_at_once: test_lease.test_a_restarted_node_waits_for_the_longest_lease_it_granted,
    any_master_may_release: test_lease.test_a_lease_is_released_by_its_holder_only,
    the_successor_is_not_preferred: test_lease.test_a_released_lease_is_reserved_for_its_successor_for_a_while,
    the_lease_counts_from_the_answer: test_lease.test_a_lease_counts_from_its_request_not_from_the_answer,
    a_renewal_counts_from_the_answer: test_lease.test_a_lease_counts_from_its_request_not_from_the_answer,
    nodes_keep_a_lease_no_longer_than_its_holder: partial(
        test_failover.test_different_clock_rates_do_not_let_two_masters_serve, 0.9, 1.1
    ),
    a_holder_never_gives_up: test_lease.test_a_holder_without_a_majority_gives_up,
    answers_without_a_lease: partial(
        test_failover.test_a_superseded_paused_master_answers_and_writes_nothing, 0
    ),
    errands_without_a_lease: test_take_over.test_a_master_without_a_lease_sends_no_errands,
    recovered_edits_are_not_read: partial(
        test_failover.test_a_killed_master_is_replaced_by_a_standby_with_the_whole_catalog, 0
    ),
    edits_are_purged_with_the_active_masters_checkpoint: test_standby.test_edits_are_purged_when_two_masters_have_them_in_a_checkpoint,
    a_standby_copies_no_checkpoint: partial(
        test_standby.test_a_standby_that_was_away_for_too_long_copies_a_checkpoint, False
    ),
    no_grace: test_take_over.test_a_successor_counts_no_server_as_dead_during_its_grace_period,
    a_standby_ignores_incarnations: test_take_over.test_a_standby_and_a_new_active_master_refuse_an_old_copy,
    standbys_get_full_reports: test_take_over.test_every_server_sends_its_first_full_report_to_a_successor,
}


@pytest.mark.parametrize(
    ("mistake", "test"), FOUND_BY.items(), ids=[mistake.__name__ for mistake in FOUND_BY]
)
def test_every_known_mistake_fails_its_test(
    mistake: Mistake, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    mistake(monkeypatch)
    with found():
        test()
