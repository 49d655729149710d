"""PacificA tablets: the master appoints their primaries, and takes over from servers that have ended."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from ebla.actors.messages.appointments import Appointments, ConfigurationsRequest, Requested
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import Configuration
from ebla.storage.errors import EblaError, InvalidArgument, OldCopy
from tests.master.stage import MASTER
from tests.master.toy_pacifica import LIMITS, PacificaStage, play
from tests.staged import staged

TIMES_S = LIMITS.grace_s + 1.0  # after which the end of a silent server is durable


@staged(play)
async def test_the_catalog_appoints_the_first_primaries_and_spreads_them(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=6)
    for tablet in tablets:
        known = stage.stored(tablet)
        assert (known.index, known.min_members, len(known.voters())) == (1, 2, 3)
        assert stage.serving(tablet) == [stage.primary(tablet)]
    led = [stage.primary(tablet) for tablet in tablets]
    assert sorted(led.count(host) for host in "abc") == [2, 2, 2]
    (place, *_) = (await stage.table()).tablets
    assert place.leader == f"tablet-server/{stage.primary(place.tablet)}" and place.term == 1
    assert stage.edits() == 0, "the first configuration is part of the assignment"


@staged(play)
async def test_the_replicas_of_a_silent_server_are_taken_away_by_one_edit(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=60)
    stage.scripts["a"].silent = True
    silent_at, sent = stage.now(), stage.appointer.orders.sent
    led = [tablet for tablet in tablets if stage.primary(tablet) == "a"]
    await asyncio.sleep(LIMITS.grace_s - LIMITS.beacon_s - 0.1)
    assert stage.edits() == 0 and all(stage.primary(tablet) == "a" for tablet in led)
    await stage.until(lambda: stage.edits() > 0)
    assert LIMITS.grace_s - LIMITS.beacon_s <= stage.now() - silent_at <= LIMITS.grace_s + 0.2
    assert all(not stage.server("a").serves(tablet) for tablet in led)
    await stage.until(lambda: not stage.appointer.planner.unled)
    assert stage.edits() == 1 and stage.appointer.orders.sent <= sent + 2, "one call for each live server"
    for tablet in tablets:
        assert stage.stored(tablet).index == 2 and stage.voters(tablet) == ["b", "c"]
        assert stage.serving(tablet) == [stage.primary(tablet)]
    taken = [stage.primary(tablet) for tablet in tablets]
    assert abs(taken.count("b") - taken.count("c")) <= 1, "the primaries are spread"
    await asyncio.sleep(2 * TIMES_S)
    assert stage.edits() == 1 and stage.appointer.ends == 1


@staged(play)
async def test_a_restarted_server_loses_its_primaries_at_once_and_keeps_its_votes(
    stage: PacificaStage,
) -> None:
    (tablet,) = await stage.opened()
    first = stage.primary(tablet)
    await asyncio.sleep(LIMITS.grace_s)
    await stage.cluster.restart(f"tablet-server/{first}")
    await asyncio.sleep(0.5)
    assert stage.primary(tablet) != first and stage.serving(tablet) == [stage.primary(tablet)]
    assert stage.voters(tablet) == ["a", "b", "c"] and stage.edits() == 1


@staged(play)
async def test_a_process_gets_a_lease_once_its_incarnation_is_in_the_catalog(stage: PacificaStage) -> None:
    await stage.opened()
    await stage.cluster.restart(MASTER)
    recorded = {uuid: each.start for uuid, each in stage.master.catalog.incarnations.items()}
    assert recorded == {stage.server(h).uuid: stage.server(h).instance.start for h in "abc"}
    held = asyncio.Event()
    stage.points.acts["master.appoint.before_edit"] = held.wait
    await stage.cluster.restart("tablet-server/a")
    await asyncio.sleep(2.5)
    toy = stage.server("a")
    assert not toy.lease.holds(stage.server("a").world.clock.monotonic(), toy.lease.number)
    held.set()
    await stage.until(lambda: toy.lease.holds(toy.world.clock.monotonic(), toy.lease.number))
    assert stage.master.catalog.incarnations[toy.uuid].start == toy.instance.start


@staged(play)
async def test_a_new_active_master_knows_how_often_a_server_has_restarted_in_a_row(
    stage: PacificaStage,
) -> None:
    await stage.opened()
    uuid = stage.server("a").uuid

    async def recorded() -> None:
        start = stage.server("a").instance.start
        await stage.until(lambda: stage.master.catalog.incarnations[uuid].start == start)

    for _ in range(LIMITS.restarts_max - 1):
        await stage.cluster.restart("tablet-server/a")
        await recorded()
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.appointer.detector.lease(uuid) is not None)
    await stage.cluster.restart("tablet-server/a")
    await recorded()
    assert stage.master.catalog.incarnations[uuid].restarts == LIMITS.restarts_max
    began = stage.now()
    await stage.until(lambda: stage.appointer.detector.lease(uuid) is not None)
    assert stage.now() - began > LIMITS.stable_s - 1.0


@staged(play)
async def test_a_new_active_master_gives_every_server_a_full_grace_and_acts_once(
    stage: PacificaStage,
) -> None:
    (tablet,) = await stage.opened()
    first = stage.primary(tablet)
    stage.scripts[first].silent = True
    await asyncio.sleep(LIMITS.grace_s - LIMITS.beacon_s - 0.2)
    await stage.cluster.restart(MASTER)
    began = stage.now()
    await asyncio.sleep(LIMITS.grace_s - 0.1)
    assert stage.primary(tablet) == first and stage.edits() == 0
    await stage.until(lambda: bool(stage.serving(tablet)))
    assert stage.now() - began <= LIMITS.grace_s + 1.0
    assert stage.primary(tablet) != first and stage.edits() == 1


@pytest.mark.parametrize("point", ["before_edit", "after_edit", "before_rpc"])
@staged(play)
async def test_a_master_that_dies_while_it_appoints_is_followed_by_one_that_completes_it(
    stage: PacificaStage, point: str
) -> None:
    (tablet,) = await stage.opened()
    first = stage.primary(tablet)
    stage.crash_at(f"master.appoint.{point}")
    stage.scripts[first].silent = True
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: bool(stage.serving(tablet)))
    assert stage.serving(tablet) == [stage.primary(tablet)] and stage.primary(tablet) != first
    assert stage.stored(tablet).index == 2


@staged(play)
async def test_a_primary_whose_lease_was_over_gets_a_new_ballot(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=9)
    led = [tablet for tablet in tablets if stage.primary(tablet) == "a"]
    stage.scripts["a"].withholds = True
    await stage.until(lambda: not any(stage.server("a").serves(tablet) for tablet in led))
    stage.scripts["a"].withholds = False
    await stage.until(lambda: all(stage.server("a").serves(tablet) for tablet in led))
    assert [stage.stored(tablet).index for tablet in led] == [2] * len(led)
    assert stage.appointer.ends == 0 and stage.edits() == 1
    assert all(stage.stored(tablet).index == 1 for tablet in tablets if tablet not in led)


@staged(play)
async def test_a_lost_order_is_repeated(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    first, (second, third) = stage.primary(tablet), stage.others(tablet)
    stage.scripts[first].silent = True
    await asyncio.sleep(LIMITS.grace_s - LIMITS.beacon_s - 0.2)
    await stage.until(lambda: stage.edits() == 1)
    chosen = stage.primary(tablet)
    assert chosen in (second, third)
    stage.server(chosen).leading.clear()  # as if the order had not come
    stage.scripts[chosen].ballots[tablet] = 1
    await stage.until(lambda: stage.serving(tablet) == [chosen])
    assert stage.stored(tablet).index == 2 and len(stage.scripts[chosen].orders) > 1


# -- requests -------------------------------------------------------------------------------------------------


def wanted(stage: PacificaStage, tablet: str, primary: str | None = None) -> Configuration:
    known = stage.stored(tablet)
    return appointed(known, stage.server(primary or stage.primary(tablet)).uuid)


@staged(play)
async def test_a_repeated_request_gets_the_same_answer_and_costs_no_edit(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    first = stage.server(stage.primary(tablet))
    asked = wanted(stage, tablet)
    answers = [await first.ask((tablet, asked)) for _ in range(3)]
    assert [each.appointed[0].configuration for each in answers] == [asked] * 3
    assert answers[0].start == first.instance.start and answers[0].lease == first.lease.number
    assert stage.edits() == 1 and stage.serving(tablet) == [stage.primary(tablet)]
    await stage.until(lambda: not stage.appointer.planner.unled)


@staged(play)
async def test_a_request_of_an_old_ballot_or_another_server_gets_the_stored_configuration(
    stage: PacificaStage,
) -> None:
    (tablet,) = await stage.opened()
    first, other = stage.server(stage.primary(tablet)), stage.server(stage.others(tablet)[0])
    old, stored = wanted(stage, tablet), stage.stored(tablet)
    usurped = await other.ask((tablet, appointed(stored, other.uuid)))
    assert usurped.appointed[0].configuration == stored and stage.edits() == 0
    await first.ask((tablet, old))
    await first.ask((tablet, wanted(stage, tablet)))
    answer = await first.ask((tablet, replace(old, min_members=3)), ("unknown", old))
    assert [each.tablet for each in answer.appointed] == [tablet]
    assert answer.appointed[0].configuration == stage.stored(tablet) and stage.stored(tablet).index == 3


@staged(play)
async def test_a_request_that_no_primary_makes_leaves_the_tablet_as_it_is(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    stored = stage.stored(tablet)
    broken = replace(wanted(stage, tablet), peers=stored.peers[:1], primary=stored.peers[0].uuid)
    answer = await stage.server(stage.primary(tablet)).ask((tablet, broken))
    assert answer.appointed[0].configuration == stored and stage.edits() == 0


@staged(play)
async def test_the_requests_of_many_servers_share_an_edit(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=30)
    before = stage.master.log.last_txid
    asked = {host: [each for each in tablets if stage.primary(each) == host] for host in "abc"}
    await asyncio.gather(
        *(
            stage.server(host).ask(*((tablet, wanted(stage, tablet)) for tablet in led))
            for host, led in asked.items()
            for _ in range(4)
        )
    )
    assert all(stage.stored(tablet).index == 2 for tablet in tablets)
    assert stage.edits() <= 3 and stage.master.log.last_txid <= before + 3


@staged(play)
async def test_a_primary_hands_over_and_its_successor_is_ordered(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    first, second = stage.primary(tablet), stage.others(tablet)[0]
    asked = wanted(stage, tablet, second)
    stage.server(first).leading.clear()
    await stage.server(first).ask((tablet, asked))
    await stage.until(lambda: stage.serving(tablet) == [second])
    assert (
        stage.stored(tablet) == asked and len(stage.scripts[second].orders[-1][1].appointments.appointed) == 1
    )


@staged(play)
async def test_only_the_process_that_has_the_lease_gets_configurations(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    first = stage.primary(tablet)
    toy, asked = stage.server(first), wanted(stage, tablet)
    former = ConfigurationsRequest(replace(toy.instance, start="former"), (Requested(tablet, asked),))
    with pytest.raises(OldCopy):
        await stage.ask("request_configurations", former, Appointments)
    stage.scripts[first].withholds = True
    await stage.until(lambda: stage.appointer.ends == 1)
    edits = stage.edits()
    with pytest.raises(Unavailable, match="has no lease here now"):
        await toy.ask((tablet, replace(asked, index=stage.stored(tablet).index + 1)))
    assert stage.edits() == edits and stage.primary(tablet) != first


@staged(play)
async def test_a_master_answers_and_orders_no_server_before_its_heartbeat(stage: PacificaStage) -> None:
    """A heartbeat shows which catalog the server has seen."""
    (tablet,) = await stage.opened()
    first = stage.primary(tablet)
    toy, orders = stage.server(first), len(stage.scripts[first].orders)
    stage.scripts[first].no_heartbeats = True
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.appointer.detector.lease(toy.uuid) is not None)
    with pytest.raises(Unavailable, match="has no heartbeat of this process"):
        await toy.ask((tablet, wanted(stage, tablet)))
    await asyncio.sleep(1.0)
    assert len(stage.scripts[first].orders) == orders and stage.edits() == 0
    stage.scripts[first].no_heartbeats = False
    await stage.until(lambda: not stage.appointer.planner.unled)
    assert stage.serving(tablet) == [first]


@staged(play)
async def test_requests_that_wait_are_refused_when_the_term_ends(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    held = asyncio.Event()
    stage.points.acts["master.appoint.before_edit"] = held.wait
    toy, asked = stage.server(stage.primary(tablet)), wanted(stage, tablet)
    waiting = [asyncio.ensure_future(toy.ask((tablet, asked))) for _ in range(2)]
    await asyncio.sleep(0.2)
    stage.cluster.role(MASTER).active_term.end(Unavailable("the lease was lost"))
    for each in waiting:
        with pytest.raises(EblaError):
            await asyncio.wait_for(each, 1.0)
    held.set()


# -- limits ---------------------------------------------------------------------------------------------------


@staged(play)
async def test_a_catalog_that_went_back_ends_its_master(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    errors: list[BaseException] = []

    def tolerates(address: str, error: BaseException, directory: object) -> bool:
        errors.append(error)
        return isinstance(error, OldCopy)

    stage.cluster.tolerates = tolerates
    stage.scripts[stage.primary(tablet)].reported_ballot = 7
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    assert f"knows ballot 7 of tablet {tablet}, and the catalog here has ballot 1" in str(errors[0])


@staged(play)
async def test_a_request_that_skips_a_ballot_ends_the_master(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened()
    stage.cluster.tolerates = lambda address, error, directory: isinstance(error, OldCopy)
    skipped = replace(wanted(stage, tablet), index=3)
    with pytest.raises(OldCopy, match="older copy of the catalog, bring back the newest"):
        await stage.server(stage.primary(tablet)).ask((tablet, skipped))
    await stage.until(lambda: not stage.cluster.alive(MASTER))


@staged(play)
async def test_a_server_without_replicas_that_sends_no_beacons_has_not_ended(
    stage: PacificaStage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.opened()
    await stage.drop()
    for host in "abc":
        stage.scripts[host].withholds = True
    before = stage.master.log.last_txid
    await asyncio.sleep(2 * TIMES_S)
    assert stage.appointer.ends == 0 and "has ended" not in caplog.text
    assert stage.master.log.last_txid == before, "and no edit was made"
    for host in "abc":
        stage.scripts[host].withholds = False
    tablets = await stage.tablets("again", buckets=3, replication="pacifica")
    await stage.until(lambda: not stage.appointer.planner.unled)
    assert stage.edits() == 0 and stage.appointer.ends == 0, "the first primaries lead"
    assert all(stage.serving(tablet) == [stage.primary(tablet)] for tablet in tablets)


@staged(play)
async def test_a_voter_leads_that_returns_after_its_primary_was_the_last_to_end(stage: PacificaStage) -> None:
    """The primary stays away: nothing but the return of the other voter makes the tablet available again."""
    (tablet,) = await stage.opened()
    first, (second, third) = stage.primary(tablet), stage.others(tablet)
    for host in (third, second, first):
        stage.scripts[host].silent = True
        await asyncio.sleep(TIMES_S)
    assert stage.serving(tablet) == [] and stage.primary(tablet) == first
    stage.scripts[second].silent = False
    await stage.until(lambda: stage.serving(tablet) == [second])


@staged(play)
async def test_an_altered_minimum_is_a_new_configuration_of_every_tablet(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=6, min_members=2)
    led = {tablet: stage.primary(tablet) for tablet in tablets}
    request = m.AlterTableRequest("alter", "flights", "", min_members=3)
    await stage.send("alter_table", request, m.TableInfo)
    await stage.until(lambda: stage.edits() == 1 and not stage.appointer.planner.unled)
    for tablet in tablets:
        known = stage.stored(tablet)
        assert (known.index, known.min_members, stage.primary(tablet)) == (2, 3, led[tablet])
        assert stage.serving(tablet) == [led[tablet]]
        assert stage.server(led[tablet]).configuration(tablet) == known
    await stage.send("alter_table", replace(request, request_id="same"), m.TableInfo)
    await asyncio.sleep(1.0)
    assert stage.edits() == 1, "nothing was to change"


@staged(play)
async def test_an_altered_minimum_survives_the_master(stage: PacificaStage) -> None:
    (tablet,) = await stage.opened(min_members=2)
    stage.crash_at("master.appoint.before_edit")
    with contextlib.suppress(EblaError):
        await stage.ask(
            "alter_table", m.AlterTableRequest("alter", "flights", "", min_members=1), m.TableInfo
        )
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.stored(tablet).min_members == 1)
    await stage.until(lambda: stage.serving(tablet) == [stage.primary(tablet)])
    assert stage.stored(tablet).index == 2


@pytest.mark.parametrize(("replication", "least"), [("pacifica", 4), ("pacifica", 0), ("raft", 2)])
@staged(play)
async def test_an_impossible_minimum_is_refused(stage: PacificaStage, replication: str, least: int) -> None:
    await stage.open("a", "b", "c")
    await stage.create(replication=replication)
    with pytest.raises(InvalidArgument, match="min_members"):
        await stage.ask(
            "alter_table", m.AlterTableRequest("alter", "flights", "", min_members=least), m.TableInfo
        )
