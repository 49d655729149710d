"""Known mistakes are put into the production classes, and the test named beside each must fail."""

from __future__ import annotations

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
from tests.mistakes import must_be_found


def release_for_any(honest: Any, self: Lease, token: str, to: str | None) -> None:
    honest(self, self._grant.claim.token if self._grant else token, to)


async def renew_from_the_answer(honest: Any, self: Holder) -> None:
    before = self._until
    await honest(self)
    if self._until > before:
        self._until = self._world.clock.monotonic() + self._limits.lease_s


def held_as_long_as_the_lease(honest: Any, self: Holder, world: Any, options: Any, limits: Any) -> None:
    honest(self, world, options, limits)
    self.claim = type(self.claim)(self.claim.holder, self.claim.token, int(limits.lease_s * 1000))


def never_give_up(honest: Any, self: Holder, error: Exception) -> None:
    if "could not be renewed" not in str(error):
        honest(self, error)


def meet_in_an_active_term(honest: Any, self: Incarnations, shown: Any) -> bool:
    return shown.uuid != "server" and honest(self, shown)


def returns(value: Any) -> Any:
    async def wrong(*given: Any) -> Any:
        return value

    return wrong


KNOWN = {
    "nodes_promise_during_a_lease": (
        test_lease.test_a_node_promises_no_later_epoch_during_a_lease,
        (Lease, "require_free", lambda self, claim: None),
    ),
    "nodes_grant_to_older_epochs": (
        test_lease.test_an_older_epoch_gets_no_lease_while_a_promise_is_being_synced,
        (Lease, "grant", lambda honest, self, epoch, claim, last: honest(self, 1 << 60, claim, last)),
    ),
    "a_restarted_node_promises_at_once": (
        test_lease.test_a_restarted_node_waits_for_the_longest_lease_it_granted,
        (Lease, "__init__", lambda honest, self, name, clock, held_ms: honest(self, name, clock, 0)),
    ),
    "any_master_may_release": (
        test_lease.test_a_lease_is_released_by_its_holder_only,
        (Lease, "release", release_for_any),
    ),
    "the_successor_is_not_preferred": (
        test_lease.test_a_released_lease_is_reserved_for_its_successor_for_a_while,
        (Lease, "release", lambda honest, self, token, to: honest(self, token, None)),
    ),
    "the_lease_counts_from_the_answer": (
        test_lease.test_a_lease_counts_from_its_request_not_from_the_answer,
        (Holder, "won", lambda honest, self, epoch, at: honest(self, epoch, self._world.clock.monotonic())),
    ),
    "a_renewal_counts_from_the_answer": (
        test_lease.test_a_lease_counts_from_its_request_not_from_the_answer,
        (Holder, "_round", renew_from_the_answer),
    ),
    "nodes_keep_a_lease_no_longer_than_its_holder": (
        partial(test_failover.test_different_clock_rates_do_not_let_two_masters_serve, 0.9, 1.1),
        (Holder, "__init__", held_as_long_as_the_lease),
    ),
    "a_holder_never_gives_up": (
        test_lease.test_a_holder_without_a_majority_gives_up,
        (Holder, "_lose", never_give_up),
    ),
    "answers_without_a_lease": (
        partial(test_failover.test_a_superseded_paused_master_answers_and_writes_nothing, 0),
        (Master, "_require", lambda self, active_term: None),
    ),
    "errands_without_a_lease": (
        test_take_over.test_a_master_without_a_lease_sends_no_errands,
        (active_term, "_WhileHeld", lambda network, holder: network),
    ),
    "recovered_edits_are_not_read": (
        partial(test_failover.test_a_killed_master_is_replaced_by_a_standby_with_the_whole_catalog, 0),
        (QuorumEditLog, "_catch_up", returns([])),
    ),
    "edits_are_purged_with_the_active_masters_checkpoint": (
        test_standby.test_edits_are_purged_when_two_masters_have_them_in_a_checkpoint,
        (ActiveTerm, "_checkpointed_elsewhere", returns(1 << 60)),
    ),
    "a_standby_copies_no_checkpoint": (
        partial(test_standby.test_a_standby_that_was_away_for_too_long_copies_a_checkpoint, False),
        (Standby, "_take_checkpoint", returns(None)),
    ),
    "no_grace": (
        test_take_over.test_a_successor_counts_no_server_as_dead_during_its_grace_period,
        (Servers, "__init__", lambda honest, self, unresponsive_s, until=0.0: honest(self, unresponsive_s)),
    ),
    "a_standby_ignores_incarnations": (
        test_take_over.test_a_standby_and_a_new_active_master_refuse_an_old_copy,
        (Incarnations, "meet", meet_in_an_active_term),
    ),
    "standbys_get_full_reports": (
        test_take_over.test_every_server_sends_its_first_full_report_to_a_successor,
        (Reporter, "_brief", property(lambda self: False, lambda self, value: None)),
    ),
}


@pytest.mark.parametrize("mistake", KNOWN.values(), ids=list(KNOWN))
def test_every_known_mistake_fails_its_test(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    must_be_found(monkeypatch, *mistake)
