"""Which fragments of a ledger are damaged, and what stores tell about their entries and ledgers."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.checking import LACKING, MISSING, sample
from ebla.actors.ledger.metadata import Metadata, Segment, Stripe
from ebla.actors.ledger.store import records
from tests.ledger.repair_stage import RepairStage, data, play, store


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (3, 2), (5, 3), (5, 1), (4, 3)])
def test_a_stripe_lists_the_entries_of_a_position(shape: tuple[int, int]) -> None:
    found = Metadata(1, *shape, 1, "t", (Segment(0, tuple("abcde"[: shape[0]])),), 0)
    for position in range(shape[0]):
        for first in range(7):
            for last in range(first - 1, first + 13):
                wanted = list(meta.entries_of(found, position, first, last))
                stripe = Stripe(found, position, first, last)
                assert list(stripe) == wanted == stripe[:] and len(stripe) == len(wanted)
                assert stripe[1:4] == wanted[1:4]


def test_a_sample_has_the_first_the_last_and_one_of_each_part() -> None:
    stripe = Stripe(Metadata(1, 3, 2, 1, "t", (Segment(0, ("a", "b", "c")),), 0), 1, 100, 400)
    random = Random(1)
    assert list(sample(stripe, 0.0, random)) == [stripe[0], stripe[-1]]
    assert list(sample(stripe, 100.0, random)) == list(stripe)
    some = list(sample(stripe, 10.0, random))
    assert some == sorted(some) and 20 <= len(some) <= 23
    assert some[0] == stripe[0] and some[-1] == stripe[-1] and all(each in stripe for each in some)


def test_a_sound_ledger_has_no_damage_and_a_store_that_does_not_run_is_missing() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(20, "a", "b", "c")
        findings = await client.check(found.ledger)
        assert findings.whole and findings.looked == 6
        await stage.lose("b")
        await asyncio.sleep(8.0)
        (damage,) = (await client.check(found.ledger)).damaged
        assert (damage.store, damage.why, damage.position) == (stage.uuids["b"], MISSING, 1)
        assert (damage.fragment.first, damage.fragment.last, damage.fragment.closed) == (0, 19, True)

    play(scenario)


def test_a_silent_store_is_unknown_and_one_that_lost_its_directory_is_damaged() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(20, "a", "b", "c")
        stage.cluster.network.cut(client.world.address, store("a"))
        findings = await client.check(found.ledger)
        assert findings.damaged == () and [each for each, _ in findings.unknown] == [stage.uuids["a"]]
        stage.cluster.network.mend(client.world.address, store("a"))
        old, empty = stage.uuids["c"], await client.create("a", "b", "c")
        await stage.lose("c")
        stage.cluster.lose_disk(store("c"))
        await stage.restart("c")
        for ledger in (found.ledger, empty.ledger):  # also one that owes nothing to the store
            (damage,) = (await client.check(ledger)).damaged
            assert (damage.store, damage.why, damage.another) == (old, LACKING, True)

    play(scenario)


@pytest.mark.parametrize(("percentage", "found_so"), [(0.0, False), (100.0, True)])
def test_rot_within_a_fragment_is_found_by_a_look_at_all_entries(percentage: float, found_so: bool) -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(2000, "a", "b", "c")
        await stage.settled()
        stage.cluster.state(store("a")).rot("ledgers", "entries", records.key_of(found.ledger, 1234))
        damaged = (await client.check(found.ledger, percentage)).damaged
        assert bool(damaged) == found_so
        await stage.settled()
        stage.cluster.state(store("b")).rot("ledgers", "entries", records.key_of(found.ledger, 1999))
        damaged = (await client.check(found.ledger)).damaged
        assert [damage.store for damage in damaged] == [stage.uuids["b"]], (
            "the last entry is always looked at"
        )

    play(scenario)


def test_an_open_ledger_is_checked_to_its_last_acknowledged_entry_and_its_stores_are_named_when_empty() -> (
    None
):
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.create("a", "b", "c")
        assert (await client.check(found.ledger)).whole
        await stage.lose("c")
        await asyncio.sleep(8.0)
        (damage,) = (await client.check(found.ledger)).damaged
        assert (damage.fragment.first, damage.fragment.last, damage.fragment.closed) == (0, -1, False)
        writer = client.writer(found)
        for each in data(10):
            await writer.add(each)
        await asyncio.sleep(2.0)
        (damage,) = (await client.check(found.ledger)).damaged
        assert (damage.fragment.first, damage.fragment.last, damage.fragment.closed) == (0, 9, True)
        assert writer.metadata.segments[-1].stores[2] == stage.uuids["d"]
        mark = await stage.mark_of(found.ledger)
        assert mark is not None and (mark.stores, mark.lost) == ((stage.uuids["c"],), ())

    play(scenario)


def test_a_store_lists_its_ledgers_and_drops_entries_but_no_promise() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        made = [await client.written(3, "a", "b", "c") for _ in range(5)]
        uuid = stage.uuids["a"]

        async def listed(after: int, limit: int) -> m.ListReply:
            return await client.stores.call(
                uuid, "list_ledgers", m.ListRequest(uuid, after, limit), m.ListReply, 1.0
            )

        first = await listed(-1, 3)
        assert [each.ledger for each in first.ledgers] == [each.ledger for each in made[:3]] and first.more
        rest = await listed(first.ledgers[-1].ledger, 3)
        assert [each.ledger for each in rest.ledgers] == [each.ledger for each in made[3:]] and not rest.more
        dropped = made[0]
        request = m.DropRequest(uuid, dropped.ledger, dropped.token, first.ledgers[0].sign)
        await client.stores.call(uuid, "drop_entries", request, m.Done, 1.0)
        assert [each.stored for each in (await listed(-1, 2)).ledgers] == [False, True]
        stage.cluster.crash(store("a"))
        await stage.restart("a")
        entry = m.make_entry(dropped.ledger, 0, -1, 7, b"entry 0")
        late = m.AddRequest(uuid, dropped.ledger, dropped.token, (entry,))
        with pytest.raises(Exception, match="is fenced"):
            await client.stores.call(uuid, "add_entries", late, m.Done, 1.0)
        again = m.AddRequest(uuid, dropped.ledger, dropped.token, (entry,), recovery=True)
        await client.stores.call(uuid, "add_entries", again, m.Done, 1.0)

    play(scenario)
