"""Seals for the two roots of an LMDB file, which carry no checksum of their own.

A commit writes its root last: its number, the start of its trees, the last page in use. Commit N writes root N into page
N & 1, over root N - 2, and LMDB continues from the root with the higher number. A flipped bit in a number restores the
state before a commit; one in another field silently damages the next commit. So every root has a *seal*, its number and
digest, in the part of the *other* root's page that LMDB does not use:

    after a commit   the seal of root N is written beside root N - 1 before callers are answered. It is not synced: the
                     next commit's sync includes it, and root N + 1 is written only after that
    on the disk      so if root N is on disk, so is the seal of root N - 1. The seal of root N may be missing after a power
                     cut, with the seal of root N - 2 in its place; if it is there, root N was durable before it
    at a start       the numbers are consecutive, the older root matches its seal, the newest its own; or the newest has
                     no seal yet, is trusted, and is sealed. Anything else is Damaged
    before a commit  the roots are the sealed ones, or nothing is changed

So a flipped bit anywhere in the roots or the seals is found, and so are swapped roots and an older version of either
page. Not found are: a flipped bit in a newest root that had no seal at a power cut; the loss of a newest root together
with its seal. Walks do not check roots: only the writer's thread can without a race.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import xxhash

from ebla.storage.errors import Damaged, DiskFailed

# A root's page (format 1, 64-bit, this machine's byte order): a page header, what never changes, two trees, the last
# page in use, the number.
HEADER_BYTES = 16
META = struct.Struct("=IIQQ")  # magic, version, address, map size
TREE = struct.Struct("=IHHQQQQQ")  # page bytes, flags, depth, branch, leaf and overflow pages, entries, root
MAGIC, VERSION = 0xBEEFC0DE, 1
TREES_AT = HEADER_BYTES + META.size
NUMBER_AT = TREES_AT + 2 * TREE.size + 8
ROOT_BYTES = NUMBER_AT + 8
_FIXED = (slice(8, HEADER_BYTES + 16), slice(TREES_AT, TREES_AT + 6))  # equal in both, for the life of a file
_PAGE_BYTES = tuple(1 << power for power in range(9, 17))

# A seal: a name, number and digest of the root in the other page, and a digest of these three.
SEAL_AT = 256  # after the part that LMDB writes
_SEAL = struct.Struct("<8sQQ")
_DIGEST_BYTES = 8
SEAL_BYTES = _SEAL.size + _DIGEST_BYTES
SEALED_BYTES = SEAL_AT + SEAL_BYTES
_NAME = b"eblaseal"

Pages = tuple[bytes, bytes]  # the first SEALED_BYTES of each


class Roots:
    """The roots of one open data.mdb. Errors call the environment `path`.

    It has its own descriptor, because LMDB does not share one; LMDB's locks are on another file. Only the writer calls it.
    """

    def __init__(self, data: Path, path: str) -> None:
        self.path = path
        self._data = data
        self._descriptor: int | None = None
        self._page_bytes = 0
        self._sealed: Pages | None = None  # the pages as last checked or written

    @property
    def _file(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._data, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def close(self) -> None:
        """Close the file until the next use."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check(self) -> int | None:
        """Return the number of a newest root that has no seal yet. Raises Damaged; OSError if the roots cannot be read."""
        pages = self._read()
        if pages == self._sealed:
            return None
        number = unsealed(pages, self.path)
        self._sealed = pages if number is None else None
        return number

    def seal(self, number: int) -> None:
        """Seal the root of this number, if it exists: a commit that changes nothing writes none. Raises DiskFailed."""
        try:
            page = os.pread(self._file, SEALED_BYTES, (number & 1) * self._page_bytes)
            if number_of(page) == number:
                self._write(page)
        except OSError as error:
            raise DiskFailed(f"cannot seal root {number} of {self.path}: {error}", path=self.path) from error

    def seal_new(self) -> None:
        """Seal both roots of a file that was just made."""
        for page in self._read():
            self._write(page)

    def _read(self) -> Pages:
        first = os.pread(self._file, SEALED_BYTES, 0)
        if not self._page_bytes:
            page_bytes = TREE.unpack_from(first, TREES_AT)[0] if len(first) == SEALED_BYTES else 0
            if page_bytes not in _PAGE_BYTES:
                raise damaged(self.path, "its first page is no root")
            self._page_bytes = page_bytes
        return first, os.pread(self._file, SEALED_BYTES, self._page_bytes)

    def _write(self, page: bytes) -> None:
        """Write the seal of the root in `page` into the other page."""
        other, made = 1 - (number_of(page) & 1), seal(page)
        written = os.pwrite(self._file, made, other * self._page_bytes + SEAL_AT)
        if written != SEAL_BYTES:
            raise OSError(f"{written} of {SEAL_BYTES} bytes were written")
        if self._sealed is not None:
            beside = self._sealed[other][:SEAL_AT] + made
            self._sealed = (page, beside) if other else (beside, page)


def unsealed(pages: Pages, path: str) -> int | None:
    """As `Roots.check`, for the bytes of the two pages up to the ends of their seals."""
    for place, page in enumerate(pages):
        if not _is_root(page, place) or any(page[part] != pages[0][part] for part in _FIXED):
            raise damaged(path, f"its page {place} is no root")
    older, newest = sorted(pages, key=number_of)
    number = number_of(newest)
    if number != number_of(older) + 1:
        raise damaged(path, f"the numbers of its roots, {number_of(older)} and {number}, are not consecutive")
    if held(newest) != seal(older):
        raise damaged(path, f"its root {number - 1} does not match its seal")
    if held(older) == seal(newest):
        return None
    before = number - 2
    if is_seal(held(older), before) and held(older) != seal(renumbered(newest, before)):
        return number
    raise damaged(path, f"its root {number} does not match its seal")


def seal(page: bytes) -> bytes:
    """The seal of the root in the page."""
    body = _SEAL.pack(_NAME, number_of(page), xxhash.xxh3_64_intdigest(page[:ROOT_BYTES]))
    return body + xxhash.xxh3_64_digest(body)


def is_seal(data: bytes, number: int) -> bool:
    """Whether `data` is a valid seal of a root with this number."""
    body, digest = data[: _SEAL.size], data[_SEAL.size :]
    return xxhash.xxh3_64_digest(body) == digest and _SEAL.unpack(body)[:2] == (_NAME, number)


def held(page: bytes) -> bytes:
    """The seal in the page, which belongs to the other root."""
    return page[SEAL_AT:SEALED_BYTES]


def number_of(page: bytes) -> int:
    return int.from_bytes(page[NUMBER_AT:ROOT_BYTES], "little")


def last_page(page: bytes) -> int:
    """The number of the last page that is or was in use."""
    return int.from_bytes(page[NUMBER_AT - 8 : NUMBER_AT], "little")


def renumbered(page: bytes, number: int) -> bytes:
    return page[:NUMBER_AT] + number.to_bytes(8, "little") + page[ROOT_BYTES:]


def damaged(path: str, what: str) -> Damaged:
    return Damaged(f"environment {path} is damaged: {what}; rebuild it from a peer", path=path)


def _is_root(page: bytes, place: int) -> bool:
    return (
        len(page) == SEALED_BYTES
        and int.from_bytes(page[:8], "little") == place
        and META.unpack_from(page, HEADER_BYTES)[:2] == (MAGIC, VERSION)
        and number_of(page) & 1 == place
    )
