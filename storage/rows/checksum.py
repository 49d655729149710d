"""The checksum at the end of every row, and the verification of a block of rows in one pass.

LMDB returns rotten bytes as if they were good, so each row ends in a CRC-32C (4 bytes, little endian) over its key and
value, started with a seed from the tablet's id: a row under another key or in another tablet fails.

Two properties of a CRC make this cheap:

    residue    the CRC over a row *including* its own CRC is one constant, for all data and seeds
    linearity  for any two states of a CRC there are four bytes that lead from one to the other

Because of the first, verifying a row needs no slicing. Because of the second, rows can be joined with a four-byte
*bridge* that leads from the residue back to the seed, and one call over the joined block verifies all rows. One damaged
row in a block is found with the same certainty as alone; two damaged rows hide each other with probability 2**-32. The
decoder uses the same block: rows at known places in one buffer.

A row of an altered table names the layout it was written in (storage/rows/altered.py): two bytes before the checksum,
and the checksum is MARKed, so that its residue is another constant. Tables have rows of both kinds, distinguished by
the residue; rows of the first layout have no mark. MARK has an even number of bits, so an odd number of flipped bits
never changes one kind into the other.

numpy is imported at the first block: a client that only asks masters starts without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any

import crc32c
import xxhash

from ebla.storage.errors import Corruption

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    U32 = npt.NDArray[np.uint32]

CRC_BYTES = 4
BRIDGE_BYTES = 4
RESIDUE = 0x48674BC7  # the CRC-32C of anything followed by its own CRC-32C
MARK = 0x5A1E93C6
TAG_BYTES = 2
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_FLIP = 0xFFFFFFFF  # a CRC is the complement of the register it was computed in
_SHOWN_BYTES = 64
_SHOWN_ROWS = 3
BRIDGES_MAX = 16_384

crc = _crc = crc32c.crc32c

# What MARK makes of the residue: a CRC is linear.
MARKED = RESIDUE ^ int(_crc(MARK.to_bytes(4, "little"), _FLIP)) ^ _FLIP


def seed(tablet: str) -> int:
    """The start value of the checksums of a tablet's rows."""
    return int(_crc(tablet.encode()))


def verify(joined: Sequence[bytes], seed: int, path: str | None = None) -> None:
    """Raise Corruption unless every row (key + value) of the block passes its checksum."""
    if joined and _crc(bridge(seed).join(joined), seed) != RESIDUE:
        _layouts(joined, seed, path)  # some may be marked


class OtherLayouts(Corruption):
    """The rows are good, but not all of the expected layout. A reader that knows only that layout treats it as damage."""

    def __init__(self, layouts: Sequence[int], path: str | None) -> None:
        super().__init__(
            f"rows{_place(path)} are of other layouts: {sorted(dict.fromkeys(layouts))}", path=path
        )
        self.layouts = layouts


def verified_block(
    joined: Sequence[bytes], seed: int | None, path: str | None = None, layout: int = 0
) -> bytes:
    """The rows in one buffer, BRIDGE_BYTES apart. Raises Corruption, and OtherLayouts if good rows are not all of this
    layout. With `seed` None nothing is verified."""
    if seed is None:
        return bytes(BRIDGE_BYTES).join(joined)
    residue = MARKED if layout else RESIDUE
    block = bridge(seed, residue).join(joined)
    tag = layout.to_bytes(TAG_BYTES, "little")
    other = layout and any(row[-CRC_BYTES - TAG_BYTES : -CRC_BYTES] != tag for row in joined)
    if joined and (_crc(block, seed) != residue or other):
        raise OtherLayouts(_layouts(joined, seed, path), path)
    return block


def _layouts(joined: Sequence[bytes], seed: int, path: str | None) -> list[int]:
    crcs = list(map(_crc, joined, repeat(seed)))
    bad = [place for place, crc in enumerate(crcs) if crc not in (RESIDUE, MARKED)]
    if bad:
        shown = "; ".join(f"row {place} begins {_hex(joined[place])}" for place in bad[:_SHOWN_ROWS])
        raise Corruption(
            f"{len(bad)} of {len(joined)} rows{_place(path)} fail their checksum: {shown}", path=path
        )
    return [0 if crc == RESIDUE else layout_of(row) for crc, row in zip(crcs, joined, strict=True)]


def layout_of(marked: bytes | memoryview) -> int:
    """The layout in a marked row or value."""
    return int.from_bytes(marked[-CRC_BYTES - TAG_BYTES : -CRC_BYTES], "little")


def seal(key: bytes, body: bytes, seed: int, mark: int = 0) -> bytes:
    """The value of a row: its body and the checksum over key and body. `mark`: MARK if the body ends in its layout."""
    return body + int(_crc(body, _crc(key, seed)) ^ mark).to_bytes(CRC_BYTES, "little")


def verify_row(key: bytes, value: bytes | memoryview, seed: int, path: str | None = None) -> int:
    """Verify a row and return its layout. Raises Corruption."""
    crc = _crc(value, _crc(key, seed))
    if crc == RESIDUE:
        return 0
    if crc == MARKED:
        return layout_of(value)
    raise Corruption(f"the row with key {_hex(key)}{_place(path)} fails its checksum", path=path)


def seals(open_rows: Sequence[bytes], seeds: int | Sequence[int], mark: int = 0) -> U32:
    """The checksums of rows that end in four zero bytes in place of the checksum."""
    import numpy as np

    each = repeat(seeds) if isinstance(seeds, int) else seeds
    crcs = array("I", starmap(_crc, zip(open_rows, each, strict=False)))
    found: U32 = _undo(np.frombuffer(crcs, np.uint32) ^ np.uint32(RESIDUE)) ^ np.uint32(mark)
    return found


@lru_cache(BRIDGES_MAX)
def bridge(seed: int, residue: int = RESIDUE) -> bytes:
    """Four bytes that lead a CRC from the residue back to `seed`. Cached, one per tablet."""
    import numpy as np

    return ((residue ^ _FLIP) ^ int(_undo(np.array([seed ^ _FLIP], np.uint32))[0])).to_bytes(4, "little")


def rows_digest(kind: int, columns: tuple[str, ...], keys: list[bytes], values: list[bytes]) -> int:
    """xxh3-64 over what a request does: its kind, its columns, and the counts, the lengths and the bytes of its rows."""
    hasher = xxhash.xxh3_64(repr((kind, columns)).encode())
    for part in (keys, values):
        hasher.update(array("Q", [len(part), *map(len, part)]))
        hasher.update(b"".join(part))
    return hasher.intdigest()


def _place(path: str | None) -> str:
    return f" of {path}" if path else ""


def _hex(data: bytes) -> str:
    return data[:_SHOWN_BYTES].hex() + ("..." if len(data) > _SHOWN_BYTES else "")


@cache
def _undo_tables() -> npt.NDArray[Any]:
    """For each byte of a register, the register four zero bytes (32 shifts) earlier."""
    import numpy as np

    register = np.arange(256, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(32):
        top = register >> np.uint32(31)
        register = ((register ^ (top * np.uint32(_POLYNOMIAL))) << np.uint32(1)) | top
    return register


def _undo(registers: U32) -> U32:
    """The four bytes (as a little-endian number) that lead an empty register to each of `registers`."""
    import numpy as np

    tables = _undo_tables()
    octets = np.ascontiguousarray(registers, "<u4").view(np.uint8).reshape(-1, 4)
    undone: U32 = tables[0][octets[:, 0]]
    for place in (1, 2, 3):
        undone ^= tables[place][octets[:, place]]
    return undone
