"""A filter of a run's keys: a key that the filter refuses is not in the run. Of other keys 1 % pass.

A Bloom filter whose bits for one key lie in one line of the processor's cache (Putze, Sanders and Singler, 2007).

The hash of a key mixes its words of eight bytes, so that numpy hashes many keys at once, word by word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ebla.storage.rows import ragged
from ebla.storage.rows.ragged import Array

BITS, PROBES, LINE = 10, 6, 512  # bits per key, bits that a key sets, bits of a line
SEVERAL = 16  # keys from which on all of them are hashed at once
LINE_BYTES = LINE // 8
WORD, FACTOR = 8, 0x9E3779B97F4A7C15  # bytes; 2**64 divided by the golden ratio, as an odd number
U64 = (1 << 64) - 1
FIRST_BYTES = np.array([(1 << 8 * size) - 1 for size in range(WORD + 1)], np.uint64)  # of a word


def hash_of(key: bytes) -> int:
    mixed = len(key)
    for at in range(0, len(key), WORD):
        mixed = (mixed ^ int.from_bytes(key[at : at + WORD], "little")) * FACTOR & U64
        mixed ^= mixed >> 32
    mixed = mixed * FACTOR & U64
    return mixed ^ mixed >> 32


def hashes(keys: pa.BinaryArray) -> Array:
    """`hash_of` each key."""
    sizes, places = ragged.lengths(keys).astype(np.int64), ragged.offsets(keys).astype(np.int64)
    words = ragged.window(np.concatenate((ragged.content(keys), np.zeros(WORD, np.uint8))), WORD)
    mixed = sizes.astype(np.uint64)
    for at in range(0, int(sizes.max(initial=0)), WORD):
        longer = np.flatnonzero(sizes > at)
        word = words[places[longer] - places[0] + at].view("<u8")
        mixed[longer] = _mixed(mixed[longer] ^ (word & FIRST_BYTES[np.minimum(sizes[longer] - at, WORD)]))
    return _mixed(mixed)


def _mixed(words: Array) -> Array:
    words = words * np.uint64(FACTOR)
    found: Array = words ^ words >> np.uint64(32)
    return found


def make(hashed: Array) -> bytes:
    lines = len(hashed) * BITS // LINE + 1
    bits = np.zeros(lines * LINE, np.bool_)
    for places in _probes(hashed, lines):
        bits[places] = True
    made: bytes = np.packbits(bits, bitorder="little").tobytes()
    return made


def mask_of(hashed: int) -> int:
    """The bits of a line that the key sets."""
    place, step, mask = hashed & 0xFFFF, hashed >> 16 & 0xFFFF | 1, 0
    for _ in range(PROBES):
        mask |= 1 << (place & LINE - 1)
        place += step
    return mask


def may_have(bits: bytes, hashed: int, mask: int) -> bool:
    """`mask`: of the hash."""
    line = ((hashed >> 32) * (len(bits) * 8 // LINE) >> 32) * LINE_BYTES
    return int.from_bytes(bits[line : line + LINE_BYTES], "little") & mask == mask


def may_have_many(bits: bytes, hashed: Array) -> Array:
    """A bool for each hash, as `may_have`."""
    octets = np.frombuffer(bits, np.uint8)
    found = np.ones(len(hashed), np.bool_)
    for places in _probes(hashed, len(bits) * 8 // LINE):
        found &= (octets[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)
    return found


def _probes(hashed: Array, lines: int) -> Iterator[Array]:
    line = ((hashed >> np.uint64(32)) * np.uint64(lines) >> np.uint64(32)).astype(np.int64) * LINE
    start, step = hashed & np.uint64(0xFFFF), (hashed >> np.uint64(16) & np.uint64(0xFFFF)) | np.uint64(1)
    for at in range(PROBES):
        yield line + ((start + np.uint64(at) * step) & np.uint64(LINE - 1)).astype(np.int64)


class Hashed:
    """Some keys, to be asked for in filters."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._masks: list[int] = []
        if len(keys) < SEVERAL:
            self._hashes: list[int] = list(map(hash_of, keys))
            self._masks = list(map(mask_of, self._hashes))
        else:
            self._array = hashes(pa.array(keys, pa.binary()))

    def among(self, places: list[int], bits: bytes) -> list[int]:
        """Those of the keys at these places that the filter may have."""
        if self._masks:
            return [at for at in places if may_have(bits, self._hashes[at], self._masks[at])]
        found: list[int] = np.array(places)[may_have_many(bits, self._array[places])].tolist()
        return found
