"""Rows are read under every later schema as if they had been written with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.arrow_types import column_of
from ebla.storage.errors import Corruption, InvalidArgument
from ebla.storage.rows import checksum, convert
from ebla.storage.rows.alteration import AddColumn, Change, DropColumn, RenameColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, Hash, Partitioning, Range, TableSchema

SEED = checksum.seed("tablet")
FIRST = TableSchema.from_arrow(
    pa.schema([("s", pa.string()), ("k", pa.int64()), ("n", pa.int32()), ("v", pa.string())]), ["s", "k"]
)


def column(name: str, kind: pa.DataType, default: Any = None, nullable: bool = True) -> Column:
    made = column_of(pa.field(name, kind, nullable))
    return msgspec.structs.replace(made, default=convert.pack_default(made, default))


def joined(codec: RowCodec, *rows: dict[str, Any]) -> list[bytes]:
    return [key + value for key, value in (codec.encode_row(row, SEED) for row in rows)]


def row(k: int, **values: Any) -> dict[str, Any]:
    return {"s": f"s{k}", "k": k, "n": k * 10, "v": f"v{k}", **values}


# -- schemas -------------------------------------------------------------------------------------------------


def test_changes_apply_in_their_order_and_make_one_version() -> None:
    made = altered(
        FIRST,
        [DropColumn("n"), RenameColumn("v", "n"), AddColumn(column("v", pa.float64())), DropColumn("v")],
    )
    assert (made.version, made.layout, made.renewed) == (1, 1, 1)
    assert [each.name for each in made.columns] == ["s", "k", "n"]
    assert [(each.name, each.until) for each in made.former] == [("n", 1)]
    assert made.called("n", 0).until == 1
    assert made.called("v", 0) == made.column("n") == made.called("n", 1)
    with pytest.raises(InvalidArgument, match="no column 'w' in version 0"):
        made.called("w", 0)


def test_a_renamed_key_column_is_renamed_in_key_and_partitioning() -> None:
    parts = Partitioning(Hash(("k",), 4), Range(("s",), (b"m",)))
    made = altered(
        msgspec.structs.replace(FIRST, partitioning=parts), [RenameColumn("s", "t"), RenameColumn("k", "l")]
    )
    assert made.key == ("t", "l")
    assert made.partitioning == Partitioning(Hash(("l",), 4), Range(("t",), (b"m",)))
    assert (made.layout, made.renewed) == (0, 1)
    assert joined(RowCodec(made), {"t": "x", "l": 1}) == joined(RowCodec(FIRST), {"s": "x", "k": 1})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([DropColumn("k")], "'k' is part of the key"),
        ([DropColumn("w")], "no column 'w'"),
        ([RenameColumn("w", "x")], "no column 'w'"),
        ([RenameColumn("n", "v")], "a column 'v' already"),
        ([AddColumn(column("v", pa.int8()))], "a column 'v' already"),
        ([AddColumn(column("w", pa.int8(), nullable=False))], "give a default, or make it nullable"),
        ([AddColumn(Column("w", "tuple"))], "unknown type 'tuple'"),
        ([AddColumn(Column("w", "map"))], "the fields of a map are"),
        ([AddColumn(Column("w", "int32", default=b"123"))], "no default"),
        (
            [AddColumn(Column("w", "string", default=b"x" * 4097))],
            "a default of 4097 bytes, and 4096 are allowed",
        ),
        ([AddColumn(Column("w", "string", default=b"\xff"))], "no default"),
        ([RenameColumn("n", "")], "1 to 256 characters"),
        ([AddColumn(column(f"c{n}", pa.int8())) for n in range(300)], "1 to 300 columns"),
    ],
)
def test_an_impossible_change_is_refused_with_the_column_and_the_remedy(
    changes: list[Change], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        altered(FIRST, changes)


def test_dropped_columns_former_names_and_versions_count_for_the_limits() -> None:
    made = FIRST
    with pytest.raises(InvalidArgument, match="over the limit of 600"):
        for turn in range(700):
            made = altered(made, [AddColumn(column(f"c{turn}", pa.int8()))])
            made = altered(made, [DropColumn(f"c{turn}")])
    made = FIRST
    with pytest.raises(InvalidArgument, match="was renamed 100 times"):
        for turn in range(102):
            made = altered(made, [RenameColumn(made.columns[-1].name, f"v{turn}")])
    with pytest.raises(InvalidArgument, match="copy it into a new one"):
        altered(msgspec.structs.replace(FIRST, version=60_000), [])


# -- rows ----------------------------------------------------------------------------------------------------


def test_an_added_column_has_its_default_in_old_and_new_rows() -> None:
    added = {
        "a": (pa.int64(), 7),
        "b": (pa.string(), "none"),
        "c": (pa.decimal128(38, 2), Decimal("-123456789012345678901234567890.12")),
        "d": (pa.timestamp("us", "UTC"), None),
        "e": (pa.bool_(), True),
        "f": (pa.date32(), date(2013, 1, 31)),
        "g": (pa.binary(), b"\x00\xff"),
        "h": (pa.float32(), 0.5),
    }
    newer = altered(FIRST, [AddColumn(column(name, *each)) for name, each in added.items()])
    new = RowCodec(newer)
    stored = (
        joined(RowCodec(FIRST), row(1))
        + joined(new, row(2), row(3, a=1, b="", d=None))
        + joined(RowCodec(FIRST), row(4))
    )
    defaults = {name: value for name, (_, value) in added.items()}
    expected = [
        row(1, **defaults),
        row(2, **defaults),
        row(3, **{**defaults, "a": 1, "b": ""}),
        row(4, **defaults),
    ]
    assert new.decode(stored, SEED).to_pylist() == expected
    batch = new.arrow([row(2), row(3, a=1, b="", d=None)])
    keys, values = new.encode(batch, SEED)
    assert [key + value for key, value in zip(keys, values, strict=True)] == joined(
        new, row(2), row(3, a=1, b="")
    )
    assert new.decode(stored, SEED, ["e", "k"]).to_pylist() == [{"e": True, "k": k} for k in (1, 2, 3, 4)]
    assert new.decode(stored, SEED, []).num_rows == 4


def test_a_reused_column_name_shows_no_old_value() -> None:
    dropped = altered(FIRST, [DropColumn("v")])
    again = altered(dropped, [AddColumn(column("v", pa.string(), "new"))])
    stored = joined(RowCodec(FIRST), row(1)) + joined(RowCodec(dropped), {"s": "s2", "k": 2, "n": 20})
    assert RowCodec(again).decode(stored, SEED, ["k", "v"]).to_pylist() == [
        {"k": 1, "v": "new"},
        {"k": 2, "v": "new"},
    ]


def test_a_row_of_the_first_layout_has_no_mark() -> None:
    key, value = RowCodec(FIRST).encode_row(row(1), SEED)
    assert value[-4:] == int(checksum._crc(key + value[:-4], SEED)).to_bytes(4, "little")
    renamed = altered(FIRST, [RenameColumn("v", "w")])
    assert RowCodec(renamed).encode_row({"s": "s1", "k": 1, "n": 10, "w": "v1"}, SEED) == (key, value)


def test_no_flipped_bit_turns_one_layout_into_another() -> None:
    assert checksum.MARK.bit_count() % 2 == 0
    first, second = RowCodec(FIRST), RowCodec(altered(FIRST, [AddColumn(column("w", pa.int8()))]))
    for codec in (first, second):
        key, value = codec.encode_row(row(1), SEED)
        for bit in range(8 * len(value)):
            damaged = bytearray(value)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Corruption):
                checksum.verify_row(key, bytes(damaged), SEED)
            with pytest.raises(Corruption):
                second.decode([key + bytes(damaged), *joined(first, row(2)), *joined(second, row(3))], SEED)


def test_rows_of_an_unknown_layout_are_refused() -> None:
    newer = altered(FIRST, [AddColumn(column("w", pa.int8()))])
    stored = joined(RowCodec(newer), row(1))
    with pytest.raises(Corruption, match="layout 1, which version 0"):
        RowCodec(FIRST).decode(stored, SEED)
    with pytest.raises(Corruption, match="layout 1, which version 0"):
        RowCodec(FIRST).decode_row(*RowCodec(newer).encode_row(row(1), SEED), SEED)


# -- any history ---------------------------------------------------------------------------------------------

KINDS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int32(), 5, 9),
    (pa.string(), "d", "x"),
    (pa.decimal128(30, 1), Decimal("1.5"), Decimal("-2.5")),
    (pa.bool_(), False, True),
]


@dataclass
class History:
    """The schemas, and each row as a map from a column's number to its value."""

    schemas: list[TableSchema] = field(default_factory=lambda: [FIRST])
    rows: list[dict[int, Any]] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)

    @property
    def now(self) -> TableSchema:
        return self.schemas[-1]

    def expected(self) -> list[dict[str, Any]]:
        now = altered(self.now, [])  # columns have numbers
        return [
            {each.name: row.get(each.id, convert.defaults(each, 1)[0].as_py()) for each in now.columns}
            for row in self.rows
        ]

    def write(self, version: int, values: dict[str, Any]) -> None:
        schema = self.schemas[version]
        k = len(self.rows)
        full = {name: value for name, value in values.items() if name not in schema.key}
        full |= dict(zip(schema.key, (f"s{k}", k), strict=True))
        self.stored += joined(RowCodec(schema), full)
        numbered = altered(self.now, [])
        self.rows.append(
            {
                numbered.called(each.name, version).id: full.get(
                    each.name, convert.defaults(each, 1)[0].as_py()
                )
                for each in schema.columns
            }
        )

    def update(self, version: int, at: int, values: dict[str, Any]) -> None:
        schema, now = self.schemas[version], RowCodec(self.now)
        numbered = altered(self.now, [])
        names = [each.name for each in schema.value_columns() if each.name in values]
        if not names:
            return
        sent = RowCodec(schema, names)
        key, patch = sent.encode_row({**values, **dict(zip(schema.key, (f"s{at}", at), strict=True))}, SEED)
        (value,) = now.patch([self.stored[at]], [key], [patch], now.of_patch(tuple(names), version), SEED)
        self.stored[at] = key + value
        before = self.expected()[at]
        self.rows[at] = {each.id: before[each.name] for each in numbered.columns}
        self.rows[at] |= {numbered.called(name, version).id: values[name] for name in names}


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_any_history_of_alterations_and_writes_matches_a_model(data: st.DataObject) -> None:
    history, names = History(), [f"c{n}" for n in range(5)] + ["n", "v"]
    for _ in range(data.draw(st.integers(3, 14))):
        act = data.draw(st.sampled_from(["add", "drop", "rename", "write", "write", "late", "update"]))
        now = history.now
        free = [name for name in names if all(each.name != name for each in now.columns)]
        held = [each.name for each in now.value_columns()]
        if act == "add" and free:
            kind, default, _ = data.draw(st.sampled_from(KINDS))
            chosen = data.draw(st.sampled_from([None, default]))
            made = column(data.draw(st.sampled_from(free)), kind, chosen)
            history.schemas.append(altered(now, [AddColumn(made)]))
        elif act == "drop" and held:
            history.schemas.append(altered(now, [DropColumn(data.draw(st.sampled_from(held)))]))
        elif act == "rename" and held and free:
            change = RenameColumn(data.draw(st.sampled_from(held)), data.draw(st.sampled_from(free)))
            history.schemas.append(altered(now, [change]))
        elif act in ("write", "late", "update"):
            version = now.version if act == "write" else data.draw(st.integers(0, now.version))
            values = {
                each.name: next((v for kind, _, v in KINDS if kind == each.arrow_type()), None)
                for each in history.schemas[version].value_columns()
                if data.draw(st.booleans())
            }
            if act == "update" and history.rows:
                history.update(version, data.draw(st.integers(0, len(history.rows) - 1)), values)
            else:
                history.write(version, values)
    codec = RowCodec(history.now)
    expected = history.expected()
    assert codec.decode(history.stored, SEED).to_pylist() == expected
    for stored, each in zip(history.stored, expected, strict=True):
        key = codec.encode_key(each)
        assert stored.startswith(key)
        assert codec.decode_row(key, stored[len(key) :], SEED) == each
