"""Quarantined data is kept within limits, listed, restored as far as it can be read, and purged; with crashes in between."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

from ebla.actors.tablet.engine.records import Superblock
from ebla.storage.environment import Delete, Put
from ebla.storage.errors import InvalidArgument, StorageError
from ebla.storage.lmdb.disk import HostFiles, LmdbDisk
from ebla.storage.logs.entries import START, Entry, Position, make_entry
from ebla.storage.logs.private_log import ENTRIES, PrivateLog
from ebla.storage.rows.alteration import Alteration
from ebla.storage.rows.alteration import encode as encode_alteration
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.blocks import PLACE
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.storage.tablets import quarantine as module
from ebla.storage.tablets.positions import ALTERATION, META
from ebla.storage.tablets.quarantine import Quarantine
from ebla.storage.tablets.restore import Quarantined, data_of, wals_of
from ebla.storage.tablets.tablet_store import ROWS, TabletStore, path_of
from tests.storage.disks import Scenario, given_by, in_loop, opened
from tests.storage.local_owner import ALTERED, CODEC, SCHEMA, TABLET, encoded, stored

OTHER = "f" * 32


def superblock_of(schema: TableSchema) -> bytes:
    return msgspec.msgpack.encode(Superblock(TABLET, "table", "cities", schema, 3))


SUPERBLOCK = superblock_of(SCHEMA)
LARGE = 1 << 40


async def fill(disk: LmdbDisk, tablet: str, rows: int, *, altered: bool = False, entries: int = 0) -> None:
    store = await TabletStore.open(disk, tablet, create=True)
    store.put(*encoded(0, [f"v-{k}" for k in range(rows)]))
    if altered:
        store.put(*encoded(rows, ["later"], RowCodec(ALTERED)))
        store.alter(encode_alteration(Alteration(ALTERED)))
    store.applied = Position(7, 1, 1)
    await store.flush()
    await store.close()
    if entries:
        log = await PrivateLog.open(disk, tablet, create=True)
        written: list[tuple[Entry, Position]] = []
        previous = START
        for number in range(entries):
            entry = make_entry(tablet, previous, 1, 1, 1000 + number, b"payload-%d" % number)
            written.append((entry, previous))
            previous = entry.position
        await log.extend(written)
        await log.environment.close()


async def add(quarantine: Quarantine, name: str, tablet: str = TABLET, at_us: int = 1_000_000) -> None:
    consensus = msgspec.msgpack.encode({"term": 4})
    await quarantine.add(Quarantined(name, tablet, "cities", "it left", at_us, 9, SUPERBLOCK, consensus))


async def set_aside(
    disk: LmdbDisk,
    quarantine: Quarantine,
    name: str = "q",
    tablet: str = TABLET,
    at_us: int = 1_000_000,
    rows: int = 1,
    **more: Any,
) -> None:
    await fill(disk, tablet, rows, **more)
    await add(quarantine, name, tablet, at_us)
    await quarantine.finish(name, tablet)


@asynccontextmanager
async def opened_quarantine(root: Path, bytes_max: int = LARGE) -> AsyncIterator[tuple[LmdbDisk, Quarantine]]:
    async with opened(root) as disk:
        yield disk, await Quarantine.open(disk, bytes_max)


def run_in_quarantine(scenario: Scenario, root: Path) -> None:
    async def main() -> None:
        async with opened_quarantine(root / "role") as (disk, quarantine):
            await scenario(disk, quarantine)

    asyncio.run(main())


in_quarantine = given_by(run_in_quarantine, "tmp_path", count=2)


def names(quarantine: Quarantine) -> list[str]:
    return [held.record.name for held in quarantine.list()]


@in_loop
async def test_a_restore_writes_rows_log_and_metadata(tmp_path: Path) -> None:
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        await set_aside(disk, quarantine, rows=20_000, entries=600)
        await quarantine.finish("q", TABLET)
        assert disk.list("data") == disk.list("wals") == []
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        (held,) = quarantine.list()
        assert held.bytes > 100_000 and (held.record.tablet, held.record.reason) == (TABLET, "it left")
        about = await quarantine.restore("q", str(tmp_path / "out/deep"))
        assert (about.rows, about.rows_damaged, about.entries, about.entries_damaged) == (20_000, 0, 600, 0)
        assert about.flushed == Position(7, 1, 1) and about.problems == []
        assert names(quarantine) == ["q"], "it stays in quarantine"
    place = tmp_path / "out/deep"
    assert sorted(os.listdir(place)) == ["about.json", "log.jsonl", "rows.parquet"]
    rows = parquet.read_table(place / "rows.parquet")
    assert rows.schema == CODEC.arrow_schema
    assert rows.column("k").to_pylist() == list(range(20_000)) and rows.column("v")[5].as_py() == "v-5"
    lines = [msgspec.json.decode(line) for line in (place / "log.jsonl").read_bytes().splitlines()]
    assert [line["index"] for line in lines] == list(range(1, 601))
    assert base64.b64decode(lines[599].pop("payload")) == b"payload-599"
    assert lines[599] == {"index": 600, "term": 1, "kind": 1, "time_us": 1599, "bytes": 11}
    about = msgspec.json.decode((place / "about.json").read_bytes())
    assert (about["at"], about["last_index"]) == ("1970-01-01T00:00:01+00:00", 9)
    assert about["superblock"]["table_name"] == "cities" and about["consensus"] == {"term": 4}


@in_quarantine
async def test_restored_rows_have_the_schema_of_the_data(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    await set_aside(disk, quarantine, rows=3, altered=True)
    about = await quarantine.restore("q", str(tmp_path / "out"))
    assert (about.rows, about.schema_version) == (4, ALTERED.version)
    rows = parquet.read_table(tmp_path / "out/rows.parquet")
    assert rows.column("n").to_pylist() == ["new", "new", "new", None]


@in_quarantine
async def test_damaged_rows_and_entries_are_skipped_and_counted(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    await set_aside(disk, quarantine, rows=100, entries=10)
    for path, database, key in (
        (data_of("q"), ROWS, CODEC.encode_key({"k": 42})),
        (wals_of("q"), ENTRIES, (3).to_bytes(8, "big")),
    ):
        environment = await disk.open_environment(path, [database], create=False)
        value = environment.get(database, key)
        assert value is not None
        rotten = value[:-6] + bytes([value[-6] ^ 1]) + value[-5:]
        await environment.commit([Put(database, [(key, rotten)])])
        await environment.close()
    about = await quarantine.restore("q", str(tmp_path / "out"))
    assert (about.rows, about.rows_damaged, about.entries, about.entries_damaged) == (99, 1, 9, 1)
    found = parquet.read_table(tmp_path / "out/rows.parquet").column("k").to_pylist()
    assert found == [k for k in range(100) if k != 42]


@in_quarantine
async def test_rows_of_a_damaged_block_and_older_ones_in_its_range_are_left_out(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    schema = stored(SCHEMA, COLUMNS)
    store = await TabletStore.open(disk, TABLET, create=True, schema=schema)
    for first, values in ((0, ["old"] * 100), (40, ["new"] * 20), (50, ["newest"] * 5)):
        store.put(*encoded(first, values))
        store.applied = Position(store.applied.index + 1, 1, 1)
        await store.flush()
    ((block, value),) = store.environment.items(ROWS, PLACE.pack(2, 0), PLACE.pack(3, 0))
    await store.environment.commit([Put(ROWS, [(block, value[:-6] + bytes([value[-6] ^ 1]) + value[-5:])])])
    await store.close()
    record = Quarantined("q", TABLET, "cities", superblock=superblock_of(schema))
    await quarantine.add(record)
    await quarantine.finish("q", TABLET)
    about = await quarantine.restore("q", str(tmp_path / "out"))
    assert (about.rows, about.rows_damaged, about.problems) == (85, 20, [])
    found = parquet.read_table(tmp_path / "out/rows.parquet").to_pylist()
    expected = {k: "old" for k in range(100) if not 40 <= k < 60} | dict.fromkeys(range(50, 55), "newest")
    assert {row["k"]: row["v"] for row in found} == expected


@in_quarantine
async def test_an_export_of_columns_has_the_newest_rows_and_no_deleted_ones(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    schema = stored(SCHEMA, COLUMNS)
    store = await TabletStore.open(disk, TABLET, create=True, schema=schema)
    for turn in range(3):
        store.put(*encoded(10 * turn, [f"v{turn}"] * 30))
        store.delete([CODEC.encode_key({"k": 25})])
        store.applied = Position(turn + 1, 1, 1)
        await store.flush()
    await store.close()
    await quarantine.add(Quarantined("q", TABLET, "cities", superblock=superblock_of(schema)))
    await quarantine.finish("q", TABLET)
    about = await quarantine.restore("q", str(tmp_path / "out"))
    assert (about.rows, about.rows_damaged, about.problems) == (49, 0, [])
    found = parquet.read_table(tmp_path / "out/rows.parquet").to_pylist()
    expected = {k: f"v{min(2, k // 10)}" for k in range(50) if k != 25}
    assert [(row["k"], row["v"]) for row in found] == list(expected.items())


@in_quarantine
async def test_an_export_of_columns_needs_no_filters_and_reports_a_list_of_runs_that_is_missing(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    schema = stored(SCHEMA, COLUMNS)
    for name, lost in (("a", b"bloom/1"), ("b", b"runs")):
        store = await TabletStore.open(disk, TABLET, create=True, schema=schema)
        store.put(*encoded(0, ["v"] * 100))
        store.applied = Position(1, 1, 1)
        await store.flush()
        await store.environment.commit([Delete("meta", [lost])])
        await store.close()
        await quarantine.add(Quarantined(name, TABLET, "cities", superblock=superblock_of(schema)))
        await quarantine.finish(name, TABLET)
    about = await quarantine.restore("a", str(tmp_path / "a"))
    assert (about.rows, about.problems) == (100, [])
    about = await quarantine.restore("b", str(tmp_path / "b"))
    assert about.rows == 0 and "rows may be missing or old" in about.problems[0]


@in_quarantine
async def test_an_export_without_the_last_alteration_reports_that_rows_may_be_missing(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    await fill(disk, TABLET, 10, altered=True)
    data = await disk.open_environment(path_of(TABLET), [META], create=False)
    await data.commit([Delete(META, [ALTERATION])])
    await data.close()
    await add(quarantine, "q")
    await quarantine.finish("q", TABLET)
    about = await quarantine.restore("q", str(tmp_path / "out"))
    assert (about.rows, about.rows_damaged, about.schema_version) == (10, 1, 0)
    assert "rows may be missing: the alteration" in about.problems[0]


@in_quarantine
async def test_an_unreadable_environment_is_reported_and_the_rest_is_restored(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    await set_aside(disk, quarantine, rows=100, entries=10)
    (disk.root / data_of("q") / "data.mdb").write_bytes(b"")
    about = await quarantine.restore("q", str(tmp_path / "out"))
    assert about.entries == 10 and ["lost its data.mdb" in each for each in about.problems] == [True]
    assert sorted(os.listdir(tmp_path / "out")) == ["about.json", "log.jsonl"]


@in_loop
async def test_a_restore_needs_an_empty_directory_with_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("keep")
    (tmp_path / "file").write_text("keep")

    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        await set_aside(disk, quarantine)
        for directory, problem in (
            (str(tmp_path / "full"), r"has contents \(mine\)"),
            ("relative", "no absolute path"),
            (str(tmp_path / "file"), "cannot restore to"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                await quarantine.restore("q", directory)
        with pytest.raises(InvalidArgument, match="no 'unknown' in quarantine"):
            await quarantine.restore("unknown", str(tmp_path / "new"))
        (tmp_path / "empty").mkdir()
        assert (await quarantine.restore("q", str(tmp_path / "empty"))).rows == 1
    assert os.listdir(tmp_path / "full") == ["mine"] and not (tmp_path / "new").exists()


@in_quarantine
async def test_a_restore_without_space_leaves_no_files(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    await set_aside(disk, quarantine)
    with monkeypatch.context() as patched:
        patched.setattr(HostFiles, "create", no_space)
        with pytest.raises(StorageError, match="free space"):
            await quarantine.restore("q", str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []
    await quarantine.restore("q", str(tmp_path / "out"))


@in_loop
async def test_the_oldest_entries_are_removed_above_the_limit(tmp_path: Path) -> None:
    async with opened_quarantine(tmp_path / "measured") as (disk, quarantine):
        await set_aside(disk, quarantine, rows=2000)
        one = quarantine.list()[0].bytes
    async with opened_quarantine(tmp_path / "role", bytes_max=3 * one) as (disk, quarantine):
        for number, at_us in enumerate((20, 10, 30, 40)):
            await set_aside(disk, quarantine, f"q{number}", f"{number:032}", at_us, 2000)
        assert names(quarantine) == ["q0", "q2", "q3"]
        await set_aside(disk, quarantine, "large", OTHER, 50, 20_000)
        assert names(quarantine) == [], "an entry larger than the limit is not kept"
    assert os.listdir(tmp_path / "role/quarantine") == []


@in_quarantine
async def test_an_entry_being_restored_is_not_removed_for_space(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = asyncio.Event()
    monkeypatch.setattr(module.restore, "restore", lambda *given: done.wait())
    await set_aside(disk, quarantine, "oldest", TABLET, 1)
    quarantine.bytes_max = 0
    restoring = asyncio.ensure_future(quarantine.restore("oldest", str(tmp_path / "out")))
    await asyncio.sleep(0)
    await set_aside(disk, quarantine, "next", OTHER, 2)
    assert names(quarantine) == ["oldest"]
    done.set()
    await restoring


@in_loop
async def test_one_entry_or_all_are_purged_and_a_repeated_purge_is_no_error(tmp_path: Path) -> None:
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        for number in range(3):
            await set_aside(disk, quarantine, f"q{number}", f"{number:032}", number)
        await quarantine.purge(["q1"])
        await quarantine.purge(["q1"])
        assert names(quarantine) == ["q0", "q2"]
        await quarantine.purge()
        await quarantine.purge()
        assert names(quarantine) == []
    assert os.listdir(tmp_path / "role/quarantine") == []


@in_loop
async def test_a_record_of_an_unfinished_deletion_is_dropped_at_the_start(tmp_path: Path) -> None:
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        await fill(disk, TABLET, 1)
        await add(quarantine, "never")
        await add(quarantine, "marked", OTHER)
        await set_aside(disk, quarantine, "done", "0" * 32, 1)
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        await quarantine.keep_only({"marked": None})
        assert names(quarantine) == ["done", "marked"]
        assert disk.list("data") == [TABLET]


@in_quarantine
async def test_an_entry_being_moved_or_restored_cannot_be_purged(
    disk: LmdbDisk, quarantine: Quarantine, tmp_path: Path
) -> None:
    await fill(disk, TABLET, 1)
    await add(quarantine, "q")
    for act in (quarantine.purge(["q"]), quarantine.restore("q", str(tmp_path / "out"))):
        with pytest.raises(StorageError, match="q is being moved; wait"):
            await act
    await quarantine.purge()
    await quarantine.finish("q", TABLET)
    assert names(quarantine) == ["q"]
    restoring = asyncio.ensure_future(quarantine.restore("q", str(tmp_path / "out")))
    await asyncio.sleep(0)
    with pytest.raises(StorageError, match="q is being restored"):
        await quarantine.purge(["q"])
    await restoring
    await quarantine.purge(["q"])


@in_loop
async def test_a_quarantine_that_lost_its_records_still_lists_its_data(
    tmp_path: Path,
) -> None:
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        await set_aside(disk, quarantine, rows=100)
        await set_aside(disk, quarantine, "p", OTHER, 1)
    (tmp_path / "role" / module.PATH / "data.mdb").write_bytes(b"")
    async with opened_quarantine(tmp_path / "role") as (disk, quarantine):
        assert [(held.record.name, held.record.reason) for held in quarantine.list()] == [
            ("p", "its record is lost"),
            ("q", "its record is lost"),
        ]
        about = await quarantine.restore("q", str(tmp_path / "out"))
        assert "schema is not known" in about.problems[0]
        await quarantine.purge(["q"])
        assert names(quarantine) == ["p"]


@in_quarantine
async def test_data_with_a_damaged_record_is_listed(disk: LmdbDisk, quarantine: Quarantine) -> None:
    await set_aside(disk, quarantine)
    await quarantine._records.environment.commit([Put(module.RECORDS, [(b"q", b"rotten")])])
    (held,) = quarantine.list()
    assert (held.record.name, held.record.reason) == ("q", "its record is damaged") and held.bytes > 0
    await quarantine.purge(["q"])
    assert quarantine.list() == []
