"""`ebla table alter`, `drop --reserve` and `recall` on real roles."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.cli.stage import Cli, Stage, terminal


def test_one_alteration_adds_renames_and_drops_columns(loaded: Cli) -> None:
    words = "--add delay:int32=-1 --add seen:timestamp[us,tz=UTC]:null --rename at=left -d distance -y --json"
    done = loaded("table alter flights", *words.split()).json
    assert done["in_force"] and (done["table"]["schema_version"], done["table"]["applied_version"]) == (1, 1)
    assert " ".join(each["name"] for each in done["table"]["columns"]) == "carrier flight left delay seen"
    plain = loaded("table alter flights --as flown --wait 0")
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
        (("--min-members", "2"), "min_members is for tables with replication 'pacifica'", 2),
    ],
)
def test_a_refused_alteration_says_what_to_write(loaded: Cli, words: Any, reason: str, status: int) -> None:
    loaded("table alter flights", *words).require(status, reason)
    assert "did you mean 'flights'" in loaded("table alter flight --as x").err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--drop flight", "part of the key"),
        ("--drop tailnum", "there is no column 'tailnum'"),
        ("--drop at --rename distance=flight", "there is a column 'flight' already"),
    ],
)
def test_an_impossible_drop_is_refused_before_it_is_confirmed(loaded: Cli, words: str, reason: str) -> None:
    refused = loaded("table alter flights", *words.split(), typed="y\n")
    refused.require(2, reason)
    assert "for good?" not in refused.err
    possible = loaded("table alter flights --drop at", typed="y\n")
    assert "Drop at of table flights, with all values, for good? [y/N]" in possible.err
    assert possible.lines == ["altered table flights: 3 columns, version 1"]


async def dropped(stage: Stage) -> None:
    await stage.table()
    await stage.db.drop_table("flights", reserve_s=3 * 86_400)


def test_a_drop_with_a_reserve_says_how_to_undo_it(loaded: Cli) -> None:
    done = loaded("table drop flights -y --reserve 3d")
    assert done.lines == ["dropped table flights; `ebla table recall flights` brings it back"]
    for wrong in ("soon", "-1d", "3y", "nan"):
        loaded(f"table drop flights -y --reserve {wrong}").require(2, "is not a time; write 3d")


def test_the_list_of_dropped_tables_fits_80_columns(loaded: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = terminal(monkeypatch, 80)
    loaded("table list --deleted", prepare=dropped)
    assert len(printed.getvalue().splitlines()) == 2, "a header and one line"


def test_dropped_tables_are_listed_and_recalled(loaded: Cli) -> None:
    listed = loaded("table list --deleted", prepare=dropped)
    assert listed.lines[0].split() == ["TABLE", "KEPT", "UNTIL", "SIZE", "ID"]
    (found,) = loaded("table list --deleted --json", prepare=dropped).json["tables"]
    assert (found["name"], found["state"]) == ("flights", "dropped")
    assert found["until_us"] - found["dropped_us"] == 3 * 86_400 * 1_000_000
    assert loaded("table list --deleted").lines == ["no dropped tables are kept"]
    assert loaded("table recall flights", prepare=dropped).lines == ["recalled table flights"]
    renamed = loaded("table recall flights --as flown --json", prepare=dropped)
    assert renamed.json["table"]["name"] == "flown"
    for words in (("describe", "flights"), ("scan", "flights"), ("drop", "flights", "-y")):
        loaded("table", *words, prepare=dropped).require(1, "recall it: db.recall_table('flights')")
    loaded("table recall flights").require(1, "is kept for recall")
