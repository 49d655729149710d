"""A tablet's rows, read from another process while its owner writes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import msgspec
import pyarrow as pa
import pytest

from ebla.storage.environment import JOINED_STEP
from ebla.storage.errors import Corruption, Damaged, SnapshotExpired, StorageError
from ebla.storage.lmdb import mapping
from ebla.storage.lmdb.files import DATA_FILE, DATABASES_MAX, LOCK_FILE
from ebla.storage.lmdb.identity import IDENTITY_DATABASE, IDENTITY_KEY
from ebla.storage.schema import COLUMNS, ROWS
from ebla.storage.tablets import local_reader
from tests.storage.children import Child, read_only_mount
from tests.storage.local_owner import ALTERED, CODEC, SCHEMA, TABLET, stored


class Owner(Child):
    """The other process."""

    program = ("-m", "tests.storage.local_owner")
    __call__ = Child.ask

    def open(self, root: Path, storage: str) -> None:
        self.directory = Path(self(f"open {root} {storage}").removeprefix("open "))
        self.schema, self.altered = stored(SCHEMA, storage), stored(ALTERED, storage)


@pytest.fixture(scope="module")
def process() -> Iterator[Owner]:
    found = Owner()
    yield found
    found.kill()


@pytest.fixture(params=[ROWS, COLUMNS])
def owner(process: Owner, tmp_path: Path, request: pytest.FixtureRequest) -> Owner:
    process.open(tmp_path, request.param)
    return process


Scan = Callable[..., Iterator[pa.RecordBatch]]


@pytest.fixture
def scan(owner: Owner) -> Scan:
    return lambda **options: local_reader.scan(owner.directory, TABLET, owner.schema, **options)


def rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, str]]:
    return [(row["k"], row["v"]) for batch in batches for row in batch.to_pylist()]


def key(k: int) -> bytes:
    return CODEC.encode_key({"k": k})


def test_rows_come_in_key_order_as_their_owner_wrote_them(owner: Owner, scan: Scan) -> None:
    owner("put 5000 5000 b")
    owner("put 0 5000 a")
    found = rows(scan())
    assert found == [(k, f"a-{k}") for k in range(5000)] + [(k, f"b-{k - 5000}") for k in range(5000, 10_000)]


def test_a_part_of_the_keys_and_of_the_columns_can_be_read(owner: Owner, scan: Scan) -> None:
    owner("put 0 3000 a")
    batches = list(scan(columns=["v"], start=key(1500), stop=key(1503)))
    assert [batch.schema.names for batch in batches] == [["v"]]
    assert batches[0].to_pydict() == {"v": ["a-1500", "a-1501", "a-1502"]}


def test_one_scan_shows_one_moment_during_writes(owner: Owner, scan: Scan) -> None:
    owner("put 0 20000 old")
    under_way = scan()
    first = next(under_way)
    owner("put 0 20000 new")
    later = rows(under_way)
    assert first.num_rows + len(later) == 20_000
    assert {v.split("-")[0] for _, v in later} == {"old"}
    assert {v.split("-")[0] for _, v in rows(scan())} == {"new"}


def test_rows_older_than_the_wanted_index_are_refused(owner: Owner, scan: Scan) -> None:
    assert owner("put 0 10 a") == "index 1"
    assert len(rows(scan(index=1))) == 10
    with pytest.raises(local_reader.Stale, match="as of index 1, not yet 2"):
        rows(scan(index=2))
    owner("put 0 10 b")
    assert len(rows(scan(index=2))) == 10


def test_a_damaged_row_is_never_returned(owner: Owner, scan: Scan) -> None:
    owner("put 0 30000 a")
    owner("rot 20000")
    seen: list[tuple[int, str]] = []
    with pytest.raises(Corruption, match=r"fails? (its|their) checksum"):
        for batch in scan():
            seen += rows(iter([batch]))
    assert seen == [(k, f"a-{k}") for k in range(len(seen))]
    assert len(seen) <= 20_000


def test_several_scans_of_one_tablet_run_side_by_side(owner: Owner, scan: Scan) -> None:
    owner("put 0 20000 a")
    first, second = scan(), scan()
    pairs = list(zip(first, second, strict=True))
    assert all(one.equals(other) for one, other in pairs)
    assert local_reader._open == {}


def test_a_scan_that_is_closed_early_closes_the_environment(owner: Owner, scan: Scan) -> None:
    owner("put 0 20000 a")
    under_way = scan()
    next(under_way)
    assert len(local_reader._open) == 1
    under_way.close()  # type: ignore[attr-defined]
    assert local_reader._open == {}


def test_the_snapshot_of_a_caller_that_does_not_come_back_is_closed(
    owner: Owner, scan: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_reader, "KEPT_S", 0.01)
    owner("large 0 3000 5000")
    under_way = scan()
    batch = next(under_way)
    before = batch.to_pylist()
    ((reader, _),) = local_reader._open.values()
    with mapping._snapshot_closed:
        assert mapping._snapshot_closed.wait_for(lambda: not reader._snapshots, 30.0)
    for _ in range(3):  # on the pages that the snapshot has had
        owner("large 0 3000 5000")
    assert batch.to_pylist() == before
    with pytest.raises(SnapshotExpired, match="open a new one"):
        list(under_way)
    assert local_reader._open == {}


def test_the_owners_file_may_grow_while_it_is_read(owner: Owner, scan: Scan) -> None:
    owner("put 0 20000 a")
    under_way = scan()
    next(under_way)
    owner("large 100000 500 100000")  # ten times what the file was made for
    assert len(rows(under_way)) > 0
    assert sum(batch.num_rows for batch in scan(columns=["k"], start=key(100_000))) == 500


KILLED = """
import os, signal, sys
from pathlib import Path
from ebla.storage.tablets import local_reader
from tests.storage.local_owner import SCHEMA, TABLET
scan = local_reader.scan(Path(sys.argv[1]), TABLET, SCHEMA)
next(scan)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_reader_keeps_pages_of_the_owners_file_until_the_next_commit_only(
    process: Owner, tmp_path: Path
) -> None:
    process.open(tmp_path, ROWS)
    for _ in range(4):
        process("large 0 300 20000")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(process.directory)], check=False)
    assert killed.returncode == -signal.SIGKILL
    sizes = []
    for _ in range(6):
        process("large 0 300 20000")
        sizes.append((process.directory / DATA_FILE).stat().st_size)
    assert sizes[-1] == sizes[2], sizes


def test_nothing_is_read_where_a_snapshot_cannot_be_noted(owner: Owner, scan: Scan) -> None:
    owner("put 0 10 a")
    (owner.directory / LOCK_FILE).unlink()  # as on a file system that is mounted for reading
    with pytest.raises(StorageError, match=r"cannot write .*lock\.mdb, .*: mount the directory for writing"):
        rows(scan())


READS = """
import sys
from pathlib import Path
from ebla.storage.errors import StorageError
from ebla.storage.lmdb.reader import LmdbReader
try:
    LmdbReader(Path(sys.argv[1]), ())
except StorageError as error:
    print(error)
"""


def test_nothing_is_read_from_a_mount_for_reading_only(owner: Owner) -> None:
    owner("put 0 10 a")
    prefix = read_only_mount(owner.directory)
    child = [*prefix, sys.executable, "-c", READS, str(owner.directory)]
    shown = subprocess.run(child, capture_output=True, text=True, check=True).stdout
    assert "mount the directory for writing" in shown


def test_an_environment_of_another_format_is_not_read(owner: Owner, scan: Scan) -> None:
    owner("put 0 10 a")
    with lmdb.open(str(owner.directory), max_dbs=DATABASES_MAX, map_size=1 << 30) as opened:
        identity = opened.open_db(IDENTITY_DATABASE, create=False)
        with opened.begin(write=True) as transaction:
            record = msgspec.json.decode(transaction.get(IDENTITY_KEY, db=identity))
            transaction.put(IDENTITY_KEY, msgspec.json.encode({**record, "format": 99}), db=identity)
    with pytest.raises(Damaged, match="has format 99, this version reads"):
        rows(scan())


def test_large_rows_come_in_small_blocks(owner: Owner, scan: Scan) -> None:
    owner("large 0 3000 5000")
    assert max(batch.nbytes for batch in scan()) < local_reader.BLOCK_BYTES + 2 * JOINED_STEP * 5000
    assert sum(batch.num_rows for batch in scan()) == 3000


def test_a_directory_without_an_environment_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="no environment"):
        rows(local_reader.scan(tmp_path / "nothing", TABLET, SCHEMA))


def test_rows_of_several_layouts_are_read_and_an_older_reader_is_refused(owner: Owner, scan: Scan) -> None:
    owner("put 0 3 old")
    owner("alter")
    before = scan()
    assert next(before).num_rows == 3, "the alteration is not flushed yet"
    owner("put 2 3 new")
    found = local_reader.scan(owner.directory, TABLET, owner.altered)
    assert [row for batch in found for row in batch.to_pylist()] == [
        {"k": 0, "v": "old-0", "n": "new"},
        {"k": 1, "v": "old-1", "n": "new"},
        {"k": 2, "v": "new-0", "n": None},
        {"k": 3, "v": "new-1", "n": None},
        {"k": 4, "v": "new-2", "n": None},
    ]
    with pytest.raises(
        local_reader.Stale, match="version 1 of their table, the reader knows 0; open the table again"
    ):
        next(scan())
