"""`ebla table get | put | delete | count | scan | export`: rows on a simulated deployment of real roles."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from ebla.aio import Table
from ebla.cli.tables import scanning
from tests.cli.stage import ROWS, Cli, Stage


async def rows_left(stage: Stage) -> list[dict[str, Any]]:
    found = (await (await stage.db.table("flights")).scan().to_arrow()).to_pylist()
    return sorted(found, key=lambda row: (row["carrier"], row["flight"]))


KEY = ("carrier=AA", "flight=3")
THIRD = ROWS[2]


def test_a_row_is_shown_by_its_key(loaded: Cli) -> None:
    shown = loaded("table get flights", *KEY)
    assert [line.split() for line in shown.lines] == [
        ["carrier", "AA"],
        ["flight", "3"],
        ["distance", "300"],
        ["at", "null"],
    ]
    assert loaded("table get flights --json", *KEY).json == {"table": "flights", "row": THIRD}


@pytest.mark.parametrize("verb", ["get", "delete", "put --update --null distance"])
def test_a_row_that_does_not_exist_is_an_error(loaded: Cli, verb: str) -> None:
    absent = loaded(f"table {verb} flights carrier=AA flight=99")
    assert (absent.status, absent.message) == (
        1,
        "ebla: table 'flights' has no row with carrier=AA, flight=99",
    )
    error = loaded(f"table {verb} flights carrier=AA flight=99 --json").json["error"]
    assert (error["kind"], error["exit_status"], error["possibly_applied"]) == ("NotFound", 1, False)


def test_put_replaces_a_row_and_update_keeps_its_other_columns(loaded: Cli) -> None:
    changed = [{**row, "distance": None} if row is THIRD else row for row in ROWS]
    outcome = loaded("table put flights", *KEY, after=rows_left)
    unnamed = (
        "wrote 1 row to flights; not named, so default or null: distance, at (--update keeps what a row has)"
    )
    assert (outcome.status, outcome.text, outcome.seen) == (0, unnamed, changed)
    at = datetime(2013, 1, 31, 5, tzinfo=timezone.utc)
    updated = loaded("table put flights --update at=2013-01-31T05:00", *KEY, after=rows_left)
    assert (updated.status, updated.seen[2]) == (0, {**THIRD, "at": at})
    assert loaded("table put flights --update --null distance", *KEY, after=rows_left).seen == changed


def test_a_row_is_deleted_by_its_key(loaded: Cli) -> None:
    outcome = loaded("table delete flights --json", *KEY, after=rows_left)
    assert outcome.json == {"table": "flights", "deleted": 1}
    assert outcome.seen == [row for row in ROWS if row is not THIRD]
    absent = loaded("table delete flights carrier=AA flight=99 --if-exists --json", after=rows_left)
    assert (absent.json["deleted"], absent.seen) == (0, ROWS)


WHERE = ("--where", "distance < 300")


def test_rows_are_deleted_by_a_condition_once_confirmed(loaded: Cli) -> None:
    left = [row for row in ROWS if row["distance"] >= 300]
    certain = loaded("table delete flights -y --json", *WHERE, after=rows_left)
    assert (certain.json["deleted"], certain.seen) == (4, left)
    typed = loaded("table delete flights", *WHERE, typed="y\n", after=rows_left)
    assert "Delete 4 rows of flights with distance < 300? [y/N]" in typed.err
    assert (typed.text, typed.seen) == ("deleted 4 rows of flights", left)
    refused = loaded("table delete flights", *WHERE, typed="n\n", after=rows_left)
    refused.require(1, "nothing was changed")
    unasked = loaded("table delete flights --json", *WHERE, after=rows_left)
    assert (unasked.status, "add -y" in unasked.json["error"]["hint"]) == (1, True)
    assert refused.seen == unasked.seen == ROWS


def test_rows_are_counted_with_and_without_a_condition(loaded: Cli) -> None:
    assert loaded("table count flights", *WHERE).lines == ["4"]
    assert loaded("table count flights --json").json == {"table": "flights", "count": len(ROWS)}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("get flights carrier=AA", "the key of this table is carrier, flight; add flight=..."),
        ("get flights carrier", "'carrier' is not COLUMN=VALUE, such as carrier=..."),
        ("get flights carrier=AA flight=x", "'x' is not a value for column 'flight' of type int32"),
        (
            "get flights carrier=AA flight=1 distance=5",
            "'distance' is not part of the key (carrier, flight): leave it out, or read rows by a condition: "
            "`ebla table scan flights --where ...`",
        ),
        (
            "delete flights carrier=AA flight=1 distance=5",
            "leave it out, or name rows by a condition: --where ...",
        ),
        ("put flights carrier=AA flight=1 carrier=UA", "column 'carrier' is given twice"),
        ("put flights carrier=AA flight=1 distnce=5", "did you mean 'distance'?"),
        ("put flights carrier=AA flight=1 --null flight", "'flight'"),
        ("delete flights", "name either the key of one row, or --where CONDITION"),
        ("delete flights carrier=AA flight=1 --where flight==1", "name either the key"),
        ("count flights --where flght==1", "flght"),
        ("export flights rows.csv -f table", "'table' is not one of 'csv', 'json', 'parquet'"),
        ("export flights rows.xlsx", "does not show its format"),
        ("scan flights -c carier", "did you mean 'carrier'?"),
    ],
)
def test_a_wrong_command_line_changes_nothing_and_names_the_mistake(
    loaded: Cli, command: str, words: str
) -> None:
    outcome = loaded(f"table {command}", after=rows_left)
    outcome.require(2, words)
    assert outcome.seen in (None, ROWS), "refused before or after the connection"


# -- scans and exports ---------------------------------------------------------------------------------------


def test_rows_are_shown_as_a_table(loaded: Cli) -> None:
    outcome = loaded("table scan flights -w", "carrier == 'UA' and distance >= 900")
    assert outcome.lines[0].split() == ["carrier", "flight", "distance", "at"]
    assert sorted(line.split() for line in outcome.lines[1:]) == [
        ["UA", "10", "1000", "null"],
        ["UA", "9", "900", "null"],
    ]
    assert "2 rows" in outcome.err


def test_rows_are_one_json_document(loaded: Cli) -> None:
    words = ("table", "scan", "flights", "-c", "flight,carrier", "-w", "flight == 3", "--json")
    document = loaded(*words).json
    assert document["columns"] == ["flight", "carrier"]
    assert document["count"] == 2
    assert sorted(row["carrier"] for row in document["rows"]) == ["AA", "UA"]


def test_only_a_table_for_people_ends_after_50_rows(ebla: Cli) -> None:
    async def many(stage: Stage) -> None:
        table = await stage.table("many")
        await table.upsert([{**ROWS[0], "carrier": "ZZ", "flight": number} for number in range(100)])

    shown = ebla("table scan many", prepare=many)
    assert len(shown.lines) == 51 and "50 rows, perhaps not all" in shown.err
    assert ebla("table scan many --json", prepare=many).json["count"] == 100 + len(ROWS)
    assert ebla("table scan many --json --limit 7", prepare=many).json["count"] == 7


def test_rows_go_to_stdout_as_csv_and_as_json_lines(loaded: Cli) -> None:
    csv = loaded("table scan flights -f csv --limit 3")
    assert csv.lines[0] == '"carrier","flight","distance","at"'
    assert len(csv.lines) == 4
    lines = loaded("table scan flights -f json")
    rows = [json.loads(line) for line in lines.lines]
    assert sorted(rows, key=lambda row: (row["carrier"], row["flight"])) == ROWS


def test_rows_go_into_files_by_their_ending(loaded: Cli, tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        path = tmp_path / name
        outcome = loaded("table export flights", str(path), "--json")
        assert outcome.json["count"] == len(ROWS)
        assert outcome.json["bytes"] == path.stat().st_size
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == len(ROWS)
    assert (tmp_path / "rows.csv").read_text().count("\n") == len(ROWS) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.jsonl", "rows.parquet"]


def test_an_export_replaces_a_file_only_with_overwrite(loaded: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("the old content")
    refused = loaded("table export flights", str(path))
    assert (refused.status, refused.message) == (
        2,
        f"ebla: {path} exists already; name another file, or replace it with --overwrite",
    )
    assert path.read_text() == "the old content"
    assert loaded("table export flights --overwrite", str(path)).status == 0
    assert path.read_text().count("\n") == len(ROWS) + 1


def test_an_export_to_a_directory_is_refused_before_the_connection(loaded: Cli, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "rows.csv"):
        refused = loaded("table export flights -f csv", str(path), after=lambda stage: "connected")
        refused.require(2, "cannot be written: it is a directory, or its directory is missing")
        assert refused.seen is None


def test_trouble_with_a_file_is_a_sentence_with_the_next_step(
    loaded: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rows.csv")

    monkeypatch.setattr(scanning, "_write", full)
    failed = loaded("table export flights", str(tmp_path / "rows.csv"))
    failed.require(1, "rows.csv: No space left on device")
    assert failed.err.splitlines()[1] == "  next: free some space, then run the command again"
    assert list(tmp_path.glob("*.csv")) == []


def test_an_interrupted_deletion_by_condition_says_that_rows_may_be_gone(
    loaded: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Table, "delete", interrupted)
    ended = loaded("table delete flights -y --where", "distance < 500")
    assert ended.status == 130
    assert "rows of flights may be deleted already; run the command again" in ended.err


def test_an_interrupted_scan_leaves_no_file(
    loaded: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(scanning, "_write", interrupted)
    (tmp_path / "rows.csv").write_text("the old content")
    outcome = loaded("table export flights --overwrite", str(tmp_path / "rows.csv"))
    assert outcome.status == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the old content"]
