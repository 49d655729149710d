"""The auditor marks the ledgers of lost stores, and checks all ledgers."""

from __future__ import annotations

import asyncio

from ebla.actors.ledger.shared.paths import NEW_LEDGER, of_mark
from ebla.actors.ledger.shared.repairs import Tally
from ebla.actors.ledger.store import records
from tests.ledger.repair_scripts import unmarked
from tests.ledger.repair_stage import RepairStage, data, play, store

EXPIRY_S = 6.0  # of a store's session, with some time for the watch


async def elected(stage: RepairStage, name: str, limit_s: float = 30.0) -> None:
    async def so() -> bool:
        return (await stage.survey()).auditor == name

    await stage.until(so, limit_s)


async def marks(stage: RepairStage) -> list[int]:
    return await stage.client.repairs.marked()


def test_one_loss_is_marked_after_the_delay_and_repaired_and_a_return_cancels_it() -> None:
    async def scenario(stage: RepairStage) -> None:
        named = await stage.client.written(20, "a", "b", "c")
        other = await stage.client.written(20, "b", "c", "d")
        await stage.audit(0, 1)
        await elected(stage, "auditor/0")
        await stage.lose("a")
        await asyncio.sleep(8.0)
        survey = await stage.survey()
        assert [each.uuid for each in survey.lost] == [stage.uuids["a"]] and survey.lost[0].since_us
        await stage.restart("a")
        await asyncio.sleep(20.0)
        assert await marks(stage) == [] and stage.auditor().counted.cancelled == 1
        await stage.lose("a")
        await asyncio.sleep(7.5)
        assert await marks(stage) == [], "the session of the store, and the delay"
        await asyncio.sleep(4.0)
        assert await marks(stage) == [named.ledger]
        mark = await stage.mark_of(named.ledger)
        assert mark is not None and mark.stores == mark.lost == (stage.uuids["a"],)
        await stage.work()
        await unmarked(stage, named.ledger)
        await stage.judge_whole(named.ledger, data(20))
        assert await stage.client.registry.read(other.ledger) == other
        survey = await stage.survey()
        assert survey.audit_us and not survey.marked and len(survey.running) == 3

    play(scenario)


def test_two_losses_are_marked_at_once_and_merged() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.audit()
        await asyncio.sleep(5.0)
        await stage.lose("a")
        await stage.lose("b")
        await asyncio.sleep(EXPIRY_S + 1.0)
        mark = await stage.mark_of(found.ledger)
        assert mark is not None and sorted(mark.lost) == sorted([stage.uuids["a"], stage.uuids["b"]])

    play(scenario, count=5, auditor={"delay_s": 1000.0})


def test_a_ledger_that_cannot_be_read_stops_no_audit_and_no_check_of_the_others() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(20, "a", "b", "c")
        session = await client.session.open()
        await session.create(NEW_LEDGER, b"\xc1", sequential=True, deadline_s=5.0)
        await stage.audit()
        await asyncio.sleep(10.0)
        assert stage.auditor().counted.checks
        await stage.lose("b")
        await stage.until(lambda: client.registry.marks.get(of_mark(found.ledger)))
        assert await marks(stage) == [found.ledger]

    play(scenario, auditor={"check_s": 5.0})


def test_the_delay_and_a_trigger_are_set_by_operators() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        found = await client.written(20, "a", "b", "c")
        await stage.audit()
        await client.repairs.set_delay(1000.0)
        await asyncio.sleep(5.0)
        await stage.lose("a")
        await asyncio.sleep(60.0)
        assert await marks(stage) == [] and (await stage.survey()).delay_s == 1000.0
        await client.repairs.set_delay(3.0)
        await asyncio.sleep(2.0)
        assert await marks(stage) == []
        await asyncio.sleep(2.0)
        assert await marks(stage) == [found.ledger]
        before = stage.auditor().counted.audits
        await client.repairs.trigger()
        await asyncio.sleep(1.0)
        assert stage.auditor().counted.audits == before + 1
        mark = await stage.mark_of(found.ledger)
        assert mark is not None and mark.times == 2
        await client.repairs.set_delay(3.0)
        await asyncio.sleep(1.0)
        assert stage.auditor().counted.audits == before + 2

    play(scenario)


def test_losses_from_before_the_start_are_noticed_and_a_trigger_waits_for_an_auditor() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.lose("a")
        await asyncio.sleep(EXPIRY_S)
        await stage.client.repairs.trigger()
        await stage.audit()
        await asyncio.sleep(1.0)
        assert await marks(stage) == [found.ledger]

    play(scenario, auditor={"delay_s": 1000.0})


def test_while_disabled_nothing_is_audited_and_afterwards_everything() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.audit(0, 1)
        await stage.client.repairs.disable()
        await asyncio.sleep(5.0)
        await stage.lose("a")
        await stage.lose("b")
        await asyncio.sleep(20.0)
        stage.cluster.crash("auditor/0")
        await stage.client.repairs.trigger()
        await asyncio.sleep(30.0)
        assert await marks(stage) == []
        await stage.client.repairs.enable()
        await asyncio.sleep(2.0)
        mark = await stage.mark_of(found.ledger)
        assert mark is not None and len(mark.lost) == 2

    play(scenario, count=5)


def test_one_auditor_is_elected_and_its_successor_continues_the_delay_by_no_wall_clock() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.audit(0, 1)
        await elected(stage, "auditor/0")
        await stage.lose("a")
        await asyncio.sleep(EXPIRY_S + 5.0)
        stage.cluster.clock("auditor/1").wall_offset_us += 3600 * 1_000_000
        stage.cluster.crash("auditor/0")
        await elected(stage, "auditor/1")
        assert stage.auditor(1).counted.elected
        await stage.cluster.restart("auditor/0")
        await asyncio.sleep(9.0)
        assert (await stage.survey()).auditor == "auditor/1", "a restarted one does not take back"
        assert not stage.auditor(0).counted.elected
        assert await marks(stage) == []
        await asyncio.sleep(19.0)
        assert await marks(stage) == [found.ledger], "30 s in which an auditor watched, from the loss on"

    play(scenario, auditor={"delay_s": 30.0})


def test_a_rolling_restart_marks_only_the_store_that_stays_away() -> None:
    """With checks of all ledgers every two seconds, which never go ahead of the delay."""

    async def scenario(stage: RepairStage) -> None:
        made = [await stage.client.written(5) for _ in range(6)]
        await stage.audit()
        await asyncio.sleep(5.0)
        for name in stage.names:
            await stage.lose(name)
            await asyncio.sleep(9.0)
            await stage.restart(name)
            await asyncio.sleep(3.0)
            assert await marks(stage) == []
        counted = stage.auditor().counted
        assert counted.cancelled == counted.skipped == 4 and counted.checks > 4
        await stage.lose("a")
        await asyncio.sleep(20.0)
        uuid = stage.uuids["a"]
        naming = [each.ledger for each in made if uuid in each.segments[0].stores]
        assert await marks(stage) == naming
        for ledger in naming:
            mark = await stage.mark_of(ledger)
            assert mark is not None and mark.lost == (uuid,)

    play(scenario, auditor={"delay_s": 10.0, "check_s": 2.0})


def test_a_check_of_all_ledgers_finds_rot_and_gaps_and_skips_what_cannot_be_asked() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.client
        made = [await client.written(20, "a", "b", "c") for _ in range(3)]
        await stage.settled()
        state = stage.cluster.state(store("a"))
        await stage.settled()
        state.rot("ledgers", "entries", records.key_of(made[1].ledger, 7))
        stage.cluster.network.cut("auditor/0", store("b"))
        await stage.audit()
        await stage.until(lambda: _checked(stage), 60.0)
        assert await marks(stage) == [made[1].ledger]
        mark = await stage.mark_of(made[1].ledger)
        assert mark is not None and (mark.stores, mark.lost) == ((stage.uuids["a"],), ())
        await stage.work("d")
        await unmarked(stage, made[1].ledger)
        await stage.judge_whole(made[1].ledger, data(20))
        assert (await stage.survey()).check_us

    play(scenario, auditor={"check_s": 5.0, "verify_percentage": 100.0})


async def _checked(stage: RepairStage) -> bool:
    return bool(stage.auditor().counted.checks)


def test_a_check_counts_the_copies_of_every_entry_and_marks_stores_that_lack_one() -> None:
    """Nothing in the middle of a ledger is verified, and a store that does not answer counts as one that has its entries."""

    async def scenario(stage: RepairStage) -> None:
        made = [await stage.client.written(20, "a", "b", "c") for _ in range(4)]
        await stage.client.create("b", "c", "d")  # open: not counted
        silent = await stage.client.written(20, "b", "c", "d")
        await stage.settled()
        for found, names in zip(made, ("", "a", "ab", "abc"), strict=True):
            for name in names:
                entries = stage.cluster.state(store(name)).environments["ledgers"]["entries"]
                del entries[records.key_of(found.ledger, 7)]
        stage.cluster.network.cut("auditor/0", store("d"))
        await stage.audit()
        await stage.until(lambda: _checked(stage), 60.0)
        assert (await stage.survey()).copies == Tally(5, below_write=3, below_ack=2, without=1, unknown=1)
        assert await marks(stage) == [each.ledger for each in made[1:]] and silent.closed
        mark = await stage.mark_of(made[2].ledger)
        assert mark is not None and (mark.stores, mark.lost) == ((stage.uuids["a"], stage.uuids["b"]), ())
        await stage.work("a")
        await unmarked(stage, made[2].ledger)
        await stage.judge_whole(made[2].ledger, data(20))

    play(scenario, auditor={"check_s": 5.0})


def test_idle_roles_ask_little() -> None:
    async def scenario(stage: RepairStage) -> None:
        network = stage.cluster.network
        await stage.client.written(5)
        await asyncio.sleep(20.0)

        async def asked_in(seconds: float) -> int:
            before = network.carried_out.total()
            await asyncio.sleep(seconds)
            return network.carried_out.total() - before

        without = await asked_in(100.0)
        await stage.audit(0, 1)
        await stage.work("a", "b")
        await asyncio.sleep(20.0)
        more = (await asked_in(100.0) - without) / 100.0
        assert more < 6, f"{more} requests per second of two workers and two auditors"

    play(scenario)


async def known(stage: RepairStage) -> list[str]:
    return [each.uuid for each in await stage.client.registry.known()]


async def lose_directory(stage: RepairStage, name: str) -> str:
    """Returns the uuid of the old store; another one runs at its address."""
    old = stage.uuids[name]
    await stage.lose(name)
    state = stage.cluster.state(store(name))
    state.environments.clear()
    state.uuid, state.seqno = None, 0
    await stage.restart(name)
    assert stage.uuids[name] != old
    return old


def test_a_store_that_lost_its_directory_is_forgotten_when_no_ledger_names_it() -> None:
    async def scenario(stage: RepairStage) -> None:
        found = await stage.client.written(20, "a", "b", "c")
        await stage.audit()
        old = await lose_directory(stage, "a")

        async def marked() -> bool:
            return found.ledger in await marks(stage)

        await stage.until(marked)
        await asyncio.sleep(90.0)
        assert old in await known(stage), "its ledger names it: nobody has repaired it"
        await stage.work()

        async def forgotten() -> bool:
            return old not in await known(stage)

        await stage.until(forgotten)
        await stage.judge_whole(found.ledger, data(20))

        async def none_lost() -> bool:
            return stage.auditor().counted.lost == 0

        await stage.until(none_lost)
        assert sorted(await known(stage)) == sorted(stage.uuids.values())

    play(scenario)


def test_a_lost_store_whose_address_runs_no_other_is_not_forgotten() -> None:
    async def scenario(stage: RepairStage) -> None:
        await stage.audit()
        await stage.lose("d")
        await asyncio.sleep(200.0)
        assert stage.uuids["d"] in await known(stage), "its host may return with the directory"
        assert stage.auditor().counted.lost == 1

    play(scenario)
