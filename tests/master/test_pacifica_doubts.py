"""Doubts of an accepted older catalog last when the settings change, and end once: next to test_pacifica_old_catalogs.py."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors.detector.detector import Stamp
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.catalog.records import decode_image, encode_image
from ebla.actors.master.cluster.assignment import Assignment, Candidate
from ebla.actors.master.messages import MoveReplicaRequest
from ebla.actors.master.pacifica.doubts import Doubts
from ebla.actors.messages import ReplicaReport, ServerInstance
from ebla.actors.replication.appointments import appointed, forced
from ebla.actors.replication.configuration import Configuration, Forced, Peer
from ebla.storage.errors import OldCopy
from tests.master.builders import Story, configuration, report
from tests.master.healed import asked
from tests.master.planning import shown
from tests.master.real_servers import OPTIONS, members_of, open_stage, role, server, table
from tests.master.stage import MASTER, Stage, play
from tests.master.test_old_catalogs import newest
from tests.master.test_pacifica_old_catalogs import (
    ALONE,
    TIMES_S,
    another_primary,
    copied,
    leaders,
    restored,
    until_seen_by,
    why,
)
from tests.master.test_pacifica_servers import LATER, host_of, leads, rows, stored, with_rows
from tests.staged import staged

# -- the catalog


def in_doubt(tablets: int = 3) -> tuple[Story, list[str]]:
    story = Story()
    raft = story.running("a", "b", "c", name="raft")
    found = list(story.appointed("abc", buckets=tablets, primary="a"))
    story.apply(e.MasterBegan(1, "first"), e.MasterBegan(2, "second", ("lost",)))
    assert list(story.catalog.doubted) == found and raft not in found
    return story, found


def next_of(story: Story, tablet: str) -> Configuration:
    known = story.catalog.tablets[tablet].appointed
    assert known is not None
    return appointed(known, "b")


def test_a_new_token_puts_all_pacifica_tablets_in_doubt_and_a_recorded_one_none():
    story, (one, two, three) = in_doubt()
    story.apply(e.ConfigurationsAppointed({one: next_of(story, one)}))
    known = story.catalog.tablets[two].appointed
    survivor = Peer("c", "tablet-server/c")
    record = Forced(2, survivor, (), "ann", 0, 0, 0)
    story.apply(e.ConfigurationForced(two, forced(known, survivor), record))
    assert list(story.catalog.doubted) == [three]
    assert story.catalog.lineage.unknown(("lost", "other", "other")) == ("other",)
    story.apply(e.MasterBegan(3, "third"))
    assert list(story.catalog.doubted) == [three], "a later master has the doubts that are left"
    story.apply(e.MasterBegan(4, "fourth", ("other",)))
    assert list(story.catalog.doubted) == [one, two, three]
    with pytest.raises(AssertionError):
        story.catalog.apply([e.MasterBegan(5, "fifth", ("lost",))])


def test_a_deleted_tablet_is_not_in_doubt():
    story, tablets = in_doubt()
    table = story.catalog.tablets[tablets[0]].table
    story.apply(e.TableDropped("drop", 0, table, 5))
    assert not story.catalog.doubted
    require_sound(story.catalog)


def test_doubts_are_in_a_checkpoint():
    story, tablets = in_doubt()
    again = Catalog()
    again.load(decode_image(encode_image(story.catalog.image())))
    assert again.image() == story.catalog.image() and list(again.doubted) == tablets
    assert again.lineage.unknown(("lost",)) == ()
    again.doubted["raft"] = None
    with pytest.raises(AssertionError, match="only a live PacificA tablet is in doubt"):
        require_sound(again)


def test_a_tablet_in_doubt_is_not_replaced_although_it_is_late():
    """It was being created when the copy was made, and has had rows since."""
    story = Story()
    tablets = story.create(replication="pacifica", min_members=2)
    first = replace(configuration(*"abc", index=1), primary="a", min_members=2)
    story.apply(e.TabletAssigned(tablets[0], first), e.MasterBegan(1, "first", ("lost",)))
    assignment = Assignment(30.0, story.random)
    hosts = [Candidate(uuid, f"tablet-server/{uuid}", uuid) for uuid in "abc"]
    for now in (0.0, 100.0):
        assert not assignment.work(story.catalog, now)
    story.apply(e.ConfigurationsAppointed({tablets[0]: next_of(story, tablets[0])}))
    assert not assignment.work(story.catalog, 129.0)
    assert assignment.plan(story.catalog, hosts, 131.0, 0).edits


# -- members


def test_a_member_that_shows_no_ballot_ends_no_doubt_and_is_named_with_what_it_lacks():
    voters = tuple(Peer(uuid, f"tablet-server/{uuid}") for uuid in "abc")
    learner = Peer("d", "tablet-server/d", member="non_voter", promote=True)
    known = Configuration((*voters, learner), 1, primary="a", min_members=2)
    doubts = Doubts(["t"])
    leases = {uuid: Stamp(uuid, 1) for uuid in "abc"}

    def tell(uuid: str, *replicas: ReplicaReport) -> str:
        doubts.take(ServerInstance(uuid, 1, uuid), report(*replicas, full=True))
        return doubts.why(0.0, "t", known, leases.get)

    assert "not been seen at tablet-server/a, tablet-server/b, tablet-server/c, tablet-server/d" in tell("z")
    tell("a", shown("t", known, 1, "secondary"))
    tell("b", shown("t", known, 2, "secondary", state="failed"))
    tell("c")
    found = tell("d", ReplicaReport("t", "failed", error="damaged"))
    assert found == (
        "its last ballot may be later than 1: its replica failed at tablet-server/b, tablet-server/d; "
        "it has no replica at tablet-server/c"
    )
    tell("b", shown("t", known, 2, "secondary"))
    tell("c", shown("t", known, 1, "secondary"))
    assert tell("d").endswith(": its replica failed at tablet-server/d"), "it had one before"


def test_a_learner_without_a_replica_ends_a_doubt_although_its_server_sends_no_beacons():
    peers = (Peer("a", "tablet-server/a"), Peer("d", "tablet-server/d", member="non_voter", promote=True))
    known = Configuration(peers, 1, primary="a", min_members=1)
    doubts = Doubts(["t"])
    doubts.take(ServerInstance("a", 1, "a"), report(shown("t", known, 1, "secondary")))
    leases = {"a": Stamp("a", 1)}
    assert "not been seen at tablet-server/d" in doubts.why(0.0, "t", known, leases.get)
    doubts.take(ServerInstance("d", 1, "d"), report(full=True))
    assert doubts.why(0.0, "t", known, leases.get) == ""


# -- real servers


async def led_alone(stage: Stage, *, kept: bool = False) -> tuple[str, str]:
    """The last primary was alone, and is away; the older copy, which does not know its ballot, is accepted."""
    tablet, flights = await with_rows(stage, "abcd", 60.0, min_members=1)
    if kept:
        await stage.drop("flights", reserve_s=36_000.0)
    copy, members, first = copied(stage), list(members_of(stage, tablet)), host_of(stage, tablet)
    others = [host for host in members if host != first]
    for host in others:
        stage.cluster.crash(server(host))
    await stage.until(lambda: list(members_of(stage, tablet).values()).count("voter") == 1)
    if not kept:
        await flights.upsert(LATER)
    stage.cluster.crash(server(first))
    for host in others:
        await stage.cluster.restart(server(host))
    await restored(stage, copy)
    await asyncio.sleep(TIMES_S)
    assert why(stage, tablet)
    return tablet, first


def tolerated(stage: Stage) -> list[str]:
    """A master may end because its catalog is an older copy; the messages."""
    found: list[str] = []

    def tolerates(address: str, error: BaseException, directory: object) -> bool:
        found.append(str(error))
        return isinstance(error, OldCopy)

    stage.cluster.tolerates = tolerates
    return found


def token_of(message: str) -> str:
    return message.partition("accepts: [")[2].partition("]")[0]


async def without_accepts(stage: Stage) -> None:
    """The setting is removed: another start from the present catalog."""
    stage.cluster.crash(MASTER)
    await stage.open_master_over(stage.cluster.state(MASTER), OPTIONS)


@pytest.mark.parametrize("seed", range(2))
def test_a_doubt_outlasts_the_setting(seed: int):
    async def scenario(stage: Stage) -> None:
        tablet, first = await led_alone(stage)
        await without_accepts(stage)
        await asyncio.sleep(4 * TIMES_S)
        assert leaders(stage, tablet) == [] and stored(stage, tablet).index == 1
        assert f"not been seen at tablet-server/{first}" in why(stage, tablet)
        await stage.cluster.restart(server(first))
        await stage.until(lambda: leads(stage, tablet))
        assert host_of(stage, tablet) == first and await rows(await table(stage)) == 30
        assert stage.cluster.alive(MASTER), "the changes that this server has seen were given up for good"

    play(scenario, seed, OPTIONS)


@staged(play, 0, OPTIONS)
async def test_a_kept_table_is_in_doubt_still_when_it_is_recalled(stage: Stage) -> None:
    tablet, first = await led_alone(stage, kept=True)
    await without_accepts(stage)
    await stage.recall()
    await asyncio.sleep(2 * TIMES_S)
    (place,) = (await stage.table()).tablets
    assert f"not been seen at tablet-server/{first}" in place.in_doubt and leaders(stage, tablet) == []
    await stage.cluster.restart(server(first))
    await stage.until(lambda: leads(stage, tablet))
    assert host_of(stage, tablet) == first


@staged(play, 0, OPTIONS)
async def test_a_settled_tablet_is_not_in_doubt_again_while_the_setting_stays(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abcd", 60.0)
    copy, first = copied(stage), host_of(stage, tablet)
    await another_primary(stage, tablet, first)
    await stage.cluster.restart(server(first))
    await restored(stage, copy)
    await stage.until(lambda: leads(stage, tablet))
    begun = newest(stage).begun
    gone = next(host for host in members_of(stage, tablet) if host != host_of(stage, tablet))
    stage.cluster.crash(MASTER)
    stage.cluster.crash(server(gone))
    at = asyncio.get_running_loop().time()
    await stage.cluster.restart(MASTER)
    assert stage.master.options.accepts and newest(stage).begun == begun + 1
    assert asyncio.get_running_loop().time() < at + OPTIONS.detector.grace_s, "it does not wait for leases"
    assert not why(stage, tablet)
    await stage.until(lambda: leads(stage, tablet))
    assert await rows(flights) == 20


@staged(play, 0, OPTIONS)
async def test_a_later_ballot_of_a_settled_tablet_ends_a_master_although_it_has_accepted_before(
    stage: Stage,
) -> None:
    tablet, flights = await with_rows(stage, "abcd", 60.0)
    await restored(stage, copied(stage))
    await stage.until(lambda: leads(stage, tablet))
    accepts = stage.master.options.accepts
    copy, first = copied(stage), host_of(stage, tablet)
    await another_primary(stage, tablet, first)
    await flights.upsert(LATER)
    await stage.cluster.restart(server(first))
    await until_seen_by(stage, "abcd")
    found = tolerated(stage)
    for host in "abcd":
        role(stage, host).identity.catalog.version = None  # only a ballot shows that the copy is older
    stage.cluster.crash(MASTER)
    await stage.open_master_over(copy, replace(OPTIONS, accepts=accepts))
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    assert f"of tablet {tablet}" in found[0]
    token = token_of(found[0])
    assert token not in accepts
    await stage.open_master_over(stage.cluster.state(MASTER), replace(OPTIONS, accepts=(*accepts, token)))
    await stage.until(lambda: leads(stage, tablet))
    assert await rows(flights) == 30


@staged(play, 0, OPTIONS)
async def test_a_master_that_ends_while_it_waits_for_leases_has_accepted_nothing(stage: Stage) -> None:
    tablet, _ = await with_rows(stage, "abc", 60.0)
    copy, first = copied(stage), host_of(stage, tablet)
    await another_primary(stage, tablet, first)
    start = newest(stage).start
    stage.cluster.crash(MASTER)
    accepting = replace(OPTIONS, accepts=(start,))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(OPTIONS.detector.grace_s / 2):
            await stage.open_master_over(copy, accepting)
    stage.cluster.crash(MASTER)
    await stage.cluster.restart(server(first))
    at = asyncio.get_running_loop().time()
    await stage.open_master_over(stage.cluster.state(MASTER), accepting)
    assert asyncio.get_running_loop().time() >= at + OPTIONS.detector.grace_s
    assert why(stage, tablet)
    await stage.until(lambda: leads(stage, tablet))


@staged(play, 0, OPTIONS)
async def test_a_live_learner_that_has_no_replica_yet_keeps_no_tablet_in_doubt(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abcd", 60.0)
    members = list(members_of(stage, tablet))
    spare = next(host for host in "abcd" if host not in members)
    gone = next(host for host in members if host != host_of(stage, tablet))
    for host in members:
        stage.cluster.network.cut(server(spare), server(host))
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, gone, spare))
    await stage.until(lambda: spare in members_of(stage, tablet), 200)
    assert tablet not in role(stage, spare).replicas
    await restored(stage, copied(stage))
    await stage.until(lambda: leads(stage, tablet))
    assert await rows(flights) == 20


@staged(play, 0, OPTIONS)
async def test_a_tablet_that_had_no_servers_when_the_copy_was_made_gets_into_doubt_by_the_next_token(
    stage: Stage,
) -> None:
    await open_stage(stage, hosts=tuple("abc"))
    await stage.cluster.restart(MASTER)
    alive = stage.master.servers.alive
    await stage.until(lambda: len(alive(stage.master.world.clock.monotonic())) == 3)
    await stage.create("flights", buckets=1, replication="pacifica")
    assert stage.master.catalog.preparing
    copy = copied(stage)
    (place,) = (await stage.running("flights")).tablets
    await stage.until(lambda: leads(stage, place.tablet))
    flights = await table(stage)
    await flights.upsert(ALONE)
    await another_primary(stage, place.tablet, host_of(stage, place.tablet))
    await stage.cluster.restart(server(next(host for host in "abc" if not stage.cluster.alive(server(host)))))
    found = tolerated(stage)
    await restored(stage, copy)
    accepts = stage.master.options.accepts
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    accepts += (token_of(found[0]),)
    await stage.open_master_over(stage.cluster.state(MASTER), replace(OPTIONS, accepts=accepts))
    await stage.until(lambda: leads(stage, place.tablet))
    assert await rows(flights) == 10
