"""`ebla table alter`, `drop --reserve` and `recall` on real roles."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.cli.stage import Cli, Stage, flights


def test_one_alteration_adds_renames_and_drops_columns(ebla: Cli) -> None:
    words = "--add delay:int32=-1 --add seen:timestamp[us,tz=UTC]:null --rename at=left -d distance -y --json"
    done = ebla("table alter flights", *words.split(), prepare=flights).json
    assert done["in_force"] and (done["table"]["schema_version"], done["table"]["applied_version"]) == (1, 1)
    assert " ".join(each["name"] for each in done["table"]["columns"]) == "carrier flight left delay seen"
    plain = ebla("table alter flights --as flown --wait 0", prepare=flights)
    assert plain.lines == ["altered table flown: 4 columns, version 0"]


async def altered(stage: Stage) -> None:
    table = await stage.table()
    await table.alter().add_column("delay", pa.int32(), default=5).apply()


def test_a_description_shows_defaults_and_the_version(ebla: Cli) -> None:
    lines = ebla("table describe flights", prepare=altered).lines
    assert any(line.split() == ["version", "1"] for line in lines)
    assert any(line.split() == ["delay", "int32", "null", "5"] for line in lines)
    assert ebla("table count flights -w", "delay == 5", prepare=altered).lines == ["20"]


@pytest.mark.parametrize(
    ("words", "reason", "status"),
    [
        ((), "there is nothing to alter", 2),
        (("--add", "delay"), "is not name:type", 2),
        (("--add", "delay:int32=soon"), "is not a value for column 'delay'", 2),
        (("--add", "delay:int32"), "give a default, or make it nullable", 2),
        (("--rename", "at"), "write old=new", 2),
        (("--rename", "att=left"), "no column 'att'", 2),
        (("--drop", "flight", "-y"), "part of the key", 2),
        (("--drop", "at"), "add -y", 1),
    ],
)
def test_a_refused_alteration_says_what_to_write(ebla: Cli, words: Any, reason: str, status: int) -> None:
    ebla("table alter flights", *words, prepare=flights).require(status, reason)
    assert "did you mean 'flights'" in ebla("table alter flight --as x", prepare=flights).err


async def dropped(stage: Stage) -> None:
    await stage.table()
    await stage.db.drop_table("flights", reserve_s=3 * 86_400)


def test_a_drop_with_a_reserve_says_how_to_undo_it(ebla: Cli) -> None:
    done = ebla("table drop flights -y --reserve 3d", prepare=flights)
    assert done.lines == ["dropped table flights; `ebla table recall flights` brings it back"]
    for wrong in ("soon", "-1d", "3y", "nan"):
        ebla(f"table drop flights -y --reserve {wrong}", prepare=flights).require(
            2, "is not a time; write 3d"
        )


def test_dropped_tables_are_listed_and_recalled(ebla: Cli) -> None:
    listed = ebla("table list --deleted", prepare=dropped)
    assert listed.lines[0].split() == ["TABLE", "DROPPED", "KEPT", "UNTIL", "SIZE", "ID"]
    (found,) = ebla("table list --deleted --json", prepare=dropped).json["tables"]
    assert (found["name"], found["state"]) == ("flights", "dropped")
    assert found["until_us"] - found["dropped_us"] == 3 * 86_400 * 1_000_000
    assert ebla("table list --deleted", prepare=flights).lines == ["no dropped tables are kept"]
    assert ebla("table recall flights", prepare=dropped).lines == ["recalled table flights"]
    renamed = ebla("table recall flights --as flown --json", prepare=dropped)
    assert renamed.json["table"]["name"] == "flown"
    for words in (("describe", "flights"), ("scan", "flights"), ("drop", "flights", "-y")):
        ebla("table", *words, prepare=dropped).require(1, "recall it: db.recall_table('flights')")
    ebla("table recall flights", prepare=flights).require(1, "is kept for recall")
