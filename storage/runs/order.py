"""The order of rows that come from several sources, each in key order, and the newest row of each key.

The sources are put one after the other, the oldest first, and sorted stably: of equal keys the last is the newest. numpy's
stable sort finds the sorted stretches by itself, so this costs less than a merge in Python could.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.rows import ragged
from ebla.storage.rows.ragged import Array

WORD = 8
WORDS_MAX = 4  # longer keys, and keys of several lengths, are sorted by Arrow


def newest(keys: pa.BinaryArray) -> Array:
    """The places of the last of each group of equal keys, in the order of the keys."""
    if len(keys) < 2:
        return np.arange(len(keys))
    words = _words(keys)
    if words is None:
        places = pc.sort_indices(keys).to_numpy().astype(np.int64)  # stable
        ordered = keys.take(pa.array(places))
        repeats = pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    else:
        places = _ordered(words)
        repeats = np.ones(len(keys) - 1, np.bool_)
        for word in words:
            ordered = word[places]
            repeats &= ordered[1:] == ordered[:-1]
    found: Array = places[np.concatenate((~repeats, [True]))]
    return found


def _words(keys: pa.BinaryArray) -> list[Array] | None:
    """Keys of one length as numbers, which have the order of the bytes. Words that all keys share are left out, except the last."""
    sizes = ragged.lengths(keys)
    size = int(sizes[0])
    if not 0 < size <= WORD * WORDS_MAX or (sizes != size).any():
        return None
    octets = ragged.content(keys).reshape(len(keys), size)
    if size % WORD:
        padded = np.zeros((len(keys), size + WORD - size % WORD), np.uint8)
        padded[:, :size] = octets
        octets = padded
    words = list(np.ascontiguousarray(octets).view(">u8").astype(np.uint64).T)
    while len(words) > 1 and (words[0] == words[0][0]).all():
        del words[0]
    return words


def _ordered(words: list[Array]) -> Array:
    places: Array = np.argsort(words[0], kind="stable")
    if len(words) > 1:
        first = words[0][places]
        if (first[1:] == first[:-1]).any():
            places = np.lexsort(words[::-1])
    return places
