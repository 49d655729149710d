"""The random histories can fail: each known mistake is found within SEEDS of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles import channel, ends, reading, recovery, window, writer
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.store import rules, store
from tests.ledger import scripts
from tests.ledger.histories import history
from tests.ledger.stage import Scenario, play
from tests.mistakes import must_be_found

SEEDS = 60
# The first seed, where it is not 0: no earlier one finds it, and they take long.
FIRST = {"a_replacement_begins_at_the_last_acknowledged_entry": 5}


async def fence_in_memory_only(self: store.LedgerStore, ledger: int, head: Any) -> None:
    self.heads[ledger] = rules.fenced(head)


def admit_fenced(honest: Callable[..., Any], head: Any, request: m.AddRequest, read_only: bool) -> Any:
    return honest(head, replace(request, recovery=True), read_only)


async def read_without_fence(self: Any, position: int, first: int, last: int) -> Any:
    entries = tuple(meta.entries_of(self._found, position, first, last))
    request = m.ReadRequest(
        self._newest.stores[position], self._found.ledger, self._found.token, entries, 1 << 20
    )
    try:
        return await self._stores.call(request.store, "read_entries", request, m.ReadReply, 1.0)
    except recovery.EblaError as error:
        return error


def absent_once(found: Metadata, number: int, answers: Any, gone: Any = ()) -> Any:
    for position in meta.positions(found, number):
        if position in answers:
            return next((e for e in answers[position].entries if e.entry == number), None)
    return False


def replaced_from_lac(found: Metadata, lac: int, replaced: Mapping[int, str]) -> Metadata:
    newest = found.segments[-1]
    stores = tuple(replaced.get(position, each) for position, each in enumerate(newest.stores))
    first = max(lac, newest.first)
    kept = found.segments[:-1] if first == newest.first else found.segments
    return replace(found, segments=(*kept, Segment(first, stores)))


async def join_without_entries(self: writer.Writer, gone: list[int]) -> bool:
    spares = await self._spares()
    for position, spare in zip(gone, spares, strict=False):
        self._leave(self._current(position))
        fresh = self._joining[position] = self._channel(position, spare)
        for entry in self._window.join(position):
            fresh.send(entry)
    return bool(self._joining) and self.failed is None


def one_copy_more(honest: Callable[..., int], self: window.Window, pending: window.Pending) -> int:
    return honest(self, pending) + 1


def confirm_in_recovery(self: channel.Channel, lac: int) -> None:
    self._lac = lac
    self._ask()


def read_any(found: Metadata, known: int, tails: Mapping[int, m.Tail]) -> tuple[int, bool]:
    return max([known, *(last for tail in tails.values() for _, last in tail.held)]), True


def read_only_lac(found: Metadata, known: int, tails: Mapping[int, m.Tail]) -> tuple[int, bool]:
    return known, True


async def tail_unfenced(honest: Callable[..., Any], *arguments: Any) -> m.Tail:
    return replace(await honest(*arguments), fenced=False)


KNOWN: dict[str, tuple[Any, ...]] = {
    "a_fence_is_not_durable": (store.LedgerStore, "_fence", fence_in_memory_only),
    "a_fenced_store_takes_entries": (rules, "admit_add", admit_fenced),
    "recovery_reads_do_not_fence": (recovery._Recovery, "_ask", read_without_fence),
    "one_absence_ends_a_recovery": (ends, "fate", absent_once),
    "a_replacement_begins_at_the_last_acknowledged_entry": (meta, "with_replaced", replaced_from_lac),
    "a_new_store_is_published_before_it_has_the_entries": (writer.Writer, "_join", join_without_entries),
    "an_entry_is_acknowledged_one_copy_early": (window.Window, "_counted", one_copy_more),
    "a_recovery_confirms_what_it_writes": (channel.Channel, "acknowledged", confirm_in_recovery),
    "a_reader_returns_what_any_store_has": (ends, "durable", read_any),
    "a_reader_returns_what_a_recovery_has_written": (reading.Reader, "_tail", tail_unfenced),
    "a_reader_stops_at_the_confirmed_entry": (ends, "durable", read_only_lac),
}
# Found by the script; the others by random histories. That the stores fenced first cover every ack quorum is not here: recovery
# reads fence as well, so that check only fails earlier.
SCRIPTED: dict[str, Scenario] = {
    "one_absence_ends_a_recovery": scripts.one_absence_does_not_end_a_recovery,
    "a_fence_is_not_durable": scripts.a_fence_survives_restarts,
    "a_fenced_store_takes_entries": scripts.a_fence_survives_restarts,
    "recovery_reads_do_not_fence": scripts.an_absence_that_a_recovery_has_read_stays,
    "a_new_store_is_published_before_it_has_the_entries": scripts.what_a_reader_saw_survives_a_replacement,
    "a_reader_returns_what_a_recovery_has_written": scripts.what_a_reader_saw_survives_every_recovery,
    "a_recovery_confirms_what_it_writes": scripts.nothing_is_confirmed_before_a_recovery_closes,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_mistake_of_ledgers_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def histories() -> None:
        if name in SCRIPTED:
            play(SCRIPTED[name])
            return
        for seed in range(FIRST.get(name, 0), SEEDS):
            play(history, seed, count=3 + seed % 4)

    must_be_found(monkeypatch, histories, KNOWN[name])
