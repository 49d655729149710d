"""Reads during an alteration: the leader's disk is slower than its followers' disks, so the committed alteration is
applied while the read waits."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.rows.alteration import Alteration
from tests.tablet.harness import CODEC, TABLET, Group, row, simulated
from tests.tablet.test_alterations import ADDED, KEPT, REPLACED, alteration


async def waiting_read(group: Group, how: str, version: int) -> None:
    """Read, and raise the server's refusal."""
    host = await group.leader()
    if how == "scan":
        await group.first_block(host, ("k", "v", "n"), schema_version=version)
    elif how == "read_index":
        await group.ask(host, "read_index", m.TabletRequest(TABLET, version), m.ReadIndexReply)
    else:
        request = m.ReadRequest(version, (m.TabletKeys(TABLET, [CODEC.encode_key({"k": 1})]),))
        reply = await group.ask(host, "read", request, m.ReadReply)
        if reply.errors[0] is not None:
            raise errors.from_triple(reply.errors[0])


async def read_during(group: Group, wanted: Alteration, how: str, version: int) -> None:
    """Begin a read when the alteration is committed and not yet applied."""
    await group.upsert(row(1))
    host = await group.leader()
    replica = group.replica(host)
    group.disk(host).commit_s = (0.3, 0.3)
    request = m.AlterTabletRequest(group.uuid(host), TABLET, wanted)
    altering = asyncio.ensure_future(group.ask(host, "alter_tablet", request, m.Empty))
    while replica.core.commit_index < replica.core.last_index or not replica.alteration_asked[0]:
        await group.sleep(0.01)
    assert replica.rows.schema.version < wanted.schema.version
    try:
        await waiting_read(group, how, version)
    finally:
        await altering


@pytest.mark.parametrize("how", ["read", "scan"])
@simulated()
async def test_a_reader_without_the_new_schema_must_fetch_the_table_again(group: Group, how: str) -> None:
    with pytest.raises(errors.SchemaMismatch, match="fetch the table again"):
        await read_during(group, Alteration(REPLACED), how, 0)


@pytest.mark.parametrize("how", ["read", "scan", "read_index"])
@simulated()
async def test_a_reader_with_the_new_schema_waits_and_is_served(group: Group, how: str) -> None:
    await read_during(group, Alteration(ADDED), how, ADDED.version)


@pytest.mark.parametrize("how", ["read", "scan", "read_index"])
@simulated()
async def test_a_read_that_began_after_a_committed_drop_is_refused(group: Group, how: str) -> None:
    with pytest.raises(errors.TableDropped):
        await read_during(group, alteration(1, KEPT), how, 0)
