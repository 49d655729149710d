"""Feeds and comparisons in this process, on a deployment without Ray, through the Python API and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import ebla
from ebla.actors import errors
from ebla.cli.app import app
from ebla.cli.data import sources
from ebla.pipelines import target
from ebla.pipelines.arrow.feed import feed
from ebla.pipelines.arrow.verify import verify
from ebla.pipelines.datasets import SourceUnreadable
from ebla.pipelines.outcomes import FeedFailed, FeedProgress, SourceUnfit
from ebla.pipelines.target import table_for
from ebla.storage.schema import TableSchema
from ebla.table import Table
from tests.cli.stage import Outcome
from tests.client.loopback import Loopback
from tests.client.toy import HOSTS, address, refuse

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])
ROWS = 1000


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        yield running


@pytest.fixture
def table(loopback: Loopback) -> Table:
    return table_for(loopback.db, "t", SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=4))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "rows.csv")


def write_csv(path: Path, *extra: str, rows: int = ROWS) -> Path:
    frame = pd.DataFrame(
        {"id": range(rows), "name": [f"n{n}\n" for n in range(rows)], "x": [n / 3 for n in range(rows)]}
    )
    path.write_text(frame.to_csv(index=False) + "".join(line + "\n" for line in extra))
    return path


# -- feed ----------------------------------------------------------------------------------------------------


def test_every_row_is_written_once_and_verified(table: Table, source: Path) -> None:
    seen: list[FeedProgress] = []
    report = feed(str(source), table, call_rows=300, on_progress=seen.append)
    assert (report.rows, report.rejected, report.skipped, report.repeated) == (ROWS, 0, 0, 0)
    assert (seen[-1].rows, seen[-1].total_rows, report.engine) == (ROWS, ROWS, "arrow")
    assert table.get({"id": 7}) == {"id": 7, "name": "n7\n", "x": 7 / 3}
    checked = verify(str(source), table, replicas=False)
    assert (checked.ok, checked.source_rows, checked.table_rows) == (True, ROWS, ROWS)


def test_a_source_may_be_a_path(table: Table, source: Path) -> None:
    assert feed(source, table).rows == ROWS
    assert verify(source, table, replicas=False).ok


def test_columns_that_the_source_lacks_get_their_default_or_null(table: Table, tmp_path: Path) -> None:
    table.upsert([{"id": 1, "name": "a", "x": 0.5}])
    (tmp_path / "rows.csv").write_text("id\n1\n")
    assert feed(tmp_path / "rows.csv", table).rows == 1
    assert table.get({"id": 1}) == {"id": 1, "name": None, "x": None}
    assert verify(tmp_path / "rows.csv", table, replicas=False).ok
    schema = TableSchema.from_arrow(SCHEMA, ["id"])
    unit = msgspec.structs.replace(schema.columns[1], default=b"m")
    schema = msgspec.structs.replace(schema, columns=(schema.columns[0], unit, schema.columns[2]))
    assert target.lacking(pa.schema([("id", pa.int64())]), schema) == {"name": "its default", "x": "null"}


def test_nothing_is_written_if_one_row_does_not_fit(table: Table, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", "x,name,1.0", "5000,name", "7,again,1.0")
    with pytest.raises(SourceUnfit) as caught:
        feed(str(path), table)
    assert (
        "2 rows do not fit (rows.csv row 1002, column id: 'x' is not int64; rows.csv row 1003 has 2 fields, not 3)"
        in (caught.value.message)
    )
    assert (
        "1 row has the key of an earlier row (rows.csv row 1004 has id=7, as row 9)" in caught.value.message
    )
    assert (caught.value.unfit, caught.value.repeated) == (2, 1)
    assert table.scan().count() == 0


@pytest.mark.parametrize(("mode", "name"), [("upsert", "again"), ("insert", "n7\n")])
def test_rows_that_do_not_fit_are_left_out_on_request(
    table: Table, tmp_path: Path, mode: str, name: str
) -> None:
    path = write_csv(tmp_path / "rows.csv", "x,name,1.0", "7,again,1.0", "2000,last,1.0")
    report = feed(str(path), table, mode=mode, on_error="skip", call_rows=100)
    assert (report.rows + report.rejected, report.skipped, report.repeated) == (ROWS + 2, 1, 1)
    row = table.get({"id": 7})
    assert row is not None and row["name"] == name
    assert table.scan().count() == ROWS + 1


def test_a_feed_can_be_repeated_under_its_job(table: Table, source: Path) -> None:
    for _ in range(2):
        report = feed(str(source), table, mode="insert", job="nightly")
        assert (report.rows, report.rejected) == (ROWS, 0), "a repeated call gets its first answer"
    other = feed(str(source), table, mode="insert", job="another")
    assert (other.rows, other.rejected) == (0, ROWS)
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
    assert (report.rows, report.rejected) == (ROWS, 0)


def test_a_feed_that_breaks_off_is_continued_under_its_job(
    loopback: Loopback, table: Table, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla.pipelines import target

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
    assert (report.rows, report.rejected) == (ROWS, 0)


def test_source_and_table_must_have_the_same_columns(table: Table, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,nom\n1,x\n")
    with pytest.raises(ebla.InvalidArgument, match=r"no column 'nom'.*drop it"):
        feed(str(tmp_path / "a.csv"), table)
    (tmp_path / "a.csv").write_text("name\nx\n")
    with pytest.raises(ebla.InvalidArgument, match="no column 'id', which table 't' needs"):
        feed(str(tmp_path / "a.csv"), table)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"primary_key": ["name"]}, "exists with the primary key id, not name"),
        ({"partition_by": ebla.hash("id", buckets=8)}, "another partitioning"),
        ({"replicas": 1}, "exists with 3 replicas of each tablet, not 1"),
    ],
)
def test_another_definition_of_an_existing_table_is_refused(
    loopback: Loopback, table: Table, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ebla.InvalidArgument, match=words):
        table_for(loopback.db, "t", SCHEMA, **given)
    same = table_for(
        loopback.db, "t", SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=4), replicas=3
    )
    assert same.name == "t"


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
    assert (report.missing, report.extra, report.different, report.table_rows) == (1, 1, 1, ROWS)
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
    assert report.samples[0].key == {"row": "rows.csv row 6"}
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


# -- the commands --------------------------------------------------------------------------------------------

Ebla = Callable[..., Outcome]


@pytest.fixture
def run(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> Ebla:
    @contextmanager
    def connected(*given: Any) -> Iterator[Any]:
        yield loopback.db

    monkeypatch.setattr(sources, "connected", connected)

    def call(*words: str) -> Outcome:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return call


def test_a_feed_creates_the_table_and_shows_what_was_inferred(
    run: Ebla, loopback: Loopback, source: Path
) -> None:
    fed = run("feed", str(source), "made", "--key", "id", "--hash", "id:2")
    assert fed.status == 0
    assert 'rows.csv: csv, utf-8, separator ","' in fed.message
    assert "name string" in fed.message and "x double" in fed.message
    assert "created table made" in fed.out and "1,000" in fed.out
    assert len(loopback.db.table("made").info().tablets) == 2
    assert run("verify", str(source), "made", "--no-replicas").status == 0


def test_columns_that_the_source_lacks_are_shown(
    run: Ebla, loopback: Loopback, table: Table, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,name\n1,a\n")
    line = "columns of the table that the source lacks, with their value in each row written: x (null)"
    dry = run("feed", str(tmp_path / "rows.csv"), "t", "--dry-run")
    assert line in " ".join(dry.out.split())
    assert run("feed", str(tmp_path / "rows.csv"), "t", "--dry-run", "--json").json["lacking"] == {
        "x": "null"
    }
    fed = run("feed", str(tmp_path / "rows.csv"), "t")
    assert (fed.status, line in fed.message) == (0, True)


def test_a_dry_run_shows_types_a_sample_and_bad_rows_and_writes_nothing(
    run: Ebla, loopback: Loopback, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "rows.csv", rows=3)
    shown = run("feed", str(path), "t", "--key", "id", "--dry-run", "--json")
    assert shown.status == 0
    assert (shown.json["would_feed"], shown.json["table_exists"], shown.json["key"]) == (True, False, ["id"])
    assert shown.json["checked"]["columns"] == {"id": "int64", "name": "string", "x": "double"}
    assert shown.json["checked"]["sample"][1] == {"id": "1", "name": "n1\n", "x": str(1 / 3)}
    assert loopback.db.tables() == []
    loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])
    write_csv(path, "y,a,1.0", "2,again,1.0", rows=3)
    bad = run("feed", str(path), "t", "--dry-run")
    assert bad.status == 1
    assert "rows.csv 5 id 'y' is not int64" in bad.text
    assert "rows.csv 6 id same key as row 4: id=2" in bad.text
    assert "a feed would fail, unless --on-error skip" in bad.text
    assert run("feed", str(path), "t", "--dry-run", "--on-error", "skip").status == 0
    assert loopback.db.table("t").scan().count() == 0


def test_a_named_data_set_has_its_key_and_types(run: Ebla) -> None:
    shown = run("feed", "flights", "flights", "--dry-run", "--json")
    assert (shown.status, shown.json["key"]) == (0, ["time_hour", "carrier", "flight"])
    checked = shown.json["checked"]
    assert (checked["rows"], checked["fitting"], checked["repeated"]) == (336_776, 336_776, 0)
    assert checked["columns"]["time_hour"] == "timestamp[us, tz=UTC]"


def test_a_failed_feed_creates_no_table_and_lists_the_rows_in_json(
    run: Ebla, loopback: Loopback, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "rows.csv", "0,again,1.0", "5,short", rows=3)
    refused = run("feed", str(path), "t", "--key", "id", "--json")
    error = refused.json["error"]
    assert (refused.status, error["kind"], error["possibly_applied"]) == (1, "SourceUnfit", False)
    assert error["fields"]["rows"] == [
        {"file": "rows.csv", "row": 6, "column": None, "problem": "has 2 fields, not 3"}
    ]
    assert (error["fields"]["unfit"], error["fields"]["repeated"]) == (1, 1)
    assert loopback.db.tables() == []
    skipped = run("feed", str(path), "t", "--key", "id", "--on-error", "skip", "--json")
    assert (skipped.json["rows"], skipped.json["skipped"], skipped.json["repeated"]) == (4, 1, 1)
    assert skipped.json["checked"]["facts"]["separator"] == ","


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--key", "name"), "table 't' exists with the primary key id, not name"),
        (("--hash", "id:8"), "another partitioning"),
        (("--replicas", "2"), "3 replicas of each tablet, not 2"),
        (("--engine", "arrow", "--executors", "2"), "--executors is for Spark"),
        (("--executors", "2", "--on-error", "skip"), "needs --engine arrow"),
        (("-o", "seperator=;"), "no option 'seperator'"),
        (("--format", "avro"), "no format 'avro'"),
    ],
)
def test_options_that_contradict_table_or_source_are_refused(
    run: Ebla, table: Table, source: Path, words: tuple[str, ...], message: str
) -> None:
    refused = run("feed", str(source), "t", *words)
    assert (refused.status, message in refused.message) == (2, True), refused
    assert table.scan().count() == 0


def test_a_missing_table_needs_a_key(run: Ebla, source: Path) -> None:
    refused = run("feed", str(source), "new")
    assert refused.status == 2
    assert "--key a,b creates it, with a key of the columns id, name, x" in refused.message


def test_verify_has_exit_status_1_for_a_difference(run: Ebla, table: Table, source: Path) -> None:
    feed(str(source), table)
    table.delete({"id": 3})
    found = run("verify", str(source), "t", "--no-replicas", "--json")
    assert (found.status, found.json["missing"], found.json["samples"][0]["key"]) == (1, 1, {"id": "3"})
    assert run("verify", str(source), "nothing").status == 1


def test_large_sources_and_options_of_spark_choose_spark(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = sources.open_checked(str(source), None, None)
    nothing, two = sources.SparkOptions(), sources.SparkOptions(executors=2)
    assert sources.choose_engine(None, nothing, opened) is sources.Engine.arrow
    assert sources.choose_engine(None, two, opened) is sources.Engine.spark
    monkeypatch.setattr(sources, "SPARK_BYTES_MIN", 100)
    assert sources.choose_engine(None, nothing, opened) is sources.Engine.spark
    assert sources.choose_engine(sources.Engine.arrow, nothing, opened) is sources.Engine.arrow
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert sources.choose_engine(None, nothing, opened) is sources.Engine.arrow


def test_a_damaged_source_is_refused_before_a_connection(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text(json.dumps({}))
    with pytest.raises(SourceUnreadable, match="does not begin as a file of format parquet"):
        sources.open_checked(str(tmp_path / "a.parquet"), None, None)
