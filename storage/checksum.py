"""The checksum that ends every row, and how a whole block of rows is verified in one pass.

LMDB hands out rotten bytes as if they were good, so each row ends in a CRC-32C (4 bytes, little endian) over its
key and value, begun with a seed made from the tablet's id: a row that turns up under another key or in another
tablet does not pass.

Two properties of a CRC make this cheap, and this module is where they are kept:

    residue    the CRC over a row *including* its own CRC is one constant, whatever the data and the seed
    linearity  any four bytes can be chosen that lead a CRC from one given state to another

From the first, verifying a row needs no slicing. From the second, rows can be joined with a four-byte *bridge* that
leads from the residue back to the seed, and one call over the joined block verifies all of its rows. One damaged
row in a block is found exactly as surely as if it were checked alone; two damaged rows hide each other with
probability 2**-32. The joined block is also what the decoder wants: rows at known places in one buffer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat, starmap
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt
import xxhash

from ebla.storage.errors import Corruption

CRC_BYTES = 4
BRIDGE_BYTES = 4
RESIDUE = 0x48674BC7  # the CRC-32C of anything followed by its own CRC-32C
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_FLIP = 0xFFFFFFFF  # a CRC is the complement of the register it was computed in
_SHOWN_BYTES = 64
_SHOWN_ROWS = 3

_crc = crc32c.crc32c

U32 = npt.NDArray[np.uint32]


def seed(tablet: str) -> int:
    """Where the checksums of a tablet's rows begin."""
    return int(_crc(tablet.encode()))


def verify(joined: Sequence[bytes], seed: int, path: str | None = None) -> None:
    """Raise Corruption unless every row (key + value) of the block carries its own checksum."""
    verified_block(joined, seed, path)


def verified_block(joined: Sequence[bytes], seed: int | None, path: str | None = None) -> bytes:
    """The rows in one buffer, BRIDGE_BYTES apart. Raises Corruption, unless `seed` is None (not verified)."""
    if seed is None:
        return bytes(BRIDGE_BYTES).join(joined)
    block = bridge(seed).join(joined)
    if joined and _crc(block, seed) != RESIDUE:
        _blame(joined, seed, path)
    return block


def seal(key: bytes, body: bytes, seed: int) -> bytes:
    """The value of one row: its body and the checksum over key and body."""
    return body + int(_crc(body, _crc(key, seed))).to_bytes(CRC_BYTES, "little")


def verify_row(key: bytes, value: bytes, seed: int, path: str | None = None) -> None:
    if _crc(value, _crc(key, seed)) != RESIDUE:
        raise Corruption(f"the row with key {_hex(key)}{_place(path)} fails its checksum", path=path)


def seals(open_rows: Sequence[bytes], seeds: int | Sequence[int]) -> U32:
    """The checksums of rows that end in four zero bytes where the checksum will go."""
    each = repeat(seeds) if isinstance(seeds, int) else seeds
    crcs = array("I", starmap(_crc, zip(open_rows, each, strict=False)))
    return _undo(np.frombuffer(crcs, np.uint32) ^ np.uint32(RESIDUE))


def bridge(seed: int) -> bytes:
    """Four bytes that lead a CRC from RESIDUE back to `seed`."""
    return ((RESIDUE ^ _FLIP) ^ int(_undo(np.array([seed ^ _FLIP], np.uint32))[0])).to_bytes(4, "little")


def rows_digest(keys: list[bytes], values: list[bytes]) -> int:
    """xxh3-64 over the counts, the lengths and the bytes of a request's rows."""
    hasher = xxhash.xxh3_64()
    for part in (keys, values):
        hasher.update(array("Q", [len(part), *map(len, part)]))
        hasher.update(b"".join(part))
    return hasher.intdigest()


def _blame(joined: Sequence[bytes], seed: int, path: str | None) -> None:
    crcs = map(_crc, joined, repeat(seed))
    bad = [place for place, crc in enumerate(crcs) if crc != RESIDUE]
    assert bad, "a block of good rows failed as a whole"
    shown = "; ".join(f"row {place} begins {_hex(joined[place])}" for place in bad[:_SHOWN_ROWS])
    raise Corruption(
        f"{len(bad)} of {len(joined)} rows{_place(path)} fail their checksum: {shown}", path=path
    )


def _place(path: str | None) -> str:
    return f" of {path}" if path else ""


def _hex(data: bytes) -> str:
    return data[:_SHOWN_BYTES].hex() + ("..." if len(data) > _SHOWN_BYTES else "")


def _undo_tables() -> npt.NDArray[Any]:
    """Per byte of a register, what the register was four zero bytes (32 shifts) earlier."""
    register = np.arange(256, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(32):
        top = register >> np.uint32(31)
        register = ((register ^ (top * np.uint32(_POLYNOMIAL))) << np.uint32(1)) | top
    return register


_UNDO = _undo_tables()


def _undo(registers: U32) -> U32:
    """The four bytes (as a little-endian number) that take an empty register to each of `registers`."""
    octets = np.ascontiguousarray(registers, "<u4").view(np.uint8).reshape(-1, 4)
    undone: U32 = _UNDO[0][octets[:, 0]]
    for place in (1, 2, 3):
        undone ^= _UNDO[place][octets[:, place]]
    return undone
