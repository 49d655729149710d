"""A filter of a run's keys: a key that the filter refuses is not in the run. Of other keys 1 % pass.

A Bloom filter whose bits for one key lie in one line of the processor's cache (Putze, Sanders and Singler, 2007).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from ebla.storage.rows.ragged import Array

BITS, PROBES, LINE = 10, 6, 512  # bits per key, bits that a key sets, bits of a line

hash_of = xxhash.xxh3_64_intdigest


def hashes(keys: Iterable[bytes], count: int) -> Array:
    return np.fromiter(map(hash_of, keys), np.uint64, count)


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
