"""Tables whose rows are stored as columns, as typed, on a real master and three real tablet servers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.cli.stage import Cli, Stage

CREATE = ("table", "create", "t", "-c", "k:int64", "-k", "k")
COLUMNS = (*CREATE, "--storage", "columns")


async def columns(stage: Stage) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False)])
    table = await stage.db.create_table("t", schema=schema, primary_key=["k"], storage="columns")
    await table.upsert([{"k": k} for k in range(7)])


def test_the_storage_of_a_table_is_chosen_and_shown(ebla: Cli, tmp_path: Path) -> None:
    assert ebla(*CREATE, "--json").json["table"]["storage"] == "rows"
    assert ebla(*COLUMNS, "--json").json["table"]["storage"] == "columns"
    file = tmp_path / "t.yaml"
    file.write_text("columns: {k: int64}\nkey: [k]\nstorage: columns\n")
    assert ebla("table create t --json --schema", str(file)).json["table"]["storage"] == "columns"
    described = ebla("table describe t", prepare=columns).lines
    assert ["storage", "columns"] in [line.split() for line in described]
    assert ebla("table count t", prepare=columns).lines[-1].startswith("7")


def test_another_storage_is_refused_by_name(ebla: Cli) -> None:
    ebla(*CREATE, "--storage", "leaves").require(2, "'leaves' is not one of 'rows', 'columns'")
    again = ebla(*CREATE, "--storage", "rows", "--if-not-exists", prepare=columns)
    again.require(1, "table 't' exists already, with other storage")
