"""`ebla feed` and `ebla verify` on a deployment without Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet
import pytest

from ebla.cli.data import sources
from ebla.errors import InvalidArgument, SourceUnreadable
from ebla.pipelines import demo, probe, target
from ebla.pipelines.arrow.feed import feed
from ebla.table import Table
from tests.cli.stage import Outcome, invoke
from tests.client.loopback import Loopback
from tests.pipelines.small_sources import SCHEMA, write_csv

Ebla = Callable[..., Outcome]


@pytest.fixture
def run(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> Ebla:
    @contextmanager
    def connected(*given: Any) -> Iterator[Any]:
        yield loopback.db

    monkeypatch.setattr(sources, "connected", connected)

    return invoke


def test_a_feed_creates_the_table_and_shows_what_was_inferred(
    run: Ebla, loopback: Loopback, source: Path
) -> None:
    words = ("feed", str(source), "made", "--key", "id", "--hash", "id:2", "--replicas", "3")
    fed = run(*words)
    assert fed.status == 0
    assert 'rows.csv: csv, utf-8, separator ","' in fed.message
    assert "name string" in fed.message and "x double" in fed.message
    assert "created table made" in fed.out and "1,000" in fed.out
    assert len(loopback.db.table("made").info().tablets) == 2
    assert run("verify", str(source), "made", "--no-replicas").status == 0
    assert run(*words).status == 0, "the same definition"


def test_a_feed_creates_a_table_of_the_wanted_protocol(run: Ebla, loopback: Loopback, source: Path) -> None:
    options = ("--key", "id", "--replication", "pacifica", "--min-members", "2")
    assert run("feed", str(source), "made", *options).status == 0
    table = loopback.db.table("made")
    assert (table.info().replication, table.info().min_members) == ("pacifica", 2)
    assert "3 x pacifica, min_members 2" in repr(table) and "pacifica, min_members 2" in table._repr_html_()
    assert run("feed", str(source), "made", *options).status == 0


@pytest.mark.parametrize(
    ("words", "replication"), [(("--replication", "pacifica"), "pacifica"), ((), "raft")]
)
def test_the_demo_makes_its_tables_with_the_wanted_protocol(
    run: Ebla, loopback: Loopback, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], replication: str
) -> None:
    """It ends before Spark starts. The deployment has no stores, so no log is made, and no node is chosen to be killed."""

    def ends(*given: Any, **named: Any) -> None:
        raise InvalidArgument("that is all")

    monkeypatch.setattr(demo, "_deployment", lambda steps, ending: (None, loopback.db))
    monkeypatch.setattr(demo, "EventLog", Mock())
    monkeypatch.setattr(demo, "_choose_victim", lambda hosts, *tables: 2)
    monkeypatch.setattr(demo, "spark", ends)
    ended = run("demo", *words)
    assert "that is all" in ended.message
    tables = {name: loopback.db.table(name).info() for name in (demo.FLIGHTS.name, probe.NAME)}
    assert {name: info.replication for name, info in tables.items()} == dict.fromkeys(tables, replication)


def test_columns_that_the_source_lacks_are_shown(
    run: Ebla, loopback: Loopback, table: Table, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,name\n1,a\n")
    line = "columns of the table that the source lacks, with their value in each row written: x (null)"
    dry = run("feed", str(tmp_path / "rows.csv"), "t", "--dry-run")
    assert line in " ".join(dry.out.split())
    listed = run("feed", str(tmp_path / "rows.csv"), "t", "--dry-run", "--json")
    assert listed.json["lacking"] == {"x": "null"}
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
    assert checked["columns"]["time_hour"] == "timestamp[us,UTC]"


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
    assert (skipped.json["rows"], skipped.json["skipped"], skipped.json["repeated"]) == (3, 1, 1)
    assert skipped.json["checked"]["facts"]["separator"] == ","
    shown = run("feed", str(path), "other", "--key", "id", "--on-error", "skip").text
    assert "has 2 fields, not 3" in shown and "same key as row" in shown


def test_a_value_that_makes_a_new_key_text_is_named(run: Ebla, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [f"{n},{n}x" for n in range(1000)]
    path.write_text("\n".join(["id,name", *lines, " n/a? ,7", "b,8"]))
    note = "id is string because of rows.csv row 1002: 'n/a?' is not int64"
    dry = run("feed", str(path), "new", "--key", "id", "--dry-run")
    assert note in " ".join(dry.text.split()) and "name is string" not in dry.text
    assert run("feed", str(path), "new", "--key", "id", "--dry-run", "--json").json["notes"] == [note]
    fed = run("feed", str(path), "new", "--key", "id")
    assert (fed.status, note in fed.message) == (0, True)
    assert "because of" not in run("feed", str(path), "new").message, "an existing table has its types"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("id,name\n", "it has no rows"), ("id,n\n1,a,\n2,b,\n", "rows.csv row 2 has 3 fields, not 2")],
)
def test_a_source_without_a_row_that_fits_creates_no_table(
    run: Ebla, loopback: Loopback, table: Table, tmp_path: Path, text: str, problem: str
) -> None:
    """Its columns would all be text, and the next feed of the same source could not write its numbers as numbers."""
    path = tmp_path / "rows.csv"
    path.write_text(text)
    words = ("feed", str(path), "new", "--key", "id", "--on-error", "skip")
    refused = run(*words)
    assert (refused.status, problem in refused.message) == (2, True), refused
    assert "create the table first with `ebla table create`" in refused.message
    assert run(*words[:-2], "--engine", "spark").status == 2
    dry = run(*words, "--dry-run")
    shown = " ".join(dry.text.split())
    assert (dry.status, "a feed would fail: " in shown, problem in shown) == (1, True, True)
    assert [found.name for found in loopback.db.tables()] == ["t"]
    path.write_text("id,name,x\n")
    fed = run("feed", str(path), "t", "--json")
    assert (fed.status, fed.json["rows"]) == (0, 0), "an existing table has its types"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--key", "name"), "table 't' exists with the primary key id, not name"),
        (("--hash", "id:8"), "another partitioning"),
        (("--replicas", "2"), "exists with replicas 3, not 2; leave replicas out"),
        (("--replication", "pacifica"), "exists with replication raft, not pacifica; leave replication out"),
        (("--min-members", "2"), "exists with min_members None, not 2"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "sep=;"), "is parquet, which has no option sep; leave the option out"),
        (("-o", "foo=1"), "there is no option 'foo'"),
        (("-f", "csv"), "is parquet, not csv; leave the format out"),
        (("-f", "orc"), "is parquet, not orc"),
    ],
)
def test_options_of_another_format_than_the_source_has_are_wrong_usage(
    run: Ebla, table: Table, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.table({"id": [1]}), path)
    refused = run("feed", str(path), "t", *words)
    assert (refused.status, message in refused.message) == (2, True), refused
    assert run("feed", str(path), "t", "-f", "parquet").status == 0


def test_a_missing_table_needs_a_key(run: Ebla, source: Path) -> None:
    refused = run("feed", str(source), "new")
    assert refused.status == 2
    assert "--key a,b creates it, with a key of the columns id, name, x" in refused.message


def test_a_dry_run_without_a_key_shows_the_columns_to_choose_it_from(run: Ebla, source: Path) -> None:
    shown = run("feed", str(source), "new", "--dry-run")
    assert shown.status == 0, shown
    assert "choose --key A,B from these columns to create it" in " ".join(shown.text.split())
    document = run("feed", str(source), "new", "--dry-run", "--json").json
    assert (document["key"], document["would_feed"]) == ([], False)
    assert document["checked"]["columns"] == {"id": "int64", "name": "string", "x": "double"}
    assert document["checked"]["sample"][1] == {"id": "1", "name": "n1\n", "x": str(1 / 3)}


def test_verify_has_exit_status_1_for_a_difference_and_2_without_a_comparison(
    run: Ebla, table: Table, source: Path
) -> None:
    feed(str(source), table)
    table.delete({"id": 3})
    found = run("verify", str(source), "t", "--no-replicas", "--json")
    assert (found.status, found.json["missing"], found.json["samples"][0]["key"]) == (1, 1, {"id": "3"})
    failed = run("verify", str(source), "nothing", "--json")
    assert (failed.status, failed.json["error"]["exit_status"], failed.json["error"]["kind"]) == (
        2,
        2,
        "NotFound",
    )


def test_large_sources_and_options_of_spark_choose_spark(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = sources.open_checked(str(source), None, None)
    nothing, two = sources.SparkOptions(), sources.SparkOptions(executors=2)
    assert sources.choose_engine(None, nothing, opened) == "arrow"
    assert sources.choose_engine(None, two, opened) == "spark"
    monkeypatch.setattr(sources, "SPARK_BYTES_MIN", 100)
    assert sources.choose_engine(None, nothing, opened) == "spark"
    assert sources.choose_engine("arrow", nothing, opened) == "arrow"
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert sources.choose_engine(None, nothing, opened) == "arrow"


def test_a_source_is_read_without_pandas_which_later_works_as_always(source: Path) -> None:
    program = (
        "import sys\n"
        "from ebla.cli.data.sources import open_checked\n"
        "opened = open_checked(sys.argv[1], None, None)\n"
        "from ebla.pipelines.sources.check import check\n"
        "from ebla.pipelines.sources.source import infer\n"
        "from ebla.storage.schema import TableSchema\n"
        "found, types = infer(opened)\n"
        "assert check(found, TableSchema.from_arrow(types, ['id'])).clean\n"
        "assert 'pandas' not in sys.modules\n"
        "import pyarrow\n"
        "table = pyarrow.table({'a': [1, 2]})\n"
        "frame = table.to_pandas()\n"
        "assert pyarrow.Table.from_pandas(frame).equals(table)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(source)], check=True, timeout=600)


def test_a_damaged_source_is_refused_before_a_connection(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text(json.dumps({}))
    with pytest.raises(SourceUnreadable, match="does not begin as a file of format parquet"):
        sources.open_checked(str(tmp_path / "a.parquet"), None, None)


def test_a_value_that_makes_any_new_column_text_is_named_three_times_at_most(
    run: Ebla, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,a,b,c,d\n1,1,1,1,1\n2,1,1,1,1\n3,x,x,x,x\n")
    notes = run("feed", str(path), "new", "--key", "id,d", "--dry-run", "--json").json["notes"]
    assert notes[0] == "d is string because of rows.csv row 4: 'x' is not int64"
    assert [note[:12] for note in notes[1:]] == ["a is string ", "b is string ", "1 more colum"]


def test_a_first_row_that_looks_like_values_is_noted(run: Ebla, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1,Ada,2.5\n2,Bob,3.5\n")
    words = ("feed", str(path), "new", "--dry-run", "--json")
    (note,) = run(*words, "--key", "1").json["notes"]
    assert "the first row (1, Ada, 2.5) looks like values" in note and "-o names=a,b,c" in note
    assert run(*words, "--key", "a", "-o", "names=a,b,c").json["notes"] == []
    refused = run("feed", str(path), "new", "--key", "id")
    assert (refused.status, "-o names=a,b,c" in refused.message) == (2, True)
    path.write_text("id,name,x\n1,Ada,2.5\n")
    assert run(*words, "--key", "id").json["notes"] == []


def test_a_number_whose_comma_may_be_a_decimal_mark_is_noted(run: Ebla, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a;b\n1,500;2,000\n")
    words = ("feed", str(path), "new", "--key", "a", "--dry-run", "--json")
    assert run(*words).json["notes"] == [
        "numbers such as 1,500 are text; if the comma is the decimal mark, give -o decimal=,"
    ]
    assert run(*words, "-o", "decimal=,").json["notes"] == []


def test_an_unknown_key_of_a_file_with_one_column_names_the_separator(run: Ebla, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id x\n1 2\n")
    refused = run("feed", str(path), "new", "--key", "id")
    assert refused.status == 2
    assert "there is no column 'id'; the columns are 'id x'" in refused.message
    assert "-o sep=" in refused.message
    assert run("feed", str(path), "new", "--key", "id", "--dry-run", "-o", "sep= ").status == 0


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize(
    ("mode", "remedy"), [("upsert", "Feed again: "), ("insert", "Feed again with --job J: ")]
)
def test_an_interrupted_feed_says_what_was_written_and_how_to_complete_it(
    run: Ebla,
    table: Table,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
    mode: str,
    remedy: str,
) -> None:
    write, calls = target.write, 0

    def once(*given: Any, **named: Any) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise end
        return write(*given, **named)

    monkeypatch.setattr(target, "write", once)
    monkeypatch.setattr(
        "ebla.pipelines.arrow.feed.write.__kwdefaults__", {"job": None, "call_rows": 400, "deadline_s": None}
    )
    ended = run("feed", str(source), "t", "--mode", mode, "--job", "J")
    assert ended.status == (130 if isinstance(end, KeyboardInterrupt) else 143)
    assert "ebla: interrupted" in ended.message
    assert f"Rows may have been written; 400 were acknowledged (job J). {remedy}" in ended.message
    calls = 1
    listed = run("feed", str(source), "t", "--mode", mode, "--json").json["error"]
    assert (listed["possibly_applied"], "0 were acknowledged (job " in listed["message"]) == (True, True)
    monkeypatch.undo()


def test_an_interruption_before_the_first_write_says_only_that(
    run: Ebla, table: Table, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebla.pipelines.sources.check.check", end)
    ended = run("feed", str(source), "t")
    assert (ended.status, "Rows may" in ended.message) == (130, False)


def test_the_figures_of_a_feed_add_up_to_the_rows_of_the_source(
    run: Ebla, loopback: Loopback, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "rows.csv", "0,again,1.0", "5,short", rows=3)
    for mode in ("upsert", "insert"):
        words = ("feed", str(path), mode, "--key", "id", "--mode", mode, "--on-error", "skip", "--json")
        fed = run(*words).json
        assert (fed["rows"], fed["rejected"], fed["repeated"], fed["skipped"]) == (3, 0, 1, 1)
        assert loopback.db.table(mode).scan().count() == 3
    assert [run(*words).json[name] for name in ("rows", "rejected", "repeated")] == [0, 3, 1]
