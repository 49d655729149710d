"""Feeds and comparisons in this process, on a deployment without Ray, through the Python API and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

import ebla
from ebla.actors import errors
from ebla.errors import FeedFailed, SourceUnfit
from ebla.pipelines import target
from ebla.pipelines.arrow.feed import feed
from ebla.pipelines.arrow.verify import verify
from ebla.pipelines.outcomes import FeedProgress
from ebla.pipelines.target import table_for
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.altered import altered
from ebla.storage.schema import TableSchema
from ebla.table import Table
from ebla.write.alter import Changes
from tests.client.loopback import Loopback
from tests.client.toy import HOSTS, RowCodec, address, refuse
from tests.pipelines.small_sources import COUNT, SCHEMA, write_csv

# -- feed ----------------------------------------------------------------------------------------------------


def test_every_row_is_written_once_and_verified(table: Table, source: Path) -> None:
    seen: list[FeedProgress] = []
    report = feed(source, table, call_rows=300, on_progress=seen.append)
    assert (report.rows, report.rejected, report.skipped, report.repeated) == (COUNT, 0, 0, 0)
    assert (seen[-1].rows, seen[-1].total_rows, report.engine) == (COUNT, COUNT, "arrow")
    assert table.get({"id": 7}) == {"id": 7, "name": "n7\n", "x": 7 / 3}
    for path in (source, str(source)):
        checked = verify(path, table, replicas=False)
        assert (checked.ok, checked.source_rows, checked.table_rows) == (True, COUNT, COUNT)


def test_options_of_a_source_are_given_to_feed_and_verify(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.txt").write_bytes("id;name\n1;Ада\n".encode("cp1251"))
    chosen: dict[str, Any] = {"format": "csv", "options": {"encoding": "cp1251"}}
    assert feed("~/rows.txt", table, **chosen).rows == 1
    assert table.get({"id": 1}) == {"id": 1, "name": "Ада", "x": None}
    assert verify("~/rows.txt", table, replicas=False, **chosen).ok
    assert "read as cp1252, such as 'Àäà' in line 2;" in feed("~/rows.txt", table).notes[0]


@pytest.mark.parametrize("act", [feed, verify])
def test_another_source_or_table_is_refused_with_what_to_give(table: Table, source: Path, act: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"table is a table, such as db\.table\('people'\), not 'people'"
    ):
        act(source, "people")
    with pytest.raises(InvalidArgument, match=r"source is a path, .* table\.upsert\(rows\)"):
        act(pa.table({"id": [1]}), table)
    with pytest.raises(InvalidArgument, match="table is a table, such as"):
        list(ebla.local_scan.scan("people"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="table is a table, such as"):
        ebla.ray_data.read_table("people")  # type: ignore[arg-type]


def test_columns_that_the_source_lacks_get_their_default_or_null(table: Table, tmp_path: Path) -> None:
    table.upsert([{"id": 1, "name": "a", "x": 0.5}])
    (tmp_path / "rows.csv").write_text("id\n1\n")
    assert feed(tmp_path / "rows.csv", table).rows == 1
    assert table.get({"id": 1}) == {"id": 1, "name": None, "x": None}
    assert verify(tmp_path / "rows.csv", table, replicas=False).ok
    schema = TableSchema.from_arrow(SCHEMA, ["id"])
    unit = msgspec.structs.replace(schema.columns[1], default=b"m", nullable=False)
    schema = msgspec.structs.replace(schema, columns=(schema.columns[0], unit, schema.columns[2]))
    assert target.lacking(pa.schema([("id", pa.int64())]), schema) == {"name": "its default", "x": "null"}


def test_a_column_that_may_not_be_null_is_fed_and_compared_with_its_default(
    loopback: Loopback, table: Table, tmp_path: Path
) -> None:
    toy = loopback.toy.tables["t"]
    added = Changes("t").add_column("unit", pa.string(), nullable=False, default="m")
    schema = altered(toy.info.schema, added.changes)
    toy.info = msgspec.structs.replace(toy.info, schema=schema)
    for tablet in toy.tablets:
        tablet.codec = RowCodec(schema)
    (tmp_path / "rows.csv").write_text("id,name\n1,a\n")
    again = loopback.db.table("t")
    assert feed(tmp_path / "rows.csv", again).rows == 1
    assert again.get({"id": 1}) == {"id": 1, "name": "a", "x": None, "unit": "m"}
    assert verify(tmp_path / "rows.csv", again, replicas=False).ok


def test_nothing_is_written_if_one_row_does_not_fit(table: Table, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", "x,name,1.0", "5000,name", "7,again,1.0")
    with pytest.raises(SourceUnfit) as caught:
        feed(str(path), table)
    for words in (
        "2 rows do not fit (rows.csv row 1002, column id: 'x' is not int64; rows.csv row 1003 has 2 fields, not 3)",
        "1 row has the key of an earlier row (rows.csv row 1004 has id=7, as row 9)",
    ):
        assert words in caught.value.message
    assert (caught.value.unfit, caught.value.repeated) == (2, 1)
    assert table.scan().count() == 0


@pytest.mark.parametrize(("mode", "name"), [("upsert", "again"), ("insert", "n7\n")])
def test_rows_that_do_not_fit_are_left_out_on_request(
    table: Table, tmp_path: Path, mode: str, name: str
) -> None:
    path = write_csv(tmp_path / "rows.csv", "x,name,1.0", "7,again,1.0", "2000,last,1.0")
    report = feed(str(path), table, mode=mode, on_error="skip", call_rows=100)
    assert (report.rows + report.rejected, report.skipped, report.repeated) == (COUNT + 1, 1, 1)
    row = table.get({"id": 7})
    assert row is not None and row["name"] == name
    assert table.scan().count() == COUNT + 1


def test_a_feed_can_be_repeated_under_its_job(table: Table, source: Path) -> None:
    for _ in range(2):
        report = feed(str(source), table, mode="insert", job="nightly")
        assert (report.rows, report.rejected) == (COUNT, 0), "a repeated call gets its first answer"
    other = feed(str(source), table, mode="insert", job="another")
    assert (other.rows, other.rejected) == (0, COUNT)
    source.write_text(source.read_text().replace("n5", "m5"))
    with pytest.raises(
        ebla.InvalidArgument,
        match="'nightly' has written partition 0 before, with other rows or long ago; use another job",
    ):
        feed(str(source), table, mode="insert", job="nightly")


def test_lost_answers_change_no_row_twice(loopback: Loopback, table: Table, source: Path) -> None:
    for host in HOSTS:
        loopback.toy.after[address(host), "write"] = [refuse(errors.OutcomeUnknown("the answer was lost"))]
    report = feed(str(source), table, mode="insert", call_rows=200)
    assert (report.rows, report.rejected) == (COUNT, 0)


def test_a_feed_that_breaks_off_is_continued_under_its_job(
    loopback: Loopback, table: Table, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = target.write

    def break_off(table: Table, call: target.Call, **given: Any) -> tuple[int, int]:
        if call.position >= 400:
            raise errors.Unavailable("the servers are gone")
        return write(table, call, **given)

    monkeypatch.setattr(target, "write", break_off)
    with pytest.raises(
        FeedFailed, match=r"ended after .* rows: the servers are gone. Feed again with --job night"
    ) as caught:
        feed(str(source), table, mode="insert", job="night", call_rows=100)
    assert caught.value.possibly_applied
    monkeypatch.setattr(target, "write", write)
    report = feed(str(source), table, mode="insert", job="night", call_rows=100)
    assert (report.rows, report.rejected) == (COUNT, 0)


@pytest.mark.parametrize(
    ("text", "words", "column"),
    [
        ("id,nom\n1,x\n", r"no column 'nom'.*drop it.*id, name, x", "nom"),
        ("name\nx\n", "no column 'id', which table 't' needs", "id"),
    ],
)
def test_a_source_has_no_other_column_and_every_column_of_the_key(
    table: Table, tmp_path: Path, text: str, words: str, column: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ebla.InvalidArgument, match=words) as caught:
        feed(tmp_path / "a.csv", table)
    assert caught.value.column == column


def test_another_definition_of_an_existing_table_is_refused(loopback: Loopback, table: Table) -> None:
    with pytest.raises(ebla.InvalidArgument, match="exists with replicas 3, not 1"):
        table_for(loopback.db, "t", SCHEMA, replicas=1)
    same = {"primary_key": ["id"], "partition_by": ebla.hash("id", buckets=4), "replicas": 3}
    assert table_for(loopback.db, "t", SCHEMA, **same).name == "t"


def test_the_arrow_path_imports_no_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = sys.modules['raydp'] = None\n"
        "import ebla.cli.data.feeding, ebla.cli.data.verifying, ebla.pipelines.report\n"
        "import ebla.pipelines.arrow.feed, ebla.pipelines.arrow.verify"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- verify --------------------------------------------------------------------------------------------------


def test_verify_names_exactly_the_rows_that_differ(table: Table, source: Path) -> None:
    feed(str(source), table)
    table.delete({"id": 11})
    table.upsert({"id": -5, "name": "extra"})
    table.update({"id": 12, "name": "changed", "x": None})
    table.update({"id": 13, "x": 13 / 3})  # the old value
    report = verify(str(source), table, replicas=False)
    assert not report.ok
    assert (report.missing, report.extra, report.different, report.table_rows) == (1, 1, 1, COUNT)
    missing, extra, different = report.samples
    assert (missing.kind, missing.key) == ("missing", {"id": "11"})
    assert (extra.kind, extra.key) == ("extra", {"id": "-5"})
    assert (different.key, different.columns) == ({"id": "12"}, ("name", "x"))
    assert different.source == {"name": "n12\n", "x": "4.0"}
    assert different.table == {"name": "changed", "x": None}


def test_rows_that_do_not_fit_are_different_or_missing(table: Table, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", "5000,five,abc", "y,name,1.0", rows=3)
    feed(str(path), table, on_error="skip")
    table.upsert({"id": 5000, "name": "five"})
    report = verify(str(path), table, replicas=False)
    assert (report.missing, report.extra, report.different) == (1, 0, 1)
    assert report.samples[0].key == {"file": "rows.csv", "row": "6"}
    assert report.samples[1].source == {"x": "abc"}


def test_any_row_of_a_repeated_key_may_be_in_the_table(table: Table, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", "1,other,2.5", rows=3)
    for mode in ("insert", "upsert"):
        feed(str(path), table, mode=mode, on_error="skip", job=mode)
        report = verify(str(path), table, replicas=False)
        assert (report.ok, report.duplicates, report.source_rows) == (True, 1, 4)


def test_a_not_a_number_equals_every_other_one_and_not_null(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = pa.table({"id": [1, 2], "x": pa.array([float("nan"), None])})
    pa.parquet.write_table(values, path)
    feed(str(path), table)
    assert verify(str(path), table, replicas=False).ok
    table.update({"id": 2, "x": float("nan")})
    assert verify(str(path), table, replicas=False).different == 1


def test_nested_columns_and_times_are_fed_from_typed_files_json_and_csv(
    loopback: Loopback, tmp_path: Path
) -> None:
    types = pa.schema(
        [
            ("id", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.time64("us")),
            ("big", pa.uint64()),
            ("took", pa.duration("s")),
        ]
    )
    made = loopback.db.create_table("nested", schema=types, primary_key=["id"])
    values = {
        "id": 1,
        "tags": ["a", "b"],
        "at": time(12, 30),
        "big": 2**64 - 1,
        "took": timedelta(seconds=90),
    }
    pa.parquet.write_table(pa.Table.from_pylist([values], types), tmp_path / "a.parquet")
    text = {"id": 2, "tags": ["a", "b"], "at": "12:30:00", "big": 2**64 - 1, "took": 90}
    (tmp_path / "a.json").write_text(json.dumps(text))
    (tmp_path / "a.csv").write_text('id,tags,at,big,took\n3,"[""a"", ""b""]",12:30,18446744073709551615,90\n')
    for number, name in enumerate(("a.parquet", "a.json", "a.csv"), 1):
        assert feed(str(tmp_path / name), made).rows == 1
        assert made.get({"id": number}) == {**values, "id": number}
        assert verify(str(tmp_path / name), made, replicas=False).different == 0
