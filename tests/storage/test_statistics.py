"""Blocks that a condition leaves out have no row that matches, and no row of another block comes to light for it."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla import col
from ebla.storage.predicates.conditions import Expression, condition
from ebla.storage.predicates.expressions import bind, columns, mask
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.blocks import PLACE, encode, open_block
from ebla.storage.runs.statistics import may_match
from ebla.storage.schema import TableSchema
from tests.storage.disks import in_simulation
from tests.storage.run_tablet import Tablet, read, small, steps
from tests.storage.test_blocks import piece_of
from tests.sweeps import examples

SEED = checksum.seed("tablet")
NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("i", pa.int32()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("c", pa.decimal128(9, 2)),
        ("l", pa.list_(pa.int64())),
    ]
)
CODEC = RowCodec(TableSchema.from_arrow(SCHEMA, ["k"]))
VALUES: dict[str, list[Any]] = {
    "i": [-(1 << 31), -1, 0, 1, 7],
    "u": [0, 1, (1 << 64) - 1],
    "f": [float("-inf"), -1.5, -0.0, 0.0, 2.5, float("inf"), NAN],
    "s": ["", "a", "b", "long text of which 16 bytes are a", "long text of which 16 bytes are b", "z"],
    "b": [False, True],
    "d": [date(1969, 12, 31), date(1970, 1, 1), date(2026, 1, 1)],
    "c": [1, 2],
    "l": [[], [1]],
}
ORDERED = [name for name in VALUES if name not in ("c", "l")]


@st.composite
def comparisons(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(ORDERED))
    what = col(name)
    value = draw(st.sampled_from(VALUES[name]))
    match draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "null"])):
        case "==":
            return what == value
        case "!=":
            return what != value
        case "<":
            return what < value
        case "<=":
            return what <= value
        case ">":
            return what > value
        case ">=":
            return what >= value
        case "in":
            return what.is_in(draw(st.lists(st.sampled_from(VALUES[name]), max_size=3)))
    return draw(st.sampled_from([what.is_null(), col("l").is_null(), col("c").is_not_null()]))


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda both: both[0] & both[1]),
        st.tuples(inner, inner).map(lambda both: both[0] | both[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(250))
@given(data=st.data(), where=conditions)
def test_a_block_with_a_match_is_never_left_out(data: st.DataObject, where: Expression) -> None:
    row = st.fixed_dictionaries({name: st.sampled_from([None, *VALUES[name]]) for name in VALUES})
    rows = [{"k": k, **each} for k, each in enumerate(data.draw(st.lists(row, min_size=1, max_size=4)))]
    batch = CODEC.arrow(pa.Table.from_pylist(rows, SCHEMA))
    bound = bind(where, CODEC.schema)
    (cut,) = encode(piece_of(CODEC, batch), CODEC, 7, SEED)
    found = open_block(memoryview(cut.value), CODEC, PLACE.pack(7, 0), SEED, "data").statistics()
    if mask(bound, batch).true_count:
        assert may_match(condition(bound), CODEC.schema, found)


@pytest.mark.parametrize(
    "where",
    [
        col("i") == 50,
        col("i") > 100,
        col("i") < 1,
        ~(col("i") >= 1),
        col("s").is_in(["a", "x9"]),
        col("s").starts_with("y"),
        col("f") > 1e9,
        col("b") == True,  # noqa: E712
        col("b").is_null(),
        col("l").is_null(),
        (col("i") == 5) & (col("u") == 7),
        (col("i") == 50) | (col("d") == date(2000, 1, 1)),
    ],
)
def test_a_block_without_a_match_is_left_out(where: Expression) -> None:
    rows = [
        {"k": n, "i": n, "u": 9, "f": n / 2, "s": f"x{n}", "b": False, "d": date(1970, 1, n), "c": 1, "l": []}
        for n in range(1, 9)
    ]
    batch = CODEC.arrow(pa.Table.from_pylist(rows, SCHEMA))
    (cut,) = encode(piece_of(CODEC, batch), CODEC, 7, SEED)
    found = open_block(memoryview(cut.value), CODEC, PLACE.pack(7, 0), SEED, "data").statistics()
    assert not may_match(condition(bind(where, CODEC.schema)), CODEC.schema, found)


@settings(max_examples=200, deadline=None)
@given(
    script=steps,
    block=st.integers(1, 4),
    limit=st.integers(1, 7),
    low=st.integers(0, 20),
    text=st.sampled_from([None, "v3", "v9"]),
    either=st.booleans(),
)
@in_simulation
async def test_a_scan_with_a_condition_returns_the_rows_that_match(
    script: list[Any], block: int, limit: int, low: int, text: str | None, either: bool
) -> None:
    """Through overwrites and deletions in newer runs, whose blocks may not match."""
    with small(block, 500):
        tablet = await Tablet.open()
        for what, places in script:
            await tablet.step(what, places)
        codec = tablet.codec
        names = {column.name: column.type for column in codec.schema.columns}
        where = col("n") < low if "n" in names else col("k") < low
        if names.get("v") == "string":
            other = col("v").is_null() if text is None else col("v") > text
            where = where | other if either else where & other
        bound = bind(where, codec.schema)
        snapshot = tablet.store.snapshot()
        asked = list(dict.fromkeys([*codec.names, *columns(bound)]))
        expected = codec.arrow(tablet.expected(b"", None)).filter(
            mask(bound, codec.arrow(tablet.expected(b"", None)))
        )
        found = pa.Table.from_pylist(
            read(codec, snapshot, b"", None, limit, asked, bound), codec.schema.arrow(asked)
        )
        kept = [each for batch in found.to_batches() for each in batch.filter(mask(bound, batch)).to_pylist()]
        assert kept == expected.to_pylist()
        snapshot.close()


@in_simulation
async def test_a_newer_block_without_a_match_still_hides_older_rows() -> None:
    with small(100, 500):
        tablet = await Tablet.open()
        tablet.put([0, 1, 2])
        await tablet.flush()
        for _ in range(3):
            tablet.put([1])
            await tablet.flush()
        first = bind(col("n") == 1, tablet.codec.schema)
        snapshot = tablet.store.snapshot()
        assert [row["n"] for row in read(tablet.codec, snapshot, b"", None, 100, ["n"], first)] == [1, 4, 1]
        newest = bind(col("n") == 4, tablet.codec.schema)
        assert [row["n"] for row in read(tablet.codec, snapshot, b"", None, 100, ["n"], newest)] == [4]
        none = bind(col("n") == 9, tablet.codec.schema)
        assert read(tablet.codec, snapshot, b"", None, 100, ["n"], none) == []
        snapshot.close()
