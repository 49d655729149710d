"""The API that explains itself: docstrings, types, names, modules that are loaded, errors, and texts of handles."""

from __future__ import annotations

import ast
import datetime
import inspect
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from ray import cloudpickle

import ebla
from ebla import aio, errors, local_scan
from ebla.actors import errors as actor_errors
from ebla.actors.errors import from_frame, to_frame
from ebla.actors.ledger import errors as ledger_errors
from ebla.actors.messages import MasterStatus, ServerInstance, ServerStatus
from ebla.coordination import awaited, blocking
from ebla.pipelines.outcomes import FeedReport, Sample, VerifyReport
from ebla.show.handles import Listing
from ebla.storage import errors as storage_errors
from ebla.storage.space import DiskSpace
from ebla.table import Alteration
from tests.client.loopback import Loopback
from tests.client.tables import SCHEMA, arrow
from tests.source import ROOT

PAIRS = [
    (ebla.Database, aio.Database),
    (ebla.Table, aio.Table),
    (ebla.Scan, aio.Scan),
    (ebla.Log, aio.Log),
    (ebla.LogWriter, aio.LogWriter),
    (Alteration, aio.Alteration),
    (blocking.Coordination, awaited.Nodes),
    (blocking.Session, awaited.Session),
    (blocking.Watch, awaited.Watch),
    (blocking.Lock, awaited.Lock),
]


def public(kind: type) -> Iterator[str]:
    return (name for name in dir(kind) if not name.startswith("_"))


def parameters(member: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]


@pytest.mark.parametrize(("sync", "awaits"), PAIRS)
def test_both_apis_have_the_same_methods_parameters_and_docstrings(sync: type, awaits: type) -> None:
    wanted = list(public(awaits))
    assert list(public(sync)) == wanted
    assert sync.__doc__ == awaits.__doc__ and sync.__doc__
    for name in wanted:
        one, other = getattr(sync, name), getattr(awaits, name)
        assert inspect.getdoc(one), f"{sync.__name__}.{name} has no docstring"
        assert inspect.getdoc(one) == inspect.getdoc(other), name
        assert isinstance(one, property) == isinstance(other, property), name
        if not isinstance(one, property):
            assert parameters(one) == parameters(other), name


@pytest.mark.parametrize("name", ["connect", "local"])
def test_both_ways_to_connect_have_the_same_parameters(name: str) -> None:
    assert parameters(getattr(ebla, name)) == parameters(getattr(aio, name))
    assert inspect.getdoc(getattr(ebla, name)) and inspect.getdoc(getattr(aio, name))


@pytest.mark.parametrize("name", ebla.__all__)
def test_every_public_name_exists_and_has_a_docstring_of_its_own(name: str) -> None:
    assert name in dir(ebla)
    made = getattr(ebla, name)
    inherited = {base.__doc__ for base in made.__mro__[1:]} if isinstance(made, type) else set()
    assert made.__doc__ and made.__doc__ not in inherited


@pytest.mark.parametrize("module", [ebla, aio, errors, local_scan])
def test_every_public_method_and_property_has_a_docstring(module: ModuleType) -> None:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    kinds = [kind for kind in (getattr(module, name) for name in names) if isinstance(kind, type)]
    members = [
        (kind.__name__, name, getattr(kind, name))
        for kind in kinds
        if kind.__module__.partition(".")[0] == "ebla"
        for name in public(kind)
    ]
    told = [each for each in members if callable(each[2]) or isinstance(each[2], property)]
    assert told and [each[:2] for each in told if not inspect.getdoc(each[2])] == []


@pytest.mark.parametrize("module", [ebla, aio, errors])
def test_an_editor_completes_public_names_only(module: ModuleType) -> None:
    """Editors read the source, and show every name that it binds and that does not begin with "_"."""
    statements = ast.parse(inspect.getsource(module)).body
    for each in list(statements):
        if isinstance(each, ast.If):  # TYPE_CHECKING
            statements += each.body
    bound: set[str] = set()
    for each in statements:
        if isinstance(each, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in each.names}
        elif isinstance(each, ast.Assign):
            bound |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    assert {name for name in bound if not name.startswith("_")} <= {*module.__all__, "RAISED"}


def test_the_reference_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    for sync, _ in PAIRS:
        if sync is not blocking.Coordination:
            assert [name for name in public(sync) if name not in page] == [], sync
    assert [name for name in ebla.errors.RAISED if name not in page] == []


def test_a_type_checker_accepts_right_use_and_refuses_wrong_use() -> None:
    """In a strict check, an error that is expected and does not occur is an error, too. The check shares the settings and the
    cache of `make types`. An environment with the core's packages only has no type checker."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", str(Path(__file__).parent / "user_program.py")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert found.stdout == "Success: no issues found in 1 source file\n", found.stderr


# -- modules and names ----------------------------------------------------------------------------------------


def test_importing_ebla_loads_neither_ray_nor_arrow_and_the_awaited_api_no_ray() -> None:
    program = (
        "import sys, ebla\n"
        "ebla.NotFound, ebla.errors\n"
        "heavy = [name for name in ('ray', 'pyarrow', 'pandas', 'numpy') if name in sys.modules]\n"
        "assert heavy == [], heavy\n"
        "ebla.aio, ebla.col, ebla.hash, ebla.Table\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_commands_that_only_ask_roles_load_neither_arrow_nor_numpy() -> None:
    program = (
        "import sys\n"
        "import ebla.cli.app, ebla.cli.nodes.check, ebla.cli.nodes.deployment, ebla.cli.nodes.nodes\n"
        "import ebla.deployment, ebla.operate.checking, ebla.placement.launch\n"
        "from ebla.placement.ray_private import send_own_types_only\n"
        "send_own_types_only()\n"
        "import ray\n"
        "sent = ray._private.worker.global_worker.get_serialization_context().serialize(b'request')\n"
        "assert sent.total_bytes > 0\n"
        "heavy = [each for each in ('pyarrow', 'pandas', 'numpy', 'starlette') if each in sys.modules]\n"
        "assert heavy == [], heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nope"):
        _ = ebla.nope


@pytest.mark.parametrize("module", [actor_errors, storage_errors, ledger_errors])
def test_every_error_of_ebla_can_be_caught_by_name(module: object) -> None:
    for name, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, ebla.EblaError):
            assert getattr(errors, name) is kind
            assert name in errors.__all__


def test_errors_are_also_the_matching_python_errors() -> None:
    assert issubclass(ebla.NotFound, KeyError)
    assert issubclass(ebla.InvalidArgument, ValueError)
    assert issubclass(ebla.TimedOut, TimeoutError)


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ebla.errors.RAISED)
def test_an_error_has_its_public_name_in_tracebacks_pickles_and_on_the_wire(name: str) -> None:
    kind = getattr(ebla, name)
    made = kind("problem; remedy")
    made.possibly_applied = True
    assert traceback.format_exception_only(made) == [f"ebla.{name}: problem; remedy\n"]
    for copy in (pickle.loads(pickle.dumps(made)), cloudpickle.loads(cloudpickle.dumps(made))):
        assert type(copy) is kind
        assert (copy.message, copy.values(), copy.possibly_applied) == (made.message, made.values(), True)
    assert cloudpickle.dumps(kind).count(b"ebla") and pickle.loads(cloudpickle.dumps(kind)) is kind
    assert type(from_frame(to_frame(made))) is kind


def test_an_error_is_unpickled_by_a_process_that_has_not_imported_errors() -> None:
    data = pickle.dumps(ebla.TableDropped("gone", table="7", until_us=3))
    program = (
        f"import pickle; error = pickle.loads({data!r}); import ebla\n"
        "assert type(error) is ebla.TableDropped and error.until_us == 3, error"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


# -- texts of handles ----------------------------------------------------------------------------------------


def table_of(loopback: Loopback) -> ebla.Table:
    return loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])


def test_conditions_show_themselves_as_they_are_written() -> None:
    col = ebla.col
    conditions = (col("a") == "x") & ~((col("b") > 1) | col("c").is_null()) & col("d").is_not_null()
    text = repr(conditions)
    assert text == ("(col('a') == 'x') & ~((col('b') > 1) | col('c').is_null()) & col('d').is_not_null()")
    assert eval(text) == conditions
    assert repr(col("n").is_in(range(13))) == "col('n').is_in([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...])"


@pytest.mark.parametrize(
    "text",
    [
        "col('a').starts_with('x')",
        "col('a').starts_with('')",
        f"col('a').starts_with({chr(sys.maxunicode)!r})",
        "col('a').starts_with(b'\\xff')",
        "~col('a').starts_with('x') & (col('b') == 1) & col('c').starts_with('y')",
        "(col('a').starts_with('x') & (col('b') == 1)) | col('c').is_in([2, 3])",
        "(col('a') >= 'x') & (col('a') < 'y')",
        "~~(col('a') != b'\\x00')",
        "(col('a') < float('inf')) & (col('a') != float('nan'))",
        "col('a') >= datetime.datetime(2013, 1, 31, 5, 0, tzinfo=datetime.timezone.utc)",
        "col('a') == Decimal('19.90')",
    ],
)
def test_a_condition_is_shown_as_it_was_written_and_can_be_copied(text: str) -> None:
    made = eval(text, {"col": ebla.col, "datetime": datetime, "Decimal": Decimal})
    assert repr(made) == text


def test_handles_and_results_show_themselves(loopback: Loopback) -> None:
    table = table_of(loopback)
    scan = table.scan(["id"], where=ebla.col("id") > 3, limit=7)
    assert repr(scan) == "<ebla.Scan of 't': id where col('id') > 3 limit 7>"
    changes = (
        table.alter().add_column("w", pa.int32(), nullable=False, default=5).drop_column("v").rename("u")
    )
    assert repr(changes) == (
        "<ebla.Alteration of 't': add_column('w', int32, nullable=False, default=5), drop_column('v'), rename('u')>"
    )
    assert repr(table.alter()) == "<ebla.Alteration of 't': no changes yet>"
    assert repr(ebla.Written(3)) == "Written(rows=3)"
    assert repr(ebla.Written(3, (1,))) == "Written(rows=3, rejected=(1,))"
    assert repr(ebla.Written(3, tuple(range(12)))) == (
        "Written(rows=3, rejected=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... 2 more))"
    )
    listed = loopback.db.tables()
    assert repr(listed).splitlines()[0].split() == ["name", "state", "tablets", "replicas", "rows_bytes"]
    assert repr(listed).splitlines()[1].split() == ["t", "running", "1", "3", "0", "B"]
    assert repr(loopback.db.tables("nope")) == "[]"
    html = listed._repr_html_()
    assert "<th>tablets</th>" in html and "<td>running</td>" in html
    disks = (DiskSpace("/data", 7 << 30, 9 << 30),)
    server = ServerStatus(
        "id", 1, "tablet-server/a", "a", True, 0.358986, 3, 1, 14 << 20, 150 << 20, "1", disks=disks
    )
    row = re.split("  +", repr(Listing([server])).splitlines()[1].strip())
    assert row[:6] == ["tablet-server/a", "a", "True", "0.4", "3", "1"]
    assert row[6:] == ["14 MiB", "150 MiB", "1", "7.0 GiB of 9.0 GiB free"]


def test_a_list_of_dead_servers_says_that_they_are_dead() -> None:
    dead = ServerStatus("id", 1, "tablet-server/a", "a", False, 20.0, 0, 0, 14 << 20, 150 << 20, "1")
    headers, *rows = (line.split() for line in repr(Listing([dead, dead])).splitlines())
    assert [row[headers.index("alive")] for row in rows] == ["False", "False"]
    assert [row[headers.index("leaders")] for row in rows] == ["0", "0"]
    assert "draining" not in headers, "an optional field with its default in all rows"
    assert "<td>False</td>" in Listing([dead])._repr_html_()


def test_results_show_themselves_as_text_and_as_html(loopback: Loopback) -> None:
    table = table_of(loopback)
    checked = VerifyReport(
        table="t",
        source="<rows>.csv",
        source_rows=1_200,
        table_rows=1_199,
        missing=1,
        extra=0,
        different=0,
        duplicates=0,
        samples=(Sample("missing", {"id": "3", "v": None}),),
        tablets=(),
        replicas_equal=None,
        ok=False,
        seconds=0.25,
    )
    fed = FeedReport("t", "rows.csv", "ab12", "upsert", 20_000, 0, 1, 1, 0, 0.5, 40_000.0)
    for result, lines in (
        (table.info(), ["name t", "replicas 3", "columns", "id int64 no 1", "v string yes", "tablets"]),
        (
            MasterStatus(ServerInstance("id", 1, "now"), "master/0", 1, 8, 0, 70),
            ["address master/0", "role active", "leader_conflicts 0", "caught_up True"],
        ),
        (loopback.db.tables()[0], ["name t", "state running"]),
        (checked, ["source_rows 1,200", "ok False", "samples", "missing id=3, v=null"]),
        (fed, ["table t", "rows 20,000", "rows_per_s 40,000.0"]),
    ):
        name, *shown = (" ".join(line.split()) for line in repr(result).splitlines())
        assert name == type(result).__name__
        assert set(lines) <= set(shown), shown
        assert not {"uuid", "instance"} & {line.partition(" ")[0] for line in shown}
        html = result._repr_html_()
        assert html.count("<table") == html.count("</table>") >= 1 and "<rows>" not in html
    assert "<td>source</td><td>&lt;rows&gt;.csv</td>" in checked._repr_html_()
    assert "replicas_equal" not in repr(checked), "replicas were not compared"


def test_a_notebook_shows_a_table_with_its_columns_and_escapes_names(loopback: Loopback) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("<b>", pa.string())])
    html = loopback.db.create_table("t", schema=schema, primary_key=["id"])._repr_html_()
    assert "<td>id</td><td>int64</td><td>no</td><td>1</td>" in html
    assert "<td>&lt;b&gt;</td><td>string</td><td>yes</td><td></td>" in html


def test_a_notebook_shows_a_connection_and_what_a_scan_would_read(loopback: Loopback) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("<b>", pa.string()), pa.field("n", pa.int32())])
    table = loopback.db.create_table("t", schema=schema, primary_key=["id"])
    scan = table.scan(["<b>", "id"], where=ebla.col("<b>") == "<i>", limit=7)
    asked = len(loopback.toy.calls)
    for html in (scan._repr_html_(), scan._awaited._repr_html_()):
        assert "<td>&lt;b&gt;</td><td>string</td><td>yes</td><td></td></tr><tr><td>id</td>" in html
        assert "<td>n</td>" not in html
        assert (
            "scan of &#x27;t&#x27; where col(&#x27;&lt;b&gt;&#x27;) == &#x27;&lt;i&gt;&#x27; limit 7" in html
        )
    for db in (loopback.db, loopback.db._awaited):
        html = db._repr_html_()
        assert "database &#x27;" in html and "<td>connection</td><td>open</td>" in html
    assert len(loopback.toy.calls) == asked, "nothing is asked for it"


def test_a_plain_loop_over_awaited_rows_is_refused_with_the_remedy(loopback: Loopback) -> None:
    table: Any = table_of(loopback)._awaited
    for rows in (table, table.scan()):
        for use in (list, pa.table, pa.RecordBatchReader.from_stream):
            with pytest.raises(TypeError, match=r"`async for`.*ebla\.connect\(\)"):
                use(rows)


def test_a_null_in_a_key_names_its_row(loopback: Loopback) -> None:
    table = table_of(loopback)
    for write, row in (
        (lambda: table.upsert({"id": None, "v": "x"}), 0),
        (lambda: table.upsert({"v": "x"}), 0),
        (lambda: table.delete({"id": None}), 0),
        (lambda: table.upsert([{"id": 1}, {"v": "x"}]), 1),
        (lambda: table.upsert(pa.table({"id": [*range(20_000), None]})), 20_000),
        (lambda: table.delete([{"id": 1}, {"id": None}]), 1),
    ):
        with pytest.raises(ebla.InvalidArgument, match=rf"'id' .*\brow {row}\b") as caught:
            write()
        assert (caught.value.column, caught.value.row) == ("id", row)


# -- get -----------------------------------------------------------------------------------------------------


def test_get_refuses_columns_outside_the_key(loopback: Loopback) -> None:
    table = table_of(loopback)
    table.upsert(arrow(3))
    with pytest.raises(
        ebla.InvalidArgument, match=r"'v' is not part of the key \(id\).*scan\(where="
    ) as caught:
        table.get({"id": 1, "v": "x"})
    assert caught.value.column == "v"
    with pytest.raises(ebla.InvalidArgument, match="key column 'id' needs a value") as caught:
        table.get({"x": 1})
    assert caught.value.__suppress_context__, "the KeyError inside of ebla is not shown"
    assert table.get({"id": 1}) is not None
