"""The frame of the command line, and commands on tables, rows, health and tablets of real roles."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import typer
from typer import rich_utils
from typer.main import get_command
from typer.testing import CliRunner

from ebla.cli.app import app
from ebla.cli.tables import scanning
from tests.cli.stage import HOSTS, ROWS, Cli, Stage, flights

CREATE = ("table", "create", "t", "-c", "k:int64", "-c", "v:string:null", "-k", "k")


async def one_server_down(stage: Stage) -> None:
    await stage.table()
    stage.cluster.crash("tablet-server/host-c")


def leaves(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = typer.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = hasattr(command, "commands")
        found += leaves(command, (*path, name)) if inner else [(*path, name)]
    return found


COMMANDS = leaves(get_command(app))
GROUPS = [(), *{path[:-1]: None for path in COMMANDS if len(path) > 1}]


# -- the frame -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_the_common_options(ebla: Cli, path: tuple[str, ...]) -> None:
    outcome = ebla(*path, "--help")
    assert outcome.status == 0
    for option in ("--json", "--address", "--name", "--verbose"):
        assert option in outcome.out


def help_of(path: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the help at this width, without its frame."""
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", columns)
    lines = CliRunner().invoke(app, [*path, "--help"]).stdout.splitlines()
    assert all(len(line) <= columns for line in lines)
    return [re.sub("[╭╮╰╯─│]", " ", line).strip() for line in lines]


@pytest.mark.parametrize("path", [*GROUPS, *COMMANDS], ids=" ".join)
def test_help_fits_80_columns_breaks_no_word_or_example_and_shows_no_types_of_python(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, wide = help_of(path, 80, monkeypatch), help_of(path, 400, monkeypatch)
    assert sorted(" ".join(narrow).split()) == sorted(" ".join(wide).split())
    assert not re.search(
        r"<(bool|int|str|float|path|file|list\[.*?\])( range)?>|\[x|\[\[|…", " ".join(narrow)
    ), narrow
    assert [line for line in wide if line.startswith(("ebla ", "-c ", "--key "))] == [
        line for line in narrow if line.startswith(("ebla ", "-c ", "--key "))
    ]


def test_help_and_usage_errors_import_no_heavy_modules() -> None:
    code = (
        "import sys, ebla.cli\n"
        "for words in sys.argv[1:]:\n"
        "    sys.argv = ['ebla', *words.split()]\n"
        "    try: ebla.cli.main()\n"
        "    except SystemExit: pass\n"
        "    heavy = {'ray', 'pyarrow', 'pyspark', 'pandas', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "    print(words, sorted(heavy), file=sys.stderr)"
    )
    words = ("--help", "up --help", "--version", "tabel")
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in done.stderr.splitlines() if line.endswith("]")] == [
        f"{each} []" for each in words
    ]


def test_the_common_options_may_stand_before_or_after_the_command(ebla: Cli) -> None:
    before, after = ebla("--json table list"), ebla("table list --json")
    between = ebla("table list --json --name ebla")
    assert before.json == after.json == between.json == {"tables": []}


def test_a_mistyped_command_gets_a_suggestion(ebla: Cli) -> None:
    outcome = ebla("tabel list")
    assert (outcome.status, outcome.out) == (2, "")
    assert "Did you mean 'table'" in outcome.err
    assert "next:" in outcome.err


@pytest.mark.parametrize(
    ("words", "kind", "status"),
    [
        (("tabel",), "Usage", 2),
        (("table", "list", "--quux"), "Usage", 2),
        (("table", "describe"), "Usage", 2),
        (("table", "create", "t"), "Usage", 2),
        (("table", "describe", "none"), "NotFound", 1),
        (("table", "drop", "flights"), "Refused", 1),
        (("table", "scan", "flights", "-w", "origin ="), "Usage", 2),
        ((*CREATE, "-r", "5"), "Unavailable", 1),
        (("tablet", "show", "feed"), "NotFound", 1),
    ],
)
def test_with_json_an_error_is_one_document_with_a_kind_and_a_message(
    ebla: Cli, words: tuple[str, ...], kind: str, status: int
) -> None:
    outcome = ebla(*words, "--json", prepare=flights)
    assert outcome.status == status == outcome.json["error"]["exit_status"]
    assert outcome.json["error"]["kind"] == kind
    assert outcome.json["error"]["message"]
    assert outcome.err == ""


@pytest.mark.parametrize(("signal", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_command_says_so_and_ends_with_the_status_of_its_signal(
    ebla: Cli, signal: BaseException, status: int
) -> None:
    async def interrupted(stage: Stage) -> None:
        raise signal

    outcome = ebla("table list", prepare=interrupted)
    assert (outcome.status, outcome.out) == (status, "")
    document = ebla("table list --json", prepare=interrupted)
    assert (document.status, document.json["error"]["kind"]) == (status, "Interrupted")


def test_sigterm_ends_the_tasks_of_a_waiting_command_without_a_traceback() -> None:
    code = (
        "import asyncio\nfrom ebla.cli.frame import quiet\n"
        "async def busy():\n    while True: await asyncio.sleep(0)\n"
        "async def work():\n"
        "    asyncio.get_running_loop().create_task(busy())\n"
        "    print('waiting', flush=True)\n"
        "    try: await asyncio.Event().wait()\n"
        "    finally: print('cleaned up', flush=True)\n"
        "quiet.run(work())"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None and command.stdout.readline() == "waiting\n"
    command.terminate()
    out, err = command.communicate(timeout=60.0)
    assert (command.returncode, out, err) == (143, "cleaned up\n", "")


def test_a_defect_is_never_hidden(ebla: Cli) -> None:
    async def broken(stage: Stage) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        ebla("table list --json", prepare=broken)


# -- tables --------------------------------------------------------------------------------------------------


def test_a_table_is_created_and_described(ebla: Cli) -> None:
    outcome = ebla(*CREATE, "--hash", "k:4")
    assert (outcome.status, outcome.lines) == (0, ["created table t: 2 columns, 4 tablets x 3 replicas"])
    made = ebla(*CREATE, "--hash", "k:4", "--json").json
    assert made["created"] is True
    assert made["table"]["state"] == "running"
    assert made["table"]["columns"] == [
        {"name": "k", "type": "int64", "nullable": False, "key": True},
        {"name": "v", "type": "string", "nullable": True, "key": False},
    ]
    assert made["table"]["hash"] == {"type": "hash", "columns": ["k"], "buckets": 4}


def test_a_name_that_is_taken_is_refused_unless_the_table_is_the_same(ebla: Cli) -> None:
    same = ("-c", "carrier:string", "-c", "flight:int32", "-c", "distance:int32:null")
    same += ("-c", "at:timestamp[us,UTC]:null", "-k", "carrier,flight")
    create = ("table", "create", "flights")
    assert "exists already" in ebla(*create, *same, prepare=flights).err
    again = ebla(*create, *same, "--if-not-exists", "--json", prepare=flights)
    assert (again.status, again.json["created"]) == (0, False)
    ebla(*create, "-c", "k:int64", "-k", "k", "--if-not-exists", prepare=flights).require(
        1, "with other columns"
    )


def test_tables_are_listed(ebla: Cli) -> None:
    outcome = ebla("table list", prepare=flights)
    assert outcome.lines[0].split() == ["TABLE", "STATE", "TABLETS", "REPLICAS", "SIZE"]
    assert outcome.lines[1].split()[:4] == ["flights", "running", "2", "3"]
    assert ebla("table list x", prepare=flights).lines == ["no tables whose name begins with 'x'"]


def test_a_table_is_described_with_its_columns_and_tablets(ebla: Cli) -> None:
    outcome = ebla("table describe flights -d", prepare=flights)
    assert "partitions  2: hash of (flight) into 2" in outcome.lines
    assert "at        timestamp[us,UTC]  null" in outcome.lines
    assert sum(line.startswith("  host-") for line in outcome.lines) == 6
    document = ebla("table describe flights -d --json", prepare=flights).json
    assert [column["name"] for column in document["columns"]] == ["carrier", "flight", "distance", "at"]
    assert document["health"] == "HEALTHY"
    assert [len(tablet["replicas"]) for tablet in document["tablet_health"]] == [3, 3]


def test_a_range_is_described_with_the_values_of_its_splits(ebla: Cli) -> None:
    async def ranged(stage: Stage) -> None:
        import pyarrow as pa

        import ebla as api

        schema = pa.schema([pa.field("s", pa.string(), False), pa.field("n", pa.int32(), False)])
        splits = [("a", 5), ("m\0", -1)]
        by = api.range("s", "n", splits=splits)
        await stage.db.create_table("r", schema=schema, primary_key=["s", "n"], partition_by=by)
        by = api.range("s", splits=["a", "m\0"])
        await stage.db.create_table("p", schema=schema, primary_key=["s", "n"], partition_by=by)

    document = ebla("table describe r --json", prepare=ranged).json
    assert document["range"] == {"columns": ["s", "n"], "splits": ["a, 5", "m\0, -1"]}
    assert ebla("table describe p --json", prepare=ranged).json["range"]["splits"] == ["a", "m\0"]


def test_an_unknown_table_gets_a_suggestion(ebla: Cli) -> None:
    for words in (("describe", "flight"), ("scan", "flight"), ("drop", "flight", "-y")):
        outcome = ebla("table", *words, prepare=flights)
        assert (outcome.status, outcome.out) == (1, "")
        assert "there is no table 'flight'; did you mean 'flights'?" in outcome.err
    assert "no tables yet" in ebla("table describe flight").err


def test_a_drop_needs_a_yes(ebla: Cli) -> None:
    ebla("table drop flights", prepare=flights).require(1, "add -y")
    assert ebla("table drop flights -y", prepare=flights).lines == ["dropped table flights"]
    missing = ebla("table drop none -y --if-exists --json", prepare=flights)
    assert (missing.status, missing.json) == (0, {"dropped": False, "name": "none", "kept": False})


# -- rows ----------------------------------------------------------------------------------------------------


def test_rows_are_shown_as_a_table(ebla: Cli) -> None:
    outcome = ebla("table scan flights -w", "carrier == 'UA' and distance >= 900", prepare=flights)
    assert outcome.lines[0].split() == ["carrier", "flight", "distance", "at"]
    assert sorted(line.split() for line in outcome.lines[1:]) == [["UA", "10", "1000"], ["UA", "9", "900"]]
    assert "2 rows" in outcome.err


def test_rows_are_one_json_document(ebla: Cli) -> None:
    words = ("table", "scan", "flights", "-c", "flight,carrier", "-w", "flight == 3", "--json")
    document = ebla(*words, prepare=flights).json
    assert document["columns"] == ["flight", "carrier"]
    assert document["count"] == 2
    assert sorted(row["carrier"] for row in document["rows"]) == ["AA", "UA"]


def test_rows_are_counted(ebla: Cli) -> None:
    assert ebla("table count flights", prepare=flights).lines == [str(len(ROWS))]


def test_rows_go_to_stdout_as_csv_and_as_json_lines(ebla: Cli) -> None:
    csv = ebla("table scan flights -f csv --limit 3", prepare=flights)
    assert csv.lines[0] == '"carrier","flight","distance","at"'
    assert len(csv.lines) == 4
    lines = ebla("table scan flights -f json", prepare=flights)
    rows = [json.loads(line) for line in lines.lines]
    assert sorted(rows, key=lambda row: (row["carrier"], row["flight"])) == ROWS


def test_rows_go_into_files_by_their_ending(ebla: Cli, tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        path = tmp_path / name
        outcome = ebla("table export flights", str(path), "--json", prepare=flights)
        assert outcome.json["count"] == len(ROWS)
        assert outcome.json["bytes"] == path.stat().st_size
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == len(ROWS)
    assert (tmp_path / "rows.csv").read_text().count("\n") == len(ROWS) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.jsonl", "rows.parquet"]


def test_an_interrupted_scan_leaves_no_file(
    ebla: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(scanning, "_write", interrupted)
    (tmp_path / "rows.csv").write_text("the old content")
    outcome = ebla("table export flights", str(tmp_path / "rows.csv"), prepare=flights)
    assert outcome.status == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the old content"]


def test_a_file_with_an_unknown_ending_is_refused(ebla: Cli, tmp_path: Path) -> None:
    ebla("table export flights", str(tmp_path / "rows.xlsx"), prepare=flights).require(
        2, "does not show its format"
    )


def test_an_unknown_column_gets_a_suggestion(ebla: Cli) -> None:
    ebla("table scan flights -c carier", prepare=flights).require(2, "did you mean 'carrier'?")


# -- health --------------------------------------------------------------------------------------------------


def test_a_check_of_a_healthy_deployment_has_status_0(ebla: Cli) -> None:
    outcome = ebla("check", prepare=flights)
    assert (outcome.status, outcome.lines[-1]) == (0, "HEALTHY: 1 table, 2 tablets, 3 of 3 servers up")
    document = ebla("check --json", prepare=flights).json
    assert (document["status"], document["healthy"], document["reasons"]) == ("HEALTHY", True, [])


def test_a_check_names_missing_servers_and_has_status_1(ebla: Cli) -> None:
    outcome = ebla("check", prepare=one_server_down)
    assert outcome.status == 1
    assert "UNDER_REPLICATED: 1 table, 2 tablets, 2 of 3 servers up" in outcome.lines
    assert any(line.startswith("  table flights: 2 tablets UNDER_REPLICATED") for line in outcome.lines)
    assert all(len(line) <= 100 for line in outcome.lines)
    whole = "is UNREACHABLE; no other host that is up can take it: bring it back, or add one"
    assert f"tablet-server/host-c {whole}" in outcome.text, "the remedy is not cut off"
    document = ebla("check --json", prepare=one_server_down).json
    assert document["healthy"] is False
    unreachable = [s["address"] for s in document["servers"] if s["status"] == "UNREACHABLE"]
    assert unreachable == ["tablet-server/host-c"]


def test_a_check_waits_for_health_on_request(ebla: Cli) -> None:
    async def restarting(stage: Stage) -> None:
        await one_server_down(stage)

        async def back() -> None:
            await stage.db._client.world.clock.sleep(5.0)
            await stage.cluster.restart("tablet-server/host-c")

        stage.db._client.world.spawn(back(), "back")

    assert ebla("check --wait 60", prepare=restarting).status == 0


def test_checksums_compare_every_replica(ebla: Cli) -> None:
    outcome = ebla("check --checksum", prepare=flights)
    assert outcome.status == 0
    assert f"checksums: 2 of 2 tablets agree, 6 replicas compared, {len(ROWS)} rows" in outcome.lines
    document = ebla("check --checksum --json", prepare=flights).json
    for tablet in document["tablets"]:
        assert len({replica["digest"] for replica in tablet["replicas"]}) == 1
        assert tablet["checksum_index"] > 0


def test_a_check_of_one_table_covers_no_other_table(ebla: Cli) -> None:
    async def two(stage: Stage) -> None:
        await stage.table("one")
        await stage.table("two")

    assert [t["name"] for t in ebla("check one --json", prepare=two).json["tables"]] == ["one"]
    assert ebla("check three", prepare=two).status == 1


def test_nodes_shows_the_replicas_of_each_host(ebla: Cli) -> None:
    outcome = ebla("nodes -d", prepare=flights)
    assert [line.split()[0] for line in outcome.lines[1:4]] == list(HOSTS)
    document = ebla("nodes -d --json", prepare=flights).json
    assert [len(node["replica_list"]) for node in document["nodes"]] == [2, 2, 2]
    assert {replica["table"] for node in document["nodes"] for replica in node["replica_list"]} == {"flights"}


# -- tablets -------------------------------------------------------------------------------------------------


def first_tablet(ebla: Cli) -> dict[str, Any]:
    found: dict[str, Any] = ebla("tablet list -t flights --json", prepare=flights).json["tablets"][0]
    return found


def test_a_tablets_leadership_is_handed_over(ebla: Cli) -> None:
    tablet = first_tablet(ebla)
    other = next(r["address"] for r in tablet["replicas"] if r["uuid"] != tablet["leader"])
    words = ("tablet", "step-down", tablet["tablet"][:8], "--to", other.rpartition("/")[2], "--json")
    document = ebla(*words, prepare=flights).json
    assert (document["tablet"], document["leader"]) == (tablet["tablet"], other)
    assert document["leader_before"] != other


def test_a_successor_without_a_replica_is_refused(ebla: Cli) -> None:
    tablet = first_tablet(ebla)["tablet"]
    ebla(f"tablet step-down {tablet} --to host-z", prepare=flights).require(
        1, "it has replicas at host-a, host-b, host-c"
    )


def test_a_tablet_is_flushed_on_every_replica(ebla: Cli) -> None:
    tablet = first_tablet(ebla)["tablet"]
    flushed = ebla(f"tablet flush {tablet} --json", prepare=flights).json["flushed"]
    assert [each["address"].rpartition("/")[2] for each in flushed] == list(HOSTS)
    assert len(ebla("tablet flush -t flights --json", prepare=flights).json["flushed"]) == 6
    assert ebla("tablet flush", prepare=flights).status == 1


def test_a_tablet_is_found_by_the_beginning_of_its_id(ebla: Cli) -> None:
    tablet = first_tablet(ebla)["tablet"]
    assert ebla(f"tablet show {tablet[:8]} --json", prepare=flights).json["tablet"] == tablet
    assert "too short" in ebla(f"tablet show {tablet[:2]}", prepare=flights).err
    assert "there is no tablet" in ebla("tablet show zzzz", prepare=flights).err


def test_the_command_line_is_a_typer_application() -> None:
    assert isinstance(app, typer.Typer)
    assert len(COMMANDS) >= 16
