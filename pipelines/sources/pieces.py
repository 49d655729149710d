"""Record batches in pieces of bounded size, whose bounds depend on the rows alone: a repeated reading has the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def grouped(
    batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int
) -> Iterator[list[pa.RecordBatch]]:
    """All rows in their order, in groups of at most `rows_max` rows and `bytes_max` bytes. A longer row is a group of its own."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece, piece_size in _cut(batch, rows_max, bytes_max):
            if held and (rows + piece.num_rows > rows_max or size + piece_size > bytes_max):
                yield held
                held, rows, size = [], 0, 0
            held.append(piece)
            rows += piece.num_rows
            size += piece_size
    if held:
        yield held


def _cut(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Pieces with their sizes. Too large ones are halved, so that they differ in length if their rows differ in size."""
    shared = batch.slice(
        0, 0
    ).nbytes  # by all slices, as the texts of string_view: each row has an equal part
    waiting = [batch.slice(at, rows_max) for at in reversed(range(0, batch.num_rows, rows_max))]
    while waiting:
        piece = waiting.pop()
        size = piece.nbytes - shared + shared * piece.num_rows // batch.num_rows
        if piece.num_rows == 1 or size <= bytes_max:
            yield piece, size
            continue
        middle = piece.num_rows // 2
        waiting += [piece.slice(middle), piece.slice(0, middle)]
