"""Creation, deletion and loading of replicas with full disks, damage, and unusable schemas."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.records import Superblock
from ebla.actors.tablet.server import RECORDS
from ebla.storage.directories.records import seal
from ebla.storage.errors import Damaged, DiskFull
from ebla.storage.rows import codecs
from ebla.storage.schema import Column
from tests.tablet.copies import entomb, fill, same_rows, until
from tests.tablet.harness import HOSTS, OTHER, SCHEMA, TABLET, Group, address, row, simulated

CREATE_POINTS = ("before_consensus", "before_data", "before_superblock")
DELETE_POINTS = ("before_mark", "after_mark", "after_data", "after_log", "after_consensus")


@pytest.mark.parametrize("point", CREATE_POINTS)
@simulated()
async def test_a_creation_on_a_full_disk_succeeds_when_it_is_repeated(group: Group, point: str) -> None:
    host = HOSTS[0]
    group.fill_at(host, f"tablet.create.{point}")
    for _ in range(2):
        with pytest.raises(DiskFull):
            await group.create_at(host)
    assert OTHER not in group.server(host).replicas
    group.disk(host).free()
    await group.create(OTHER)
    await group.upsert(row(1), tablet=OTHER)
    assert await group.get(1, tablet=OTHER) == [row(1)]
    await group.restart(host)
    assert group.replica(host, OTHER).state == "running"


@simulated()
async def test_a_creation_that_fails_at_its_first_commit_leaves_nothing_open(group: Group) -> None:
    host = HOSTS[0]
    state = group.disk(host)
    asked = asyncio.ensure_future(group.create_at(host))
    while f"data/{OTHER}" not in state.environments:
        await group.sleep(0.00001)
    state.fill()  # before the position is written
    with pytest.raises(DiskFull):
        await asked
    state.free()
    await group.create(OTHER)


@pytest.mark.parametrize("point", DELETE_POINTS)
@simulated()
async def test_a_deletion_on_a_full_disk_succeeds_when_it_is_repeated(group: Group, point: str) -> None:
    await group.upsert(row(1))
    (host, _) = await group.followers()
    group.fill_at(host, f"tablet.delete.{point}")
    for _ in range(2):
        with pytest.raises(DiskFull):
            await group.drop(host)
    server = group.server(host)
    if point == "before_mark":
        assert server.replicas[TABLET].state == "running", "nothing was changed, so it keeps running"
    group.disk(host).free()
    await group.drop(host)
    await group.drop(host)
    assert TABLET not in server.replicas
    assert not server.world.disk.exists(f"data/{TABLET}")
    assert server.lifecycle.superblocks.get(TABLET) is None


@simulated()
async def test_a_replica_may_be_created_after_a_deletion_that_a_full_disk_interrupted(group: Group) -> None:
    host = await group.settled(row(1))
    await group.flush(host)
    group.fill_at(host, "tablet.delete.after_mark")
    with pytest.raises(DiskFull):
        await group.drop(host)
    group.disk(host).free()
    await group.create_at(host, TABLET)
    assert group.replica(host).state == "running"
    assert group.replica(host).store.flushed.index == 0


@pytest.mark.parametrize("lost", ["votes", "data", "position"])
@simulated()
async def test_a_replica_without_its_data_or_votes_is_damaged_and_can_be_deleted(
    group: Group, lost: str
) -> None:
    """It does not start as a new one."""
    host = await group.settled(row(1))
    group.crash(host)
    state = group.disk(host)
    if lost == "data":
        state.lose_environment(f"data/{TABLET}")
    elif lost == "position":
        del state.environments[f"data/{TABLET}"]["meta"][b"position"]
    else:
        state.environments["consensus-meta"]["records"].clear()
    await group.restart(host)
    server = group.server(host)
    assert list(server.lifecycle.broken) == [TABLET]
    assert await group.reported(host) == {TABLET: "failed"}
    await group.upsert(row(2))
    await group.drop(host)
    assert not server.lifecycle.broken
    assert not server.world.disk.exists(f"data/{TABLET}")


@simulated()
async def test_an_unusable_schema_is_refused_before_anything_is_stored(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(schema: object) -> None:
        raise KeyError("no such zone")

    host = HOSTS[0]
    codecs.codec_of.cache_clear()  # other tests have put this schema into the cache
    monkeypatch.setattr(codecs, "RowCodec", refuse)
    with pytest.raises(errors.InvalidArgument, match="cannot be kept here: KeyError: 'no such zone'"):
        await group.create_at(host)
    monkeypatch.undo()
    server = group.server(host)
    assert OTHER not in server.replicas
    assert server.lifecycle.superblocks.get(OTHER) is None
    assert not server.world.disk.exists(f"data/{OTHER}")
    await group.upsert(row(1))


@pytest.mark.usefixtures("unmended")
@simulated(shared_log_bytes=40_000, memtable_bytes=30_000)
async def test_a_replica_with_a_schema_that_became_unusable_fails_and_the_server_starts(group: Group) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    host = HOSTS[0]
    superblock = group.replica(host, OTHER).superblock
    group.crash(host)
    columns = (*SCHEMA.columns, Column("t", "of_a_later_version"))
    schema = msgspec.structs.replace(SCHEMA, columns=columns)
    changed: Superblock = msgspec.structs.replace(superblock, schema=schema)
    records = group.disk(host).environments["tablet-meta"]["records"]
    records[OTHER.encode()] = seal(OTHER.encode(), msgspec.msgpack.encode(changed))
    await group.restart(host)
    server = group.server(host)
    assert list(server.lifecycle.broken) == [OTHER]
    assert "of_a_later_version" in server.lifecycle.broken[OTHER].error
    assert server.replicas[TABLET].state == "running"
    with pytest.raises(errors.ReplicaFailed, match="of_a_later_version"):
        await group.ask(host, "flush", m.FlushRequest(OTHER), m.FlushReply)
    await group.settle()
    assert await group.get(1) == [row(1)]
    for k in range(60):
        await group.upsert(row(k, "x" * 3000))
    await group.sleep(1)
    assert server.shared.first_seq > 1
    kept = server.lifecycle.superblocks.get(OTHER)
    assert kept is not None
    assert kept.state == "failed", "the log no longer has the entries that it acknowledged"
    await group.restart(host)
    assert list(group.server(host).lifecycle.broken) == [OTHER]
    await group.drop(host, OTHER)


# -- damaged records fail one replica; a server without its shared log does not start


@simulated()
async def test_a_replica_with_a_damaged_superblock_fails_alone_and_keeps_its_votes_in_a_copy(
    group: Group,
) -> None:
    """S21 of the reference."""
    await group.create(OTHER)
    await fill(group, 50)
    await group.upsert(row(1, "second"), tablet=OTHER)
    await group.settle(OTHER)
    target, other = await group.followers()
    leader = await group.leader()
    before = group.hard_state(target)
    group.crash(target)
    group.disk(target).rot("tablet-meta", RECORDS, TABLET.encode())
    await group.restart(target)
    server = group.server(target)
    assert server.lifecycle.state_of(TABLET) == m.FAILED
    assert server.lifecycle.state_of(OTHER) == m.RUNNING
    await until(group, lambda: server.lifecycle.state_of(TABLET) == m.RUNNING, "the tablet is copied again")
    after = group.hard_state(target)
    assert after.term >= before.term and (after.term > before.term or after.vote == before.vote)
    await same_rows(group, target, other, leader)
    await group.restart(target)
    assert group.state_of(target) == m.RUNNING


@pytest.mark.parametrize("also", [(), ("tablet-meta",), ("tablet-meta", "consensus-meta", f"data/{TABLET}")])
@simulated()
async def test_a_server_without_its_log_does_not_start_as_a_new_one(
    group: Group, also: tuple[str, ...]
) -> None:
    """For instance, the log's own disk is not mounted. The server would vote for candidates that lack what it acknowledged."""
    target = await group.settled(row(1))
    group.crash(target)
    for path in ("wals/shared", *also):
        group.disk(target).lose_environment(path)
    for _ in range(2):
        with pytest.raises(Damaged, match="what this server acknowledged"):
            await group.restart(target)
        group.crash(target)
    await group.upsert(row(2))


@pytest.mark.parametrize("copied", [False, True])
@simulated(shared_log_bytes=100_000)
async def test_a_replica_without_its_private_log_fails_alone(group: Group, copied: bool) -> None:
    """Entries that it acknowledged were only in that log on this server."""
    await group.create(OTHER)
    target = await group.settled(row(1))
    server, path = group.server(target), f"wals/{TABLET}"
    if copied:
        await entomb(group, target)
        await until(group, lambda: TABLET in server.replicas, "the tablet is copied again")
    for turn in range(60):
        await group.upsert(*[row(turn * 20 + k, "y" * 400) for k in range(20)], tablet=OTHER)
    await until(group, lambda: server.world.disk.exists(path), "the shared log has dropped its entries")
    await group.restart(target)
    assert group.state_of(target) == m.RUNNING
    group.crash_all()
    group.disk(target).lose_environment(path)
    await group.restart(target)
    assert group.state_of(target) == m.FAILED
    assert group.state_of(target, OTHER) == m.RUNNING


@simulated()
async def test_a_first_start_that_ended_before_the_log_existed_begins_again(group: Group) -> None:
    await group.cluster.start(address("host-d"), group.make("host-d"))
    uuid = group.uuid("host-d")
    group.crash("host-d")
    for path in ("wals/shared", "quarantine-meta"):  # in the order in which they are made
        group.disk("host-d").lose_environment(path)
    await group.restart("host-d")
    assert group.server("host-d").running and group.uuid("host-d") == uuid
