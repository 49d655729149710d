"""A filter of a run's keys: a key that the filter refuses is not in the run. Of other keys 1 % pass.

A Bloom filter whose bits for one key lie in one line of the processor's cache (Putze, Sanders and Singler, 2007).

The hash of a key mixes its words of eight bytes, so that numpy hashes many keys at once, word by word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ebla.storage.rows import ragged
from ebla.storage.rows.ragged import Array

BITS, PROBES, LINE = 10, 6, 512  # bits per key, bits that a key sets, bits of a line
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


def may_have(bits: bytes, hashed: int) -> bool:
    line = ((hashed >> 32) * (len(bits) * 8 // LINE) >> 32) * LINE
    start, step = hashed & 0xFFFF, hashed >> 16 & 0xFFFF | 1
    for at in range(PROBES):
        place = line + (start + at * step & LINE - 1)
        if not bits[place >> 3] >> (place & 7) & 1:
            return False
    return True


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
