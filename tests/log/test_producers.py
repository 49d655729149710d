"""Producers: records that are appended exactly once, over crashes, other writers and repairs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.actors.errors import TimedOut
from ebla.actors.ledger import metadata as meta
from ebla.errors import LogFenced
from ebla.log import records
from ebla.log.appender import Appender
from ebla.log.records import Producer
from ebla.storage.errors import InvalidArgument
from tests.log.histories import (
    an_opening_ends_the_writer_before_at_once,
    another_writer_after_a_repair,
    history,
    one_writer_through_repairs,
)
from tests.log.stage import Stage, contents, play
from tests.mistakes import must_be_found
from tests.sweeps import seeds

SEEDS = 60


def data(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_an_append_is_repeated_without_a_second_record() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events")
        writer = await log.writer("loader")
        assert writer.sequence == 0
        assert await writer.append_once(data(0, 5), 0) == 5
        assert await writer.append_once(data(3, 8), 3) == 3
        for store in stage.stores:
            stage.cluster.state(store).commit_s = (1.0, 1.0)
        with pytest.raises(TimedOut):
            await writer.append_once(data(8, 10), 8, deadline_s=0.1)
        assert await writer.append_once(data(8, 10), 8) == 0, "it is under way, and was waited for"
        lost = asyncio.ensure_future(writer.append_once(data(10, 15), 10))
        await asyncio.sleep(0.0005)
        stage.crash(db)
        lost.cancel()
        async with (await stage.client().log("events")).writer() as other:
            await other.append(b"of nobody")
        again = await stage.client().log("events")
        async with again.writer("loader") as writer:
            assert writer.sequence in (10, 15)
            await writer.append_once(data(0, 20), 0)
            assert writer.sequence == 20
            with pytest.raises(
                InvalidArgument, match="has 20 records in log 'events'; append those from 20 on"
            ):
                await writer.append_once(data(25, 26), 25)
        assert sorted(await contents(again)) == sorted([*data(0, 20), b"of nobody"])

    play(scenario)


def test_a_writer_without_a_producer_counts_nothing_and_a_name_has_a_limit() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            with pytest.raises(InvalidArgument, match="open it with writer\\(producer="):
                await writer.append_once([b"x"], 0)
        for wrong in ("", "é" * 40, "a\nb"):
            with pytest.raises(InvalidArgument, match="has 1 to 64 bytes of printable text"):
                log.writer(wrong)

    play(scenario)


def test_a_log_remembers_the_last_producers() -> None:
    found: tuple[Producer, ...] = ()
    for number in range(records.PRODUCERS_MAX + 10):
        found = records.begun(found, f"p{number}", 10 * number)
    assert len(found) == records.PRODUCERS_MAX and found[0].name == "p10"
    assert found[-2].sequence == 10 and found[-2].since is None
    found = records.begun(found, "p10", 1000)
    assert [each.name for each in found[-2:]] == [f"p{records.PRODUCERS_MAX + 9}", "p10"]
    assert found[-1] == Producer("p10", 10, 1000)
    assert records.begun(found, "", 1005)[-1] == Producer("p10", 15)


def test_a_repair_ends_a_ledger_and_not_its_writer() -> None:
    for seed in seeds(3):
        play(one_writer_through_repairs, seed)


def test_a_writer_that_a_repair_has_fenced_does_not_come_back_after_another_writer() -> None:
    for seed in seeds(2):
        play(another_writer_after_a_repair, seed)
        play(an_opening_ends_the_writer_before_at_once, seed)


def test_a_writer_whose_log_was_dropped_under_a_repair_has_ended() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events")
        writer = await log.writer()
        await writer.append(b"x")
        await db.drop_log("events")
        with pytest.raises(LogFenced):
            await writer.append(b"y")

    play(scenario)


@pytest.mark.parametrize("seed", seeds(6))
def test_random_histories_of_producers_keep_every_promise(seed: int) -> None:
    play(history, seed)


# -- known mistakes ------------------------------------------------------------------------------------------


def count_nothing_after_a_crash(producers: Any, name: str, first: int, counted: int | None) -> Any:
    """What the last writer has appended is not counted."""
    ended = {each.name: each.sequence for each in producers}
    sequence = ended.pop(name, 0)
    made = [Producer(each, count) for each, count in ended.items()]
    return tuple([*made, Producer(name, sequence, first)] if name else made)


def count_records_of_others(honest: Any, producers: Any, name: str, first: int, counted: int | None) -> Any:
    """A producer's writer is ended by the next one of the same producer only."""
    others = tuple(each for each in producers if each.name != name)
    own = tuple(each for each in producers if each.name == name)
    return (*others, *honest(own, name, first, counted))


def append_everything_again(honest: Any, self: Appender, end: int) -> None:
    for _, taken in self._undecided:
        self._queue.extend(taken)
    self._undecided = []
    honest(self, end)


def acknowledge_everything(honest: Any, self: Appender, end: int) -> None:
    honest(self, 1 << 60)
    self._next = end


def every_recovery_is_a_repair(honest: Any, found: Any, repair: bool = False) -> Any:
    return honest(found, True)


KNOWN: dict[str, tuple[Any, ...]] = {
    "what_a_crashed_writer_has_appended_is_not_counted": (records, "begun", count_nothing_after_a_crash),
    "records_of_other_writers_are_counted": (records, "begun", count_records_of_others),
    "a_repaired_writer_appends_everything_again": (Appender, "_append_again", append_everything_again),
    "a_repaired_writer_acknowledges_everything": (Appender, "_append_again", acknowledge_everything),
    "a_writer_that_opens_looks_like_a_repair": (meta, "recovering", every_recovery_is_a_repair),
}
SCRIPTED = {"a_writer_that_opens_looks_like_a_repair": an_opening_ends_the_writer_before_at_once}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_mistake_of_producers_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def histories() -> None:
        for seed in range(SEEDS):
            play(SCRIPTED.get(name, history), seed)

    must_be_found(monkeypatch, histories, KNOWN[name])
