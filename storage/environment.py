"""The interface of a disk: environments of ordered byte maps with durable, atomic, grouped commits.

Two implementations behave alike (a stateful test compares them): `LmdbDisk` (storage/lmdb/disk.py) and
`MemoryDisk` (chaos/simulation/disk.py). The promises are those of LMDB:

    atomic     a commit's batch is in the environment as a whole or not at all
    durable    when `commit` returns, the batch survives a power cut; one in flight at a crash may or may not
    ordered    batches become visible in the order in which `commit` was called
    loud       a failed sync raises DiskFailed and poisons the environment for good; a full disk raises DiskFull
               and changes nothing; a missing environment that must exist is Damaged, never "new"

Records carry their own checksums, because LMDB does not notice rot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any, NamedTuple, Protocol, TypeVar

import msgspec

from ebla.storage.space import DiskSpace

T = TypeVar("T")

QUARANTINE = "quarantine"  # environments below it were moved; their identity may name the former path

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


JOINED_STEP = 256  # items between two checks of the size
SAMPLED = 16  # items of a step that are measured
# The distance between sampled items is no power of two, since rows of a table may have a period.
JOINED_STRIDE = 17
JOINED_LARGE = 2048  # bytes; larger items are measured one by one


class Reader(Protocol):
    """Reads of one consistent state. Keys and values are bytes copies."""

    def get(self, database: str, key: bytes) -> bytes | None: ...

    def get_many(self, database: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """One entry per key, in order."""

    def look(self, database: str, keys: Sequence[bytes], work: Callable[[int, Any], T]) -> list[T | None]:
        """For each key the result of `work` with its place in `keys` and the value as a buffer, where it lies if possible; None
        if there is no value. The buffer is valid only during the call."""

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

    def keys(
        self, database: str, start: bytes = b"", stop: bytes | None = None, *, limit: int | None = None
    ) -> list[bytes]:
        """As `items`, without the values, which are not read."""

    def joined(
        self,
        database: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int,
        bytes_max: int | None = None,
    ) -> tuple[list[bytes], bytes | None]:
        """Ascending `key + value` of up to `limit` items, and the key to continue from (None at the end).

        With `bytes_max` the result ends early, at about that size: see `within`. Bulk scans use this form: one bytes
        object per row, made without Python code per row.
        """

    def last(self, database: str, stop: bytes | None = None) -> Item | None:
        """The greatest item with key < stop, or of the whole database."""

    def around(self, database: str, keys: Sequence[bytes]) -> list[tuple[Item | None, Item | None]]:
        """For each key: the last item below it, and the first item at or above it."""

    def count(self, database: str) -> int: ...


class Snapshot(Reader, Protocol):
    """A pinned state. It delays page reuse and map growth: close it soon, or it expires (SnapshotExpired)."""

    def close(self) -> None: ...


class Stream(Protocol):
    """All of an environment as of one moment, as about `size_bytes` bytes that `Disk.receive` takes. It delays page
    reuse, so close it soon; closing the environment closes it."""

    size_bytes: int

    async def read(self, size: int) -> bytes:
        """At most `size` bytes; fewer at the end, then none. One call at a time. Raises StorageError if the stream breaks
        off, which may be damage; SnapshotExpired once it is closed. Damage that does not prevent reading is copied and
        found by the reader of the copy."""

    def close(self) -> None: ...


class Receiver(Protocol):
    """An environment that arrives. Its path does not exist before `finish` returns. One call at a time."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self, databases: Sequence[str]) -> None:
        """Make the written bytes a closed environment of this disk, durably. Raises Damaged unless it is complete, had the
        same path and these databases, and every sealed row is good. Other records are not checked."""

    async def abort(self) -> None:
        """Leave nothing. A no-op after `finish`, however that ended."""


class Environment(Reader, Protocol):
    """One LMDB environment. Each of its own reads sees the newest committed state.

    `directory` is its place on this host, for readers in other processes; `path` is relative to the role's directory. Reads
    and commits set `used`; only the owner sets it to False. One that is not `mapped` takes no descriptors and no memory.
    """

    path: str
    directory: str
    used: bool
    mapped: bool

    async def commit(self, batch: Batch) -> None:
        """Durable when it returns. Concurrent commits share one sync (group commit), in call order."""

    def snapshot(self, *, views: bool = False) -> Snapshot:
        """`views`: `look` shows items where they lie. Such a snapshot has only `get` and `look`."""

    async def stream(self) -> Stream:
        """Stream everything committed before the call. Commits during the call may be included."""

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run CPU-heavy `work` beside the event loop (in line in simulation). It must not touch role state."""

    def check(self) -> None:
        """Raise if it is closed, or its disk has failed or is lost."""

    def unmap(self) -> None:
        """Give back descriptors and memory soon, until the next use, which takes them again. A no-op while a snapshot is
        open."""

    async def reserve(self, bytes_wanted: int) -> None:
        """Map enough address space for records of `bytes_wanted` bytes. Growing the map later would expire open
        snapshots. The file does not grow. Only for this incarnation. Waits for the commits before it."""

    def size_bytes(self) -> int: ...

    async def close(self) -> None:
        """Wait for commits under way, then close. Later calls raise."""


def within(
    found: Iterator[T], limit: int | None, bytes_max: int, size: Callable[[T], int], *, large: bool = True
) -> list[T]:
    """The first items of `found`, up to `limit`, or until their total size is about `bytes_max`.

    The size of a large item is added at once. The size of other items is estimated from a sample after each JOINED_STEP, so
    the result may end a little early or late. `large` False promises that there are no large items.
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
    """The owner of a role directory. `uuid` is made when the directory is formatted and never changes; `seqno` grows by
    one at every start, and by `raise_seqno` in between."""

    uuid: str
    seqno: int
    created: bool


class SetAside(msgspec.Struct, frozen=True):
    """A role directory that was given up: its present path, the reason, and its uuid."""

    path: str
    reason: str
    uuid: str


class Outside(Protocol):
    """Files of the host outside the role's directory, written for an operator: never synced, locked or read again. Paths are
    absolute. Failures are OSErrors."""

    def make(self, directory: str) -> list[str]:
        """Make the directory if it does not exist, and return the names in it."""

    def create(self, path: str) -> IO[bytes]: ...

    def remove(self, path: str) -> None:
        """Absent is no error."""


class Disk(Protocol):
    """A role's directory (or directories), locked for this incarnation's life."""

    @property
    def outside(self) -> Outside:
        """The host's other files."""

    async def open_instance(self, new_uuid: str) -> Instance:
        """Lock the directory, format it if it does not exist at all, count this incarnation durably.

        Raises DirectoryLocked, Damaged (unreadable, or a data directory of another instance), DiskFailed (poisoned by an
        earlier failed sync), OldCopy (given up).
        """

    async def raise_seqno(self, by: int) -> int:
        """Return the new number of this incarnation, which is durable."""

    async def give_up(self, reason: str) -> bool:
        """Mark the directory as an old copy of itself, durably: no start uses it again. Return False and mark nothing if
        this incarnation no longer holds the directory."""

    async def open_environment(
        self, path: str, databases: Sequence[str], *, create: bool, map_bytes: int = 1 << 30
    ) -> Environment:
        """Open `path` (relative to the role directory), such as `wals/shared`.

        `create=True` makes it atomically if absent (beside, sync, rename, sync parent); `create=False` on an
        absent one raises Damaged. `map_bytes` is the initial size of the map, which grows without a restart.
        """

    async def receive(self, path: str, sealed: Mapping[str, int] | None = None) -> Receiver:
        """Take the bytes of a `Stream` of an environment that had this path on another disk. Raises StorageError if it
        exists, or is already being received. `sealed`: databases whose items are rows with checksums, with their seeds."""

    def exists(self, path: str) -> bool: ...

    def directories(self, path: str) -> list[str]:
        """Names directly under `path` of directories that contain environments, sorted."""

    def list(self, path: str) -> list[str]:
        """Names of the environments directly under `path`, sorted."""

    async def remove(self, path: str) -> None:
        """Remove an environment (closed before) durably. Absent is no error."""

    async def move(self, path: str, to: str) -> None:
        """Rename a closed environment to a path under `quarantine/`, durably. An interrupted move is finished by a second
        call, which is a no-op if only `to` exists. Until then opening `path` raises Damaged. After the move a new
        environment may have the old path.

        Raises StorageError if both paths exist, Damaged if neither does.
        """

    def lost_data_dirs(self) -> dict[str, str]:
        """The data directories whose disks are lost, with reasons. Environments on them raise DataDiskFailed, at once or
        when they are opened; they can be removed and moved."""

    def takes_data(self) -> bool:
        """Whether a new environment under `data/` has a place: not if every data directory is lost."""

    def set_aside(self) -> SetAside | None:
        """The directory that this one replaced, as long as it exists."""

    def size_bytes(self, path: str = "") -> int:
        """Bytes occupied by everything under `path`, or by the whole disk."""

    async def used_bytes(self) -> int:
        """Bytes occupied by the whole disk, measured without blocking: a disk that hangs counts with its last value."""

    async def space(self) -> Sequence[DiskSpace]:
        """Free space of the role's directory, then of each data disk that is not lost; a hanging disk as in `used_bytes`."""

    def place_of(self, path: str) -> str:
        """The directory of the disk that has an environment: a wait for one disk must not delay the others."""

    async def close(self) -> None:
        """Close every environment and release the lock."""
