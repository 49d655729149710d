"""Committed batches change rows as a whole or not at all, and no batch ends a server, with any content."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine import apply
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.logs.entries import START, WRITE, Position, make_entry
from ebla.storage.rows import checksum, ragged
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import batches
from ebla.storage.runs.pieces import Piece
from ebla.storage.schema import COLUMNS, ROW_BYTES_MAX
from ebla.storage.tablets.results import Answer
from ebla.storage.tablets.tablet_store import TabletStore
from ebla.write import forms
from tests.tablet.harness import CLIENT, CODEC, HOSTS, OTHER, SCHEMA, TABLET, Group, row, simulated

SEED = checksum.seed(TABLET)
PATCH_V = RowCodec(SCHEMA, ("v",))
# This value fits into a patch; the patched row has one more column and exceeds the limit.
TOO_LONG = "y" * (ROW_BYTES_MAX - 8 - PATCH_V.header.tail_bytes)


async def all_replicas_run(group: Group) -> None:
    await group.settle()
    assert all(group.alive(host) for host in HOSTS)
    assert [group.replica(host).state for host in HOSTS] == ["running"] * 3
    positions = [group.replica(host).store.applied for host in HOSTS]
    assert positions[0] == positions[1] == positions[2]


@simulated()
async def test_an_update_that_makes_a_row_too_large_changes_nothing(group: Group) -> None:
    await group.upsert(row(1, "old"), row(2, "old"))
    with pytest.raises(errors.InvalidArgument, match="row 1: with this update") as refused:
        changes = [{"k": 2, "v": "new"}, {"k": 1, "v": TOO_LONG}]
        await group.write(m.UPDATE, changes, columns=("v",), sequence=50)
    assert refused.value.row == 1
    assert await group.get(1, 2) == [row(1, "old"), row(2, "old")]
    await all_replicas_run(group)
    await group.restart_all()
    assert await group.get(1, 2) == [row(1, "old"), row(2, "old")]
    await all_replicas_run(group)


@simulated()
async def test_an_update_of_more_old_bytes_than_arrow_holds_is_applied(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ragged, "BYTES_MAX", 1 << 20)
    monkeypatch.setattr(apply, "PATCH_BYTES_MAX", 1 << 18, raising=False)
    for k in range(40):
        await group.upsert(row(k, "x" * 60_000))
    result = await group.write(m.UPDATE, [{"k": k, "n": k} for k in range(41)], columns=("n",))
    assert result.rejected == (40,)
    assert await group.get(0, 39) == [row(0, "x" * 60_000, 0), row(39, "x" * 60_000, 39)]
    await all_replicas_run(group)


@simulated()
async def test_an_update_of_too_many_bytes_is_refused_as_a_whole(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "UPDATE_BYTES_MAX", 100_000)
    rows = [row(k, "x" * 30_000) for k in range(4)]
    await group.upsert(*rows)
    with pytest.raises(errors.InvalidArgument, match="fewer rows at a time"):
        await group.write(m.UPDATE, [{"k": k, "n": 7} for k in range(4)], columns=("n",))
    assert await group.get(0, 1, 2, 3) == rows
    await all_replicas_run(group)


def bad_batches() -> dict[str, m.RowBatch]:
    """Batches that no correct client sends, with valid checksums."""
    key, value = CODEC.encode_row(row(1, "bad"), SEED)
    good = m.RowBatch(CLIENT, 900, 0, m.UPSERT, SCHEMA.version, 1, [key], [value])
    _, patch = PATCH_V.encode_row({"k": 1, "v": "bad"}, SEED)
    update: dict[str, Any] = {"kind": m.UPDATE, "values": [patch], "columns": ("v",)}
    changes: dict[str, dict[str, Any]] = {
        "a kind of write that does not exist": {"kind": 9},
        "another schema version": {"schema_version": 7},
        "a key without bytes": {"keys": [b""]},
        "a key that no disk takes": {"keys": [b"k" * 600]},
        "a negative sequence": {"sequence": -1, "client": b"client-number-02"},
        "a client of another length": {"client": b"short"},
        "no rows": {"keys": [], "values": []},
        "fewer values than keys": {"keys": [key, b"k2"]},
        "values to delete": {"kind": m.DELETE},
        "a column that does not exist": {**update, "columns": ("nowhere",)},
        "a column of the key": {**update, "columns": ("k",)},
        "a column twice": {**update, "columns": ("n", "n")},
        "columns for a table of rows": {"keys": [], "values": [], "columnar": b"\1\0\0\0"},
        "a patch of other columns": {**update, "columns": ("v", "n")},
        "a patch cut short": {**update, "values": [checksum.seal(key, b"", SEED)]},
    }
    return {name: msgspec.structs.replace(good, **change) for name, change in changes.items()}


@pytest.mark.parametrize("name", bad_batches())
@simulated()
async def test_no_invalid_batch_in_the_log_ends_a_server(group: Group, name: str) -> None:
    batch = bad_batches()[name]
    await group.upsert(row(1, "old"))
    leader = group.server(await group.leader())
    payload = msgspec.msgpack.encode(batch)
    future = leader.replicas[TABLET].propose_write(leader.world.clock.monotonic(), payload, batch)
    leader.rounds.touch(leader.replicas[TABLET])
    with pytest.raises((errors.InvalidArgument, errors.SchemaMismatch)):
        await future
    await group.upsert(row(2))
    await group.flush(*HOSTS)
    await all_replicas_run(group)
    await group.restart_all()
    assert await group.get(1, 2) == [row(1, "old"), row(2)]
    await all_replicas_run(group)


@pytest.mark.parametrize("damage", [slice(0, 1), slice(4, 8), slice(12, 16), slice(40, None)])
@simulated()
async def test_no_bytes_in_place_of_columns_end_a_server(group: Group, damage: slice) -> None:
    group.storage = COLUMNS
    await group.create(OTHER)
    schema = msgspec.structs.replace(SCHEMA, storage=COLUMNS)
    codec = RowCodec(schema)
    given = codec.arrow([row(k, "new") for k in range(9)])
    made = forms.make(codec, m.UPSERT, given, codec.encode_keys(given), np.zeros(9, np.uint32))
    assert isinstance(made, Piece)
    data = bytearray(batches.encode(made, codec, checksum.seed(OTHER)))
    data[damage] = b"\xff" * len(data[damage])
    await group.upsert(row(1, "old"), tablet=OTHER)
    leader = group.server(await group.leader(OTHER))
    batch = m.RowBatch(CLIENT, 900, 0, m.UPSERT, 0, 1, [], [], (), bytes(data))
    payload = msgspec.msgpack.encode(batch)
    replica = leader.replicas[OTHER]
    future = replica.propose_write(leader.world.clock.monotonic(), payload, batch)
    leader.rounds.touch(replica)
    with pytest.raises(errors.InvalidArgument):
        await future
    await group.upsert(row(2), tablet=OTHER)
    await group.flush(*HOSTS, tablet=OTHER)
    await group.settle(OTHER)
    assert [group.replica(host, OTHER).state for host in HOSTS] == ["running"] * 3
    await group.restart_all()
    assert await group.get(1, 2, tablet=OTHER) == [row(1, "old"), row(2)]


@simulated()
async def test_an_unreadable_entry_fails_the_replica_and_not_the_server(group: Group) -> None:
    other = "f" * 32
    await group.create(other)
    await group.upsert(row(1), tablet=other)
    leader = group.server(await group.leader())
    leader.replicas[TABLET].propose(leader.world.clock.monotonic(), WRITE, b"\xc1 is no batch")
    leader.replicas[TABLET].absorb()
    leader.rounds.touch(leader.replicas[TABLET])
    await group.sleep(2)
    failed = [replica for host in HOSTS if (replica := group.replica(host)).state == "failed"]
    assert len(failed) == 2, "the last one does not learn that the entry is committed"
    assert all("cannot be read" in str(replica.error) for replica in failed)
    await group.upsert(row(2), tablet=other)
    assert await group.get(1, 2, tablet=other) == [row(1), row(2)]


class Bench:
    """Applies batches to rows without a server; `columnar`: in columns, where they may be."""

    def __init__(self, store: TabletStore, codec: RowCodec = CODEC) -> None:
        self.rows = apply.Rows(store, codec, SEED)
        self.sequence = 0

    def apply(
        self, kind: int, rows: list[dict[str, Any]], columns: tuple[str, ...] = (), *, columnar: bool = False
    ) -> Any:
        self.sequence += 1
        entry = make_entry(TABLET, START, 1, WRITE, 1, b"")
        if columnar:
            codec = self.rows.codec
            given = codec.arrow(rows)
            made = forms.make(
                codec, kind, given, codec.encode_keys(given), np.full(len(rows), SEED, np.uint32)
            )
            assert isinstance(made, Piece)
            data = batches.encode(made, codec, SEED)
            batch = m.RowBatch(CLIENT, self.sequence, self.sequence, kind, 0, 1, [], [], (), data)
            return self.rows.apply(entry, batch)
        codec = RowCodec(SCHEMA, columns) if kind == m.UPDATE else CODEC
        pairs = [codec.encode_row(r, SEED) for r in rows]
        keys = [key for key, _ in pairs] if kind != m.DELETE else [CODEC.encode_key(r) for r in rows]
        values = [value for _, value in pairs] if kind != m.DELETE else []
        batch = m.RowBatch(CLIENT, self.sequence, self.sequence, kind, 0, 1, keys, values, columns)
        return self.rows.apply(entry, batch)

    def all(self, keys: int) -> dict[int, dict[str, Any]]:
        encoded = [CODEC.encode_key({"k": k}) for k in range(keys)]
        found = zip(range(keys), encoded, self.rows.store.get_many(encoded), strict=True)
        return {k: CODEC.decode_row(key, value, SEED) for k, key, value in found if value is not None}


def _expected(model: dict[int, dict[str, Any]], kind: int, rows: list[dict[str, Any]]) -> tuple[int, ...]:
    """Apply one row after the other to the model; return the positions that are refused."""
    rejected = []
    for at, given in enumerate(rows):
        k = given["k"]
        if kind == m.UPSERT or (kind == m.INSERT and k not in model):
            model[k] = dict(given)
        elif kind == m.UPDATE and k in model:
            model[k] = {**model[k], **given}
        elif kind == m.DELETE and k in model:
            del model[k]
        else:
            rejected.append(at)
    return tuple(rejected)


@pytest.mark.parametrize("storage", ["rows", "columns"])
@pytest.mark.parametrize("seed", range(4))
def test_batches_in_many_pieces_have_the_effect_of_single_rows(
    seed: int, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "READ_ROWS_MAX", 3, raising=False)
    monkeypatch.setattr(apply, "PATCH_BYTES_MAX", 120, raising=False)
    chance = random.Random(seed)

    async def main() -> None:
        disk = MemoryDisk(DurableState(), random.Random(1))
        await disk.open_instance("u" * 32)
        schema = msgspec.structs.replace(SCHEMA, storage=storage)
        store = await TabletStore.open(disk, TABLET, create=True, schema=schema)
        bench = Bench(store, RowCodec(schema))
        model: dict[int, dict[str, Any]] = {}
        for _ in range(150):
            kind = chance.choice((m.UPSERT, m.INSERT, m.UPDATE, m.DELETE))
            columns = chance.choice((("v",), ("n",), ("n", "v"))) if kind == m.UPDATE else ("v", "n")
            given = {"v": lambda: "x" * chance.randrange(80), "n": lambda: chance.randrange(9)}
            rows = [
                {"k": chance.randrange(12), **{name: given[name]() for name in columns}}
                for _ in range(chance.randrange(1, 15))
            ]
            rejected = _expected(model, kind, rows)
            in_columns = storage == "columns" and kind in (m.UPSERT, m.INSERT) and chance.random() < 0.7
            answer = bench.apply(kind, rows, columns if kind == m.UPDATE else (), columnar=in_columns)
            assert isinstance(answer, Answer), answer
            assert answer.rejected == rejected
            if chance.random() < 0.7:  # a read puts the keys of batches into the index
                assert bench.all(12) == model
            if storage == "columns" and chance.random() < 0.1:
                store.applied = Position(store.applied.index + 1, 1, store.applied.index + 1)
                await store.flush()

    loop.run(main(), seed=1)


@simulated()
async def test_a_patch_of_a_damaged_row_fails_only_that_replica(group: Group) -> None:
    first = await group.settled(row(1, "good"))
    await group.flush(first)
    group.disk(first).rot(f"data/{TABLET}", "rows", CODEC.encode_key({"k": 1}))
    result = await group.write(m.UPDATE, [{"k": 1, "v": "new"}], columns=("v",))
    assert result.rejected == ()
    await group.settle()
    assert group.replica(first).state == "failed"
    assert await group.get(1) == [row(1, "new")]
