"""Tables whose rows are stored as columns, as typed, on a real master and three real tablet servers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ebla.actors import messages as m
from tests.cli.stage import Cli, Stage
from tests.client.toy import HOSTS

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


def test_the_compression_of_a_table_is_chosen_and_shown(ebla: Cli, tmp_path: Path) -> None:
    assert ebla(*COLUMNS, "--json").json["table"]["compression"] == "none"
    packed = ebla(*COLUMNS, "--compression", "zstd", "--json").json["table"]
    assert (packed["storage"], packed["compression"]) == ("columns", "zstd")
    file = tmp_path / "t.yaml"
    file.write_text("columns: {k: int64}\nkey: [k]\nstorage: columns\ncompression: lz4\n")

    async def made(stage: Stage) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), False)])
        await stage.db.create_table(
            "t", schema=schema, primary_key=["k"], storage="columns", compression="lz4"
        )

    described = ebla("table describe t", prepare=made).lines
    assert "storage columns, compressed with lz4" in [" ".join(line.split()) for line in described]
    again = ebla("table create t --if-not-exists --schema", str(file), prepare=made)
    assert "exists already, with this schema" in again.lines[-1]
    other = ebla(*COLUMNS, "--compression", "zstd", "--if-not-exists", prepare=made)
    other.require(1, "table 't' exists already, with other compression")


def test_compression_is_refused_for_rows_and_by_name(ebla: Cli) -> None:
    ebla(*CREATE, "--compression", "lz4").require(
        2, "compression 'lz4' is for tables with storage 'columns'; this one has 'rows'"
    )
    ebla(*COLUMNS, "--compression", "gzip").require(2, "'gzip' is not one of 'none', 'lz4', 'zstd'")


def test_another_storage_is_refused_by_name(ebla: Cli) -> None:
    ebla(*CREATE, "--storage", "leaves").require(2, "'leaves' is not one of 'rows', 'columns'")
    again = ebla(*CREATE, "--storage", "rows", "--if-not-exists", prepare=columns)
    again.require(1, "table 't' exists already, with other storage")


async def flushed_thrice(stage: Stage) -> None:
    await columns(stage)
    table = await stage.db.table("t")
    for turn in range(3):
        await table.upsert([{"k": k} for k in range(100 * turn, 100 * turn + 100)])
        for replica in (await table.info()).tablets[0].replicas:
            await stage.db._client.world.network.call(
                replica.address, "flush", m.FlushRequest(), m.FlushReply, 10.0
            )


def test_runs_are_shown_and_merged_on_every_replica(ebla: Cli) -> None:
    described = ebla("table describe t -d", prepare=flushed_thrice).lines
    assert any("TIERS RUNS TO MERGE" in " ".join(line.split()) for line in described)
    shown = ebla("table describe t -d --json", prepare=flushed_thrice).json
    replicas = shown["tablet_health"][0]["replicas"]
    assert all(each["runs"] >= each["tiers"] >= 1 and each["blocks"] >= 1 for each in replicas)
    done = ebla("tablet compact -t t --json", prepare=flushed_thrice).json["compacted"]
    assert [each["address"].rpartition("/")[2] for each in done] == list(HOSTS)
    assert all(each["after"] <= each["before"] for each in done)
    assert ebla("tablet compact -t t", prepare=flushed_thrice).lines[0].split() == [
        *("TABLET", "HOST", "BEFORE", "AFTER"),
    ]


def test_rows_have_no_runs_to_merge(loaded: Cli) -> None:
    loaded("tablet compact -t flights").require(2, "only a table with storage 'columns' has runs to merge")
    loaded("tablet compact").require(1, "name one tablet, or all of a table")
