"""Blocks of Ray Data, written into a table of the toy deployment without a Ray cluster."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.data.block import Block, BlockAccessor

import ebla
from ebla.errors import InvalidArgument
from ebla.ray_data import TableDatasink
from tests.client.loopback import Loopback

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("items", pa.list_(pa.float64()))])
ROWS = pa.table({"id": [1, 2], "n": [1, None], "items": [[1.0], [2.0]]}, SCHEMA)
REMEDY = r"in NumPy batches.*map_batches\(..., batch_format='pyarrow'\)"


@pytest.fixture
def table(loopback: Loopback) -> ebla.Table:
    return loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])


def numpy_batches(block: Block) -> Block:
    """The block after `map_batches` of a function that changes nothing, with Ray's default format."""
    return BlockAccessor.batch_to_block(BlockAccessor.for_block(block).to_batch_format("numpy"))


def write(table: ebla.Table, *blocks: Any) -> int:
    return TableDatasink(table, "job").write(blocks, types.SimpleNamespace(task_idx=0))


def test_a_null_of_an_integer_that_numpy_made_nan_is_refused_with_the_format_to_use(
    table: ebla.Table,
) -> None:
    with pytest.raises(InvalidArgument, match=f"'n', row 1: nan is not an int.*{REMEDY}") as raised:
        write(table, numpy_batches(ROWS))
    assert (raised.value.column, raised.value.row) == ("n", 1)
    assert write(table, ROWS) == 2 and table.get({"id": 2}) == {"id": 2, "n": None, "items": [2.0]}


def test_lists_of_several_lengths_that_numpy_made_tensors_are_refused_with_the_format_to_use(
    table: ebla.Table,
) -> None:
    uneven = ROWS.set_column(2, "items", pa.array([[1.0], [2.0, 3.0]]))
    full = uneven.set_column(1, "n", pa.array([1, 2], pa.int32()))
    with pytest.raises(InvalidArgument, match=f"'items' holds .*{REMEDY}"):
        write(table, numpy_batches(full))


def test_other_refusals_of_a_block_do_not_name_the_format(table: ebla.Table) -> None:
    with pytest.raises(InvalidArgument, match="'n'") as raised:
        write(table, ROWS.set_column(1, "n", pa.array(["a", "b"])))
    assert "batch_format" not in str(raised.value)


def test_tensors_of_one_dimension_are_lists_and_of_two_are_refused(table: ebla.Table) -> None:
    def block(*shape: int) -> Block:
        return BlockAccessor.batch_to_block({"id": np.arange(3), "items": np.ones((3, *shape))})

    assert write(table, block(2)) == 3
    assert table.get({"id": 0}) == {"id": 0, "n": None, "items": [1.0, 1.0]}
    with pytest.raises(InvalidArgument, match=r"'items' holds .*tensors of 2 dimensions") as raised:
        write(table, block(2, 2))
    assert raised.value.column == "items"
