"""Kinds of damage to a page at rest, and the choice of its place.

    bit             one bit is flipped
    bytes           up to 16 bytes become zero or noise
    zeroed sector   512 bytes become zero
    swapped pages   two live pages of a file are exchanged, as by misdirected writes
    stale page      a page has an earlier content: a write that the device confirmed and lost

Area, file, page and place are drawn uniformly, one after the other. So the few pages of small files are hit as often as the many
of large ones. Half of the time the part of a page is drawn, too: a root of 136 bytes is hit as often as the values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from ebla.chaos.powercut.cuts.platter import SECTOR_BYTES, Image, Platter
from ebla.chaos.powercut.damage.btree import PARTS, UNUSED, File, Page
from ebla.chaos.powercut.recording.events import Recording, Write

BIT, BYTES, SECTOR, SWAP, STALE = KINDS = ("bit", "bytes", "zeroed sector", "swapped pages", "stale page")
BYTES_MAX = 16
DRAWS_MAX = 100_000
WHOLE = "whole"
DATA_FILE = "data.mdb"
CATALOG = "catalog"
AREAS = {
    "server/tablet-meta": "superblocks",
    "server/consensus-meta": "consensus state",
    "server/wals/shared": "shared log",
    "server/wals": "private logs",
    "master": CATALOG,
}


class Damage(msgspec.Struct, frozen=True):
    """`data`: the damaged file."""

    kind: str
    area: str
    file: str
    page: Page
    part: str
    aimed: bool
    data: bytes


class Target:
    """The directory at the end of a recording."""

    def __init__(self, recording: Recording) -> None:
        platter = Platter(recording.events)
        platter.advance(len(recording.events))
        self.image = platter.whole()
        self._recording = recording
        self._older: dict[tuple[int, int], list[bytes]] = {}
        self.files: dict[str, dict[str, tuple[int, File]]] = {}  # area, path: node and contents
        for path, node in _paths(self.image, 0, ""):
            if path.endswith(f"/{DATA_FILE}"):
                self.files.setdefault(area_of(path), {})[path] = node, File(self.image.files[node])

    def damage(self, rng: random.Random, kind: str) -> tuple[int, Damage]:
        """Returns (the node of the file, its damage). Half of the time any used byte of the page is chosen, otherwise first a part of
        the page. Damage that changes nothing is drawn again."""
        aim = rng.choice(PARTS) if rng.random() < 0.5 else ""
        for _ in range(DRAWS_MAX):
            area = rng.choice(sorted(self.files))
            path = rng.choice(sorted(self.files[area]))
            node, file = self.files[area][path]
            page = rng.choice(file.live())
            offset = rng.randrange(page.count * file.page_bytes)
            part = file.part(page, offset) if kind in (BIT, BYTES) else WHOLE
            if part == UNUSED or (part != WHOLE and aim not in ("", part)):
                continue
            data = self._damaged(rng, kind, node, page, offset)
            if data != file.data:
                return node, Damage(kind, area, path, page, part, bool(aim), data)
        raise AssertionError(f"no page could be damaged by {kind} at {aim}")

    def _damaged(self, rng: random.Random, kind: str, node: int, page: Page, offset: int) -> bytes:
        file = File(self.image.files[node])
        data, size = bytearray(file.data), file.page_bytes
        start = page.number * size
        at = start + offset
        if kind == BIT:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == BYTES:
            count = min(rng.randint(1, BYTES_MAX), len(data) - at)
            data[at : at + count] = rng.choice((bytes(count), rng.randbytes(count)))
        elif kind == SECTOR:
            at -= at % SECTOR_BYTES
            data[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        elif kind == SWAP:
            other = rng.choice(file.live()).number * size
            here, there = data[start : start + size], data[other : other + size]
            data[start : start + size], data[other : other + size] = there, here
        elif older := self._older_pages().get((node, page.number)):
            data[start : start + size] = rng.choice(older)
        return bytes(data)

    def _older_pages(self) -> dict[tuple[int, int], list[bytes]]:
        """The contents of each page at every moment since its file was made."""
        if not self._older:
            sizes = {node: file.page_bytes for files in self.files.values() for node, file in files.values()}
            for event in self._recording.events:
                if isinstance(event, Write) and event.node in sizes:
                    self._remember(event, sizes[event.node])
        return self._older

    def _remember(self, write: Write, size: int) -> None:
        stop = write.offset + len(write.data)
        for number in range(write.offset // size, -(-stop // size)):
            versions = self._older.setdefault((write.node, number), [])
            page = bytearray(versions[-1] if versions else bytes(size))
            low, high = max(write.offset, number * size), min(stop, (number + 1) * size)
            page[low - number * size : high - number * size] = write.data[
                low - write.offset : high - write.offset
            ]
            versions.append(bytes(page))


def area_of(path: str) -> str:
    return next((area for start, area in AREAS.items() if path.startswith(f"{start}/")), "data")


def _paths(image: Image, directory: int, above: str) -> Iterator[tuple[str, int]]:
    for name, node in sorted(image.tree[directory].items()):
        if node in image.tree:
            yield from _paths(image, node, f"{above}{name}/")
        elif node in image.files:
            yield f"{above}{name}", node
