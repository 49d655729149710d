"""The tests of repairs can fail: each known mistake is found by a script.

A worker that repairs without a lock is not here: it wastes work, and its deletion of the mark has a version. A lock matters for the
deletion of moved entries only, and that mistake is `a_change_does_not_need_the_lock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from ebla.actors.coordination.messages import Check
from ebla.actors.coordination.sessions.changes import Session, open_session
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.auditor import held, losses
from ebla.actors.ledger.handles import checking
from ebla.actors.ledger.shared import kept, paths
from ebla.actors.ledger.store import visits
from ebla.actors.ledger.worker import garbage, locking, repairing, rules, worker
from tests.ledger import repair_scripts as scripts
from tests.ledger.repair_stage import Scenario, play
from tests.mistakes import must_be_found


async def delete_any_mark(self: worker.ReplicationWorker, ledger: int, version: int) -> bool:
    return await self._registry.marks.delete(paths.of_mark(ledger))


def mark_without_a_count(honest: Callable[..., Any], found: Any, store: str, lost: bool, now_us: int) -> Any:
    if found is not None and store in found.stores and (not lost or store in found.lost):
        return found
    return honest(found, store, lost, now_us)


async def move_first(
    self: repairing.Repairer, found: Any, damage: Any, running: Any, copier: Any, lock: Any
) -> Any:
    new = rules.target(running, damage.fragment.stores, self._options.store, self._world.random)
    if new is None:
        return found
    changed = await self._publish(found, damage.fragment.first, damage.store, new.uuid, lock)
    await copier.fill(found, new.uuid, repairing._entries(found, damage))
    return changed


def never_cancel(
    honest: Callable[..., Any], self: losses.Losses, now: float, known: Iterable[str], running: Iterable[str]
) -> None:
    up = [store for store in running if store not in self.fresh]
    honest(self, now, known, up)


def replace_the_open_fragment(honest: Callable[..., Any], *arguments: Any) -> rules.Plan:
    plan: rules.Plan = honest(*arguments)
    mark, findings = arguments[1:3]
    moves = [each for each in findings.damaged if each.store in mark.lost]
    return rules.Plan(plan.fills, tuple(moves))


async def open_any(self: held.Held) -> Session:
    if self.sure:
        return self.session
    return await open_session(Session, self.session._master, 6.0, name="unsure", deadline_s=30.0)


def no_grace(honest: Callable[..., Any], *arguments: Any) -> rules.Plan:
    plan: rules.Plan = honest(*arguments[:-1], 0.0)
    return plan


async def change_without_lock(
    honest: Callable[..., Any], self: kept.KeptRegistry, ledger: int, transform: Any, *checks: Any
) -> Any:
    return await honest(self, ledger, transform)


async def every_one_is_admitted(self: kept.KeptRegistry, ledger: int, stores: Any) -> list[Check]:
    return []


def replace_unmarked(honest: Callable[..., Any], found: Any, mark: Any, *rest: Any) -> rules.Plan:
    marked = meta.replace(mark, lost=mark.stores)
    plan: rules.Plan = honest(found, marked, *rest)
    return plan


def silent_is_missing(
    honest: Callable[..., Any], found: Any, mark: Any, findings: Any, *rest: Any
) -> rules.Plan:
    silent = [store for store, _ in findings.unknown]
    damaged = [
        checking.Damage(fragment, fragment.stores.index(store), store, checking.MISSING)
        for fragment in meta.fragments(found, found.last)
        for store in fragment.stores
        if store in silent
    ]
    marked = meta.replace(mark, lost=(*mark.lost, *silent))
    plan: rules.Plan = honest(found, marked, checking.Findings((*findings.damaged, *damaged), ()), *rest)
    return plan


def delete_at_once(listed: Any, known: Any, revision: int, absent_before: Any) -> Any:
    there = frozenset(known)
    absent = [each for each in listed if each.ledger not in there]
    return absent, [each.ledger for each in absent]


async def drop_without_lock(self: garbage.Garbage, store: str, each: Any) -> None:
    if await self._is_moved(store, each):
        request = garbage.m.DropRequest(store, each.ledger, each.token, each.sign)
        await self._stores.call(store, "drop_entries", request, garbage.m.Done, 1.0)


def never_visited(self: visits.Visits, ledger: int) -> str:
    return ""


async def none_leaves(honest: Callable[..., Any], self: kept.KeptRegistry) -> Any:
    return {}, (await honest(self))[1]


def recover_for_nothing(honest: Callable[..., Any], running: Any, used: Any) -> Any:
    return honest(running, used) or list(running)


SEEDS = 8  # some scripts show a mistake only with some orders of messages
KNOWN: Mapping[str, tuple[tuple[Any, ...], Scenario]] = {
    "a_mark_is_deleted_without_its_version": (
        (worker.ReplicationWorker, "_delete_mark", delete_any_mark),
        scripts.a_mark_that_came_again_stays,
    ),
    "a_second_mark_has_the_version_of_the_first": (
        (kept, "marked", mark_without_a_count),
        scripts.a_mark_that_came_again_stays,
    ),
    "the_metadata_changes_before_the_copy": (
        (repairing.Repairer, "_move", move_first),
        scripts.a_copy_counts_when_it_is_synced,
    ),
    "a_returned_store_is_ignored": (
        (losses.Losses, "on_stores", never_cancel),
        scripts.a_store_that_returns_is_not_lost,
    ),
    "an_open_fragment_is_moved_without_a_recovery": (
        (rules, "plan", replace_the_open_fragment),
        scripts.an_open_fragment_is_recovered_first,
    ),
    "the_writer_gets_no_grace": ((rules, "plan", no_grace), scripts.an_open_fragment_is_recovered_first),
    "an_auditor_acts_without_being_sure": (
        (held.Held, "open", open_any),
        scripts.an_auditor_that_is_not_sure_marks_nothing,
    ),
    "a_change_does_not_need_the_lock": (
        (kept.KeptRegistry, "change", change_without_lock),
        scripts.a_worker_without_its_lock_names_no_store,
    ),
    "a_store_that_only_restarts_is_replaced": (
        (rules, "plan", replace_unmarked),
        scripts.a_store_that_the_auditor_does_not_count_as_lost_is_not_replaced,
    ),
    "a_silent_store_counts_as_missing": (
        (rules, "plan", silent_is_missing),
        scripts.a_silent_store_is_not_replaced,
    ),
    "a_ledger_is_garbage_at_the_first_look": (
        (garbage, "deleted", delete_at_once),
        scripts.garbage_is_deleted_at_the_second_look,
    ),
    "moved_entries_are_deleted_without_the_lock": (
        (garbage.Garbage, "_drop_moved", drop_without_lock),
        scripts.entries_under_repair_are_no_garbage,
    ),
    "a_change_names_a_store_that_does_not_run": (
        (kept.KeptRegistry, "_admit", every_one_is_admitted),
        scripts.a_store_that_does_not_run_is_not_named,
    ),
    "moved_entries_are_deleted_although_a_repair_counts_on_them": (
        (visits.Visits, "sign", never_visited),
        scripts.a_late_deletion_of_moved_entries_is_refused,
    ),
    "a_repair_counts_on_entries_that_are_deleted_now": (
        (visits.Visits, "visit", lambda self, ledger: None),
        scripts.a_repair_waits_until_moved_entries_are_deleted,
    ),
    "a_change_names_a_store_that_leaves": (
        (kept.KeptRegistry, "_leaving", none_leaves),
        scripts.a_store_that_begins_to_leave_is_not_named,
    ),
    "a_writer_is_fenced_although_no_other_store_can_take_over": (
        (rules, "able", recover_for_nothing),
        scripts.a_writer_without_another_store_keeps_the_one_that_leaves,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_mistake_of_repairs_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swap, script = KNOWN[name]

    def scripted() -> None:
        for seed in range(SEEDS):
            play(script, seed)

    must_be_found(monkeypatch, scripted, swap)


def test_a_lock_is_taken_once() -> None:
    async def scenario(stage: Any) -> None:
        one, other = stage.process(), stage.process()
        lock = await locking.take(one.session, 12, "one")
        assert lock is not None and lock.sure
        assert await locking.take(other.session, 12, "other") is None
        assert await locking.take(other.session, 1, "other") is not None, "names do not mix"
        one.crash()
        await asyncio.sleep(12.0)
        again = await locking.take(other.session, 12, "other")
        assert again is not None and again.version > lock.version
        await again.release()
        assert await other.repairs.locked() == [1]

    play(scenario)
