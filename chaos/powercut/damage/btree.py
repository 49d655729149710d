"""The live pages of an LMDB file, and their parts (format 1, 64-bit, this machine's byte order).

A page is live if it is reached from the newest root, or is one of the two roots: also the older one, since a flipped bit can make
it look newer. Used to aim damage, not to judge it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ebla.storage.lmdb.roots import (
    HEADER_BYTES,
    MAGIC,
    META,
    ROOT_BYTES,
    SEAL_AT,
    SEAL_BYTES,
    TREE,
    TREES_AT,
    VERSION,
    number_of,
)
from ebla.storage.lmdb.structure import (
    BIG,
    BRANCH,
    DATABASE,
    FREE,
    HEADER,
    MAIN,
    NO_PAGE,
    NODE,
    POINTER_BYTES,
)

UNUSED = "unused"
PARTS = ("root", "seal", "page header", "page pointers", "child pointer", "node header", "key", "value")


@dataclass(frozen=True)
class Page:
    """`kind`: newest root, older root, branch, leaf, overflow. `count` pages belong together."""

    number: int
    kind: str
    database: str
    count: int = 1


class File:
    """One data.mdb, as bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        magic, version, _, _ = META.unpack_from(data, HEADER_BYTES)
        assert (magic, version) == (MAGIC, VERSION), "a healthy LMDB file of format 1"
        self.page_bytes = TREE.unpack_from(data, TREES_AT)[0]
        self.newest = max((0, 1), key=self._number)

    def _number(self, page: int) -> int:
        return number_of(self.data[page * self.page_bytes :][:ROOT_BYTES])

    def live(self) -> list[Page]:
        found = [Page(self.newest, "newest root", ""), Page(1 - self.newest, "older root", "")]
        start = self.newest * self.page_bytes + TREES_AT
        for at, name in enumerate((FREE, MAIN)):
            found += self._tree(TREE.unpack_from(self.data, start + at * TREE.size)[-1], name)
        return found

    def _tree(self, root: int, name: str) -> Iterator[Page]:
        if root == NO_PAGE:
            return
        start = root * self.page_bytes
        _, _, flags, lower, _ = HEADER.unpack_from(self.data, start)
        yield Page(root, "branch" if flags & BRANCH else "leaf", name)
        for place in self._pointers(start, lower):
            low, high, node_flags, key_bytes = NODE.unpack_from(self.data, place)
            if flags & BRANCH:
                yield from self._tree(low | high << 16 | node_flags << 32, name)
                continue
            value = place + NODE.size + key_bytes
            if node_flags & BIG:
                (first,) = struct.unpack_from("=Q", self.data, value)
                yield Page(first, "overflow", name, self._overflow_pages(first))
            elif node_flags & DATABASE and name == MAIN:
                named = self.data[place + NODE.size : value].decode()
                yield from self._tree(TREE.unpack_from(self.data, value)[-1], named)

    def _pointers(self, start: int, lower: int) -> list[int]:
        count = (lower - HEADER_BYTES) // POINTER_BYTES
        return [
            start + offset for offset in struct.unpack_from(f"={count}H", self.data, start + HEADER_BYTES)
        ]

    def _overflow_pages(self, number: int) -> int:
        return int.from_bytes(self.data[number * self.page_bytes + 12 :][:4], "little")

    def part(self, page: Page, offset: int) -> str:
        """The part of the page (or of the pages that belong to it) at this offset."""
        start = page.number * self.page_bytes
        if page.kind.endswith("root"):
            sealed = SEAL_AT <= offset < SEAL_AT + SEAL_BYTES
            return "root" if offset < ROOT_BYTES else "seal" if sealed else UNUSED
        if offset < HEADER_BYTES:
            return "page header"
        if page.kind == "overflow":
            return "value"
        _, _, flags, lower, upper = HEADER.unpack_from(self.data, start)
        if offset < upper:
            return "page pointers" if offset < lower else UNUSED
        place = max(place for place in self._pointers(start, lower) if place <= start + offset)
        key_bytes = NODE.unpack_from(self.data, place)[3]
        inside = start + offset - place
        if inside < NODE.size:
            return "child pointer" if flags & BRANCH else "node header"
        return "key" if inside < NODE.size + key_bytes else "value"
