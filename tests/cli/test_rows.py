"""`ebla table get | put | delete | count`: rows on a simulated deployment of real roles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.stage import ROWS, Cli, Stage, flights


def rows_left(expected: list[dict[str, Any]]) -> Any:
    """A check after the command: the table has exactly these rows."""

    async def check(stage: Stage) -> None:
        table = await stage.db.table("flights")
        found = (await table.scan().to_arrow()).to_pylist()
        assert sorted(found, key=lambda row: (row["carrier"], row["flight"])) == expected

    return check


KEY = ("carrier=AA", "flight=3")
THIRD = ROWS[2]


def test_a_row_is_shown_by_its_key(ebla: Cli) -> None:
    shown = ebla("table get flights", *KEY, prepare=flights)
    assert [line.split() for line in shown.lines] == [
        ["carrier", "AA"],
        ["flight", "3"],
        ["distance", "300"],
        ["at", "null"],
    ]
    assert ebla("table get flights --json", *KEY, prepare=flights).json == {"table": "flights", "row": THIRD}


@pytest.mark.parametrize("verb", ["get", "delete", "put --update --null distance"])
def test_a_row_that_does_not_exist_is_an_error(ebla: Cli, verb: str) -> None:
    absent = ebla(f"table {verb} flights carrier=AA flight=99", prepare=flights)
    assert (absent.status, absent.message) == (
        1,
        "ebla: table 'flights' has no row with carrier=AA, flight=99",
    )
    error = ebla(f"table {verb} flights carrier=AA flight=99 --json", prepare=flights).json["error"]
    assert (error["kind"], error["exit_status"], error["possibly_applied"]) == ("NotFound", 1, False)


def test_put_replaces_a_row_and_update_keeps_its_other_columns(ebla: Cli) -> None:
    at = "at=2013-01-31T05:00"
    changed = [{**row, "distance": None} if row is THIRD else row for row in ROWS]
    outcome = ebla("table put flights", *KEY, prepare=flights, after=rows_left(changed))
    assert (outcome.status, outcome.text) == (0, "wrote 1 row to flights")

    async def still_there(stage: Stage) -> None:
        row = await (await stage.db.table("flights")).get({"carrier": "AA", "flight": 3})
        assert (
            row is not None
            and row["distance"] == 300
            and row["at"].isoformat() == "2013-01-31T05:00:00+00:00"
        )

    assert ebla("table put flights --update", *KEY, at, prepare=flights, after=still_there).status == 0
    assert (
        ebla(
            "table put flights --update --null distance", *KEY, prepare=flights, after=rows_left(changed)
        ).status
        == 0
    )


def test_a_row_is_deleted_by_its_key(ebla: Cli) -> None:
    left = [row for row in ROWS if row is not THIRD]
    outcome = ebla("table delete flights --json", *KEY, prepare=flights, after=rows_left(left))
    assert outcome.json == {"table": "flights", "deleted": 1}
    words = ("carrier=AA", "flight=99", "--if-exists", "--json")
    assert ebla("table delete flights", *words, prepare=flights, after=rows_left(ROWS)).json["deleted"] == 0


WHERE = ("--where", "distance < 300")


def test_rows_are_deleted_by_a_condition_once_confirmed(ebla: Cli) -> None:
    left = [row for row in ROWS if row["distance"] >= 300]
    assert (
        ebla("table delete flights -y --json", *WHERE, prepare=flights, after=rows_left(left)).json["deleted"]
        == 4
    )
    typed = ebla("table delete flights", *WHERE, prepare=flights, typed="y\n", after=rows_left(left))
    assert "Delete 4 rows of flights with distance < 300? [y/N]" in typed.err
    assert typed.text == "deleted 4 rows of flights"
    refused = ebla("table delete flights", *WHERE, prepare=flights, typed="n\n")
    assert (refused.status, "nothing was changed" in refused.err) == (1, True)
    unasked = ebla("table delete flights --json", *WHERE, prepare=flights)
    assert (unasked.status, "add -y" in unasked.json["error"]["hint"]) == (1, True)


def test_rows_are_counted_with_and_without_a_condition(ebla: Cli) -> None:
    assert ebla("table count flights", *WHERE, prepare=flights).lines == ["4"]
    assert ebla("table count flights --json", prepare=flights).json == {
        "table": "flights",
        "count": len(ROWS),
    }


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("get flights carrier=AA", "the key of this table is carrier, flight; add flight=..."),
        ("get flights carrier", "'carrier' is not COLUMN=VALUE, such as carrier=..."),
        ("get flights carrier=AA flight=x", "'x' is not a value for column 'flight' of type int32"),
        ("get flights carrier=AA flight=1 distance=5", "'distance' is not part of the key"),
        ("delete flights carrier=AA flight=1 distance=5", "'distance' is not part of the key"),
        ("put flights carrier=AA flight=1 carrier=UA", "column 'carrier' is given twice"),
        ("put flights carrier=AA flight=1 distnce=5", "did you mean 'distance'?"),
        ("put flights carrier=AA flight=1 --null flight", "'flight'"),
        ("delete flights", "name either the key of one row, or --where CONDITION"),
        ("delete flights carrier=AA flight=1 --where flight==1", "name either the key"),
        ("count flights --where flght==1", "flght"),
        ("export flights rows.csv -f table", "'table' is not one of 'csv', 'json', 'parquet'"),
    ],
)
def test_a_wrong_command_line_changes_nothing_and_names_the_mistake(
    ebla: Cli, command: str, words: str
) -> None:
    outcome = ebla(f"table {command}", prepare=flights, after=rows_left(ROWS))
    assert (outcome.status, words in outcome.message) == (2, True), outcome.err
