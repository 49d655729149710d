"""The messages between ledger stores and their clients.

Every request names the store's uuid: a store that has lost its directory is another store, and must not answer for the one
before. It names the ledger's creation token as well.
"""

from __future__ import annotations

import struct

import crc32c
import msgspec

from ebla.actors.ledger.metadata import Metadata

_BOUND = struct.Struct(">QQqQ")


class Done(msgspec.Struct, frozen=True):
    """`leaving`: the store's host is being decommissioned; a writer puts another store in its place. `awaited`: a reader waits at this
    store for the next acknowledged entry of the ledger."""

    leaving: bool = False
    awaited: bool = False


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """`lac`: the last acknowledged entry when this one was made. `length`: bytes of all entries up to this one. `crc`: CRC-32C
    over all of it and the ledger's id."""

    entry: int
    lac: int
    length: int
    crc: int
    data: bytes

    def sound(self, ledger: int) -> bool:
        return self.crc == crc_of(ledger, self.entry, self.lac, self.length, self.data)


def crc_of(ledger: int, entry: int, lac: int, length: int, data: bytes) -> int:
    return int(crc32c.crc32c(data, crc32c.crc32c(_BOUND.pack(ledger, entry, lac, length))))


def make_entry(ledger: int, entry: int, lac: int, length: int, data: bytes) -> Entry:
    return Entry(entry, lac, length, crc_of(ledger, entry, lac, length, data), data)


class AddRequest(msgspec.Struct, frozen=True):
    """Store entries, in one commit. `recovery`: also if the ledger is fenced."""

    store: str
    ledger: int
    token: str
    entries: tuple[Entry, ...]
    recovery: bool = False


class ReadRequest(msgspec.Struct, frozen=True):
    """Read these entries, ascending. `fence`: refuse the writer's entries from now on, durably, before the answer."""

    store: str
    ledger: int
    token: str
    entries: tuple[int, ...]
    bytes_max: int
    fence: bool = False


class ReadReply(msgspec.Struct, frozen=True):
    """`entries`: those that are here. `absent`: those that this store surely never had. `damaged`: those that fail their
    checksum. The others were not looked for: the answer was full."""

    entries: tuple[Entry, ...]
    absent: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()


class TailRequest(msgspec.Struct, frozen=True):
    """Read the end of a ledger. `fence`: as in ReadRequest. `after`: list no entries up to this one. `poll_ms`: wait as long for
    an acknowledged entry after `after`."""

    store: str
    ledger: int
    token: str
    after: int = -1
    fence: bool = False
    poll_ms: int = 0


class Tail(msgspec.Struct, frozen=True):
    """`lac`: the greatest acknowledged entry that this store knows of. `held`: the entries here after it and after the request's
    `after`, as ascending ranges (first, last); at most HELD_MAX of them, the first ones. `fenced`: a recovery may have written some of them."""

    lac: int
    held: tuple[tuple[int, int], ...]
    fenced: bool = False

    @property
    def greatest(self) -> int:
        """The greatest entry that the store has, or knows to be acknowledged; if the tail is full, there may be greater ones."""
        return self.held[-1][1] if self.held else self.lac

    @property
    def full(self) -> bool:
        return len(self.held) == HELD_MAX


HELD_MAX = 1000


class ConfirmRequest(msgspec.Struct, frozen=True):
    """Everything up to `lac` is acknowledged: for readers, when no further entry tells them. Not synced. `closed`: the metadata says
    that the ledger is closed."""

    store: str
    ledger: int
    token: str
    lac: int
    closed: bool = False


class DeleteRequest(msgspec.Struct, frozen=True):
    """Delete the entries of a ledger that has been deleted from the metadata."""

    store: str
    ledger: int
    token: str


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A repair that a worker makes now: `looked` of `entries` are known to be where they belong; `copied_bytes` were copied, in
    `seconds`."""

    ledger: int
    looked: int
    entries: int
    copied_bytes: int
    seconds: float


class WorkerStatus(msgspec.Struct, frozen=True):
    """`bytes_per_s`: the bound of the copies of all tasks together; 0: none. Since the worker started: marks `repaired`, lost stores
    `moved` out of fragments, entries `copied`."""

    tasks: tuple[Task, ...]
    tasks_max: int
    bytes_per_s: int
    repaired: int = 0
    moved: int = 0
    copied: int = 0


class CheckRequest(msgspec.Struct, frozen=True):
    """Look whether these entries, ascending, are stored and sound, without sending them. `keys_only`: whether they are stored."""

    store: str
    ledger: int
    token: str
    entries: tuple[int, ...]
    keys_only: bool = False


class CheckReply(msgspec.Struct, frozen=True):
    """The store has looked at the first `checked` entries of the request, at least at one. `absent` and `damaged` as in
    ReadReply."""

    checked: int
    absent: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()


class CopyRequest(msgspec.Struct, frozen=True):
    """Look at these entries, ascending, and copy those that are missing or damaged from the ledger's other stores: one at least,
    further ones until there are `bytes_max`, or the store has taken its time. They are synced before the answer, in commits of about a
    megabyte."""

    store: str
    found: Metadata
    entries: tuple[int, ...]
    bytes_max: int


class CopyReply(msgspec.Struct, frozen=True):
    """The store has the first `done` entries of the request, sound; it has copied some of them."""

    done: int
    copied: int = 0
    copied_bytes: int = 0


class DropRequest(msgspec.Struct, frozen=True):
    """Delete the entries of a closed ledger whose segments do not name the store. Its promises stay, and a repair may store
    entries again. `sign`: as the store has listed it before this was decided."""

    store: str
    ledger: int
    token: str
    sign: str


class ListRequest(msgspec.Struct, frozen=True):
    """List ledgers of the store whose id is greater than `after`, ascending."""

    store: str
    after: int = -1
    limit: int = 1000


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """`stored`: the store has an entry of the ledger. `sign`: another one as soon as a repair may rely on entries here."""

    ledger: int
    token: str
    stored: bool
    sign: str


class ListReply(msgspec.Struct, frozen=True):
    """`more`: there are further ledgers after the last one."""

    ledgers: tuple[Listed, ...]
    more: bool


class StoreStatus(msgspec.Struct, frozen=True):
    """`ledgers`: with entries here. `read_only`: the store takes no new entries. `leaving`: its host is being decommissioned.
    `commit_waits_s`: the age of the oldest commit that its disk has not answered."""

    uuid: str
    seqno: int
    address: str
    ledgers: int
    fenced: int
    bytes: int
    free_bytes: int
    read_only: bool
    leaving: bool = False
    commit_waits_s: float = 0.0
