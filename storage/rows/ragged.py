"""Variable-width columns in Arrow's form (offsets and one data buffer), cut and joined without a loop per row.

Results are plain `pa.BinaryArray`s without nulls. Slices (offset != 0) are accepted; totals are limited by 32-bit
offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.errors import InvalidArgument

BYTES_MAX = (1 << 31) - 1  # Arrow's 32-bit offsets

Array = npt.NDArray[Any]


def binary(array: pa.Array) -> pa.BinaryArray:
    """A string, binary or json array as binary, with nulls as empty values."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type != pa.binary():
        array = array.view(pa.binary())
    return pc.fill_null(array, b"") if array.null_count else array


def offsets(array: pa.Array) -> Array:
    """The n + 1 offsets, into the array's whole data buffer."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)


def lengths(array: pa.Array) -> Array:
    return np.diff(offsets(array))


def content(array: pa.Array) -> Array:
    """The array's bytes, one after the other."""
    places = offsets(array)
    data = array.buffers()[2] if len(array) else None
    if data is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[places[0] : places[-1]]


def from_offsets(places: Array, data: Any) -> pa.BinaryArray:
    assert places.dtype == np.int32
    buffers = [None, pa.py_buffer(places), data if isinstance(data, pa.Buffer) else pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(places) - 1, buffers)


def constant(matrix: Array) -> pa.BinaryArray:
    """One value per row of a C-contiguous array."""
    count = len(matrix)
    width = matrix.nbytes // count if count else 0
    check_total(count * width)
    places = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return from_offsets(places, np.ascontiguousarray(matrix).reshape(-1).view(np.uint8))


def join(parts: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Concatenate the parts row by row."""
    if len(parts) == 1:
        return parts[0]
    check_total(sum(len(content(part)) for part in parts))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def cut(data: Any, starts: Array, stops: Array) -> pa.BinaryArray:
    """The values at starts[i]..stops[i] of a buffer. The caller checks that the places ascend and lie inside."""
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    sizes = stops - starts
    width = int(sizes[0])
    if width and not (sizes != width).any():
        return constant(window(np.frombuffer(data, np.uint8), width)[starts])
    places = np.empty(2 * count + 1, np.int32)
    places[0:-1:2] = starts
    places[1::2] = stops
    places[-1] = places[-2]
    wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
    return pc.take(from_offsets(places, data), wanted, boundscheck=False)


def window(data: Array, width: int) -> Array:
    """Every run of `width` bytes of the buffer, by its start: index it to gather."""
    assert 0 < width <= len(data)
    found: Array = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return found


def objects(array: pa.BinaryArray) -> list[bytes]:
    """A Python bytes object per row."""
    values: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def holds_zero(array: pa.Array) -> bool:
    return not content(array).all()


def check_total(total_bytes: int) -> None:
    if total_bytes > BYTES_MAX:
        raise InvalidArgument(
            f"{total_bytes} bytes in one batch are more than Arrow's {BYTES_MAX}; send it in smaller batches"
        )
