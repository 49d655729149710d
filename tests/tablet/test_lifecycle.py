"""Replicas are created, deleted and loaded on full disks, beside damage, and with schemas that cannot be used."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.tablet.engine import apply
from ebla.actors.tablet.engine.records import Superblock
from ebla.storage.directories.records import seal
from ebla.storage.errors import DiskFull
from ebla.storage.schema import Column
from tests.tablet.harness import HOSTS, SCHEMA, TABLET, Group, address, row, simulate
from tests.tablet.test_replicas import CrashAt, NodeFaults

OTHER = "f" * 32


class FillAt(CrashAt):
    """The disk of the armed node is full from the point on."""

    def of(self, node: str) -> NodeFaults:
        return FillingFaults(self, node)


class FillingFaults(NodeFaults):
    async def here(self, point: str) -> None:
        if self.plan.group is not None and self.plan.armed.pop((self.node, point), None):
            self.plan.group.cluster.state(self.node).fill()


def creation(group: Group, host: str, tablet: str) -> m.CreateTabletRequest:
    peers = tuple(Peer(group.server(h).instance.uuid, address(h)) for h in HOSTS)
    uuid = group.server(host).instance.uuid
    return m.CreateTabletRequest(uuid, tablet, "table", "t", SCHEMA, 0, Configuration(peers))


async def delete(group: Group, host: str, tablet: str = TABLET) -> None:
    request = m.DeleteTabletRequest(group.server(host).instance.uuid, tablet, "dropped")
    await group.ask(host, "delete_tablet", request, m.Empty)


CREATE_POINTS = ("before_consensus", "before_data", "before_superblock")
DELETE_POINTS = ("before_mark", "after_mark", "after_data", "after_log", "after_consensus")


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_a_creation_that_met_a_full_disk_succeeds_when_it_is_sent_again(point: str) -> None:
    plan = FillAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        host = HOSTS[0]
        plan.armed[address(host), f"tablet.create.{point}"] = 1
        for _ in range(2):
            with pytest.raises(DiskFull):
                await group.ask(host, "create_tablet", creation(group, host, OTHER), m.Empty)
        assert OTHER not in group.server(host).replicas
        group.cluster.state(address(host)).free()
        await group.create(OTHER)
        await group.upsert(row(1), tablet=OTHER)
        assert await group.get(1, tablet=OTHER) == [row(1)]
        await group.restart(host)
        assert group.replica(host, OTHER).state == "running"

    simulate(scenario, faults=plan.of)


def test_a_creation_whose_first_commit_meets_a_full_disk_leaves_nothing_open() -> None:
    async def scenario(group: Group) -> None:
        host = HOSTS[0]
        state = group.cluster.state(address(host))
        asked = asyncio.ensure_future(group.ask(host, "create_tablet", creation(group, host, OTHER), m.Empty))
        while f"data/{OTHER}" not in state.environments:
            await group.sleep(0.00001)
        state.fill()  # the position is still to be written
        with pytest.raises(DiskFull):
            await asked
        state.free()
        await group.create(OTHER)

    simulate(scenario)


@pytest.mark.parametrize("point", DELETE_POINTS)
def test_a_deletion_that_met_a_full_disk_succeeds_when_it_is_sent_again(point: str) -> None:
    plan = FillAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        await group.upsert(row(1))
        (host, _) = await group.followers()
        plan.armed[address(host), f"tablet.delete.{point}"] = 1
        for _ in range(2):
            with pytest.raises(DiskFull):
                await delete(group, host)
        server = group.server(host)
        if point == "before_mark":
            assert server.replicas[TABLET].state == "running", "nothing happened, so it goes on"
        group.cluster.state(address(host)).free()
        await delete(group, host)
        await delete(group, host)
        assert TABLET not in server.replicas
        assert not server.world.disk.exists(f"data/{TABLET}")
        assert server.lifecycle.superblocks.get(TABLET) is None

    simulate(scenario, faults=plan.of)


def test_a_replica_may_be_created_where_a_deletion_was_held_up_by_a_full_disk() -> None:
    plan = FillAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        await group.upsert(row(1))
        await group.settle()
        (host, _) = await group.followers()
        await group.ask(host, "flush", m.FlushRequest(), m.FlushReply)
        plan.armed[address(host), "tablet.delete.after_mark"] = 1
        with pytest.raises(DiskFull):
            await delete(group, host)
        group.cluster.state(address(host)).free()
        await group.ask(host, "create_tablet", creation(group, host, TABLET), m.Empty)
        assert group.replica(host).state == "running"
        assert group.replica(host).store.flushed.index == 0

    simulate(scenario, faults=plan.of)


@pytest.mark.parametrize("lost", ["consensus-meta", "position"])
def test_a_replica_that_could_not_be_loaded_can_be_deleted(lost: str) -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        (host, _) = await group.followers()
        group.cluster.crash(address(host))
        environments = group.cluster.state(address(host)).environments
        if lost == "position":
            del environments[f"data/{TABLET}"]["meta"][b"position"]
        else:
            del environments[lost]["records"][TABLET.encode()]
        await group.restart(host)
        server = group.server(host)
        assert list(server.lifecycle.broken) == [TABLET]
        await delete(group, host)
        assert not server.lifecycle.broken
        assert not server.world.disk.exists(f"data/{TABLET}")

    simulate(scenario)


def test_a_schema_that_cannot_be_used_here_is_refused_before_anything_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(schema: object) -> None:
        raise KeyError("no such zone")

    async def scenario(group: Group) -> None:
        host = HOSTS[0]
        apply.codec_of.cache_clear()  # which knows this schema, since other tests use it
        monkeypatch.setattr(apply, "RowCodec", refuse)
        with pytest.raises(errors.InvalidArgument, match="cannot be kept here: KeyError: 'no such zone'"):
            await group.ask(host, "create_tablet", creation(group, host, OTHER), m.Empty)
        monkeypatch.undo()
        server = group.server(host)
        assert OTHER not in server.replicas
        assert server.lifecycle.superblocks.get(OTHER) is None
        assert not server.world.disk.exists(f"data/{OTHER}")
        await group.upsert(row(1))

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_a_replica_whose_schema_cannot_be_used_any_more_is_broken_and_the_server_starts() -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        await group.upsert(row(1))
        host = HOSTS[0]
        superblock = group.replica(host, OTHER).superblock
        group.cluster.crash(address(host))
        columns = (*SCHEMA.columns, Column("t", "of_a_later_version"))
        schema = msgspec.structs.replace(SCHEMA, columns=columns)
        changed: Superblock = msgspec.structs.replace(superblock, schema=schema)
        records = group.cluster.state(address(host)).environments["tablet-meta"]["records"]
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
        assert kept.state == "failed", (
            "what it acknowledged is no longer in the log, whoever can read it later"
        )
        await group.restart(host)
        assert list(group.server(host).lifecycle.broken) == [OTHER]
        await delete(group, host, OTHER)

    simulate(scenario, shared_log_bytes=40_000, memtable_bytes=30_000)
