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
from ebla.actors.coordination.timers import Timers
from ebla.actors.coordination.watchers import Watchers
from ebla.actors.master.catalog.scribe import Scribe
from ebla.chaos.defects import coordination
from ebla.chaos.defects.defect import Defect
from ebla.coordination import awaited, changes, locks
from tests.coordination import test_locks, test_masters, test_namespace, test_sessions
from tests.coordination.room import Room
from tests.mistakes import found

Mistake = Callable[[pytest.MonkeyPatch], None]


def swapped(defect: Defect) -> Mistake:
    def mistake(patch: pytest.MonkeyPatch) -> None:
        for where, name, instead in defect.swaps():
            patch.setattr(where, name, instead)

    mistake.__name__ = defect.name
    return mistake


def a_checkpoint_without_the_count(patch: pytest.MonkeyPatch) -> None:
    honest = Namespace.load

    def load(self: Namespace, image: Any) -> None:
        known = max((node.version for _, node in image.nodes), default=0)
        nodes = tuple((path, replace(node, children_version=0)) for path, node in image.nodes)
        honest(self, replace(image, revision=known, nodes=nodes))

    patch.setattr(Namespace, "load", load)


def answers_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "answer", lambda self, number: None)


def refusals_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Refusals, "note", lambda self, request, error: None)


def requests_given_up_are_carried_out(patch: pytest.MonkeyPatch) -> None:
    honest = Refusals.require_new
    patch.setattr(Refusals, "require_new", lambda self, request: honest(self, replace(request, unanswered=0)))


def a_heartbeat_is_answered_while_the_session_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Coordination, "_expiring", property(lambda self: (), lambda self, value: None), raising=False
    )


def a_paused_master_expires_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Timers, "tick", lambda self, serves: None)


def changes_are_not_counted_as_heartbeats(patch: pytest.MonkeyPatch) -> None:
    honest = Coordination.change_nodes

    async def change(self: Coordination, request: Any) -> Any:
        renewed = dict(self._timers._renewed_at)
        reply = await honest(self, request)
        self._timers._renewed_at.update(renewed)
        return reply

    patch.setattr(Coordination, "change_nodes", change)


def watches_wait_for_the_next_change_only(patch: pytest.MonkeyPatch) -> None:
    honest = Coordination.wait_node

    async def wait(self: Coordination, request: Any) -> Any:
        return await honest(self, replace(request, seen=self.namespace.revision))

    patch.setattr(Coordination, "wait_node", wait)


def watches_fire_before_the_change_is_durable(patch: pytest.MonkeyPatch) -> None:
    honest = Scribe._carry_out

    async def carry_out(self: Scribe, change: Any) -> None:
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

    patch.setattr(Scribe, "_carry_out", carry_out)


def deletions_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    honest = Namespace.changed_since

    def changed(self: Namespace, path: str, seen: int, children: bool) -> bool:
        return path in self.nodes and honest(self, path, seen, children)

    patch.setattr(Namespace, "changed_since", changed)


def waiting_calls_are_not_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watchers, "close", lambda self: None)


def versions_count_from_one_for_each_node(patch: pytest.MonkeyPatch) -> None:
    def expect(self: Any, path: str, version: int | None) -> Any:
        node = self._node(path)
        if node is None:
            return honest(self, path, version)
        return honest(self, path, None if version and version < node.version else version)

    honest = requests._Draft._expect
    patch.setattr(requests._Draft, "_expect", expect)


def sure_until_the_end_of_the_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "SURE_SHARE", 1.3)


def a_lock_is_held_without_a_sure_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(awaited.Session, "is_sure", property(lambda self: True))


def a_waiter_that_gives_up_stays_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: locks.Lock, request: Any) -> None:
        return None

    patch.setattr(locks.Lock, "_undo", nothing)


def every_waiter_watches_the_holder(patch: pytest.MonkeyPatch) -> None:
    honest = locks._before

    def before(names: Any, made: Any) -> str | None:
        return min(names) if honest(names, made) else None

    patch.setattr(locks, "_before", before)


def with_room(test: Callable[[Room], None]) -> Callable[[], None]:
    def run() -> None:
        room = Room()
        room.open()
        test(room)

    return run


FOUND_BY: dict[Mistake, Callable[[], None]] = {
    swapped(coordination.sequences_in_memory): with_room(
        test_namespace.test_sequence_numbers_grow_and_sort_and_never_repeat
    ),
    swapped(coordination.no_fresh_timeout): partial(
        test_masters.test_a_new_master_gives_every_session_a_whole_timeout, 0
    ),
    swapped(coordination.nodes_outlive_sessions): with_room(
        test_namespace.test_the_end_of_a_session_deletes_only_its_ephemeral_nodes
    ),
    swapped(
        coordination.turn_without_checking
    ): test_locks.test_a_waiter_that_gives_up_is_skipped_and_leaves_no_node,
    a_checkpoint_without_the_count: with_room(test_namespace.test_an_emptied_namespace_keeps_its_revision),
    answers_are_not_remembered: with_room(
        test_namespace.test_a_repeated_request_gets_the_first_answer_also_after_a_checkpoint
    ),
    refusals_are_not_remembered: test_masters.test_a_late_copy_of_a_refused_request_is_refused,
    requests_given_up_are_carried_out: test_masters.test_a_late_copy_of_a_request_given_up_is_not_carried_out,
    a_heartbeat_is_answered_while_the_session_expires: test_masters.test_a_heartbeat_during_an_expiry_waits_for_its_result,
    a_paused_master_expires_sessions: test_masters.test_a_pause_of_the_master_counts_for_no_session,
    changes_are_not_counted_as_heartbeats: partial(
        test_masters.test_a_session_with_timely_heartbeats_lives, "change"
    ),
    watches_wait_for_the_next_change_only: test_masters.test_earlier_changes_are_reported_at_once,
    watches_fire_before_the_change_is_durable: test_masters.test_a_waiting_call_is_answered_when_the_change_is_durable,
    deletions_are_not_remembered: with_room(
        test_namespace.test_a_change_is_reported_to_readers_of_an_older_revision
    ),
    waiting_calls_are_not_ended: test_masters.test_a_superseded_master_ends_waiting_calls,
    versions_count_from_one_for_each_node: with_room(
        test_namespace.test_versions_are_compared_and_never_repeat_after_a_deletion
    ),
    sure_until_the_end_of_the_timeout: partial(
        test_sessions.test_a_process_that_is_sure_of_its_session_is_right_despite_clock_rates, (0.9, 1.1)
    ),
    a_lock_is_held_without_a_sure_session: test_locks.test_a_paused_holder_knows_its_loss_and_its_token_is_refused,
    a_waiter_that_gives_up_stays_in_the_queue: test_locks.test_a_waiter_that_gives_up_is_skipped_and_leaves_no_node,
    every_waiter_watches_the_holder: test_locks.test_a_release_wakes_only_the_next_waiter,
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
