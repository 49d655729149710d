"""Reads that wait beside an alteration: the leader's disk is slower than its followers', so what they have committed, the
alteration among it, is applied while the read waits."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.rows.alteration import Alteration
from tests.tablet.harness import CODEC, TABLET, Group, address, row, simulate
from tests.tablet.test_alterations import ADDED, KEPT, REPLACED, alteration


async def waiting_read(group: Group, how: str, version: int) -> None:
    """Raises as the server refuses it."""
    host = await group.leader()
    if how == "scan":
        await group.ask(host, "scan", m.ScanRequest(TABLET, version, ("k", "v", "n")), m.ScanBlock)
    elif how == "read_index":
        await group.ask(host, "read_index", m.TabletRequest(TABLET, version), m.ReadIndexReply)
    else:
        request = m.ReadRequest(version, (m.TabletKeys(TABLET, [CODEC.encode_key({"k": 1})]),))
        reply = await group.ask(host, "read", request, m.ReadReply)
        if reply.errors[0] is not None:
            raise errors.from_triple(reply.errors[0])


async def beside(group: Group, wanted: Alteration, how: str, version: int) -> None:
    """A read that begins when the alteration is committed, and not yet applied."""
    await group.upsert(row(1))
    host = await group.leader()
    replica = group.replica(host)
    group.cluster.state(address(host)).commit_s = (0.3, 0.3)
    request = m.AlterTabletRequest(group.server(host).instance.uuid, TABLET, wanted)
    altering = asyncio.ensure_future(group.ask(host, "alter_tablet", request, m.Empty))
    while replica.core.commit_index < replica.core.last_index or not replica.alteration_asked[0]:
        await group.sleep(0.01)
    assert replica.rows.schema.version < wanted.schema.version
    try:
        await waiting_read(group, how, version)
    finally:
        await altering


@pytest.mark.parametrize("how", ["read", "scan"])
def test_a_reader_that_does_not_know_the_alteration_is_told_to_fetch_the_table_again(how: str) -> None:
    async def scenario(group: Group) -> None:
        with pytest.raises(errors.SchemaMismatch, match="fetch the table again"):
            await beside(group, Alteration(REPLACED), how, 0)

    simulate(scenario)


@pytest.mark.parametrize("how", ["read", "scan", "read_index"])
def test_a_reader_that_knows_it_already_waits_and_is_served(how: str) -> None:
    async def scenario(group: Group) -> None:
        await beside(group, Alteration(ADDED), how, ADDED.version)

    simulate(scenario)


@pytest.mark.parametrize("how", ["read", "scan", "read_index"])
def test_nobody_reads_a_table_whose_drop_was_committed_before_the_read_began(how: str) -> None:
    async def scenario(group: Group) -> None:
        with pytest.raises(errors.TableDropped):
            await beside(group, alteration(1, KEPT), how, 0)

    simulate(scenario)
