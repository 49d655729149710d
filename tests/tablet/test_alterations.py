"""Alterations come through the log: every replica applies them at the same place, and finds them again after a crash."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.alteration import Alteration, Dropped
from tests.tablet.harness import HOSTS, SCHEMA, TABLET, Group, address, row, simulate

KEPT = Dropped("id of t", "t", 1_000_000_000)


def alteration(version: int, dropped: Dropped | None = None) -> Alteration:
    return Alteration(msgspec.structs.replace(SCHEMA, version=version), dropped)


async def alter(group: Group, version: int, dropped: Dropped | None = None) -> None:
    async def attempt(host: str) -> None:
        uuid = group.server(host).instance.uuid
        request = m.AlterTabletRequest(uuid, TABLET, alteration(version, dropped))
        await group.ask(host, "alter_tablet", request, m.Empty, 8.0)

    await group.until_led(attempt)


def facts(group: Group) -> list[tuple[int, bool]]:
    rows = [group.replica(host).rows for host in HOSTS]
    return [(each.schema.version, each.dropped is not None) for each in rows]


def test_a_kept_table_is_neither_read_nor_written_and_says_how_it_is_recalled() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await alter(group, 1, KEPT)
        for act in (group.upsert(row(2)), group.get(1), group.scan()):
            with pytest.raises(errors.TableDropped, match=r"recall it: db\.recall_table"):
                await act
        leader = await group.leader()
        with pytest.raises(errors.TableDropped):
            await group.ask(leader, "read_index", m.TabletRequest(TABLET), m.ReadIndexReply)
        await group.settle()
        assert facts(group) == [(1, True)] * 3
        assert [group.replica(host).report().schema_version for host in HOSTS] == [1] * 3

    simulate(scenario)


def test_a_write_that_was_applied_before_is_answered_although_the_table_is_kept_now() -> None:
    async def scenario(group: Group) -> None:
        batch = group.batch(m.INSERT, [row(1)], 1)
        first = await group.write_bytes(batch)
        await alter(group, 1, KEPT)
        assert await group.write_bytes(batch) == first

    simulate(scenario)


def test_a_write_behind_the_alteration_in_the_log_is_refused_on_every_replica_alike() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        leader = await group.leader()
        for host in HOSTS:
            if host != leader:
                group.cluster.network.cut(address(leader), address(host))
        altering = asyncio.ensure_future(alter(group, 1, KEPT))
        await group.sleep(0.01)
        late = asyncio.ensure_future(group.upsert(row(2)))  # admitted: the leader has not applied it
        await group.sleep(0.01)
        assert group.replica(leader).log.last_index - group.replica(leader).store.applied.index == 2
        group.cluster.network.heal()
        with pytest.raises(errors.TableDropped):
            await late
        await altering
        await group.settle()
        assert [group.replica(host).store.get_many([b"\x80" + bytes(6) + b"\x02"]) for host in HOSTS] == [
            [None]
        ] * 3

    simulate(scenario)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_restart_finds_the_alteration_again_flushed_or_in_the_log(flushed: bool) -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await alter(group, 1, KEPT)
        await alter(group, 2)
        await alter(group, 3, KEPT)
        await group.settle()
        if flushed:
            for host in HOSTS:
                await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)
                assert group.replica(host).store.flushed.index == group.replica(host).store.applied.index
        group.crash_all()
        await group.restart()
        if flushed:
            assert facts(group) == [(3, True)] * 3, "before anything of the log was applied"
        await group.leader()
        await group.settle()
        assert facts(group) == [(3, True)] * 3

    simulate(scenario)


def test_old_and_repeated_alterations_change_nothing_and_a_follower_refers_to_the_leader() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await alter(group, 2, KEPT)
        await group.settle()
        last = group.replica(await group.leader()).log.last_index
        await alter(group, 1)
        await alter(group, 2)
        assert group.replica(await group.leader()).log.last_index == last
        assert facts(group) == [(2, True)] * 3
        follower = (await group.followers())[0]
        request = m.AlterTabletRequest(group.server(follower).instance.uuid, TABLET, alteration(3))
        with pytest.raises(errors.NotLeader):
            await group.ask(follower, "alter_tablet", request, m.Empty)

    simulate(scenario)


def test_a_damaged_alteration_on_disk_fails_that_replica_alone() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await alter(group, 1)
        await group.settle()
        host = HOSTS[0]
        await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)
        group.cluster.crash(address(host))
        group.cluster.state(address(host)).rot(f"data/{TABLET}", "meta", b"alteration")
        await group.restart(host)
        assert "checksum" in group.server(host).lifecycle.broken[TABLET].error
        await group.leader()

    simulate(scenario)
