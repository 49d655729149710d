"""New runs: of a flush, and of the steps of a compaction.

A compaction merges neighbouring tiers, range by range. A step adds the merged rows of one range as a run, and trims the runs
that it has read by that range, in one transaction. So a crash between two steps leaves nothing to undo, and the space that a
compaction needs is that of a range. A transaction removes the blocks that have not counted since the transaction before it, because a
read of this process that began earlier may still want them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ebla.storage.environment import Change, Item, Put
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import filters
from ebla.storage.runs.blocks import PLACE, encode
from ebla.storage.runs.directory import ROWS, Directory, Filter, Run, filter_of
from ebla.storage.runs.pieces import Piece, joined, merged
from ebla.storage.runs.reading import RunReader

RANGE_BYTES = 16 << 20  # merged in one step, which takes several times as much memory
FAN_IN = 4  # tiers of similar size that are merged
TIERS_MAX = 8


class Made(NamedTuple):
    """A run that is not yet stored, its filter, and its blocks."""

    run: Run
    filter: Filter
    blocks: list[Item]

    def put(self) -> Change:
        return Put(ROWS, self.blocks, sorted_keys=True)


class Merge(NamedTuple):
    """The tiers to merge: those of the indexes from `oldest` to `newest`. `bottom`: no older tier is left."""

    newest: int
    oldest: int
    bottom: bool


class Step(NamedTuple):
    """The merged rows of the keys up to `upto` (None: all that is left), and the runs that they are from."""

    inputs: tuple[Run, ...]
    made: Made | None
    upto: bytes | None


def make_run(piece: Piece, number: int, index: int, codec: RowCodec, seed: int) -> Made:
    """A run of the rows, which are not none."""
    cuts = encode(piece, codec, number, seed)
    blocks = [(PLACE.pack(number, place), cut.value) for place, cut in enumerate(cuts)]
    run = Run(
        number,
        index,
        len(piece),
        0 if piece.gone is None else piece.gone.true_count,
        cuts[0].first,
        tuple(cut.last for cut in cuts),
        tuple(cut.rows for cut in cuts),
        tuple(cut.size for cut in cuts),
        codec.layout,
    )
    return Made(run, filter_of(filters.make(filters.hashes(piece.keys))), blocks)


def with_flush(before: Directory, made: Made | None, index: int) -> Directory:
    if made is None:
        return Directory(before.runs, before.filters, index, before.following)
    run = made.run
    assert run.index == index > before.index, ("a flush is newer than all runs", run.index, before.index)
    return Directory((*before.runs, run), {**before.filters, run.number: made.filter}, index, run.number + 1)


def choose(directory: Directory, above: int = 0) -> Merge | None:
    """Of the tiers of indexes above `above`, those that are worth merging: the newest FAN_IN or more of similar size, or so many of
    the newest that TIERS_MAX are left."""
    sizes = [tier.size_bytes for tier in directory.tiers if tier.of_index > above]
    for begin in range(len(sizes) - FAN_IN + 1):
        total, end = sizes[begin], begin + 1
        while end < len(sizes) and sizes[end] <= 2 * total:
            total += sizes[end]
            end += 1
        if end - begin >= FAN_IN:
            return merge_of(directory, begin, end)
    return merge_of(directory, 0, len(sizes) - TIERS_MAX + 1) if len(sizes) > TIERS_MAX else None


def merge_of(directory: Directory, begin: int, end: int) -> Merge:
    found = directory.tiers
    return Merge(found[begin].of_index, found[end - 1].of_index, end == len(found))


def inputs_of(directory: Directory, chosen: Merge, after: bytes | None) -> tuple[Run, ...]:
    """The runs of a merge with rows behind `after`."""
    return tuple(
        run
        for run in directory.runs
        if chosen.oldest <= run.index <= chosen.newest and (after is None or run.last > after)
    )


def left_bytes(directory: Directory, chosen: Merge, after: bytes | None) -> int:
    return sum(run.live_bytes() for run in inputs_of(directory, chosen, after))


def step(reader: RunReader, chosen: Merge, after: bytes | None, number: int) -> Step:
    """Merge the range behind `after`. Raises Corruption."""
    codec = reader.codec
    inputs = inputs_of(reader.directory, chosen, after)
    upto = _end(inputs, after, codec)
    sources = []
    for tier in reversed(Directory(inputs, {}, 0, 0).tiers):
        parts = [part for run in tier.runs for part in _range(reader, run, after, upto)]
        if parts:
            sources.append(joined(parts))
    whole = merged(sources) if sources else None
    if whole is not None and chosen.bottom:
        whole = whole.present()
    if whole is None or not len(whole):
        return Step(inputs, None, upto)
    return Step(inputs, make_run(whole, number, chosen.newest, codec, reader.seed), upto)


def with_step(before: Directory, done: Step) -> Directory:
    """The directory after a step. Flushes since the step began are kept."""
    read = {run.number for run in done.inputs}
    runs = [run for run in before.runs if run.number not in read]
    kept = [
        run for run in before.runs if run.number in read and done.upto is not None and run.last > done.upto
    ]
    runs += [
        run.trimmed(done.upto) if run.begin <= done.upto else run for run in kept if done.upto is not None
    ]
    found = {run.number: before.filters[run.number] for run in runs}
    following = before.following
    if done.made is not None:
        runs.append(done.made.run)
        found[done.made.run.number] = done.made.filter
        following = max(following, done.made.run.number + 1)
    return Directory(runs, found, before.index, following)


def _end(inputs: Sequence[Run], after: bytes | None, codec: RowCodec) -> bytes | None:
    """The last key of the next range; None for all that is left. Rows count with the defaults of columns that were added since."""
    added = {
        run.layout: sum(len(each.default or b"") for each in codec.schema.columns if each.since > run.layout)
        for run in inputs
    }
    blocks = [
        (last, size + rows * added[run.layout])
        for run in inputs
        for last, rows, size in zip(run.lasts, run.counts, run.sizes, strict=True)
    ]
    total = 0
    for last, size in sorted(place for place in blocks if after is None or place[0] > after):
        total += size
        if total >= RANGE_BYTES:
            return last
    return None


def _range(reader: RunReader, run: Run, after: bytes | None, upto: bytes | None) -> list[Piece]:
    names = list(reader.codec.header.bit)
    start = run.begin if after is None else max(run.begin, after + b"\0")
    stop = None if upto is None else upto + b"\0"
    found = []
    for number in range(bisect_left(run.lasts, start), len(run.lasts)):
        piece = reader.piece(run, number, names).between(start, stop)
        if len(piece):
            found.append(piece)
        if upto is not None and run.lasts[number] >= upto:
            break
    return found
