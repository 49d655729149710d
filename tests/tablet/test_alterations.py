"""Alterations go through the log: every replica applies them at the same index, and has them again after a crash."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.rows import checksum
from ebla.storage.rows.alteration import AddColumn, Alteration, DropColumn, Dropped, RenameColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, TableSchema
from tests.tablet.harness import CLIENT, CODEC, HOSTS, SCHEMA, TABLET, Group, row, simulated

KEPT = Dropped("id of t", "t", 1_000_000_000)


def alteration(version: int, dropped: Dropped | None = None) -> Alteration:
    return Alteration(msgspec.structs.replace(SCHEMA, version=version), dropped)


async def alter(group: Group, version: int, dropped: Dropped | None = None) -> None:
    await group.alter(alteration(version, dropped))


def versions(group: Group) -> list[tuple[int, bool]]:
    rows = [group.replica(host).rows for host in HOSTS]
    return [(each.schema.version, each.dropped is not None) for each in rows]


@simulated()
async def test_a_dropped_table_refuses_reads_and_writes_and_says_how_to_recall_it(group: Group) -> None:
    await group.upsert(row(1))
    await alter(group, 1, KEPT)
    for act in (group.upsert(row(2)), group.get(1), group.scan()):
        with pytest.raises(errors.TableDropped, match=r"recall it: db\.recall_table"):
            await act
    leader = await group.leader()
    with pytest.raises(errors.TableDropped):
        await group.ask(leader, "read_index", m.TabletRequest(TABLET), m.ReadIndexReply)
    await group.settle()
    assert versions(group) == [(1, True)] * 3
    assert [group.replica(host).report().schema_version for host in HOSTS] == [1] * 3


@simulated()
async def test_a_write_applied_before_the_drop_is_answered_after_it(group: Group) -> None:
    batch = group.batch(m.INSERT, [row(1)], 1)
    first = await group.write_bytes(batch)
    await alter(group, 1, KEPT)
    assert await group.write_bytes(batch) == first


@simulated()
async def test_a_write_after_the_drop_in_the_log_is_refused_on_every_replica(group: Group) -> None:
    await group.upsert(row(1))
    leader, *others = await group.roles()
    group.cut(leader, *others)
    altering = asyncio.ensure_future(alter(group, 1, KEPT))
    await group.sleep(0.01)
    late = asyncio.ensure_future(group.upsert(row(2)))  # admitted: the leader has not applied the drop
    await group.sleep(0.01)
    assert group.replica(leader).log.last_index - group.replica(leader).store.applied.index == 2
    group.heal()
    with pytest.raises(errors.TableDropped):
        await late
    await altering
    await group.settle()
    key = CODEC.encode_key({"k": 2})
    assert [group.replica(host).store.get_many([key]) for host in HOSTS] == [[None]] * 3


@pytest.mark.parametrize("flushed", [False, True])
@simulated()
async def test_a_restart_restores_the_alteration_from_the_data_or_the_log(
    group: Group, flushed: bool
) -> None:
    await group.upsert(row(1))
    await alter(group, 1, KEPT)
    await alter(group, 2)
    await alter(group, 3, KEPT)
    await group.settle()
    if flushed:
        await group.flush(*HOSTS)
        stores = [group.replica(host).store for host in HOSTS]
        assert all(store.flushed.index == store.applied.index for store in stores)
    await group.restart_all()
    if flushed:
        assert versions(group) == [(3, True)] * 3, "before any entry of the log is applied"
    await group.leader()
    await group.settle()
    assert versions(group) == [(3, True)] * 3


@simulated()
async def test_old_and_repeated_alterations_change_nothing_and_a_follower_refuses(group: Group) -> None:
    await group.upsert(row(1))
    await alter(group, 2, KEPT)
    await group.settle()
    last = group.replica(await group.leader()).log.last_index
    await alter(group, 1)
    await alter(group, 2)
    assert group.replica(await group.leader()).log.last_index == last
    assert versions(group) == [(2, True)] * 3
    follower = (await group.followers())[0]
    request = m.AlterTabletRequest(group.uuid(follower), TABLET, alteration(3))
    with pytest.raises(errors.NotLeader):
        await group.ask(follower, "alter_tablet", request, m.Empty)


@simulated()
async def test_a_damaged_alteration_on_disk_fails_that_replica_only(group: Group) -> None:
    await group.upsert(row(1))
    await alter(group, 1)
    await group.settle()
    host = HOSTS[0]
    await group.flush(host)
    group.crash(host)
    group.disk(host).rot(f"data/{TABLET}", "meta", b"alteration")
    await group.restart(host)
    assert "checksum" in group.server(host).lifecycle.broken[TABLET].error
    await group.leader()


# -- columns -------------------------------------------------------------------------------------------------

ADDED = altered(SCHEMA, [AddColumn(Column("x", "int64", default=(7).to_bytes(8, "little")))])
REPLACED = altered(ADDED, [DropColumn("v"), AddColumn(Column("w", "string")), RenameColumn("w", "v")])


async def rows_of(group: Group, schema: TableSchema, host: str | None = None) -> list[dict[str, object]]:
    names = tuple(column.name for column in schema.columns)
    request = m.ScanRequest(TABLET, schema.version, names, at_leader=host is None)

    async def attempt(asked: str) -> list[dict[str, object]]:
        block = await group.ask(asked, "scan", request, m.ScanBlock)
        return pa.ipc.open_stream(block.data).read_all().to_pylist()

    return await (attempt(host) if host else group.until_led(attempt))


@simulated()
async def test_batches_of_older_versions_apply_alike_on_every_replica(group: Group) -> None:
    await group.upsert(row(1), row(2))
    await group.alter(Alteration(ADDED))
    await group.upsert(row(3, "late"))  # encoded in version 0
    await group.alter(Alteration(REPLACED))
    await group.write(m.INSERT, [row(4, "later")])
    await group.write(m.UPDATE, [{"k": 1, "v": "of the dropped column", "n": 5}], columns=("v", "n"))
    with pytest.raises(errors.InvalidArgument, match="no column 'x' in version 0"):
        await group.write(m.UPDATE, [{"k": 1, "v": ""}], columns=("x",), encoded=("v",))
    await group.write(m.DELETE, [row(2)])
    expected = [
        {"k": 1, "n": 5, "x": 7, "v": None},
        {"k": 3, "n": 0, "x": 7, "v": None},
        {"k": 4, "n": 0, "x": 7, "v": None},
    ]
    await group.settle()
    for host in HOSTS:
        assert await rows_of(group, REPLACED, host) == expected
    await group.flush(*HOSTS)
    await group.restart_all()
    await group.leader()
    await group.settle()
    for host in HOSTS:
        assert await rows_of(group, REPLACED, host) == expected
        assert group.replica(host).report().schema_version == 2


@simulated()
async def test_reads_with_an_older_or_newer_version_are_refused(group: Group) -> None:
    await group.upsert(row(1))
    with pytest.raises(errors.SchemaMismatch) as newer:
        leader = await group.leader()
        await group.first_block(leader, schema_version=1)
    assert (newer.value.wanted, newer.value.found) == (1, 0)
    await group.alter(Alteration(ADDED))
    leader = await group.leader()
    with pytest.raises(errors.SchemaMismatch, match="fetch the table again") as older:
        await group.first_block(leader)
    assert (older.value.wanted, older.value.found) == (0, 1)
    with pytest.raises(errors.SchemaMismatch):
        await group.ask(leader, "local_snapshot", m.LocalSnapshotRequest(TABLET, 0), m.LocalSnapshot)
    assert isinstance(await group.read_once(leader), errors.SchemaMismatch)


@simulated(scan_read_rows=16)
async def test_a_scan_keeps_the_schema_it_was_opened_with(group: Group) -> None:
    await group.upsert(*(row(k) for k in range(50)))
    leader = await group.leader()
    block = await group.first_block(leader, ("k", "v"))
    await group.alter(Alteration(REPLACED))
    await group.upsert(row(3, "not in the snapshot"))
    found = pa.ipc.open_stream(block.data).read_all().to_pylist()
    while block.scanner is not None:
        block = await group.next_block(leader, block)
        found += pa.ipc.open_stream(block.data).read_all().to_pylist()
    assert found == [{"k": k, "v": "x"} for k in range(50)]


@simulated()
async def test_altered_replicas_have_equal_digests_flushed_or_not(group: Group) -> None:
    await group.upsert(*(row(k) for k in range(20)))
    await group.alter(Alteration(ADDED))
    await group.upsert(*(row(k, "y") for k in range(10, 30)))
    await group.flush(HOSTS[0])
    await group.write(m.UPDATE, [{"k": k, "n": 1} for k in range(5)], columns=("n",))
    index = await group.checksum_index()
    (found,) = {await group.digest(host, index) for host in HOSTS}
    assert found[0] == 30


@simulated()
async def test_rows_with_another_layout_than_their_batch_are_refused_before_the_log(group: Group) -> None:
    await group.alter(Alteration(ADDED))
    codec = RowCodec(ADDED)
    key, value = codec.encode_row({"k": 1}, checksum.seed(TABLET))
    batch = m.RowBatch(
        CLIENT, 900, 0, m.UPSERT, 0, checksum.rows_digest(m.UPSERT, (), [key], [value]), [key], [value]
    )
    with pytest.raises(errors.InvalidArgument, match="other layouts"):
        await group.write_bytes(msgspec.msgpack.encode(batch))
    await group.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(batch, schema_version=1)))
    assert await rows_of(group, ADDED) == [{"k": 1, "v": None, "n": None, "x": 7}]


# -- reads during an alteration: the leader's disk is slower than its followers', so the committed alteration is applied while the read waits


async def waiting_read(group: Group, how: str, version: int) -> None:
    """Read, and raise the server's refusal."""
    host = await group.leader()
    if how == "scan":
        await group.first_block(host, ("k", "v", "n"), schema_version=version)
    elif how == "read_index":
        await group.ask(host, "read_index", m.TabletRequest(TABLET, version), m.ReadIndexReply)
    else:
        refusal = await group.read_once(host, version=version)
        if refusal is not None:
            raise refusal


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
