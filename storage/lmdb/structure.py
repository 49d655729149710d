"""A check of all pages of a small LMDB file before it is opened.

LMDB trusts its pages when it writes: it does not write a page whose flags call it clean, and frees another page if a page
has that page's number. Reads do not find such flipped bits. So every page that the newest root leads to must have LMDB's
invariants:

    page     it has its own number and is either a branch or a leaf; its nodes begin at its pointers, and fill it from
             `upper` to its end without a gap or an overlap
    tree     keys ascend, within a page and between the keys of the page above; every page is reached once; depth, pages
             and entries match the record of the tree
    free     a free page is not in use, and is listed once

The check costs about as much as reading all rows, so only files up to `BYTES_MAX` are checked. Values are not checked
here: they have checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from operator import lt
from typing import NamedTuple

from ebla.storage.errors import Damaged
from ebla.storage.lmdb.roots import HEADER_BYTES, TREE, TREES_AT, damaged, last_page, number_of

BYTES_MAX = 4 << 20
HEADER = struct.Struct("=QHHHH")  # page number, unused, flags, lower, upper
OVERFLOW_HEADER = struct.Struct("=QHHI")  # page number, unused, flags, pages
NODE = struct.Struct("=HHHH")  # low and high half of the size, flags, key bytes
POINTER_BYTES = 2
BRANCH, LEAF, OVERFLOW = 0x01, 0x02, 0x04
BIG, DATABASE = 0x01, 0x02  # flags of a leaf's node
NO_PAGE = (1 << 64) - 1
FREE, MAIN = "free list", "names"
_FIRST_PAGE = 2  # after the roots
_WORD_BYTES = 8
_DEPTH_MAX = 32  # LMDB's own

Bounds = tuple[bytes, bytes | None]


class Tree(NamedTuple):
    """The record of a tree."""

    page_bytes: int  # of the free list; 0 elsewhere
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


def check(data: bytes, path: str) -> None:
    """Raise Damaged unless the file is sound. Its roots must have been checked (roots.py)."""
    page_bytes = TREE.unpack_from(data, TREES_AT)[0]
    newest = max(data[:page_bytes], data[page_bytes : 2 * page_bytes], key=number_of)
    free, main = (Tree._make(TREE.unpack_from(newest, TREES_AT + at * TREE.size)) for at in (0, 1))
    walk = _Walk(data, page_bytes, last_page(newest) + 1, path)
    walk.tree(FREE, free)
    walk.tree(MAIN, main)
    walk.free_pages()


class _Walk:
    def __init__(self, data: bytes, page_bytes: int, pages: int, path: str) -> None:
        self.data = data
        self.page_bytes = page_bytes
        self.pages = pages
        self.path = path
        self.used = bytearray(len(data) // page_bytes)  # pages beyond can only be free
        self.free: list[bytes] = []  # the lists of page numbers

    def tree(self, name: str, tree: Tree) -> None:
        """Check the pages of a tree, and of the trees named in it."""
        counted = _Counted()
        if tree.root != NO_PAGE:
            self._page(name, tree.root, 1, (b"", None), counted)
        recorded = (tree.depth, tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries)
        found = (counted.depth, counted.branches, counted.leaves, counted.overflows, counted.entries)
        if recorded != found or (name != FREE and (tree.page_bytes, tree.flags) != (0, 0)):
            raise self._damaged(f"the tree {name!r} differs from its record")
        for named, record in counted.trees:
            self.tree(named, record)

    def free_pages(self) -> None:
        for listed in self.free:
            words, odd = divmod(len(listed), _WORD_BYTES)
            count, *numbers = struct.unpack_from(f"={words}Q", listed) if words else (1,)
            if odd or count > len(numbers):
                raise self._damaged("the list of free pages is broken")
            for number in numbers[:count]:
                if not _FIRST_PAGE <= number < self.pages:
                    raise self._damaged(f"page {number}, which is listed as free, does not exist")
                if number < len(self.used):
                    self._use(number, "free")

    def _page(self, name: str, number: int, depth: int, bounds: Bounds, counted: _Counted) -> None:
        self._use(number, "in use")
        start = number * self.page_bytes
        found, _, flags, lower, upper = HEADER.unpack_from(self.data, start)
        count, odd = divmod(lower - HEADER_BYTES, POINTER_BYTES)
        sound = found == number and flags in (BRANCH, LEAF) and not odd
        if not sound or count < 1 or not lower <= upper < self.page_bytes:
            raise self._damaged(f"the header of page {number} is broken")
        pointers = struct.unpack_from(f"={count}H", self.data, start + HEADER_BYTES)
        if min(pointers) != upper or max(pointers) > self.page_bytes - NODE.size:
            raise self._damaged(f"the pointers of page {number} are broken")
        nodes = [NODE.unpack_from(self.data, start + pointer) for pointer in pointers]
        places = [start + pointer + NODE.size for pointer in pointers]
        keys = [self.data[place : place + node[3]] for place, node in zip(places, nodes, strict=True)]
        self._require_filled(number, pointers, nodes, flags)
        self._require_order(number, name, keys, bounds, flags)
        if flags == BRANCH:
            counted.branches += 1
            if depth == _DEPTH_MAX:
                raise self._damaged("its trees are too deep")
            limits = [bounds[0], *keys[1:], bounds[1]]
            for (low, high, part, _), (first, stop) in zip(nodes, pairwise(limits), strict=True):
                self._page(name, low | high << 16 | part << 32, depth + 1, (first or b"", stop), counted)
            return
        if counted.depth not in (0, depth):
            raise self._damaged(f"page {number} is not as deep as its siblings")
        counted.depth = depth
        counted.leaves += 1
        counted.entries += count
        if name in (FREE, MAIN) or any(node[2] for node in nodes):
            for (low, high, node_flags, _), place, key in zip(nodes, places, keys, strict=True):
                self._value(name, key, place + len(key), low | high << 16, node_flags, counted)

    def _require_filled(
        self, number: int, pointers: Sequence[int], nodes: Sequence[tuple[int, ...]], flags: int
    ) -> None:
        """Raise Damaged unless the nodes lie end to end, from `upper` to the end of the page."""
        sizes: dict[int, int] = {}
        for pointer, (low, high, node_flags, key_bytes) in zip(pointers, nodes, strict=True):
            if flags == BRANCH:
                value_bytes = 0
            else:
                value_bytes = _WORD_BYTES if node_flags & BIG else low | high << 16
            sizes[pointer] = (NODE.size + key_bytes + value_bytes + 1) & ~1
        at = min(pointers)
        for pointer in sorted(sizes):
            if pointer != at:
                break
            at += sizes[pointer]
        if at != self.page_bytes or len(sizes) != len(pointers):
            raise self._damaged(f"the nodes of page {number} do not fill it")

    def _require_order(self, number: int, name: str, keys: list[bytes], bounds: Bounds, flags: int) -> None:
        if name == FREE:
            keys = [key[::-1] for key in keys]  # numbers, low byte first
        ordered = keys[1:] if flags == BRANCH else keys  # a branch's first key has no meaning
        low, high = (bound[::-1] if name == FREE and bound else bound for bound in bounds)
        good = all(map(lt, ordered, ordered[1:]))
        if ordered and not (good and (low or b"") <= ordered[0] and (high is None or ordered[-1] < high)):
            raise self._damaged(f"the keys of page {number} do not ascend")

    def _value(
        self, name: str, key: bytes, at: int, value_bytes: int, node_flags: int, counted: _Counted
    ) -> None:
        if node_flags == BIG:
            at = self._overflow(
                int.from_bytes(self.data[at : at + _WORD_BYTES], "little"), value_bytes, counted
            )
        elif node_flags == DATABASE and name == MAIN and value_bytes == TREE.size:
            counted.trees.append((key.decode(errors="replace"), Tree._make(TREE.unpack_from(self.data, at))))
        elif node_flags:
            raise self._damaged(f"a node of the tree {name!r} is of an unknown kind")
        if name == FREE:
            self.free.append(self.data[at : at + value_bytes])

    def _overflow(self, first: int, value_bytes: int, counted: _Counted) -> int:
        """Check the pages of a large value and return its place. Its last pages may be unused after a shorter update."""
        self._use(first, "in use")
        found, _, flags, count = OVERFLOW_HEADER.unpack_from(self.data, first * self.page_bytes)
        if (found, flags) != (first, OVERFLOW) or HEADER_BYTES + value_bytes > count * self.page_bytes:
            raise self._damaged(f"the header of page {first} is broken")
        for number in range(first + 1, first + count):
            self._use(number, "in use")
        counted.overflows += count
        return first * self.page_bytes + HEADER_BYTES

    def _use(self, number: int, what: str) -> None:
        if not _FIRST_PAGE <= number < min(self.pages, len(self.used)):
            raise self._damaged(f"page {number}, which is listed as {what}, does not exist")
        if self.used[number]:
            raise self._damaged(f"page {number}, which is listed as {what}, is used twice")
        self.used[number] = 1

    def _damaged(self, what: str) -> Damaged:
        return damaged(self.path, what)


class _Counted:
    """Counts of one tree, and the trees named in it."""

    def __init__(self) -> None:
        self.depth = self.branches = self.leaves = self.overflows = self.entries = 0
        self.trees: list[tuple[str, Tree]] = []
