"""The frame of the command line, and commands on tables and tablets of real roles."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer import rich_utils
from typer.main import get_command
from typer.testing import CliRunner

import ebla as api
from ebla.cli.app import app
from ebla.errors import NotFound
from ebla.transport.bridge import shortened
from ebla.wording import command
from tests.cli.stage import HOSTS, Cli, Stage

CREATE = ("table", "create", "t", "-c", "k:int64", "-c", "v:string:null", "-k", "k")


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
    assert not re.search(r"[{}]|\) At least", " ".join(narrow)), narrow
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
        "    heavy = {'ray', 'pyarrow', 'pyspark', 'pandas', 'numpy', 'asyncio', 'pydantic'} & set(sys.modules)\n"
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
    loaded: Cli, words: tuple[str, ...], kind: str, status: int
) -> None:
    outcome = loaded(*words, "--json")
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
    out, err = command.communicate(timeout=600)
    assert (command.returncode, out, err) == (143, "cleaned up\n", "")


def test_an_error_is_one_sentence_and_with_verbose_also_its_whole_traceback(ebla: Cli) -> None:
    def inside() -> None:
        raise NotFound("there is no table 'none'")

    async def refused(stage: Stage) -> None:
        try:
            inside()
        except NotFound as error:
            raise shortened(error) from None  # as calls raise it

    quiet = ebla("table list", prepare=refused)
    assert (quiet.status, quiet.err) == (1, "ebla: there is no table 'none'\n")
    verbose = ebla("table list -v", prepare=refused)
    assert (verbose.status, verbose.err.splitlines()[0]) == (1, "Traceback (most recent call last):")
    assert "in inside" in verbose.err and verbose.err.endswith(quiet.err)


def test_a_defect_is_never_hidden(ebla: Cli) -> None:
    async def broken(stage: Stage) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        ebla("table list --json", prepare=broken)


# -- tables --------------------------------------------------------------------------------------------------


def test_a_table_is_created_and_described(ebla: Cli) -> None:
    outcome = ebla(*CREATE, "--hash", "k:4")
    assert outcome.status == 0
    assert outcome.lines == ["created table t: 2 columns, 4 tablets x 3 replicas, raft"]
    made = ebla(*CREATE, "--hash", "k:4", "--json").json
    assert made["created"] is True
    assert made["table"]["state"] == "running"
    assert made["table"]["columns"] == [
        {"name": "k", "type": "int64", "nullable": False, "key": True},
        {"name": "v", "type": "string", "nullable": True, "key": False},
    ]
    assert made["table"]["hash"] == {"type": "hash", "columns": ["k"], "buckets": 4}


def test_a_name_that_is_taken_is_refused_unless_the_table_is_the_same(loaded: Cli) -> None:
    same = ("-c", "carrier:string", "-c", "flight:int32", "-c", "distance:int32:null")
    same += ("-c", "at:timestamp[us,UTC]:null", "-k", "carrier,flight")
    create = ("table", "create", "flights")
    assert "exists already" in loaded(*create, *same).err
    again = loaded(*create, *same, "--if-not-exists", "--json")
    assert (again.status, again.json["created"]) == (0, False)
    loaded(*create, "-c", "k:int64", "-k", "k", "--if-not-exists").require(1, "with other columns")


def test_tables_are_listed(loaded: Cli) -> None:
    outcome = loaded("table list")
    assert outcome.lines[0].split() == ["TABLE", "STATE", "TABLETS", "REPLICAS", "REPLICATION", "SIZE"]
    assert outcome.lines[1].split()[:5] == ["flights", "running", "2", "3", "raft"]
    assert loaded("table list x").lines == ["no tables whose name begins with 'x'"]


def test_a_table_is_described_with_its_columns_and_tablets(loaded: Cli) -> None:
    outcome = loaded("table describe flights -d")
    assert "partitions  2: hash of (flight) into 2" in outcome.lines
    assert "at        timestamp[us,UTC]  null" in outcome.lines
    assert sum(line.startswith("  host-") for line in outcome.lines) == 6
    document = loaded("table describe flights -d --json").json
    assert [column["name"] for column in document["columns"]] == ["carrier", "flight", "distance", "at"]
    assert document["health"] == "HEALTHY"
    assert [len(tablet["replicas"]) for tablet in document["tablet_health"]] == [3, 3]


def test_a_range_is_described_with_the_values_of_its_splits(ebla: Cli) -> None:
    async def ranged(stage: Stage) -> None:
        schema = pa.schema([pa.field("s", pa.string(), False), pa.field("n", pa.int32(), False)])
        whole, part = api.range("s", "n", splits=[("a", 5), ("m\0", -1)]), api.range("s", splits=["a", "m\0"])
        for name, by in (("r", whole), ("p", part)):
            await stage.db.create_table(name, schema=schema, primary_key=["s", "n"], partition_by=by)

    document = ebla("table describe r --json", prepare=ranged).json
    assert document["range"] == {"columns": ["s", "n"], "splits": ["a, 5", "m\0, -1"]}
    assert ebla("table describe p --json", prepare=ranged).json["range"]["splits"] == ["a", "m\0"]


def test_an_unknown_table_gets_a_suggestion(ebla: Cli, loaded: Cli) -> None:
    for words in (("describe", "flight"), ("scan", "flight"), ("drop", "flight", "-y")):
        outcome = loaded("table", *words)
        assert (outcome.status, outcome.out) == (1, "")
        assert "there is no table 'flight'; did you mean 'flights'?" in outcome.err
    assert "no tables yet" in ebla("table describe flight").err


@pytest.mark.parametrize(
    ("name", "words"), [("a b", "'a b'"), ("-x", "-- -x"), ("quo'te", """'quo'"'"'te'"""), ("plain", "plain")]
)
def test_a_command_in_a_message_can_be_run_as_it_stands(ebla: Cli, name: str, words: str) -> None:
    async def named(stage: Stage) -> None:
        await stage.table(name)

    dropped = ebla("table drop -y --reserve 3d --", name, prepare=named)
    assert f"`ebla table recall {words}` brings it back" in dropped.out, dropped.err
    assert f"`ebla log create {words}`" in ebla("log describe --", name).err
    assert command("table scan", "-x", options="--where ...") == "`ebla table scan --where ... -- -x`"


def test_a_drop_needs_a_yes(loaded: Cli) -> None:
    loaded("table drop flights").require(1, "add -y")
    assert loaded("table drop flights -y").lines == ["dropped table flights"]
    missing = loaded("table drop none -y --if-exists --json")
    assert (missing.status, missing.json) == (0, {"dropped": False, "name": "none", "kept": False})


# -- tablets -------------------------------------------------------------------------------------------------


def first_tablet(loaded: Cli) -> dict[str, Any]:
    found: dict[str, Any] = loaded("tablet list -t flights --json").json["tablets"][0]
    return found


def test_a_tablets_leadership_is_handed_over(loaded: Cli) -> None:
    tablet = first_tablet(loaded)
    other = next(r["address"] for r in tablet["replicas"] if r["uuid"] != tablet["leader"])
    words = ("tablet", "step-down", tablet["tablet"][:8], "--to", other.rpartition("/")[2], "--json")
    document = loaded(*words).json
    assert (document["tablet"], document["leader"]) == (tablet["tablet"], other)
    assert document["leader_before"] != other


def test_a_successor_without_a_replica_is_refused(loaded: Cli) -> None:
    tablet = first_tablet(loaded)["tablet"]
    loaded(f"tablet step-down {tablet} --to host-z").require(1, "it has replicas at host-a, host-b, host-c")


def test_a_tablet_is_flushed_on_every_replica(loaded: Cli) -> None:
    tablet = first_tablet(loaded)["tablet"]
    flushed = loaded(f"tablet flush {tablet} --json").json["flushed"]
    assert [each["address"].rpartition("/")[2] for each in flushed] == list(HOSTS)
    assert len(loaded("tablet flush -t flights --json").json["flushed"]) == 6
    assert loaded("tablet flush").status == 1


def test_a_flush_goes_on_past_a_server_that_does_not_run_and_says_so(loaded: Cli) -> None:
    async def one_lost(stage: Stage) -> None:
        await stage.table()
        stage.cluster.crash("tablet-server/host-b")

    flushed = loaded("tablet flush -t flights", prepare=one_lost)
    assert flushed.status == 1
    missing = [line for line in flushed.lines if "is down" in line or "no answer" in line]
    assert len(flushed.lines) == 7 and len(missing) == 2 and all("host-b" in line for line in missing)


def test_a_tablet_is_found_by_the_beginning_of_its_id(loaded: Cli) -> None:
    tablet = first_tablet(loaded)["tablet"]
    assert loaded(f"tablet show {tablet[:8]} --json").json["tablet"] == tablet
    assert "too short" in loaded(f"tablet show {tablet[:2]}").err
    assert "there is no tablet" in loaded("tablet show zzzz").err


def test_the_command_line_is_a_typer_application() -> None:
    assert isinstance(app, typer.Typer)
    assert len(COMMANDS) >= 16
