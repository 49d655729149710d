"""Known mistakes are put into the production classes, and the test named beside each must fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors.coordination import requests
from ebla.actors.coordination.namespace import Namespace, Session
from ebla.actors.coordination.requests import Refusals
from ebla.actors.coordination.service import Coordination
from ebla.actors.coordination.sessions import changes, locks
from ebla.actors.coordination.timers import Timers
from ebla.actors.coordination.watchers import Watchers
from ebla.actors.master.catalog.scribe import Scribe
from ebla.chaos.defects import coordination
from tests.coordination import test_locks, test_masters, test_namespace, test_sessions
from tests.coordination.room import Room
from tests.mistakes import must_be_found


def load_without_the_count(honest: Any, self: Namespace, image: Any) -> None:
    known = max((node.version for _, node in image.nodes), default=0)
    nodes = tuple((path, replace(node, children_version=0)) for path, node in image.nodes)
    honest(self, replace(image, revision=known, nodes=nodes))


async def change_without_a_heartbeat(honest: Any, self: Coordination, request: Any) -> Any:
    renewed = dict(self._timers._renewed_at)
    reply = await honest(self, request)
    self._timers._renewed_at.update(renewed)
    return reply


async def wait_for_the_next_change(honest: Any, self: Coordination, request: Any) -> Any:
    return await honest(self, replace(request, seen=self.namespace.revision))


async def change_before_it_is_durable(honest: Any, self: Scribe, change: Any) -> None:
    decide = change.decide

    def early() -> Any:
        edits = decide()
        for edit in edits:
            for operation in getattr(edit, "changes", ()):
                change_now(self._catalog.namespace, operation)
        return edits

    change.decide = early
    await honest(self, change)


def change_now(namespace: Namespace, operation: Any) -> None:
    node = namespace.nodes.get(operation.path)
    if node is not None:
        namespace.nodes[operation.path] = replace(node, version=operation.revision)
        namespace.notify(operation.path)


def accept_older_versions(honest: Any, self: Any, path: str, version: int | None) -> Any:
    node = self._node(path)
    if node is not None and version and version < node.version:
        version = None
    return honest(self, path, version)


async def undo_nothing(self: locks.Lock, request: Any) -> None:
    return None


def with_room(test: Callable[[Room], None]) -> Callable[[], None]:
    def run() -> None:
        room = Room()
        room.open()
        test(room)

    return run


KNOWN = {
    "sequences-in-memory": (
        with_room(test_namespace.test_sequence_numbers_grow_and_sort_and_never_repeat),
        *coordination.sequences_in_memory.swaps(),
    ),
    "no-fresh-timeout": (
        partial(test_masters.test_a_new_master_gives_every_session_a_whole_timeout, 0),
        *coordination.no_fresh_timeout.swaps(),
    ),
    "nodes-outlive-sessions": (
        with_room(test_namespace.test_the_end_of_a_session_deletes_only_its_ephemeral_nodes),
        *coordination.nodes_outlive_sessions.swaps(),
    ),
    "turn-without-checking": (
        test_locks.test_a_waiter_that_gives_up_is_skipped_and_leaves_no_node,
        *coordination.turn_without_checking.swaps(),
    ),
    "a_checkpoint_without_the_count": (
        with_room(test_namespace.test_an_emptied_namespace_keeps_its_revision),
        (Namespace, "load", load_without_the_count),
    ),
    "answers_are_not_remembered": (
        with_room(test_namespace.test_a_repeated_request_gets_the_first_answer_also_after_a_checkpoint),
        (Session, "answer", lambda self, number: None),
    ),
    "refusals_are_not_remembered": (
        test_masters.test_a_late_copy_of_a_refused_request_is_refused,
        (Refusals, "note", lambda self, request, error: None),
    ),
    "requests_given_up_are_carried_out": (
        test_masters.test_a_late_copy_of_a_request_given_up_is_not_carried_out,
        (Refusals, "require_new", lambda honest, self, asked: honest(self, replace(asked, unanswered=0))),
    ),
    "a_heartbeat_is_answered_while_the_session_expires": (
        test_masters.test_a_heartbeat_during_an_expiry_waits_for_its_result,
        (Coordination, "_expiring", property(lambda self: (), lambda self, value: None)),
    ),
    "a_paused_master_expires_sessions": (
        test_masters.test_a_pause_of_the_master_counts_for_no_session,
        (Timers, "tick", lambda self: None),
    ),
    "changes_are_not_counted_as_heartbeats": (
        partial(test_masters.test_a_session_with_timely_heartbeats_lives, "change"),
        (Coordination, "change_nodes", change_without_a_heartbeat),
    ),
    "watches_wait_for_the_next_change_only": (
        test_masters.test_earlier_changes_are_reported_at_once,
        (Coordination, "wait_node", wait_for_the_next_change),
    ),
    "watches_fire_before_the_change_is_durable": (
        test_masters.test_a_waiting_call_is_answered_when_the_change_is_durable,
        (Scribe, "_carry_out", change_before_it_is_durable),
    ),
    "deletions_are_not_remembered": (
        with_room(test_namespace.test_a_change_is_reported_to_readers_of_an_older_revision),
        *coordination.deletions_not_notified.swaps(),
    ),
    "waiting_calls_are_not_ended": (
        test_masters.test_a_superseded_master_ends_waiting_calls,
        (Watchers, "close", lambda self: None),
    ),
    "versions_count_from_one_for_each_node": (
        with_room(test_namespace.test_versions_are_compared_and_never_repeat_after_a_deletion),
        (requests._Draft, "_expect", accept_older_versions),
    ),
    "sure_until_the_end_of_the_timeout": (
        partial(
            test_sessions.test_a_process_that_is_sure_of_its_session_is_right_despite_clock_rates, (0.9, 1.1)
        ),
        (changes, "SURE_SHARE", 1.3),
    ),
    "a_lock_is_held_without_a_sure_session": (
        test_locks.test_a_paused_holder_knows_its_loss_and_its_token_is_refused,
        (changes.Session, "is_sure", property(lambda self: True)),
    ),
    "a_waiter_that_gives_up_stays_in_the_queue": (
        test_locks.test_a_waiter_that_gives_up_is_skipped_and_leaves_no_node,
        (locks.Lock, "_undo", undo_nothing),
    ),
    "every_waiter_watches_the_holder": (
        test_locks.test_a_release_wakes_only_the_next_waiter,
        (locks, "_before", lambda honest, names, made: min(names) if honest(names, made) else None),
    ),
}


@pytest.mark.parametrize("mistake", KNOWN.values(), ids=list(KNOWN))
def test_every_known_mistake_fails_its_test(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    must_be_found(monkeypatch, *mistake)
