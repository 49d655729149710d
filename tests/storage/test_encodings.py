"""Arrow's encodings of columns, dictionaries and runs, are taken as the values that they stand for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.storage.arrow_types import column_of
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.convert import to_array

LONG = "x" * 40  # a view of it points into a buffer
VALUES = [
    pa.array(["a", None, LONG]),
    pa.array(["a", None, LONG], pa.string_view()),
    pa.array([b"a", None, b"b"], pa.binary_view()),
    pa.array(["a", None, LONG], pa.large_string()),
    pa.array([LONG, "a", None]).dictionary_encode(),
    pa.DictionaryArray.from_arrays([1, 0, None], pa.array(["a", LONG], pa.string_view())),
    pa.array([1, None, 3], pa.int8()),
    pa.array([[1, None], None, []]),
    pa.array([{"a": 1}, None, {"a": None}]),
    pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
]


def taken(array: pa.Array | pa.ChunkedArray) -> list[object]:
    found = to_array(column_of(pa.field("v", array.type)), array)
    found.validate(full=True)
    return found.to_pylist()


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.type))
def test_runs_and_dictionaries_of_every_type_are_taken_as_their_values(values: pa.Array) -> None:
    a, b, c = values.to_pylist()
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5], pa.int32()), values)
    assert taken(runs) == [a, a, b, c, c]
    assert taken(runs.slice(1, 3)) == [a, b, c]
    assert taken(runs.slice(5)) == []
    assert taken(pa.chunked_array([runs, runs.slice(3)])) == [a, a, b, c, c, c, c]
    coded = pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 0], pa.uint8()), values)
    assert taken(coded.slice(1)) == [None, a, a]
    if not pa.types.is_dictionary(values.type):
        inside = pa.StructArray.from_arrays([runs], ["x"], mask=pa.array([True] + [False] * 4))
        assert taken(inside) == [None, *({"x": each} for each in (a, b, c, c))]


def test_encoded_values_that_arrow_cannot_decode_are_refused_with_the_column() -> None:
    views = pa.array([{"a": "x"}], pa.struct([("a", pa.string_view())]))
    with pytest.raises(
        InvalidArgument, match=r"'v' has encoded values .* send them as plain values"
    ) as raised:
        taken(pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), views))
    assert raised.value.column == "v"
