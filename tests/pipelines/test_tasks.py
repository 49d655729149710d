"""The calls and the client id of a partition, which must be equal in every attempt."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebla.pipelines import target, tasks

SIZES = st.lists(st.integers(0, 40), max_size=20)


def batches(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    """Batches with consecutive numbers."""
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + size), pa.int64())})
        start += size


@given(SIZES, st.integers(1, 64), st.integers(1, 600))
def test_every_row_is_in_one_call_at_its_position(sizes: list[int], rows: int, size: int) -> None:
    seen = 0
    for call in target.calls(batches(sizes), rows, size):
        assert call.position == seen
        assert call.rows.num_rows > 0
        assert call.rows["n"].to_pylist() == list(range(seen, seen + call.rows.num_rows))
        seen += call.rows.num_rows
    assert seen == sum(sizes)


@given(SIZES, st.integers(1, 64), st.integers(1, 600))
def test_a_call_is_larger_than_the_limits_only_if_it_is_one_batch(
    sizes: list[int], rows: int, size: int
) -> None:
    for call in target.calls(batches(sizes), rows, size):
        if call.rows.column(0).num_chunks > 1:
            assert call.rows.num_rows <= rows
            assert call.rows.nbytes <= size


@given(SIZES, st.integers(1, 64), st.integers(1, 600), st.integers(0, 300))
def test_a_repeated_attempt_makes_the_same_calls(
    sizes: list[int], rows: int, size: int, survived: int
) -> None:
    whole = [(c.position, c.rows) for c in target.calls(batches(sizes), rows, size)]
    cut_short = [c for c, _ in zip(target.calls(batches(sizes), rows, size), range(survived), strict=False)]
    again = [(c.position, c.rows) for c in cut_short]
    assert again == whole[: len(again)]


def test_job_and_partition_alone_determine_the_client_id() -> None:
    names = {target.client_id(job, part) for job in ("a", "b", "a/1") for part in range(30)}
    assert len(names) == 90
    assert {len(name) for name in names} == {16}
    assert target.client_id("a", 7) == target.client_id("a", 7)


def test_write_tasks_can_be_pickled() -> None:
    task = tasks.WriteTask(b"handle", "job", "counter", "upsert", 10, None)
    assert pickle.loads(pickle.dumps(task)) == task


def test_the_counter_counts_a_partition_once_and_keeps_the_first_fatal_error() -> None:
    counter = tasks.Counter()
    for partition, rows in [
        (0, 10),
        (1, 5),
        (0, 20),
        (0, 10),
    ]:  # the last one is another attempt, with fewer rows so far
        counter.rows(partition, rows)
    counter.failed(b"passing", False)
    assert counter.read() == (25, b"passing", None)
    counter.failed(b"first", True)
    counter.failed(b"second", True)
    assert counter.read() == (25, b"second", b"first")
