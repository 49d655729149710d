"""What storage asks of a disk: environments of ordered byte maps with durable, atomic, grouped commits.

Two implementations answer alike (a stateful test compares them): `LmdbDisk` (storage/lmdb/disk.py) and
`MemoryDisk` (chaos/simulation/disk.py). The promises are LMDB's, nothing more:

    atomic     a commit's batch is in the environment wholly or not at all
    durable    when `commit` returns, the batch survives a power cut; one in flight at a crash may or may not
    ordered    batches become visible in the order in which `commit` was called
    loud       a failed sync raises DiskFailed and poisons the environment for good; a full disk raises DiskFull
               and changes nothing; a missing environment that must exist is Damaged, never "new"

Records carry their own checksums (the layouts' business): LMDB does not notice rot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ebla.storage.outside import Outside
from ebla.storage.space import DiskSpace

T = TypeVar("T")

QUARANTINE = "quarantine"  # what lies under it was moved there, and may bear the name that it had before

Item = tuple[bytes, bytes]


class Put(NamedTuple):
    """Set every key of `items` to its value. `sorted_keys` promises ascending keys (a faster path)."""

    database: str
    items: Sequence[Item]
    sorted_keys: bool = False


class Delete(NamedTuple):
    """Remove the keys; a missing key is no error."""

    database: str
    keys: Sequence[bytes]


class DeleteRange(NamedTuple):
    """Remove start <= key < stop; `stop` None means to the end."""

    database: str
    start: bytes
    stop: bytes | None


Change = Put | Delete | DeleteRange
Batch = Sequence[Change]


JOINED_STEP = 256  # items between two looks at the size of what was read
SAMPLED = 16  # items of a step that stand for the others
# From each of them to the next: no power of two, since rows of a table may well have a period.
JOINED_STRIDE = 17
JOINED_LARGE = 2048  # bytes; larger items are looked at one by one


class Reader(Protocol):
    """Reads of one consistent state. Keys and values are bytes copies."""

    def get(self, database: str, key: bytes) -> bytes | None: ...

    def get_many(self, database: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """One entry per key, in order."""

    def items(
        self,
        database: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Item]:
        """Ascending items with start <= key < stop, at most `limit`; `bytes_max` as in `joined`."""

    def joined(
        self,
        database: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int,
        bytes_max: int | None = None,
    ) -> tuple[list[bytes], bytes | None]:
        """Ascending `key + value` of up to `limit` items, and the key to go on from (None at the end).

        With `bytes_max` it ends early, where the items together are about as large: see `within`.
        The form that bulk scans want: one bytes object a row, made without Python code per row.
        """

    def last(self, database: str, stop: bytes | None = None) -> Item | None:
        """The greatest item with key < stop (or of all)."""

    def around(self, database: str, keys: Sequence[bytes]) -> list[tuple[Item | None, Item | None]]:
        """Of each key: the item in front of its place, and the one at or behind it."""

    def count(self, database: str) -> int: ...


class Snapshot(Reader, Protocol):
    """A pinned state. It holds back page reuse and map growth, so it is closed soon, or expires (SnapshotExpired)."""

    def close(self) -> None: ...


class Stream(Protocol):
    """All of an environment as of one moment, as bytes that `Disk.receive` takes: about `size_bytes` of them. It holds back page
    reuse, so it is closed soon; closing the environment closes it."""

    size_bytes: int

    async def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end, none behind it. One call at a time. Raises StorageError if it breaks off, which may be damage
        (what does not keep it from being read is copied, and found by who reads the copy); SnapshotExpired once it is closed."""

    def close(self) -> None: ...


class Receiver(Protocol):
    """An environment that arrives. Nothing has its name before `finish` returns. One call at a time."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self, databases: Sequence[str]) -> None:
        """All of it has been written: durably it is an environment of this disk's, closed. Raises Damaged unless it is whole
        and was one of the same path with these databases, and every sealed row is good. Nobody has looked at other records."""

    async def abort(self) -> None:
        """Leave nothing. After `finish`, no matter how that ended, there is nothing to do."""


class Environment(Reader, Protocol):
    """One LMDB environment. Its own reads see the newest committed state, each call on its own.

    `directory` is where it lies on this host, for readers in other processes; `path` is relative to the role's.
    """

    path: str
    directory: str

    async def commit(self, batch: Batch) -> None:
        """Durable when it returns. Concurrent commits share one sync (group commit), in call order."""

    def snapshot(self) -> Snapshot: ...

    async def stream(self) -> Stream:
        """Everything that is committed when this is called; what is committed before it returns may be in it or not."""

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run CPU-heavy `work` beside the event loop (in line in simulation). It must not touch role state."""

    async def reserve(self, bytes_wanted: int) -> None:
        """Take so much address space now that records of so many bytes are committed without a larger map, which open
        snapshots do not outlive. The file stays as it is. Only for this incarnation."""

    def size_bytes(self) -> int: ...

    async def close(self) -> None:
        """Wait for commits under way, then close. Later calls raise."""


def within(
    found: Iterator[T], limit: int | None, bytes_max: int, size: Callable[[T], int], *, large: bool = True
) -> list[T]:
    """The first of `found`, up to `limit`, or until they are together about as large as `bytes_max`.

    A large item counts, and may be the last, at once. The others are looked at after each JOINED_STEP, by sample, so
    they may end a little early or late. `large` False promises that there are none, and spares a look at each.
    """
    taken: list[T] = []
    total = 0
    while total < bytes_max and (limit is None or len(taken) < limit):
        begun = len(taken)
        some = islice(found, JOINED_STEP if limit is None else min(JOINED_STEP, limit - begun))
        if large:
            for item in some:
                taken.append(item)
                if (alone := size(item)) > JOINED_LARGE:
                    total += alone
                    if total >= bytes_max:
                        return taken
        else:
            taken += some
        if len(taken) < begun + JOINED_STEP:
            break
        sample = map(size, taken[begun::JOINED_STRIDE])
        total += JOINED_STEP // SAMPLED * sum(each for each in sample if each <= JOINED_LARGE)
    return taken


class Instance(NamedTuple):
    """Who owns a role directory. `uuid` is made when the directory is formatted and never changes; `seqno` grows by
    one at every start, and by `raise_seqno` in between."""

    uuid: str
    seqno: int
    created: bool


class SetAside(msgspec.Struct, frozen=True):
    """A role directory that was given up: where it is now, why, and the uuid that it had."""

    path: str
    reason: str
    uuid: str


class Disk(Protocol):
    """A role's directory (or directories), locked for this incarnation's life."""

    @property
    def outside(self) -> Outside:
        """The host's other files."""

    async def open_instance(self, new_uuid: str) -> Instance:
        """Lock the directory, format it if it does not exist at all, count this incarnation durably.

        Raises DirectoryLocked, Damaged (exists but unreadable, or a data directory that is another's), DiskFailed (poisoned by an earlier failed sync), OldCopy
        (given up).
        """

    async def raise_seqno(self, by: int) -> int:
        """The new number of this incarnation, durable when it returns."""

    async def give_up(self, reason: str) -> bool:
        """Mark the directory as an old copy of itself, durably: no start uses it again. False, and nothing is marked, if
        this incarnation does not hold it any more: then it is another's."""

    async def open_environment(
        self, path: str, databases: Sequence[str], *, create: bool, map_bytes: int = 1 << 30
    ) -> Environment:
        """Open `path` (relative to the role directory), such as `wals/shared`.

        `create=True` makes it atomically if absent (beside, sync, rename, sync parent); `create=False` on an
        absent one raises Damaged. `map_bytes` is only the first size of the map; it grows without a restart.
        """

    async def receive(self, path: str, sealed: Mapping[str, int] | None = None) -> Receiver:
        """Take the bytes of a `Stream` of an environment that had this path on another disk. Raises StorageError if one is
        there, or arrives already. `sealed`: databases whose items are rows with checksums, and the seed of these."""

    def exists(self, path: str) -> bool: ...

    def directories(self, path: str) -> list[str]:
        """Names directly under `path` of what is no environment and leads to some, sorted."""

    def list(self, path: str) -> list[str]:
        """Names of the environments directly under `path`, sorted."""

    async def remove(self, path: str) -> None:
        """Remove an environment (closed before) durably. Absent is no error."""

    async def move(self, path: str, to: str) -> None:
        """Give a closed environment a name under `quarantine/`, durably. Interrupted anywhere it is finished by being
        called again, and if only `to` is there, it is done already; until it is, whoever opens `path` is told that it is
        damaged. A new environment may have the old name at once.

        Raises StorageError if there are both, Damaged if there is neither.
        """

    def lost_data_dirs(self) -> dict[str, str]:
        """The data directories whose disks are lost, and why. Environments on them raise DataDiskFailed, at once or when they
        are opened; they can be removed and moved."""

    def takes_data(self) -> bool:
        """Whether there is a place for a new environment under `data/`: not if every data directory is lost."""

    def set_aside(self) -> SetAside | None:
        """The directory in whose place this one was made, for as long as it lies there."""

    def size_bytes(self, path: str = "") -> int:
        """What everything under `path` occupies, or all there is."""

    async def used_bytes(self) -> int:
        """All there is, measured without holding anybody up: a disk that hangs counts as it did before."""

    async def space(self) -> Sequence[DiskSpace]:
        """What is left on the disk of the role's directory, then on each data disk that is not lost; likewise."""

    def place_of(self, path: str) -> str:
        """Which disk an environment is on, by its directory: who waits for one disk must not hold up the others."""

    async def close(self) -> None:
        """Close every environment and release the lock."""
