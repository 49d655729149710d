"""Seals for the two roots of an LMDB file, which carry no checksum of their own.

A root is what a commit writes last: its number, where its trees begin, how far the file is used. Commit N writes root N
into page N & 1, over root N - 2, and LMDB goes on from the root with the higher number. One turned bit of a number brings
back the state before a commit; one of another field damages quietly with the next. So every root has a *seal*, its number
and digest, in the part of the *other* root's page that LMDB leaves alone:

    after a commit   the seal of root N is written beside root N - 1, before anybody is answered. It is not synced: the next
                     commit's sync takes it along, and root N + 1 is written only after that
    on the disk      so wherever root N is, the seal of root N - 1 is there. That of root N itself may be missing after a power
                     cut, with the seal of root N - 2 in its place; if it is there, root N was durable before it
    at a start       the numbers follow each other, the older root matches its seal, the newest its own; or the newest has
                     none yet, is believed, and is sealed. Anything else is Damaged
    before a commit  the roots are those that were sealed, or nothing is changed

So a bit anywhere in the roots or the seals is noticed, and so are roots that stand in each other's place and either root's
page as it was at an earlier time. What is not: a bit in a newest root that had no seal when the power went; the loss of a
newest root whose seal was lost as well. Walks do not look here: only the writer's thread could without a race.
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
_FIXED = (slice(8, HEADER_BYTES + 16), slice(TREES_AT, TREES_AT + 6))  # alike in both, for the life of a file
_PAGE_BYTES = tuple(1 << power for power in range(9, 17))

# A seal: what it is, number and digest of the root in the other page, and a digest of these three.
SEAL_AT = 256  # far from what LMDB writes
_SEAL = struct.Struct("<8sQQ")
_DIGEST_BYTES = 8
SEAL_BYTES = _SEAL.size + _DIGEST_BYTES
SEALED_BYTES = SEAL_AT + SEAL_BYTES
_NAME = b"eblaseal"

Pages = tuple[bytes, bytes]  # the first SEALED_BYTES of each


class Roots:
    """The roots of one open data.mdb. `path` is what errors call the environment.

    With a descriptor of its own, since LMDB gives none away; LMDB's locks are on another file. Whoever commits is the only
    one who calls.
    """

    def __init__(self, data: Path, path: str) -> None:
        self.path = path
        self._file = os.open(data, os.O_RDWR | os.O_CLOEXEC)
        self._page_bytes = 0
        self._sealed: Pages | None = None  # what was found good, or written since: it is the same still

    def close(self) -> None:
        os.close(self._file)

    def check(self) -> int | None:
        """The number of a newest root that has no seal yet. Raises Damaged; OSError if they cannot be read."""
        pages = self._read()
        if pages == self._sealed:
            return None
        number = unsealed(pages, self.path)
        self._sealed = pages if number is None else None
        return number

    def seal(self, number: int) -> None:
        """Seal the root of this number, if it is there: a commit that changes nothing writes none. Raises DiskFailed."""
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
        """The seal of the root in the page, into the other page."""
        other, made = 1 - (number_of(page) & 1), seal(page)
        written = os.pwrite(self._file, made, other * self._page_bytes + SEAL_AT)
        if written != SEAL_BYTES:
            raise OSError(f"{written} of {SEAL_BYTES} bytes were written")
        if self._sealed is not None:
            beside = self._sealed[other][:SEAL_AT] + made
            self._sealed = (page, beside) if other else (beside, page)


def unsealed(pages: Pages, path: str) -> int | None:
    """As `Roots.check`, of what lies in the two pages up to the ends of their seals."""
    for place, page in enumerate(pages):
        if not _is_root(page, place) or any(page[part] != pages[0][part] for part in _FIXED):
            raise damaged(path, f"its page {place} is no root")
    older, newest = sorted(pages, key=number_of)
    number = number_of(newest)
    if number != number_of(older) + 1:
        raise damaged(
            path,
            f"its roots have the numbers {number_of(older)} and {number}, which do not follow each other",
        )
    if held(newest) != seal(older):
        raise damaged(path, f"its root {number - 1} does not match its seal")
    if held(older) == seal(newest):
        return None
    before = number - 2
    if is_seal(held(older), before) and held(older) != seal(renumbered(newest, before)):
        return number
    raise damaged(path, f"its root {number} does not match its seal")


def seal(page: bytes) -> bytes:
    """Of the root in the page, number and all."""
    said = _SEAL.pack(_NAME, number_of(page), xxhash.xxh3_64_intdigest(page[:ROOT_BYTES]))
    return said + xxhash.xxh3_64_digest(said)


def is_seal(data: bytes, number: int) -> bool:
    """Whether it is whole, and of a root with this number."""
    said, digest = data[: _SEAL.size], data[_SEAL.size :]
    return xxhash.xxh3_64_digest(said) == digest and _SEAL.unpack(said)[:2] == (_NAME, number)


def held(page: bytes) -> bytes:
    """The seal in the page, which is the other root's."""
    return page[SEAL_AT:SEALED_BYTES]


def number_of(page: bytes) -> int:
    return int.from_bytes(page[NUMBER_AT:ROOT_BYTES], "little")


def last_page(page: bytes) -> int:
    """The last one in use, or that was."""
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
