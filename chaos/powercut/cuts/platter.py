"""The model of a disk after a power cut, fed with a recording's changes.

Any part of the unsynced changes may be on the disk after a cut:

    contents   sector by sector (512 B), page by page (4 KiB) or write by write. A sector holds its content of some moment since
               its last sync; it never mixes two moments, and never holds older content than the synced one
    sizes      a file has a size that it had at some moment since its last sync. Data beyond it is lost; parts that were never
               written read as zeros
    names      a file, directory or link that was made, renamed or removed since its directory was synced may exist or not:
               each independently, or (as in a journal) the earlier ones without the later. A rename is atomic. Syncing a file
               does not promise its name

    a sync of a file       promises its size and contents when the sync began
    a sync of a directory  promises its names when the sync began
    an O_DSYNC write       promises itself and the size that it needs, once it has returned

Each cut draws how much is kept: nothing, everything, a random share, all but one piece, or one piece alone. Losing one piece
finds other defects than losing half of everything.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ebla.chaos.powercut.recording import events as e

SECTOR_BYTES = 512
PAGE_SECTORS = 8
LOCK_FILE = "lock.mdb"  # written through a memory map: its content is unknown, and no code may rely on it
INSTANCE_FILES = ("instance", "instance.new")  # they contain paths of directories

Tree = dict[int, dict[str, int]]


@dataclass
class Contents:
    """One file: its durable content, and later versions by sector, oldest first."""

    durable: bytearray = field(default_factory=bytearray)
    sectors: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.sizes[-1][1] if self.sizes else len(self.durable)

    def write(self, event: int, offset: int, data: bytes) -> None:
        stop = offset + len(data)
        for sector in range(offset // SECTOR_BYTES, -(-stop // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            low, high = max(offset, start), min(stop, start + SECTOR_BYTES)
            piece = data[low - offset : high - offset]
            if len(piece) < SECTOR_BYTES:
                old = self._newest(sector)
                piece = old[: low - start] + piece + old[high - start :]
            self.sectors.setdefault(sector, []).append((event, piece))
        if stop > self.size:
            self.sizes.append((event, stop))

    def truncate(self, event: int, size: int) -> None:
        for sector in range(size // SECTOR_BYTES, -(-self.size // SECTOR_BYTES)):
            kept = max(0, size - sector * SECTOR_BYTES)
            old = self._newest(sector)
            self.sectors.setdefault(sector, []).append((event, old[:kept].ljust(SECTOR_BYTES, b"\0")))
        self.sizes.append((event, size))

    def sync(self, covers: int) -> None:
        self._settle_size(covers)
        for sector in list(self.sectors):
            self._settle(sector, covers)

    def sync_write(self, event: int) -> None:
        self._settle_size(event + 1)
        for sector, versions in list(self.sectors.items()):
            if any(version == event for version, _ in versions):
                self._settle(sector, event + 1)

    def _settle_size(self, covers: int) -> None:
        settled = [size for event, size in self.sizes if event < covers]
        if settled:
            del self.durable[settled[-1] :]
            self.durable.extend(bytes(settled[-1] - len(self.durable)))
            self.sizes = self.sizes[len(settled) :]

    def _settle(self, sector: int, covers: int) -> None:
        versions = self.sectors[sector]
        settled = [piece for event, piece in versions if event < covers]
        if settled:
            place(self.durable, sector, settled[-1])
            if len(settled) == len(versions):
                del self.sectors[sector]
            else:
                self.sectors[sector] = versions[len(settled) :]

    def _newest(self, sector: int) -> bytes:
        if sector in self.sectors:
            return self.sectors[sector][-1][1]
        start = sector * SECTOR_BYTES
        return bytes(self.durable[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")


@dataclass
class Naming:
    """A change of names, and the directories that are not synced since."""

    event: int
    change: e.Made | e.Renamed | e.Removed
    unsynced: set[int]


class Platter:
    """The disk as of some event; `advance` applies further events."""

    def __init__(self, events: list[e.Event]) -> None:
        self.events = events
        self.at = 0
        self.files: dict[int, Contents] = {}
        self.links: dict[int, str] = {}
        self.tree: Tree = {0: {}}  # the durable names
        self.names: list[Naming] = []  # changes from the first one that is not durable

    def advance(self, to: int) -> None:
        for number in range(self.at, to):
            self._take(number, self.events[number])
        self.at = max(self.at, to)

    @property
    def unsynced(self) -> int:
        """The number of sectors and names that are not durable."""
        sectors = sum(len(file.sectors) for file in self.files.values())
        return sectors + sum(bool(naming.unsynced) for naming in self.names)

    def _take(self, number: int, event: e.Event) -> None:
        match event:
            case e.Write(node, offset, data):
                self.files[node].write(number, offset, data)
            case e.Truncate(node, size):
                self.files[node].truncate(number, size)
            case e.WriteThrough(write):
                written = self.events[write]
                assert isinstance(written, e.Write)
                self.files[written.node].sync_write(write)
            case e.Sync(node, covers):
                self._sync(node, covers)
            case e.Made(directory, _, node, kind, target):
                if kind == e.FILE:
                    self.files[node] = Contents()
                elif kind == e.LINK:
                    self.links[node] = target
                self.names.append(Naming(number, event, {directory}))
            case e.Renamed(directory, _, to_directory, _):
                self.names.append(Naming(number, event, {directory, to_directory}))
            case e.Removed(directory):
                self.names.append(Naming(number, event, {directory}))

    def _sync(self, node: int, covers: int) -> None:
        if node in self.files:
            self.files[node].sync(covers)
            return
        for naming in self.names:
            if naming.event < covers:
                naming.unsynced.discard(node)
        sure = 0
        while sure < len(self.names) and not self.names[sure].unsynced:
            rename(self.tree, self.names[sure].change)
            sure += 1
        del self.names[:sure]

    # -- a cut

    def cut(self, rng: random.Random) -> Image:
        """The remaining data, drawn by `rng`."""
        choice = Choice(rng, self)
        names = [
            naming for at, naming in enumerate(self.names) if not naming.unsynced or choice.keeps_name(at)
        ]
        return self._image(choice, names)

    def whole(self) -> Image:
        """The data as if everything had been synced, as a running system sees it."""
        return self._image(Choice(random.Random(0), self, keep=1.0), self.names)

    def _image(self, choice: Choice, changes: list[Naming]) -> Image:
        tree = {directory: dict(names) for directory, names in self.tree.items()}
        for naming in changes:
            rename(tree, naming.change)
        files = {
            node: choice.contents(node, self.files[node]) for node in _reachable(tree) if node in self.files
        }
        return Image(tree, files, self.links, choice)


class Choice:
    """The choice of unsynced changes that a cut keeps. `lost` counts lost sectors, sizes and names."""

    def __init__(self, rng: random.Random, platter: Platter, keep: float | None = None) -> None:
        self.rng = rng
        self.lost = 0
        self.grain = rng.choice(("sector", "sector", "page", "write"))
        self.keep = rng.choice((0.0, 0.0, 0.1, 0.5, 0.9, 1.0)) if keep is None else keep
        self.exception: tuple[int, int] | None = None  # one piece with the opposite fate
        self._drawn: dict[tuple[int, int], float] = {}
        if keep is None and self.keep in (0.0, 1.0) and rng.random() < 0.5:
            pieces = [
                self._unit(node, sector, versions[-1][0])
                for node, file in platter.files.items()
                for sector, versions in file.sectors.items()
            ]
            self.exception = rng.choice(pieces) if pieces else None
        self._names_until: int | None = None
        if keep is None and rng.random() < 0.5:
            sure = [at for at, naming in enumerate(platter.names) if not naming.unsynced]
            self._names_until = rng.randint(max(sure, default=-1), len(platter.names))

    def keeps_name(self, at: int) -> bool:
        kept = self.rng.random() < self.keep if self._names_until is None else at <= self._names_until
        self.lost += not kept
        return kept

    def contents(self, node: int, file: Contents) -> bytes:
        sizes = [len(file.durable), *(size for _, size in file.sizes)]
        size = sizes[-1] if self._keeps((node, -1)) else self.rng.choice(sizes)
        self.lost += size != sizes[-1]
        made = bytearray(file.durable)
        made.extend(bytes(max(0, max(sizes) - len(made))))
        for sector, versions in file.sectors.items():
            kept = self._kept(node, sector, versions)
            self.lost += kept < len(versions)
            if kept:
                place(made, sector, versions[kept - 1][1])
        del made[size:]
        return bytes(made)

    def _kept(self, node: int, sector: int, versions: list[tuple[int, bytes]]) -> int:
        """How many of the sector's versions reached the disk."""
        if self.grain == "write":
            kept = [at for at, (event, _) in enumerate(versions, 1) if self._keeps((node, event))]
            return kept[-1] if kept else 0
        unit = self._unit(node, sector, 0)
        return len(versions) if self._keeps(unit) else int(self._draw(unit) * len(versions) * (self.keep > 0))

    def _unit(self, node: int, sector: int, event: int) -> tuple[int, int]:
        if self.grain == "write":
            return node, event
        return node, sector // (PAGE_SECTORS if self.grain == "page" else 1)

    def _keeps(self, unit: tuple[int, int]) -> bool:
        if self.keep in (0.0, 1.0):
            return (self.keep == 1.0) != (unit == self.exception)
        return self._draw(unit) < self.keep

    def _draw(self, unit: tuple[int, int]) -> float:
        if unit not in self._drawn:
            self._drawn[unit] = self.rng.random()
        return self._drawn[unit]


@dataclass
class Image:
    """A directory tree that can be written to a disk."""

    tree: Tree
    files: dict[int, bytes]
    links: dict[int, str]
    choice: Choice

    def lay(self, root: Path, recorded: str) -> None:
        """Write the tree to `root`, an empty directory. Paths in it (links, data directories) are changed from `recorded`."""
        self._lay(root, 0, recorded.encode(), str(root).encode())

    def _lay(self, place_on_disk: Path, directory: int, old: bytes, new: bytes) -> None:
        for name, node in self.tree[directory].items():
            path = place_on_disk / name
            if node in self.files:
                path.write_bytes(self._contents(name, node, old, new))
            elif node in self.links:
                path.symlink_to(os.fsdecode(os.fsencode(self.links[node]).replace(old, new)))
            else:
                path.mkdir()
                self._lay(path, node, old, new)

    def _contents(self, name: str, node: int, old: bytes, new: bytes) -> bytes:
        data = self.files[node]
        if name == LOCK_FILE:
            return self.choice.rng.choice((bytes(len(data)), self.choice.rng.randbytes(len(data)), b""))
        return data.replace(old, new) if name in INSTANCE_FILES else data


def place(contents: bytearray, sector: int, piece: bytes) -> None:
    start = sector * SECTOR_BYTES
    stop = min(start + SECTOR_BYTES, len(contents))
    if start < stop:
        contents[start:stop] = piece[: stop - start]


def rename(tree: Tree, change: e.Made | e.Renamed | e.Removed) -> None:
    """Carry out a change of names, if the names that it needs exist."""
    names = tree.get(change.directory)
    if names is None:
        return
    if isinstance(change, e.Made):
        names[change.name] = change.node
        if change.kind == e.DIRECTORY:
            tree.setdefault(change.node, {})
    elif isinstance(change, e.Removed):
        names.pop(change.name, None)
    elif change.name in names and change.to_directory in tree:
        tree[change.to_directory][change.to_name] = names.pop(change.name)


def _reachable(tree: Tree) -> Iterator[int]:
    pending = [0]
    while pending:
        for node in tree[pending.pop()].values():
            yield node
            if node in tree:
                pending.append(node)
